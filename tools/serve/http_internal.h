/* tools/serve/http_internal.h -- listening, and the checks of a request's line and headers, before its body is read. */
#ifndef VB_SERVE_HTTP_INTERNAL_H
#define VB_SERVE_HTTP_INTERNAL_H

#include <microhttpd.h>

#include "tools/serve/serve.h"

enum http_route {
    ROUTE_PAGE,
    ROUTE_HEALTH,
    ROUTE_VERSION,
    ROUTE_METRICS,
    ROUTE_MODELS,
    ROUTE_TOKENIZER_INFO,
    ROUTE_COMPLETIONS,
    ROUTE_CHAT,
    ROUTE_TOKENIZE,
    ROUTE_DETOKENIZE,
    ROUTE_APPLY_TEMPLATE,
    ROUTE_PREFLIGHT,
    ROUTE_NONE
};

/* Returns the route of a request. Checks, in this order: path, method, the header Host, the API key, Content-Type,
 * Content-Length, and whether the model is open. If a check fails, fills *f and returns ROUTE_NONE. With --cors,
 * returns ROUTE_PREFLIGHT for OPTIONS requests whose path is known, without other checks. */
enum http_route http_check(struct MHD_Connection *connection, const struct server *server, const char *path,
                           const char *method, struct failure *f);
/* Adds the headers that do not depend on the body of the answer. f: why the request is refused, or NULL. Returns 0 if
 * memory is missing. */
int http_add_headers(struct MHD_Response *response, const struct server *server, const char *path,
                     const struct failure *f);
/* Returns the value of the header Content-Length, or 0 if there is no such header. */
unsigned long long http_body_size(struct MHD_Connection *connection);
/* Returns a socket that listens on this host and port. After an error, fills *f and returns -1. */
int http_listen(const char *host, int port, struct failure *f);
int http_port_of(int fd);
int http_is_loopback(int fd);

#endif
