/* tools/serve/http.c -- connections: a request's body comes in, an answer or a stream of events goes out. */
#include "tools/serve/http.h"

#ifndef HAVE_MICROHTTPD
const char *http_missing(void)
{
    return "this build has no HTTP server, because libmicrohttpd was not found when it was built; make deps installs "
           "it";
}
int http_open(struct http **out, struct server *server, int *port)
{
    *out = NULL;
    *port = 0;
    return cli_fail(server->c, EXIT_OTHER, "%s", http_missing());
}
void http_drain(struct http *h) { (void)h; }
void http_close(struct http *h) { (void)h; }
#else
#include "tools/serve/http_internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tools/serve/endpoints.h"
#include "tools/serve/flusher.h"
#include "tools/serve/json_memory.h"
#include "tools/serve/metrics.h"
#include "tools/serve/page.h"
#include "tools/serve/reply.h"
#include "tools/serve/worker.h"

#define MOST_CONNECTIONS 1024
#define MOST_SKIPPED (4 * SERVE_MOST_BODY) /* bytes of a body that is too long and read all the same, so that its sender
                                              reads our answer */
#define IDLE_TIMEOUT 120                   /* seconds without a byte in either direction */
#define SENDING_TIMEOUT 60.0               /* seconds for a whole request */
#define EVENT_BYTES 65536                  /* of events formatted at once */
#define THREADS 4

/* A connection: until when a whole request has to be there. */
struct http_client {
    struct http_client *next, **at;
    int fd;
    double deadline; /* 0: none */
};

struct http {
    struct server *server;
    struct MHD_Daemon *daemon;
    struct flusher *flusher;
    pthread_mutex_t lock;
    pthread_cond_t answered, closing;
    size_t answers; /* that are due */
    struct http_client *clients;
    pthread_t watcher;
    int has_watcher, close;
};

/* One request and its answer. */
struct http_exchange {
    struct http *http;
    struct http_client *client;
    enum http_route route;
    struct failure failed;
    char path[160], method[16];
    char *body;
    size_t size, room, skipped;
    struct serve_job *job;
    struct serve_writer out; /* events that were formatted, */
    size_t sent;             /* and how many of their bytes were sent */
    int end, status;
    double began;
};

const char *http_missing(void) { return NULL; }

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static enum MHD_Result queue(struct http_exchange *e, struct MHD_Connection *connection, struct MHD_Response *response,
                             const char *type, int status)
{
    const struct failure *f = e->failed.status ? &e->failed : NULL;
    enum MHD_Result queued = MHD_NO;
    e->status = status;
    if (response && http_add_headers(response, e->http->server, e->path, f) &&
        (!type || MHD_add_response_header(response, "Content-Type", type) == MHD_YES))
        queued = MHD_queue_response(connection, (unsigned)status, response);
    if (response)
        MHD_destroy_response(response);
    return queued;
}

