/* tools/serve/flusher.c -- a thread that resumes the connections of streams. */
#include "tools/serve/flusher.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* The least time between two looks at the list. Sending a token costs the server, the kernel and a client on the same
 * machine some 15 microseconds, so with PER_STREAM at most a tenth of a core is spent on sending, however many streams
 * there are. */
#define LEAST_SECONDS 2e-3
#define PER_STREAM 150e-6

struct flusher {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    void (*resume)(struct serve_job *job);
    /* under the lock */
    struct serve_job *first, **end;
    int idle; /* nonzero: the thread waits for the next job, and not for the time */
    int close;
};

void flusher_add(struct flusher *f, struct serve_job *job)
{
    if (job->listed)
        return;
    job->listed = 1;
    job->next_listed = NULL;
    job_hold(job);
    pthread_mutex_lock(&f->lock);
    *f->end = job;
    f->end = &job->next_listed;
    int idle = f->idle;
    f->idle = 0;
    pthread_mutex_unlock(&f->lock);
    if (idle)
        pthread_cond_signal(&f->wake);
}

/* Returns how many jobs were on the list. */
static size_t flush(struct flusher *f, struct serve_job *job)
{
    size_t count = 0;
    for (struct serve_job *next; job; job = next, count++) {
        pthread_mutex_lock(&job->lock);
        next = job->next_listed; /* before the worker can list the job anew */
        job->listed = 0;
        pthread_mutex_unlock(&job->lock);
        f->resume(job);
        job_release(job);
    }
    return count;
}

static void *run(void *context)
{
    struct flusher *f = context;
    struct timespec until;
    pthread_mutex_lock(&f->lock);
    while (f->first || !f->close) {
        struct serve_job *job = f->first;
        if (!job) {
            f->idle = 1;
            pthread_cond_wait(&f->wake, &f->lock);
            continue;
        }
        f->first = NULL;
        f->end = &f->first;
        pthread_mutex_unlock(&f->lock);
        double seconds = PER_STREAM * (double)flush(f, job);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(1e9 * (seconds > LEAST_SECONDS ? seconds : LEAST_SECONDS));
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&f->lock);
        f->idle = 0;
        while (!f->close && pthread_cond_timedwait(&f->wake, &f->lock, &until) != ETIMEDOUT)
            ;
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

int flusher_open(struct flusher **out, void (*resume)(struct serve_job *job))
{
    struct flusher *f = calloc(1, sizeof *f);
    pthread_condattr_t monotonic;
    *out = NULL;
    if (!f)
        return 0;
    f->resume = resume;
    f->end = &f->first;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (!pthread_create(&f->thread, NULL, run, f)) {
        *out = f;
        return 1;
    }
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->lock);
    free(f);
    return 0;
}

void flusher_close(struct flusher *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->close = 1;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->lock);
    free(f);
}
