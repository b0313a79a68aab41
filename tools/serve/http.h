/* tools/serve/http.h -- the HTTP server: it accepts connections, checks requests, starts jobs and sends answers. */
#ifndef VB_SERVE_HTTP_H
#define VB_SERVE_HTTP_H

#include "tools/serve/serve.h"

struct http;

/* Starts to listen, and sets *port to the number of the port. Reports errors (see tools/cli/cli.h). While the server's
 * state is SERVER_OPENING, /version is answered, and requests that need the model get status 503. */
int http_open(struct http **out, struct server *server, int *port);
/* Waits until the answers to all requests have been sent completely. */
void http_drain(struct http *h);
void http_close(struct http *h);
/* Returns NULL if this build has an HTTP server. Otherwise returns a sentence that says why it has none. */
const char *http_missing(void);

#endif