/* The text is the response's from now on. */
static enum MHD_Result queue_text(struct http_exchange *e, struct MHD_Connection *connection, struct serve_writer *w,
                                  const char *type, int status)
{
    if (w->failed) {
        writer_close(w);
        fail_with(&e->failed, 500, NULL, "", "no memory for the answer");
        reply_failure(w, &e->failed);
        status = 500;
        type = "application/json";
    }
    if (w->failed) {
        writer_close(w);
        return MHD_NO;
    }
    struct MHD_Response *r = MHD_create_response_from_buffer(w->size, w->text,
                                                             w->text ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (!r)
        writer_close(w);
    return queue(e, connection, r, type, status);
}

static enum MHD_Result queue_failure(struct http_exchange *e, struct MHD_Connection *connection)
{
    struct serve_writer w = {0};
    reply_failure(&w, &e->failed);
    writer_put(&w, "\n");
    return queue_text(e, connection, &w, "application/json", e->failed.status);
}

/* Where jansson had no memory, what it returned may be incomplete. */
static int lacks_memory(struct http_exchange *e)
{
    if (json_memory_failed())
        fail_with(&e->failed, 500, NULL, "", "no memory for the request");
    return json_memory_failed();
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* A connection stays suspended until it is resumed here, so `waiter` remains valid without the lock. */
static void resume(struct serve_job *job)
{
    pthread_mutex_lock(&job->lock);
    struct MHD_Connection *waiter = job->suspended ? job->waiter : NULL;
    job->suspended = 0;
    pthread_mutex_unlock(&job->lock);
    if (waiter)
        MHD_resume_connection(waiter);
}

static void wake(struct serve_job *job, int now)
{
    if (!job->suspended)
        return;
    if (!now) {
        flusher_add(job->flusher, job);
        return;
    }
    job->suspended = 0;
    MHD_resume_connection(job->waiter);
}

static void suspend(struct serve_job *job)
{
    job->suspended = 1;
    MHD_suspend_connection(job->waiter);
}

static enum MHD_Result answer_whole(struct http_exchange *e, struct MHD_Connection *connection)
{
    struct serve_writer w = {0};
    struct serve_job *job = e->job;
    pthread_mutex_lock(&job->lock);
    if (!job_is_over(job)) {
        suspend(job);
        pthread_mutex_unlock(&job->lock);
        return MHD_YES;
    }
    const struct serve_choice *failed = reply_failed(job);
    if (failed)
        fail_by(&e->failed, &failed->error);
    else
        reply_whole(&w, job);
    pthread_mutex_unlock(&job->lock);
    return failed ? queue_failure(e, connection) : queue_text(e, connection, &w, "application/json", 200);
}

/* Called by the library when there is room for more of the stream. */
static ssize_t read_events(void *context, uint64_t position, char *out, size_t room)
{
    struct http_exchange *e = context;
    struct serve_job *job = e->job;
    int look = 0;
    (void)position;
    if (e->sent == e->out.size) {
        if (e->end)
            return MHD_CONTENT_READER_END_OF_STREAM;
        e->out.size = e->sent = 0;
        pthread_mutex_lock(&job->lock);
        reply_events(&e->out, job, EVENT_BYTES, &e->end);
        if (!e->out.size && !e->out.failed)
            suspend(job);
        for (size_t i = 0; i < job->num_choices; i++)
            look |= job->choices[i].paused &&
                    job->choices[i].published - job->choices[i].sent.tokens <= WORKER_CAUGHT_UP;
        pthread_mutex_unlock(&job->lock);
    }
    if (look)
        worker_look(e->http->server->worker);
    if (e->out.failed)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = e->out.size - e->sent < room ? e->out.size - e->sent : room;
    if (n)
        memcpy(out, e->out.text + e->sent, n);
    e->sent += n;
    return (ssize_t)n;
}

static enum MHD_Result answer_stream(struct http_exchange *e, struct MHD_Connection *connection)
{
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_events, e, NULL);
    if (r && (MHD_add_response_header(r, "Cache-Control", "no-cache") != MHD_YES ||
              MHD_add_response_header(r, "X-Accel-Buffering", "no") != MHD_YES)) {
        MHD_destroy_response(r);
        r = NULL;
    }
    return queue(e, connection, r, "text/event-stream; charset=utf-8", 200);
}

/* The answers that clients still wait for. */
static void count_answers(struct http *h, int more)
{
    pthread_mutex_lock(&h->lock);
    h->answers += (size_t)more;
    pthread_cond_broadcast(&h->answered);
    pthread_mutex_unlock(&h->lock);
}

static enum MHD_Result start_job(struct http_exchange *e, struct MHD_Connection *connection, const json_t *body)
{
    struct http *h = e->http;
    struct serve_job *job;
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    request_job(h->server, e->route == ROUTE_CHAT ? API_CHAT : API_COMPLETIONS, body, &job, &e->failed);
    if (lacks_memory(e) || e->failed.status) {
        job_release(job);
        return queue_failure(e, connection);
    }
    job->waiter = connection;
    job->wake = wake;
    job->flusher = h->flusher;
    job->fd = fd ? fd->connect_fd : -1;
    count_answers(h, 1); /* before the worker knows the job: http_drain waits for its answer */
    if (worker_submit(h->server->worker, job, &e->failed)) {
        count_answers(h, -1);
        job_release(job);
        return queue_failure(e, connection);
    }
    e->job = job;
    return job->stream ? answer_stream(e, connection) : answer_whole(e, connection);
}

/* The exchange is over, whether or not the answer arrived. */
static void let_go(struct http_exchange *e)
{
    struct http *h = e->http;
    struct serve_job *job = e->job;
    pthread_mutex_lock(&job->lock);
    job->fd = -1;
    job->wake = NULL;
    job->waiter = NULL;
    job->suspended = 0;
    job->cancelled |= !job_is_over(job);
    pthread_mutex_unlock(&job->lock);
    worker_look(h->server->worker);
    job_release(job);
    count_answers(h, -1);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static int get(struct http_exchange *e, struct serve_writer *w)
{
    const struct server *s = e->http->server;
    switch (e->route) {
    case ROUTE_HEALTH: return endpoint_health(s, w, &e->failed);
    case ROUTE_MODELS: return endpoint_models(s, e->path, w, &e->failed);
    case ROUTE_TOKENIZER_INFO: return endpoint_tokenizer_info(s, w, &e->failed);
    case ROUTE_METRICS:
        metrics_print(s->metrics, w, s->c->metrics_prefix ? s->c->metrics_prefix : "verbatim:", s->name);
        return 0;
    default: endpoint_version(w); return 0;
    }
}

static int post(struct http_exchange *e, const json_t *body, struct serve_writer *w)
{
    const struct server *s = e->http->server;
    if (e->route == ROUTE_TOKENIZE)
        return endpoint_tokenize(s, body, w, &e->failed);
    if (e->route == ROUTE_DETOKENIZE)
        return endpoint_detokenize(s, body, w, &e->failed);
    return endpoint_apply_template(s, body, w, &e->failed);
}

static enum MHD_Result answer_page(struct http_exchange *e, struct MHD_Connection *connection)
{
    int status;
    struct MHD_Response *r = page_response(connection, &status);
    return queue(e, connection, r, "text/html; charset=utf-8", status);
}

/* The whole request is there. */
static enum MHD_Result answer(struct http_exchange *e, struct MHD_Connection *connection)
{
    struct serve_writer w = {0};
    json_t *body = NULL;
    int is_get = e->route < ROUTE_COMPLETIONS, is_job = e->route == ROUTE_COMPLETIONS || e->route == ROUTE_CHAT;
    json_memory_begin();
    if (!e->failed.status && e->route == ROUTE_PREFLIGHT)
        return queue(e, connection, MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT), NULL, 204);
    if (!e->failed.status && e->route == ROUTE_PAGE)
        return answer_page(e, connection);
    if (!e->failed.status && is_get)
        get(e, &w);
    else if (!e->failed.status)
        request_parse(e->body ? e->body : "", e->size, &body, &e->failed);
    free(e->body);
    e->body = NULL;
    if (!e->failed.status && is_job) {
        enum MHD_Result result = start_job(e, connection, body);
        json_decref(body);
        return result;
    }
    if (!e->failed.status && !is_get)
        post(e, body, &w);
    json_decref(body);
    if (lacks_memory(e) || e->failed.status) {
        writer_close(&w);
        return queue_failure(e, connection);
    }
    return queue_text(e, connection, &w,
                      e->route == ROUTE_METRICS ? "text/plain; version=0.0.4; charset=utf-8" : "application/json", 200);
}

/* Returns 0 when the connection is to be closed. */
static int take_body(struct http_exchange *e, const char *data, size_t size)
{
    if (e->size + size > SERVE_MOST_BODY && !e->failed.status)
        fail_with(&e->failed, 413, NULL, "", "the body has more than %zu bytes", SERVE_MOST_BODY);
    if (!e->failed.status && e->room - e->size < size) {
        size_t room = 2 * (e->size + size);
        char *body = realloc(e->body, room);
        if (body) {
            e->body = body;
            e->room = room;
        } else {
            fail_with(&e->failed, 500, NULL, "", "no memory for the body");
        }
    }
    if (e->failed.status) {
        e->skipped += size;
        return e->skipped <= MOST_SKIPPED;
    }
    memcpy(e->body + e->size, data, size);
    e->size += size;
    return 1;
}

static void set_deadline(struct http *h, struct http_client *client, double seconds)
{
    pthread_mutex_lock(&h->lock);
    if (client)
        client->deadline = seconds > 0.0 ? cli_seconds() + seconds : 0.0;
    pthread_mutex_unlock(&h->lock);
}

static enum MHD_Result begin(struct http *h, struct MHD_Connection *connection, const char *path, const char *method,
                             void **exchange)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_exchange *e = calloc(1, sizeof *e);
    if (!e)
        return MHD_NO;
    e->http = h;
    e->client = info ? info->socket_context : NULL;
    e->began = cli_seconds();
    snprintf(e->path, sizeof e->path, "%s", path);
    snprintf(e->method, sizeof e->method, "%s", method);
    *exchange = e;
    e->route = http_check(connection, h->server, path, method, &e->failed);
    set_deadline(h, e->client, SENDING_TIMEOUT);
    return e->failed.status == 413 && http_body_size(connection) > MOST_SKIPPED ? queue_failure(e, connection)
                                                                                : MHD_YES;
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *path, const char *method,
                              const char *version, const char *data, size_t *size, void **exchange)
{
    struct http_exchange *e = *exchange;
    (void)version;
    if (!e)
        return begin(context, connection, path, method, exchange);
    if (*size) {
        int go_on = take_body(e, data, *size);
        *size = 0;
        return go_on ? MHD_YES : MHD_NO;
    }
    if (e->job)
        return answer_whole(e, connection); /* resumed */
    set_deadline(e->http, e->client, 0.0);
    return answer(e, connection);
}

