/* tools/serve/fingerprint.h -- the value of system_fingerprint: a name for everything that answers depend on besides
 * the request. */
#ifndef VB_SERVE_FINGERPRINT_H
#define VB_SERVE_FINGERPRINT_H

#include "tools/serve/serve.h"

/* Fills s->fingerprint. The model is open, and the sizes and the drafting of the server are chosen. Reads all weights
 * unless `--fingerprint sample` is given. Returns EXIT_DONE, or reports an error and returns its exit status. */
int fingerprint_server(struct server *s);

#endif
