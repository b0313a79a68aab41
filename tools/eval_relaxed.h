/* tools/eval_relaxed.h -- measures on a given text what relaxed acceptance would cost: how many drafts it would accept
 * that are not the target's most likely token, and how much less likely these drafts are.
 *
 * As everywhere in eval, model and modules read the text and not their own output (teacher forcing). The draft of depth
 * k at row i and the target's row i+k+1 predict the same position. */
#ifndef VB_EVAL_RELAXED_H
#define VB_EVAL_RELAXED_H

#include "tools/cli/cli.h"

/* A token that relaxed acceptance would accept at some row of the target. */
struct near {
    int32_t token; /* a token of -1 ends the list of a row */
    double nats;   /* how much less likely it is than the best token: log p_best - log p */
};

struct relaxed {
    int asked;           /* --acceptance relaxed was given */
    size_t topk;
    double delta;
    int32_t begin, end;  /* the tokens that begin and end the thinking, such as <think> and </think>; -1: the whole text
                            counts as thinking */
    int thinking;        /* whether the last token so far is part of the thinking */
    unsigned char *open; /* [window]: element i is 1 if token i of the window is part of the thinking */
    struct near *list;   /* [window, topk]: for each row of the target, the tokens that would be accepted */
    /* Row i starts a chain: the drafts of all depths at row i. A draft is accepted only if all earlier ones of its
     * chain are. */
    size_t drafts, forwards; /* the number of drafts; the number of chains */
    size_t strict[VB_MAX_DRAFT], stands[VB_MAX_DRAFT]; /* for each depth: how many drafts strict acceptance accepts
                                                          (strict), and relaxed acceptance (stands) */
    size_t others;       /* how many drafts relaxed acceptance accepts that are not the target's most likely token */
    double nats;         /* the sum of near.nats over the drafts that `others` counts */
};

/* Reads --acceptance relaxed and its options. Then sets the session's acceptance mode back to the default, because
 * eval's sessions choose no tokens. Reports errors. */
int relaxed_open(struct relaxed *r, struct cli *c, size_t window);
void relaxed_close(struct relaxed *r);

/* Records the logits of the target's row `index` in the current window. */
void relaxed_row(struct relaxed *r, size_t index, const float *logits, size_t V);
/* Counts the drafts of a window after all its rows were recorded. `ids`: the tokens of the window. `best[0][i]`: the
 * target's most likely token at row i. `best[k + 1][i]`: the draft of depth k at row i. */
void relaxed_window(struct relaxed *r, const int32_t *ids, size_t count, int32_t *const *best, int depths);

json_t *relaxed_json(const struct relaxed *r, int depths); /* JSON null if relaxed acceptance was not asked for */
void relaxed_print(const struct relaxed *r, int depths);

#endif