static void put_prompts(struct serve_writer *w, const struct serve_job *job)
{
    for (size_t i = 0; i < job->num_prompts; i++) {
        const struct serve_prompt *p = &job->prompts[i];
        writer_put(w, " ");
        if (p->text)
            writer_string(w, p->text, p->text_size);
        for (size_t k = 0; !p->text && k < p->count; k++)
            writer_format(w, k ? ",%d" : "%d", p->tokens[k]);
    }
}

/* One line for each request, without its prompt unless --log-prompts asks for it. */
static void tell(const struct http_exchange *e)
{
    char when[32];
    time_t now = time(NULL);
    struct tm local;
    struct serve_writer w = {0};
    size_t tokens = 0;
    localtime_r(&now, &local);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    writer_format(&w, "%s %s ", when, e->method);
    for (const char *ch = e->path; *ch; ch++)
        writer_format(&w, "%c", (unsigned char)*ch < 0x20 || (unsigned char)*ch >= 0x7f ? '?' : *ch);
    writer_format(&w, " %d", e->status);
    if (e->job) {
        pthread_mutex_lock(&e->job->lock); /* not while the line is written: the worker waits for this lock */
        for (size_t i = 0; i < e->job->num_choices; i++)
            tokens += e->job->choices[i].published;
        pthread_mutex_unlock(&e->job->lock);
    }
    if (e->job)
        writer_format(&w, " %s prompt %zu new %zu seconds %.3f", e->job->id, e->job->prompt_tokens, tokens,
                      cli_seconds() - e->began);
    if (e->job && e->http->server->c->log_prompts)
        put_prompts(&w, e->job);
    writer_put(&w, "\n");
    server_log(e->http->server, w.text, w.size);
    writer_close(&w);
}

