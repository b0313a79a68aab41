/* tools/serve/worker.c -- the engine thread. */
#include "tools/serve/worker.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/serve/metrics.h"

#define KEEP_ALIVE_SECONDS 5.0
#define LOOK_SECONDS 0.01 /* the least time between two looks at the clients' sockets */
#define IDLE_SECONDS 0.1  /* how long the worker sleeps while jobs exist that it cannot compute */

struct worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    struct server *server;
    vb_batch *batch;
    /* under the lock */
    struct serve_job *inbox, **inbox_end;
    size_t in_inbox;     /* sequences */
    size_t in_batch;     /* sequences that the batch has and that are not over */
    size_t jobs;         /* that are not over */
    int look, close;
    /* the thread's own */
    struct serve_job *active;
    double looked; /* when it last looked at the clients' sockets */
};

/* ---- from other threads ------------------------------------------------------------------------------------------ */

int worker_submit(struct worker *w, struct serve_job *job, struct failure *f)
{
    int status = 0;
    pthread_mutex_lock(&w->lock);
    size_t most = (size_t)w->server->max_sequences, there = w->in_inbox + w->in_batch;
    if (atomic_load(&w->server->state) == SERVER_STOPPING) {
        status = fail_with(f, 503, NULL, "", "the server is stopping and takes no new requests");
    } else if (there >= most + (size_t)w->server->max_waiting) {
        status = fail_with(f, 429, "queue_full", "",
                           "%zu sequences run or wait, which is as many as this server takes; try again", there);
    } else {
        job_hold(job);
        job->began = job->last_news = cli_seconds();
        *w->inbox_end = job;
        w->inbox_end = &job->next;
        w->in_inbox += job->num_choices;
        w->jobs++;
        metrics_submitted(w->server->metrics, job->num_choices);
        pthread_cond_signal(&w->wake);
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

void worker_look(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->look = 1;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void worker_finish(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    while (w->jobs)
        pthread_cond_wait(&w->idle, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

/* ---- the ends of sequences --------------------------------------------------------------------------------------- */

static const char *reason_of(const struct serve_choice *choice)
{
    if (choice->error.code)
        return "error";
    if (choice->result.finish == VB_FINISH_STOP)
        return "stop";
    return choice->result.finish == VB_FINISH_LENGTH ? "length" : "abort";
}

static void end_choice(struct serve_choice *choice, const vb_error *error, const vb_result *result)
{
    struct serve_job *job = choice->job;
    struct metrics *m = job->server->metrics;
    pthread_mutex_lock(&job->lock);
    if (result)
        choice->result = *result;
    if (error && error->code == VB_UNSUPPORTED && job->schema) /* the mask returned it: see schema_byte */
        choice->error = (vb_error){VB_BAD_ARGUMENT, "the schema of response_format or of the tools is too ambiguous: "
                                                    "too many of its alternatives begin alike"};
    else if (error && error->code)
        choice->error = *error;
    else if (choice->no_memory)
        choice->error = (vb_error){VB_NO_MEMORY, "no memory for what the sequence said"};
    choice->ended = job->news = 1;
    const char *reason = reason_of(choice);
    pthread_mutex_unlock(&job->lock);
    metrics_sequence(m, choice->prompt->count, &choice->result, reason);
}

static void done(void *context, const vb_request_end *end)
{
    struct serve_choice *choice = context;
    end_choice(choice, end->error, end->result);
}

/* ---- one turn ---------------------------------------------------------------------------------------------------- */

static void add_choice(struct worker *w, struct serve_choice *choice)
{
    struct serve_job *job = choice->job;
    vb_error err = {0};
    int tells = job_wants_prompt_rows(job) && choice->first == choice;
    vb_generate_options options = {
        .max_tokens = job->max_tokens, .ignore_eos = job->ignore_eos, .fingerprint = 1, .callback = choice_token,
        .context = choice, .tokenizer = job->server->tokenizer, .stop_tokens = job->stop_tokens,
        .stop_token_count = (size_t)job->num_stop_tokens, .stop = (const char *const *)job->stop,
        .stop_count = (size_t)job->num_stops};
    vb_request request = {.tokens = choice->prompt->tokens, .count = choice->prompt->count,
                          .sampling = &choice->sampling, .drafting = &job->drafting,
                          .options = &options, .prompt_row = tells ? choice_prompt_row : NULL, .done = done,
                          .context = choice};
    if (vb_batch_add(w->batch, &request, &choice->id, &err))
        end_choice(choice, &err, NULL);
}

static void take_inbox(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    struct serve_job *job = w->inbox;
    w->inbox = NULL;
    w->inbox_end = &w->inbox;
    w->in_batch += w->in_inbox;
    w->in_inbox = 0;
    w->look = 0;
    pthread_mutex_unlock(&w->lock);
    struct serve_job **end = &w->active;
    while (*end)
        end = &(*end)->next;
    *end = job;
    for (; job; job = job->next)
        for (size_t i = 0; i < job->num_choices; i++)
            add_choice(w, &job->choices[i]);
}

/* A client that went away: its socket says so. */
static int is_gone(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLRDHUP};
    return fd >= 0 && poll(&one, 1, 0) > 0 && one.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL);
}

static void cancel(struct worker *w, struct serve_job *job)
{
    for (size_t i = 0; i < job->num_choices; i++)
        if (!job->choices[i].ended)
            vb_batch_cancel(w->batch, job->choices[i].id);
}

/* Cancels jobs whose client is gone, and resumes sequences whose reader caught up. */
static void look_at_clients(struct worker *w)
{
    double now = cli_seconds();
    int look = now - w->looked >= LOOK_SECONDS;
    w->looked = look ? now : w->looked;
    for (struct serve_job *job = w->active; job; job = job->next) {
        pthread_mutex_lock(&job->lock);
        job->cancelled |= look && is_gone(job->fd);
        int cancelled = job->cancelled;
        for (size_t i = 0; i < job->num_choices && !cancelled; i++) {
            struct serve_choice *choice = &job->choices[i];
            if (choice->paused && choice->published - choice->sent.tokens <= WORKER_CAUGHT_UP) {
                choice->paused = 0;
                vb_batch_resume(w->batch, choice->id);
            }
        }
        pthread_mutex_unlock(&job->lock);
        if (cancelled)
            cancel(w, job);
    }
}

static void publish_choice(struct worker *w, struct serve_choice *choice, double now)
{
    struct serve_job *job = choice->job;
    size_t fresh = choice->count - choice->published;
    double *last = &job->last_token[choice->index];
    for (size_t i = 0; i < fresh; i++)
        if (*last > 0.0)
            metrics_time(w->server->metrics, METRICS_BETWEEN_TOKENS, (now - *last) / (double)fresh);
        else if (i == 0)
            metrics_time(w->server->metrics, METRICS_FIRST_TOKEN, now - job->began);
    *last = fresh ? now : *last;
    choice->published = choice->count;
    choice->prompt_done |= choice->ended || choice->count || choice->prompt_rows.count + 1 == choice->prompt->count;
    job->num_over += choice->ended && !choice->over;
    choice->over = choice->ended;
    if (job->stream && !choice->over && !choice->paused && choice->published - choice->sent.tokens > WORKER_FAR_BEHIND)
        choice->paused = vb_batch_pause(w->batch, choice->id);
}

/* Publishes what the pass said. Returns whether the job is over. */
static int publish(struct worker *w, struct serve_job *job, double now)
{
    int begins = 0;
    pthread_mutex_lock(&job->lock);
    if (job->news) {
        for (size_t i = 0; i < job->num_choices; i++) {
            size_t before = job->choices[i].published;
            publish_choice(w, &job->choices[i], now);
            begins |= !before && job->choices[i].published;
        }
        job->last_news = now;
    } else if (job->stream && now - job->last_news >= KEEP_ALIVE_SECONDS) {
        job->keep_alive = job->news = 1;
        job->last_news = now;
    }
    int over = job_is_over(job);
    if (job->news && job->wake && (job->stream || over))
        job->wake(job, begins || over);
    job->news = 0;
    pthread_mutex_unlock(&job->lock);
    return over;
}

/* Counts the sequences that go on; before anything is published, so that a client that sees its answer's end finds
 * room. */
static void count_sequences(struct worker *w)
{
    size_t left = 0;
    for (const struct serve_job *job = w->active; job; job = job->next)
        for (size_t i = 0; i < job->num_choices; i++)
            left += !job->choices[i].ended;
    pthread_mutex_lock(&w->lock);
    w->in_batch = left;
    pthread_mutex_unlock(&w->lock);
}

static void publish_all(struct worker *w)
{
    double now = cli_seconds();
    size_t ended = 0;
    count_sequences(w);
    for (struct serve_job **at = &w->active, *job; (job = *at);) {
        if (!publish(w, job, now)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        metrics_time(w->server->metrics, METRICS_REQUEST, now - job->began);
        job_release(job);
        ended++;
    }
    pthread_mutex_lock(&w->lock);
    w->jobs -= ended;
    if (!w->jobs)
        pthread_cond_broadcast(&w->idle);
    pthread_mutex_unlock(&w->lock);
    vb_batch_state state;
    vb_batch_look(w->batch, &state);
    metrics_state(w->server->metrics, &state);
}

/* Sleeps until there is something to do; for a short time only while jobs exist. Returns 0 when the worker is to
 * end. */
static int wait_for_work(struct worker *w)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(IDLE_SECONDS * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&w->lock);
    int timed_out = 0;
    while (!w->inbox && !w->look && !w->close && !timed_out)
        if (w->active)
            timed_out = pthread_cond_timedwait(&w->wake, &w->lock, &until) == ETIMEDOUT;
        else
            pthread_cond_wait(&w->wake, &w->lock);
    int go_on = !w->close;
    pthread_mutex_unlock(&w->lock);
    return go_on;
}

static void *run(void *context)
{
    struct worker *w = context;
    vb_error err;
    size_t left = 0;
    while (left || wait_for_work(w)) {
        take_inbox(w);
        look_at_clients(w);
        if (vb_batch_step(w->batch, &left, &err) == VB_DEVICE) { /* a GPU that has failed computes nothing any more */
            fprintf(stderr, "verbatim: %s; the server ends\n", err.message);
            fflush(NULL);
            _exit(EXIT_OTHER);
        } /* another error of a pass ends no request; it is computed again */
        publish_all(w);
    }
    return NULL;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static void init_locks(struct worker *w)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, &monotonic);
    pthread_cond_init(&w->idle, NULL);
    pthread_condattr_destroy(&monotonic);
}

int worker_open(struct worker **out, struct server *server)
{
    struct cli *c = server->c;
    struct worker *w = calloc(1, sizeof *w);
    vb_error err;
    *out = w;
    if (!w)
        return cli_fail(c, EXIT_OTHER, "no memory for the engine's thread");
    init_locks(w);
    w->server = server;
    w->inbox_end = &w->inbox;
    vb_session_options session = c->session;
    vb_batch_options o = {.session = &session, .max_sequences = server->max_sequences,
                          .cache_tokens = c->cache_tokens,
                          .keep_finished = 2 * server->max_sequences < 64 ? 2 * server->max_sequences : 64};
    session.drafting = server->drafting;
    session.context = (int32_t)server->context;
    if (vb_batch_open(&w->batch, c->model, &o, &err))
        return cli_error(c, &err);
    int error = pthread_create(&w->thread, NULL, run, w);
    if (error) {
        vb_batch_close(w->batch);
        w->batch = NULL;
        return cli_fail(c, EXIT_OTHER, "the engine's thread cannot be started: %s", strerror(error));
    }
    return EXIT_DONE;
}

void worker_close(struct worker *w)
{
    if (!w)
        return;
    if (w->batch) {
        pthread_mutex_lock(&w->lock);
        w->close = 1;
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
        vb_batch_close(w->batch);
    }
    pthread_cond_destroy(&w->wake);
    pthread_cond_destroy(&w->idle);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
