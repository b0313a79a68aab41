/* tools/cli/answer.h -- printing for generate and chat: the tokens as they are generated, statistics, JSON. Also
 * handles Ctrl-C. */
#ifndef VB_ANSWER_H
#define VB_ANSWER_H

#include "tools/cli/cli.h"

struct answer {
    const struct cli *c;
    vb_utf8 stream;
    /* colour: whether stdout is a terminal; printed: how many token ids were printed (used only without a tokenizer) */
    int colour, printed;
    char *held;         /* [count]: bytes of the text that are not printed yet */
    char *drafted;      /* [count]: for each byte in `held`, whether it comes from an accepted draft */
    size_t count, room; /* count: the number of bytes in `held`; room: the number that fits into the allocation */
    size_t written;     /* the number of bytes printed so far */
    double first_token; /* the time of the first token, by cli_seconds(); 0: there is none yet */
    json_t *logprobs;   /* with --logprobs: an array with one object per token, which answer_json moves to its result */
};

/* A vb_callback; its context is a struct answer. Prints the text as it is generated, with accepted drafts in green on a
 * terminal. It holds back bytes that may be the beginning of a stop string. With --json it prints nothing. It ends the
 * run if Ctrl-C was pressed or if stdout can no longer be written. */
int answer_token(void *context, const vb_event *e);
/* Generates at most n tokens after those of the session. Reports errors. If Ctrl-C ended the run, it returns
 * EXIT_INTERRUPTED, and *result is still valid. */
int answer_generate(struct answer *a, vb_session *session, size_t n, vb_result *result);

/* The object that --json prints: {prompt_tokens, tokens, text, finish_reason, ...}. `prompt`: how many of the session's
 * tokens are the prompt. */
json_t *answer_json(struct answer *a, const vb_session *session, size_t prompt, const vb_result *r);
/* The object for one token: {token, logprob, top: [{token, logprob}, ...]}, where top has the `count` most likely
 * tokens. */
json_t *answer_logprobs(const float *logits, int32_t vocabulary, int32_t token, int32_t count);
/* Prints a line of statistics on stderr, and more lines with --stats. */
void answer_statistics(const struct answer *a, const vb_session *session, size_t prompt, const vb_result *r);

/* From now on, Ctrl-C only sets a flag; a second Ctrl-C ends the process. If `reading` is nonzero, Ctrl-C also
 * interrupts system calls such as read. */
void answer_watch_interrupt(int reading);
/* Returns whether Ctrl-C was pressed. Used as vb_session_options.stop. */
int answer_stop(void *unused);
/* Returns whether Ctrl-C was pressed, and clears the flag. */
int answer_interrupted(void);

/* Shows progress such as "reading the prompt: 37 %". Used as vb_session_options.progress. */
void answer_show_prefill(void *unused, size_t done, size_t total);

#endif
