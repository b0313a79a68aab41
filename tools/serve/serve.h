/* tools/serve/serve.h -- what all parts of `verbatim serve` share: the server, and why a request is refused. */
#ifndef VB_SERVE_H
#define VB_SERVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/verbatim.h"
#include "tools/cli/cli.h"

#define SERVE_MOST_BODY ((size_t)16 << 20) /* bytes of a request */
#define SERVE_MOST_CHOICES 16              /* n */
#define SERVE_MOST_SEQUENCES 512           /* of one request: prompts times n */
#define SERVE_MOST_STOPS 16
#define SERVE_MOST_TOP 20                  /* alternatives of a token */
#define SERVE_MOST_UNKNOWN 64              /* names of unknown fields that are remembered */

enum server_state { SERVER_OPENING, SERVER_READY, SERVER_STOPPING };

struct metrics;
struct worker;

/* Constant once the state is SERVER_READY, but for the state and what has a lock. */
struct server {
    struct cli *c;
    const char *name;         /* of the model, for requests */
    char fingerprint[320];    /* system_fingerprint */
    const vb_tokenizer *tokenizer; /* NULL: the model has none */
    const vb_template *chat;       /* NULL: the model has none */
    vb_error chat_error;           /* why chat is NULL */
    char *template_source;         /* its text, as far as it is found in a file; or NULL */
    int32_t vocabulary;
    size_t context;           /* the most tokens of prompt and answer together */
    vb_drafting drafting;     /* of requests that choose none */
    int32_t max_sequences, max_waiting;
    long long created;        /* the time of the start */
    char *key;                /* NULL: none is wanted */
    size_t key_size;
    struct metrics *metrics;
    struct worker *worker;
    atomic_int state;         /* enum server_state */
    pthread_mutex_t lock;     /* for what follows */
    char *unknown[SERVE_MOST_UNKNOWN]; /* names of fields that were told to be unknown */
    FILE *log;                /* NULL: stderr */
};

/* Writes to the log, in one piece. */
void server_log(struct server *s, const char *text, size_t size);

/* Why a request fails; OpenAI's error object says it. */
struct failure {
    int status;            /* of HTTP; 0: nothing failed */
    const char *type;      /* "invalid_request_error"; NULL: as the status has it */
    const char *code;      /* "model_not_found"; NULL: none */
    char param[64];        /* the field; "": none */
    char message[512];
};

/* Fills *f and returns its status. field: "" or a field's name. */
int fail_with(struct failure *f, int status, const char *code, const char *field, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The same of an error of the library: 400 for the caller's mistakes, else 500. */
int fail_by(struct failure *f, const vb_error *err);

#endif
