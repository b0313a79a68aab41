/* tools/serve/job.c -- one API request and what its choices have said. */
#include "tools/cli/softmax.h"
#include "tools/serve/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct serve_job *job_open(struct server *server, enum serve_api api)
{
    struct serve_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    if (pthread_mutex_init(&job->lock, NULL)) {
        free(job);
        return NULL;
    }
    atomic_init(&job->references, 1);
    job->server = server;
    job->api = api;
    job->n = 1;
    job->logprobs = job->prompt_logprobs = -1;
    job->fd = -1;
    job->add_special_tokens = api == API_COMPLETIONS;
    job->add_generation_prompt = 1;
    job->max_tokens = 16;
    job->sampling = server->c->session.sampling; /* the rule for accepting drafts; the rest is zero */
    job->sampling.temperature = job->sampling.top_p = 1.0f;
    job->drafting = server->drafting;
    return job;
}

struct serve_job *job_hold(struct serve_job *job)
{
    atomic_fetch_add(&job->references, 1);
    return job;
}

static void close_rows(struct serve_rows *rows)
{
    free(rows->row);
    free(rows->top_token);
    free(rows->top_logprob);
}

void job_release(struct serve_job *job)
{
    if (!job || atomic_fetch_sub(&job->references, 1) > 1)
        return;
    for (size_t i = 0; i < job->num_choices; i++) {
        struct serve_choice *choice = &job->choices[i];
        close_rows(&choice->rows);
        close_rows(&choice->prompt_rows);
        free(choice->said);
        free(choice->text);
        allowed_close(choice->allowed);
        meaning_close(choice->sent.parser);
    }
    for (size_t i = 0; i < job->num_prompts; i++) {
        free(job->prompts[i].tokens);
        free(job->prompts[i].text);
    }
    for (int32_t i = 0; i < job->num_stops; i++)
        free(job->stop[i]);
    free(job->choices);
    free(job->prompts);
    free(job->last_token);
    free(job->stop_tokens);
    free(job->bias_tokens);
    free(job->bias_values);
    schema_close(job->schema);
    json_decref(job->tools);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

/* response_format and forced calls: what was said so far decides which tokens may follow. If the prompt opened the
 * thinking, its end comes first. */
static int follow_schema(struct serve_choice *choice)
{
    const struct serve_job *job = choice->job;
    int thinks = job->api == API_CHAT && job->meaning.start == MEANING_THINKS;
    if (job->schema && allowed_open(&choice->allowed, job->server->pieces, job->schema, choice->prompt->count, thinks))
        return 0;
    choice->sampling.mask = job->schema ? allowed_next : NULL;
    choice->sampling.mask_context = choice->allowed;
    return 1;
}

int job_make_choices(struct serve_job *job)
{
    size_t count = job->num_prompts * (size_t)job->n;
    job->choices = calloc(count, sizeof *job->choices);
    job->last_token = calloc(count, sizeof *job->last_token);
    if (!job->choices || !job->last_token)
        return 0;
    job->num_choices = count;
    for (size_t i = 0; i < count; i++) {
        struct serve_choice *choice = &job->choices[i];
        size_t number = i % (size_t)job->n;
        choice->job = job;
        choice->index = (int)i;
        choice->id = -1;
        choice->prompt = &job->prompts[i / (size_t)job->n];
        choice->first = choice - number;
        choice->sampling = job->sampling;
        choice->sampling.seed = job->seed + number;
        choice->result.fingerprint = VB_FINGERPRINT_START;
        if (!follow_schema(choice))
            return 0;
    }
    return 1;
}

int job_is_over(const struct serve_job *job) { return job->num_over == job->num_choices; }

int job_wants_rows(const struct serve_job *job) { return job->logprobs >= 0; }
int job_wants_prompt_rows(const struct serve_job *job)
{
    return (job->echo && job->logprobs >= 0) || job->prompt_logprobs >= 0;
}

int32_t job_top(const struct serve_job *job)
{
    int32_t top = job->logprobs > job->prompt_logprobs ? job->logprobs : job->prompt_logprobs;
    top = top > 0 ? top : 0;
    return top < job->server->vocabulary ? top : job->server->vocabulary;
}

/* ---- rows of logits ---------------------------------------------------------------------------------------------- */

static int grow(struct serve_rows *rows, int32_t top)
{
    if (rows->count < rows->room)
        return 1;
    size_t room = rows->room ? 2 * rows->room : 32;
    struct serve_row *row = realloc(rows->row, room * sizeof *row);
    rows->row = row ? row : rows->row;
    int32_t *token = row && top ? realloc(rows->top_token, room * (size_t)top * sizeof *token) : NULL;
    rows->top_token = token ? token : rows->top_token;
    double *logprob = token ? realloc(rows->top_logprob, room * (size_t)top * sizeof *logprob) : NULL;
    rows->top_logprob = logprob ? logprob : rows->top_logprob;
    if (!row || (top && !logprob))
        return 0;
    rows->room = room;
    return 1;
}

int rows_add(struct serve_rows *rows, const float *logits, int32_t vocabulary, int32_t token, int32_t top)
{
    double most;
    int32_t rank = 1;
    if (!grow(rows, top))
        return 0;
    for (int32_t i = 0; i < vocabulary; i++)
        rank += logits[i] > logits[token];
    double log_of_sum = log(sum_of_exp(logits, (size_t)vocabulary, &most));
    int32_t *best = top ? rows->top_token + rows->count * (size_t)top : NULL;
    find_largest(logits, vocabulary, best, top);
    for (int32_t i = 0; i < top; i++)
        rows->top_logprob[rows->count * (size_t)top + (size_t)i] = (double)logits[best[i]] - most - log_of_sum;
    rows->row[rows->count++] = (struct serve_row){(double)logits[token] - most - log_of_sum, rank};
    return 1;
}

/* ---- what the batch tells ---------------------------------------------------------------------------------------- */

static int add_said(struct serve_choice *choice, const vb_event *e)
{
    if (choice->count == choice->room) {
        size_t room = choice->room ? 2 * choice->room : 64;
        struct serve_token *said = realloc(choice->said, room * sizeof *said);
        if (!said)
            return 0;
        choice->said = said;
        choice->room = room;
    }
    choice->said[choice->count++] = (struct serve_token){e->token, e->draft_depth, choice->pass, e->text_bytes};
    choice->pass += !e->draft_depth; /* the model's own token ends a pass */
    return 1;
}

static int add_text(struct serve_choice *choice, int32_t token)
{
    size_t size = 0;
    const struct server *s = choice->job->server;
    const char *piece = s->tokenizer ? vb_piece(s->tokenizer, token, &size) : NULL;
    if (!piece || !size)
        return 1;
    if (choice->text_room - choice->text_size < size) {
        size_t room = 2 * (choice->text_size + size) + 64;
        char *text = realloc(choice->text, room);
        if (!text)
            return 0;
        choice->text = text;
        choice->text_room = room;
    }
    memcpy(choice->text + choice->text_size, piece, size);
    choice->text_size += size;
    return 1;
}

int choice_token(void *context, const vb_event *e)
{
    struct serve_choice *choice = context;
    struct serve_job *job = choice->job;
    pthread_mutex_lock(&job->lock);
    int done = add_text(choice, e->token) &&
               (!job_wants_rows(job) ||
                rows_add(&choice->rows, e->logits, job->server->vocabulary, e->token, job_top(job))) &&
               add_said(choice, e);
    choice->no_memory |= !done;
    job->news = 1;
    pthread_mutex_unlock(&job->lock);
    return !done;
}

int choice_prompt_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct serve_choice *choice = context;
    struct serve_job *job = choice->job;
    (void)depth;
    (void)hidden;
    pthread_mutex_lock(&job->lock);
    int done = rows_add(&choice->prompt_rows, logits, job->server->vocabulary, choice->prompt->tokens[index + 1],
                        job_top(job));
    choice->no_memory |= !done;
    pthread_mutex_unlock(&job->lock);
    return !done;
}
