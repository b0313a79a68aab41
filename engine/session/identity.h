/* engine/session/identity.h -- describes a model, to check that a saved session is loaded with the model that computed
 * it.
 *
 * The description is lines KEY=VALUE, which are compared as text. So an error can name the first line that differs. */
#ifndef VB_SESSION_IDENTITY_H
#define VB_SESSION_IDENTITY_H

#include "engine/pass/session_file.h"
#include "engine/model/model.h"

/* Returns the description, in memory from the model's allocator, which the caller frees; NULL if there is no memory.
 * The description has every value of config.json that affects results, the precision, the target's conventions, whether
 * YaRN applies, and checkpoint_fingerprint of the weights. With convention yarn=max-len, the session's context decides
 * whether YaRN applies. */
char *session_identity(const struct model *m, size_t context);

/* Compares two descriptions: `saved`, read from the file `path`, and `ours`, made for m. If they differ, it returns
 * VB_BAD_ARGUMENT, and the error has the first line that differs. */
int session_identity_compare(const char *saved, const char *ours, const struct model *m, const char *path, vb_error *err);

#endif
