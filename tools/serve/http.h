/* tools/serve/http.h -- HTTP: routes, limits, keys, and the connections of jobs. */
#ifndef VB_SERVE_HTTP_H
#define VB_SERVE_HTTP_H

#include "tools/serve/serve.h"

struct http;

/* Listens. While the server's state is SERVER_OPENING every request but /version is told 503. Reports errors. *port is the port that it
 * listens on. */
int http_open(struct http **out, struct server *server, int *port);
/* Waits until every answer that is due was sent. */
void http_drain(struct http *h);
void http_close(struct http *h);
/* What this build cannot do, in one sentence; NULL: it can. */
const char *http_missing(void);

#endif
