/* tools/serve/serve.h -- types that all parts of `verbatim serve` use: the server, and the reason why a request
 * failed. */
#ifndef VB_SERVE_H
#define VB_SERVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/verbatim.h"
#include "tools/cli/cli.h"
#include "tools/serve/meaning.h"

#define SERVE_MOST_BODY ((size_t)16 << 20) /* the most bytes in the body of a request */
#define SERVE_MOST_CHOICES 16              /* the largest n */
#define SERVE_MOST_SEQUENCES 512           /* the most sequences of one request: number of prompts times n */
#define SERVE_MOST_STOPS 16
#define SERVE_MOST_TOP 20                  /* the largest value of logprobs, top_logprobs and prompt_logprobs */
#define SERVE_MOST_UNKNOWN 64              /* how many different unknown fields are reported */

enum server_state { SERVER_OPENING, SERVER_READY, SERVER_STOPPING };

struct metrics;
struct vocabulary;
struct worker;

/* After the state has become SERVER_READY, only `state` and the members after `lock` change. metrics and worker have
 * their own locks. */
struct server {
    struct cli *c;
    const char *name;         /* the model's name in requests and answers */
    char fingerprint[320];    /* the value of system_fingerprint in answers */
    const vb_tokenizer *tokenizer; /* NULL: the model has none */
    const vb_template *chat;       /* NULL: the model has none */
    vb_error chat_error;           /* why chat is NULL */
    struct meaning_kind meaning;   /* how the model writes reasoning and tool calls */
    unsigned char mark_byte[16];   /* the bytes that stand for the markers of tool calls in `pieces` (schema_calls.h) */
    int calls_as_objects;  /* the template wants the arguments of earlier tool calls as objects; else as texts */
    char number_mark[24];  /* random: begins a text in place of a number that jansson cannot hold
                              (conversation_calls.c) */
    int calls_with_text;   /* the template wants an empty text, and not null, as the content of an answer with tool
                              calls only */
    int32_t vocabulary;
    unsigned char *special;    /* [vocabulary]: as from vocabulary_special; NULL if the model has no tokenizer */
    struct vocabulary *pieces; /* for response_format and forced tool calls; NULL if the model has no tokenizer or no
                                  end token */
    size_t context;           /* the largest number of tokens that prompt and answer can have together */
    vb_drafting drafting;     /* the draft method for requests that do not choose one */
    int32_t max_sequences, max_waiting;
    long long created;        /* when the server started, in seconds since 1970 */
    char *key;                /* the API key; NULL: no key is needed */
    size_t key_size;
    struct metrics *metrics;
    struct worker *worker;
    atomic_int state;         /* a value of enum server_state */
    pthread_mutex_t lock;     /* protects the members after it */
    char *unknown[SERVE_MOST_UNKNOWN]; /* the unknown fields that were already reported */
    FILE *log;                /* where the log is written; NULL: stderr */
};

/* Writes `size` bytes to the log. Texts from different threads are not mixed. */
void server_log(struct server *s, const char *text, size_t size);

/* Returns 1 if drafts influence the output: --acceptance is relaxed or rejection. */
int server_drafts_lead(const struct server *s);

/* The reason why a request failed. reply_failure writes it as OpenAI's error object. */
struct failure {
    int status;            /* the HTTP status; 0: nothing failed */
    const char *type;      /* such as "invalid_request_error"; NULL: the status decides */
    const char *code;      /* such as "model_not_found"; NULL: none */
    char param[64];        /* the name of the field with the error; "": none */
    char message[512];
};

/* Fills *f and returns `status`. field: the name of the field with the error, or "". */
int fail_with(struct failure *f, int status, const char *code, const char *field, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Fills *f from an error of the library, and returns the status: 400 if the request caused the error, else 500. */
int fail_by(struct failure *f, const vb_error *err);

#endif
