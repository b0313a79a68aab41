/* tools/serve/metrics.c -- counters and histograms, printed as Prometheus text. The names are vLLM's. */
#include "tools/serve/metrics.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BOUNDS 20

static const double first_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5,
                                      10, 20, 40, 80};
static const double between_bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                                        0.4, 0.5, 0.75, 1, 2.5};
static const double request_bounds[] = {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60,
                                        120, 240};
static const struct {
    const char *name, *help;
    const double *bounds;
    int count;
} times[METRICS_TIMES] = {
    {"time_to_first_token_seconds", "Seconds from a request to its first token.", first_bounds,
     sizeof first_bounds / sizeof *first_bounds},
    {"inter_token_latency_seconds", "Seconds between the tokens of a sequence; those of one pass share its time.",
     between_bounds, sizeof between_bounds / sizeof *between_bounds},
    {"e2e_request_latency_seconds", "Seconds from a request to the end of its answer.", request_bounds,
     sizeof request_bounds / sizeof *request_bounds}};

static const char *const reasons[] = {"stop", "length", "abort", "error"};
#define NUM_REASONS (sizeof reasons / sizeof *reasons)

struct histogram {
    unsigned long long in[MOST_BOUNDS + 1], count;
    double sum;
};

struct metrics {
    pthread_mutex_t lock;
    struct histogram time[METRICS_TIMES];
    unsigned long long prompt_tokens, generation_tokens, drafts, draft_tokens, accepted, accepted_at[VB_MAX_DRAFT],
        cached;
    unsigned long long ended[NUM_REASONS];
    vb_batch_state state;
    size_t unfinished; /* sequences that run or wait */
};

int metrics_open(struct metrics **out)
{
    *out = calloc(1, sizeof **out);
    return *out && !pthread_mutex_init(&(*out)->lock, NULL);
}

void metrics_close(struct metrics *m)
{
    if (m)
        pthread_mutex_destroy(&m->lock);
    free(m);
}

void metrics_time(struct metrics *m, enum metrics_time which, double seconds)
{
    struct histogram *h = &m->time[which];
    int i = 0;
    while (i < times[which].count && seconds > times[which].bounds[i])
        i++;
    pthread_mutex_lock(&m->lock);
    h->in[i]++;
    h->count++;
    h->sum += seconds;
    pthread_mutex_unlock(&m->lock);
}

void metrics_submitted(struct metrics *m, size_t sequences)
{
    pthread_mutex_lock(&m->lock);
    m->unfinished += sequences;
    pthread_mutex_unlock(&m->lock);
}

void metrics_sequence(struct metrics *m, size_t prompt, const vb_result *r, const char *reason)
{
    pthread_mutex_lock(&m->lock);
    m->prompt_tokens += prompt;
    m->generation_tokens += r->tokens;
    m->drafts += r->drafted_by_depth[0];
    m->draft_tokens += r->drafted;
    m->accepted += r->accepted;
    for (int k = 0; k < VB_MAX_DRAFT; k++)
        m->accepted_at[k] += r->accepted_by_depth[k];
    m->cached += r->cached_tokens;
    m->unfinished--;
    for (size_t i = 0; i < NUM_REASONS; i++)
        m->ended[i] += !strcmp(reasons[i], reason);
    pthread_mutex_unlock(&m->lock);
}

