/* engine/session/identity.h -- what a model must have in common with the one that computed a saved session, as lines KEY=VALUE
 * that are compared as text, so that a refusal can name the first that differs. */
#ifndef VB_SESSION_IDENTITY_H
#define VB_SESSION_IDENTITY_H

#include "engine/pass/session_file.h"
#include "engine/model/model.h"

/* Every value of config.json that this program reads; precision; the target's conventions; whether YaRN is in force, which
 * convention yarn=max-len makes a matter of the session's context; and checkpoint_fingerprint of the weights.
 * In memory of the model's allocator; NULL without memory. */
char *session_identity(const struct model *m, size_t context);

/* VB_BAD_ARGUMENT with the first line in which they differ; `ours` is m's, `path` names the file that `saved` is from. */
int session_identity_compare(const char *saved, const char *ours, const struct model *m, const char *path, vb_error *err);

#endif
