/* tools/serve/http_check.c -- sockets, and what is decided from a request's head. */
#ifdef HAVE_MICROHTTPD
#include "tools/serve/http_internal.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEND_BUFFER (256 << 10) /* bytes of an answer that the kernel holds for a slow reader; connections inherit it */

/* ---- listening --------------------------------------------------------------------------------------------------- */

static int listen_at(const struct addrinfo *at)
{
    int yes = 1, room = SEND_BUFFER, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) ||
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room) || bind(fd, at->ai_addr, at->ai_addrlen) ||
        listen(fd, 511)) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

int http_listen(const char *host, int port, struct failure *f)
{
    char number[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *all = NULL;
    snprintf(number, sizeof number, "%d", port);
    int error = getaddrinfo(host, number, &hints, &all), fd = -1;
    if (error) {
        fail_with(f, 500, NULL, "", "--host %.128s: %s", host, gai_strerror(error));
        return -1;
    }
    for (const struct addrinfo *at = all; at && fd < 0; at = at->ai_next)
        fd = listen_at(at);
    if (fd < 0)
        fail_with(f, 500, NULL, "", "%.128s, port %d: %s", host, port, strerror(errno));
    freeaddrinfo(all);
    return fd;
}

static int address_of(int fd, struct sockaddr_storage *address)
{
    socklen_t size = sizeof *address;
    memset(address, 0, sizeof *address);
    return !getsockname(fd, (struct sockaddr *)address, &size);
}

int http_port_of(int fd)
{
    struct sockaddr_storage a;
    if (!address_of(fd, &a))
        return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

int http_is_loopback(int fd)
{
    struct sockaddr_storage a;
    if (!address_of(fd, &a))
        return 0;
    if (a.ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&a)->sin6_addr);
    return a.ss_family == AF_INET && ntohl(((struct sockaddr_in *)&a)->sin_addr.s_addr) >> 24 == 127;
}

/* ---- routes ------------------------------------------------------------------------------------------------------ */

/* is_open: without a key */
static const struct {
    const char *path;
    int is_post, is_open;
} routes[] = {
    [ROUTE_PAGE] = {"/", 0, 1},
    [ROUTE_HEALTH] = {"/health", 0, 1},
    [ROUTE_VERSION] = {"/version", 0, 0},
    [ROUTE_METRICS] = {"/metrics", 0, 0},
    [ROUTE_MODELS] = {"/v1/models", 0, 0},
    [ROUTE_TOKENIZER_INFO] = {"/tokenizer_info", 0, 0},
    [ROUTE_COMPLETIONS] = {"/v1/completions", 1, 0},
    [ROUTE_CHAT] = {"/v1/chat/completions", 1, 0},
    [ROUTE_TOKENIZE] = {"/tokenize", 1, 0},
    [ROUTE_DETOKENIZE] = {"/detokenize", 1, 0},
    [ROUTE_APPLY_TEMPLATE] = {"/apply-template", 1, 0},
};
#define NUM_ROUTES (sizeof routes / sizeof *routes)

static enum http_route route_of(const char *path)
{
    for (size_t i = 0; i < NUM_ROUTES; i++)
        if (!strcmp(routes[i].path, path) || (i == ROUTE_MODELS && !strncmp(path, "/v1/models/", 11) && path[11]))
            return (enum http_route)i;
    return ROUTE_NONE;
}

static int check_path(enum http_route route, const char *path, const char *method, struct failure *f)
{
    if (route == ROUTE_NONE && !strcmp(path, "/v1/responses"))
        return fail_with(f, 404, NULL, "",
                         "this server has no /v1/responses; it has /v1/chat/completions and /v1/completions");
    if (route == ROUTE_NONE)
        return fail_with(f, 404, NULL, "", "there is nothing at %.128s", path);
    int fits = routes[route].is_post ? !strcmp(method, "POST") : !strcmp(method, "GET") || !strcmp(method, "HEAD");
    return fits ? 0
                : fail_with(f, 405, NULL, "", "%.64s takes %s, not %.16s", routes[route].path,
                            routes[route].is_post ? "POST" : "GET", method);
}

/* ---- who asks ---------------------------------------------------------------------------------------------------- */

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

/* A page of another site can make a browser ask us by a name that it resolves to this machine. So without a key the
 * name has to be an address, localhost, or what --host says. */
static int check_host(struct MHD_Connection *connection, const struct server *s, struct failure *f)
{
    const char *given = header(connection, "Host");
    char host[256];
    unsigned char address[16];
    if (!given || s->key)
        return 0;
    snprintf(host, sizeof host, "%s", given);
    char *colon = strrchr(host, ':'), *bracket = strchr(host, ']');
    if (colon && (!bracket || colon > bracket) && (*host == '[' || strchr(host, ':') == colon))
        *colon = '\0';
    if (*host == '[' && bracket) {
        *bracket = '\0';
        if (inet_pton(AF_INET6, host + 1, address) == 1)
            return 0;
    }
    if (inet_pton(AF_INET, host, address) == 1 || !strcasecmp(host, "localhost") ||
        (s->c->host && !strcasecmp(host, s->c->host)))
        return 0;
    return fail_with(f, 403, NULL, "",
                     "the header Host is %.128s, which is not this server; with --api-key-file any name will do",
                     given);
}

/* Takes the same time wherever the two differ. */
static int same_key(const struct server *s, const char *given)
{
    size_t size = strlen(given);
    unsigned different = size != s->key_size;
    for (size_t i = 0; i < size; i++)
        different |= (unsigned)((unsigned char)given[i] ^ (unsigned char)s->key[i % s->key_size]);
    return !different;
}

static int check_key(struct MHD_Connection *connection, const struct server *s, struct failure *f)
{
    const char *given = header(connection, "Authorization");
    if (!s->key)
        return 0;
    if (given && !strncasecmp(given, "Bearer ", 7) && same_key(s, given + 7))
        return 0;
    return fail_with(f, 401, "invalid_api_key", "",
                     given ? "the API key is wrong" : "an API key is missing: Authorization: Bearer KEY");
}

unsigned long long http_body_size(struct MHD_Connection *connection)
{
    const char *given = header(connection, "Content-Length");
    return given ? strtoull(given, NULL, 10) : 0;
}

static int check_body(struct MHD_Connection *connection, struct failure *f)
{
    const char *type = header(connection, "Content-Type");
    size_t size = strlen("application/json");
    if (!type || strncasecmp(type, "application/json", size) || (type[size] && type[size] != ';' && type[size] != ' '))
        return fail_with(f, 415, NULL, "", "Content-Type is %.64s, wanted application/json", type ? type : "missing");
    if (http_body_size(connection) > SERVE_MOST_BODY)
        return fail_with(f, 413, NULL, "", "the body has %llu bytes, wanted at most %zu", http_body_size(connection),
                         SERVE_MOST_BODY);
    return 0;
}

static int check_state(enum http_route route, const struct server *s, struct failure *f)
{
    int state = atomic_load(&s->state);
    if (route == ROUTE_PAGE || route == ROUTE_HEALTH || route == ROUTE_VERSION || state == SERVER_READY ||
        (route == ROUTE_METRICS && state == SERVER_STOPPING))
        return 0;
    return fail_with(f, 503, NULL, "",
                     state == SERVER_OPENING ? "the model is being opened"
                                             : "the server is stopping and takes no new requests");
}

enum http_route http_check(struct MHD_Connection *connection, const struct server *s, const char *path,
                           const char *method, struct failure *f)
{
    enum http_route route = route_of(path);
    if (s->c->cors && route != ROUTE_NONE && !strcmp(method, "OPTIONS"))
        return ROUTE_PREFLIGHT;
    if (check_path(route, path, method, f) || check_host(connection, s, f) ||
        (!routes[route].is_open && check_key(connection, s, f)) || (routes[route].is_post && check_body(connection, f)))
        return ROUTE_NONE;
    return check_state(route, s, f) ? ROUTE_NONE : route;
}

/* ---- every answer ------------------------------------------------------------------------------------------------ */

int http_add_headers(struct MHD_Response *r, const struct server *s, const char *path, const struct failure *f)
{
    enum http_route route = route_of(path);
    int added = MHD_add_response_header(r, "X-Content-Type-Options", "nosniff") == MHD_YES;
    if (s->c->cors)
        added &= MHD_add_response_header(r, "Access-Control-Allow-Origin", s->c->cors) == MHD_YES &&
                 MHD_add_response_header(r, "Access-Control-Allow-Headers", "authorization, content-type") == MHD_YES &&
                 MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS") == MHD_YES &&
                 MHD_add_response_header(r, "Vary", "Origin") == MHD_YES;
    if (f && f->status == 405 && route != ROUTE_NONE)
        added &= MHD_add_response_header(r, "Allow", routes[route].is_post ? "POST" : "GET, HEAD") == MHD_YES;
    if (f && f->status == 401)
        added &= MHD_add_response_header(r, "WWW-Authenticate", "Bearer") == MHD_YES;
    if (f && (f->status == 429 || f->status == 503))
        added &= MHD_add_response_header(r, "Retry-After", "1") == MHD_YES;
    if (f && (f->status == 413 || f->status == 503))
        added &= MHD_add_response_header(r, "Connection", "close") == MHD_YES;
    return added;
}
#endif