static void completed(void *context, struct MHD_Connection *connection, void **exchange,
                      enum MHD_RequestTerminationCode why)
{
    struct http_exchange *e = *exchange;
    (void)context;
    (void)connection;
    (void)why;
    if (!e)
        return;
    tell(e);
    set_deadline(e->http, e->client, IDLE_TIMEOUT + SENDING_TIMEOUT);
    if (e->job)
        let_go(e);
    writer_close(&e->out);
    free(e->body);
    free(e);
    *exchange = NULL;
}

/* ---- connections ------------------------------------------------------------------------------------------------- */

static void connected(void *context, struct MHD_Connection *connection, void **socket_context,
                      enum MHD_ConnectionNotificationCode what)
{
    struct http *h = context;
    struct http_client *client = *socket_context;
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    pthread_mutex_lock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED && fd && (client = calloc(1, sizeof *client))) {
        *client = (struct http_client){.next = h->clients, .at = &h->clients, .fd = fd->connect_fd,
                                       .deadline = cli_seconds() + SENDING_TIMEOUT};
        if (client->next)
            client->next->at = &client->next;
        h->clients = client;
        *socket_context = client;
    } else if (what == MHD_CONNECTION_NOTIFY_CLOSED && client) {
        *client->at = client->next;
        if (client->next)
            client->next->at = client->at;
        free(client);
        *socket_context = NULL;
    }
    pthread_mutex_unlock(&h->lock);
}

