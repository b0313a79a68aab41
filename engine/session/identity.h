/* engine/session/identity.h -- describes a model in text. A comparison of two descriptions checks that a saved session
 * is loaded with the model that computed it.
 *
 * The description does not contain forced routes: a file has a line of its own for those of its rows
 * (engine/session/load.c).
 *
 * A description consists of lines KEY=VALUE. Descriptions are compared line by line, so an error message can name the
 * first line that differs. */
#ifndef VB_SESSION_IDENTITY_H
#define VB_SESSION_IDENTITY_H

#include "engine/pass/session_file.h"
#include "engine/model/model.h"

/* Returns the description of m. The memory comes from the model's allocator, and the caller frees it. Returns NULL if
 * there is no memory. The description contains every value of config.json that affects results, the precision, the
 * cache type if it is not f32, the target's conventions, whether YaRN applies, and the checkpoint_fingerprint of the
 * weights. With convention yarn=max-len, the number `context` decides whether YaRN applies. */
char *session_identity(const struct vb_model *m, size_t context);

/* Compares two descriptions: `saved`, read from the file `path`, and `ours`, made for m. Returns VB_BAD_ARGUMENT if
 * they differ, and the message contains the first line that differs. */
int session_identity_compare(const char *saved, const char *ours, const struct vb_model *m, const char *path,
                             vb_error *err);

#endif