void metrics_state(struct metrics *m, const vb_batch_state *state)
{
    pthread_mutex_lock(&m->lock);
    m->state = *state;
    pthread_mutex_unlock(&m->lock);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

struct metrics_page {
    struct serve_writer *w;
    const char *prefix, *model;
};

static void head(const struct metrics_page *p, const char *name, const char *type, const char *help)
{
    writer_format(p->w, "# HELP %.64s%s %s\n# TYPE %.64s%s %s\n", p->prefix, name, help, p->prefix, name, type);
}

/* A label's value is quoted as a JSON string is. */
static void label(const struct metrics_page *p, const char *name, const char *more)
{
    writer_format(p->w, "%.64s%s{model_name=", p->prefix, name);
    writer_string(p->w, p->model, strlen(p->model));
    writer_format(p->w, "%s} ", more);
}

static void put_one(const struct metrics_page *p, const char *name, const char *type, const char *help, double value)
{
    head(p, name, type, help);
    label(p, name, "");
    writer_format(p->w, "%.17g\n", value);
}

static void put_histogram(const struct metrics_page *p, const struct metrics *m, int which)
{
    const struct histogram *h = &m->time[which];
    char name[64], more[48];
    unsigned long long below = 0;
    head(p, times[which].name, "histogram", times[which].help);
    snprintf(name, sizeof name, "%s_bucket", times[which].name);
    for (int i = 0; i <= times[which].count; i++) {
        below += h->in[i];
        if (i < times[which].count)
            snprintf(more, sizeof more, ",le=\"%g\"", times[which].bounds[i]);
        else
            snprintf(more, sizeof more, ",le=\"+Inf\"");
        label(p, name, more);
        writer_format(p->w, "%llu\n", below);
    }
    snprintf(name, sizeof name, "%s_sum", times[which].name);
    label(p, name, "");
    writer_format(p->w, "%.17g\n", h->sum);
    snprintf(name, sizeof name, "%s_count", times[which].name);
    label(p, name, "");
    writer_format(p->w, "%llu\n", h->count);
}

static void put_drafts(const struct metrics_page *p, const struct metrics *m)
{
    char more[48];
    put_one(p, "spec_decode_num_drafts_total", "counter", "Drafts (of one token or more) that were verified.",
            (double)m->drafts);
    put_one(p, "spec_decode_num_draft_tokens_total", "counter", "Drafted tokens that were verified.",
            (double)m->draft_tokens);
    put_one(p, "spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that were accepted.",
            (double)m->accepted);
    head(p, "spec_decode_num_accepted_tokens_per_pos_total", "counter",
         "Accepted drafted tokens, by their depth in the draft.");
    for (int k = 0; k < VB_MAX_DRAFT; k++) {
        snprintf(more, sizeof more, ",position=\"%d\"", k);
        label(p, "spec_decode_num_accepted_tokens_per_pos_total", more);
        writer_format(p->w, "%llu\n", m->accepted_at[k]);
    }
}

void metrics_print(struct metrics *m, struct serve_writer *w, const char *prefix, const char *model)
{
    struct metrics_page page = {w, prefix, model}, *p = &page;
    char more[48];
    pthread_mutex_lock(&m->lock);
    const vb_batch_state *s = &m->state;
    size_t running = s->running < m->unfinished ? s->running : m->unfinished;
    put_one(p, "num_requests_running", "gauge", "Sequences that share passes.", (double)running);
    put_one(p, "num_requests_waiting", "gauge", "Sequences that wait for room.", (double)(m->unfinished - running));
    put_one(p, "kv_cache_usage_perc", "gauge", "The part of the KV cache that is used, from 0 to 1.",
            s->cache_tokens ? (double)s->cache_tokens_used / (double)s->cache_tokens : 0.0);
    put_one(p, "prompt_tokens_total", "counter", "Tokens of prompts.", (double)m->prompt_tokens);
    put_one(p, "generation_tokens_total", "counter", "Generated tokens.", (double)m->generation_tokens);
    for (int i = 0; i < METRICS_TIMES; i++)
        put_histogram(p, m, i);
    put_drafts(p, m);
    put_one(p, "prefix_cache_hits_total", "counter", "Tokens of prompts whose rows were in the KV cache.",
            (double)m->cached);
    put_one(p, "num_preemptions_total", "counter", "Sequences that gave their rows back for a while.",
            (double)s->preemptions);
    head(p, "request_success_total", "counter", "Sequences that ended, by reason.");
    for (size_t i = 0; i < NUM_REASONS; i++) {
        snprintf(more, sizeof more, ",finished_reason=\"%s\"", reasons[i]);
        label(p, "request_success_total", more);
        writer_format(p->w, "%llu\n", m->ended[i]);
    }
    pthread_mutex_unlock(&m->lock);
}