/* Ends connections whose request does not come: the library's timeout knows inactivity alone. */
static void *watch(void *context)
{
    struct http *h = context;
    struct timespec until;
    pthread_mutex_lock(&h->lock);
    while (!h->close) {
        double now = cli_seconds();
        for (struct http_client *client = h->clients; client; client = client->next)
            if (client->deadline > 0.0 && client->deadline < now)
                shutdown(client->fd, SHUT_RDWR);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&h->closing, &h->lock, &until);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static int start(struct http *h, int fd)
{
    h->daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC, 0, NULL, NULL,
                                 handle, h, MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd, MHD_OPTION_THREAD_POOL_SIZE,
                                 (unsigned)THREADS, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MOST_CONNECTIONS,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_TIMEOUT,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)65536, MHD_OPTION_NOTIFY_COMPLETED,
                                 completed, h, MHD_OPTION_NOTIFY_CONNECTION, connected, h, MHD_OPTION_STRICT_FOR_CLIENT,
                                 1, MHD_OPTION_END);
    h->has_watcher = h->daemon && !pthread_create(&h->watcher, NULL, watch, h);
    return h->has_watcher;
}

int http_open(struct http **out, struct server *server, int *port)
{
    struct cli *c = server->c;
    struct failure f = {0};
    struct http *h = calloc(1, sizeof *h);
    *out = h;
    if (!h)
        return cli_fail(c, EXIT_OTHER, "no memory for the HTTP server");
    h->server = server;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->answered, NULL);
    pthread_cond_init(&h->closing, NULL);
    int fd = http_listen(c->host ? c->host : "127.0.0.1", c->port < 0 ? 8080 : (int)c->port, &f);
    if (fd < 0)
        return cli_fail(c, EXIT_OTHER, "%s", f.message);
    *port = http_port_of(fd);
    if (!http_is_loopback(fd) && !server->key)
        fprintf(stderr,
                "verbatim: warning: %s is reachable from other machines and no key is wanted; --api-key-file FILE "
                "wants one\n",
                c->host ? c->host : "this server");
    if (!flusher_open(&h->flusher, resume) || !start(h, fd)) {
        if (!h->daemon)
            close(fd);
        return cli_fail(c, EXIT_OTHER, "the HTTP server cannot be started");
    }
    return EXIT_DONE;
}

void http_drain(struct http *h)
{
    pthread_mutex_lock(&h->lock);
    while (h->answers)
        pthread_cond_wait(&h->answered, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

void http_close(struct http *h)
{
    if (!h)
        return;
    flusher_close(h->flusher); /* a daemon may be stopped only when no connection is suspended */
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    pthread_mutex_lock(&h->lock);
    h->close = 1;
    pthread_cond_signal(&h->closing);
    pthread_mutex_unlock(&h->lock);
    if (h->has_watcher)
        pthread_join(h->watcher, NULL);
    pthread_cond_destroy(&h->answered);
    pthread_cond_destroy(&h->closing);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
#endif
