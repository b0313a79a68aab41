/* tools/cli/answer.h -- what generate and chat do with the tokens of a run: print them as they come, count, report. */
#ifndef VB_ANSWER_H
#define VB_ANSWER_H

#include "tools/cli/cli.h"

struct answer {
    const struct cli *c;
    struct utf8_stream stream;
    int colour, printed;
    char *held;         /* the text's bytes that are not written yet, and for each whether a draft brought it */
    char *drafted;
    size_t count, room, written;
    double first_token; /* when it came, by cli_seconds(); 0: none yet */
    json_t *logprobs;   /* with --logprobs: one object per token; answer_json takes it */
};

/* A vb_callback, its context a struct answer: writes the text as it comes; on a terminal, accepted drafts are green. What
 * may become a stop string is held back. With --json nothing. Ends the run when nobody reads, or after Ctrl-C. */
int answer_token(void *context, const vb_event *e);
/* Continues the session's timeline by at most n tokens. Returns an exit code after reporting; EXIT_INTERRUPTED: Ctrl-C came,
 * and *result is whole. */
int answer_generate(struct answer *a, vb_session *session, size_t n, vb_result *result);

/* {prompt_tokens, tokens, text, finish_reason, ...} of a timeline whose first `prompt` tokens were given. */
json_t *answer_json(struct answer *a, const vb_session *session, size_t prompt, const vb_result *r);
/* {token, logprob, top: [{token, logprob}, ...]} with the `count` likeliest. */
json_t *answer_logprobs(const float *logits, int32_t vocabulary, int32_t token, int32_t count);
/* One line on stderr; more with --stats. */
void answer_statistics(const struct answer *a, const vb_session *session, size_t prompt, const vb_result *r);

/* From here on Ctrl-C is noted, and a second one ends the process. Reading is cut short by it, writing (reading 0) is not. */
void answer_watch_interrupt(int reading);
/* Whether it came; for vb_session_options.stop. */
int answer_stop(void *unused);
/* The same, and forgets it. */
int answer_interrupted(void);

/* "reading the prompt: 37 %"; for vb_session_options.progress */
void answer_show_prefill(void *unused, size_t done, size_t total);

#endif
