/* tools/serve/job.h -- one API request: what it asks for, its choices (each is one sequence of the batch), and what they have said.
 *
 * Two threads know a job: the worker appends to its choices, and HTTP formats what was published. Both hold a reference. Arrays of a
 * choice only grow. The worker publishes at the end of a pass, so that the cut of an answer into events does not depend on timing. */
#ifndef VB_SERVE_JOB_H
#define VB_SERVE_JOB_H

#include "tools/serve/serve.h"

enum serve_api { API_COMPLETIONS, API_CHAT };

struct serve_prompt {
    int32_t *tokens;
    size_t count;
    char *text;       /* as it was given; NULL: token ids were */
    size_t text_size;
};

/* The log-probability of a token, its rank from 1, and the likeliest tokens beside it, which are elsewhere: `top` for each row. */
struct serve_row {
    double logprob;
    int32_t rank;
};
struct serve_rows {
    size_t count, room;
    struct serve_row *row;
    int32_t *top_token;   /* [count * top] */
    double *top_logprob;
};

struct serve_token {
    int32_t token;
    int32_t depth;   /* of an accepted draft, from 1; 0: the model's own */
    uint32_t pass;   /* of its sequence, from 0 */
    size_t safe;     /* bytes of the text that no stop string takes back once this token is there */
};

/* How far a choice has been formatted; starts as zeros. */
struct serve_cursor {
    size_t tokens, bytes;
    size_t characters; /* of the pieces before, for text_offset */
    vb_utf8 utf8;
    int begun, ended;
};

struct serve_choice {
    struct serve_job *job;
    int index;               /* in the answer */
    const struct serve_prompt *prompt;
    struct serve_choice *first; /* of those with this prompt: it has the prompt's rows */
    vb_sampling sampling;
    int64_t id;              /* of the batch's request; -1: not added yet */
    struct serve_token *said;
    size_t count, room;
    struct serve_rows rows, prompt_rows; /* of what was said; of the prompt's tokens but the first */
    char *text;
    size_t text_size, text_room;
    uint32_t pass;
    int no_memory, ended;
    /* below: as far as HTTP may look */
    size_t published;        /* tokens */
    int prompt_done;         /* prompt_rows are whole */
    int over;                /* there is a result or an error */
    vb_result result;
    vb_error error;          /* code 0: none */
    struct serve_cursor sent;
    int paused;              /* by the worker, because the reader is slow */
};

struct serve_job {
    pthread_mutex_t lock;
    atomic_int references;
    struct server *server;
    struct serve_job *next;  /* in one of the worker's lists */

    /* what is asked for */
    enum serve_api api;
    char id[48];
    long long created;
    struct serve_prompt *prompts;
    size_t num_prompts, prompt_tokens;
    int32_t n, logprobs, prompt_logprobs; /* alternatives of each token; -1: no log-probabilities */
    int stream, include_usage, echo, return_tokens, ignore_eos, add_special_tokens, add_generation_prompt, allow_special_tokens;
    size_t max_tokens;
    int has_max_tokens;
    uint64_t seed;
    int has_seed;
    vb_sampling sampling;
    vb_drafting drafting;
    char draft_method[48];
    char *stop[SERVE_MOST_STOPS];
    int32_t num_stops, *stop_tokens, num_stop_tokens;
    int32_t *bias_tokens;
    float *bias_values;

    /* under the lock */
    struct serve_choice *choices;
    size_t num_choices, num_over;
    int cancelled;           /* the client is gone, or the answer is not wanted */
    int keep_alive;          /* a comment is due */
    void (*wake)(struct serve_job *job); /* there is news; called with the lock held */
    void *waiter;            /* of wake */
    int suspended;           /* the connection waits for wake */
    int fd;                  /* the client's socket while the connection lives; -1 */

    /* the worker's */
    int news;                /* since the connection was woken */
    double began, last_news; /* cli_seconds() */
    double *last_token;      /* [num_choices] */
};

/* An empty job with one reference; NULL: no memory. */
struct serve_job *job_open(struct server *server, enum serve_api api);
struct serve_job *job_hold(struct serve_job *job);
void job_release(struct serve_job *job);
/* Makes the choices of the prompts. Returns 0 without memory. */
int job_make_choices(struct serve_job *job);
int job_is_over(const struct serve_job *job);

/* The alternatives that are kept of each row: the larger one of what the fields ask for. 0 or more. */
int32_t job_top(const struct serve_job *job);
int job_wants_rows(const struct serve_job *job);        /* log-probabilities of what is said */
int job_wants_prompt_rows(const struct serve_job *job); /* of the prompts */

/* Appends a row: the token's log-probability, in double, of the logits before temperature and penalties, and the likeliest tokens.
 * Returns 0 without memory. */
int rows_add(struct serve_rows *rows, const float *logits, int32_t vocabulary, int32_t token, int32_t top);

/* vb_callback and vb_row_callback of a choice. */
int choice_token(void *choice, const vb_event *event);
int choice_prompt_row(void *choice, int depth, size_t index, const float *logits, const float *hidden);

#endif
