/* tools/serve/http_internal.h -- what is decided from a request's head. */
#ifndef VB_SERVE_HTTP_INTERNAL_H
#define VB_SERVE_HTTP_INTERNAL_H

#include <microhttpd.h>

#include "tools/serve/serve.h"

enum http_route {
    ROUTE_HEALTH, ROUTE_VERSION, ROUTE_METRICS, ROUTE_MODELS, ROUTE_TOKENIZER_INFO, ROUTE_COMPLETIONS, ROUTE_CHAT, ROUTE_TOKENIZE,
    ROUTE_DETOKENIZE, ROUTE_APPLY_TEMPLATE, ROUTE_PREFLIGHT, ROUTE_NONE
};

/* Finds the route and checks, in this order: path, method, Host, key, Content-Type, Content-Length, and whether the model is open. What
 * is wrong is in *f. */
enum http_route http_check(struct MHD_Connection *connection, const struct server *server, const char *path, const char *method, struct failure *f);
/* The headers that every answer has. Returns 0 without memory. */
int http_add_headers(struct MHD_Response *response, const struct server *server, const char *path, const struct failure *f);
/* Content-Length as it was sent; 0: none. */
unsigned long long http_body_size(struct MHD_Connection *connection);
/* The host and port that --host and --port name, listening; -1: *f says why not. */
int http_listen(const char *host, int port, struct failure *f);
int http_port_of(int fd);
int http_is_loopback(int fd);

#endif
