/* tools/serve/job.h -- one API request (a job): its options, its choices, and the tokens that were generated for each
 * choice.
 *
 * Each choice is one sequence of the batch. Two threads use a job: the worker appends tokens to its choices, and a
 * thread of the HTTP server formats the tokens for the client. Both hold a reference to the job. The arrays of a choice
 * only grow. The HTTP server may read only tokens that the worker has published. The worker publishes tokens at the end
 * of each pass, so the division of an answer into events does not depend on timing. */
#ifndef VB_SERVE_JOB_H
#define VB_SERVE_JOB_H

#include "tools/serve/allowed.h"
#include "tools/serve/serve.h"

enum serve_api { API_COMPLETIONS, API_CHAT };

struct serve_prompt {
    int32_t *tokens;
    size_t count;
    char *text;       /* the prompt's text; NULL: the request contains token ids */
    size_t text_size;
};

/* What one row of logits says about the token after it: the token's log-probability, and its rank, counted from 1. The
 * likeliest tokens of the row are in struct serve_rows, job_top() of them for each row. */
struct serve_row {
    double logprob;
    int32_t rank;
};
struct serve_rows {
    size_t count, room;
    struct serve_row *row;
    int32_t *top_token;   /* [count, job_top()] */
    double *top_logprob;
};

struct serve_token {
    int32_t token;
    int32_t depth;   /* of an accepted draft, counted from 1; 0: the model chose this token itself */
    uint32_t pass;   /* number of the sequence's pass, counted from 0 */
    size_t safe;     /* how many bytes of the text are certain not to become part of a stop string (text_bytes in
                        vb_event) */
};

/* How much of a choice has been formatted already. Before the first call all members are 0. */
struct serve_cursor {
    size_t tokens, bytes;
    size_t characters; /* number of characters in the tokens formatted so far, for text_offset */
    vb_utf8 utf8;
    struct meaning_parser *parser; /* of a chat's answer; the owner of the cursor closes it */
    int begun, ended;
};

struct serve_choice {
    struct serve_job *job;
    int index;               /* the value of "index" in the answer */
    const struct serve_prompt *prompt;
    struct serve_choice *first; /* the first choice with this prompt; only its prompt_rows are filled */
    vb_sampling sampling;
    struct allowed *allowed; /* the context of sampling.mask; NULL: there is no mask */
    int64_t id;              /* the batch's number for this request; -1: not added yet */
    struct serve_token *said;
    size_t count, room;
    struct serve_rows rows, prompt_rows; /* rows for the tokens in `said`; rows for the prompt's tokens except the
                                            first */
    char *text;
    size_t text_size, text_room;
    uint32_t pass;
    int no_memory, ended;
    /* how much the HTTP server may read, and how much it has sent */
    size_t published;        /* number of tokens in `said` that may be sent */
    int prompt_done;         /* nonzero: no more rows will be added to prompt_rows */
    int over;                /* nonzero: `result` or `error` is set */
    vb_result result;
    vb_error error;          /* code 0: none */
    struct serve_cursor sent;
    int paused;              /* nonzero: the worker has paused the sequence, because the client reads slowly */
};

struct serve_job {
    pthread_mutex_t lock;
    atomic_int references;
    struct server *server;
    struct serve_job *next;  /* the next job in the same list of the worker */

    /* the request's options */
    enum serve_api api;
    char id[48];
    long long created;
    struct serve_prompt *prompts;
    size_t num_prompts, prompt_tokens;
    int32_t n, logprobs, prompt_logprobs; /* logprobs: how many likeliest tokens are listed; -1: no log-probabilities */
    int stream, include_usage, echo, return_tokens, ignore_eos, add_special_tokens, add_generation_prompt,
        allow_special_tokens;
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
    struct schema *schema;   /* of response_format; NULL: text */
    struct meaning_options meaning; /* of a chat */
    json_t *tools;           /* a copy, for `meaning`; NULL: none */

    /* to be used with `lock` held */
    struct serve_choice *choices;
    size_t num_choices, num_over;
    int cancelled;           /* nonzero: the client has closed the connection, or the answer cannot be used */
    int keep_alive;          /* nonzero: an SSE comment has to be sent, so that the connection stays open */
    /* The worker calls it, with `lock` held, when there is something to send. now: nonzero if it has to be sent at
     * once, and not a few milliseconds later */
    void (*wake)(struct serve_job *job, int now);
    void *waiter;            /* the connection that wake() resumes */
    int suspended;           /* nonzero: the connection waits until wake() is called */
    int fd;                  /* the client's socket; -1: no connection */
    int listed;              /* nonzero: the job is on the flusher's list */
    struct serve_job *next_listed;
    struct flusher *flusher;

    /* the HTTP server does not use these members */
    int news;                /* nonzero: something has changed since the worker last called wake() */
    double began, last_news; /* times from cli_seconds() */
    double *last_token;      /* [num_choices]: when the choice's last token was published; 0: there is none */
};

/* Returns a new job without prompts and with one reference, or NULL if memory is missing. */
struct serve_job *job_open(struct server *server, enum serve_api api);
struct serve_job *job_hold(struct serve_job *job);
void job_release(struct serve_job *job);
/* Makes n choices for each prompt. Returns 0 if memory is missing. */
int job_make_choices(struct serve_job *job);
int job_is_over(const struct serve_job *job);

/* Returns how many of the likeliest tokens are stored for each row: the larger one of logprobs and prompt_logprobs, or
 * 0 if both are -1. At most the size of the vocabulary. */
int32_t job_top(const struct serve_job *job);
int job_wants_rows(const struct serve_job *job);        /* whether log-probabilities of generated tokens are wanted */
int job_wants_prompt_rows(const struct serve_job *job); /* the same for the prompts' tokens */

/* Appends the log-probability and rank of `token`, and the `top` likeliest tokens. `logits` are those before
 * temperature and penalties; log-probabilities are computed in double. Returns 0 if memory is missing. */
int rows_add(struct serve_rows *rows, const float *logits, int32_t vocabulary, int32_t token, int32_t top);

/* Callbacks for the batch; their context is a struct serve_choice. choice_token is a vb_callback, and choice_prompt_row
 * a vb_row_callback. */
int choice_token(void *choice, const vb_event *event);
int choice_prompt_row(void *choice, int depth, size_t index, const float *logits, const float *hidden);

#endif
