/* tools/eval_relaxed.h -- what relaxed acceptance would cost on a text: how many drafts of the modules it would let stand that
 * are not the target's best token, and how much less probable they are.
 *
 * Teacher forced, as all of eval: row i of depth k drafts the token that the target's row i+k+1 chooses too. */
#ifndef VB_EVAL_RELAXED_H
#define VB_EVAL_RELAXED_H

#include "tools/cli/cli.h"

/* A token that would stand beside the best of a row. */
struct near {
    int32_t token; /* -1 ends a row's list */
    double nats;   /* log p_best - log p */
};

struct relaxed {
    int asked;
    size_t topk;
    double delta;
    int32_t begin, end;  /* the thinking tokens; -1: the whole text counts as lying between them */
    int thinking;        /* at the end of the windows before */
    unsigned char *open; /* [window]: the token of this index lies between them */
    struct near *list;   /* [window, topk]: of each row of the target */
    size_t drafts, forwards, strict[VB_MAX_DRAFT], stands[VB_MAX_DRAFT]; /* chains that stand up to a depth */
    size_t others;       /* drafts in such chains that are not the best; what they cost: */
    double nats;
};

/* Takes --acceptance relaxed and its options away from the sessions. Reports errors. */
int relaxed_open(struct relaxed *r, struct cli *c, size_t window);
void relaxed_close(struct relaxed *r);

/* The target's row `index` of the window. */
void relaxed_row(struct relaxed *r, size_t index, const float *logits, size_t V);
/* The window's tokens; best[k + 1][i]: the draft of depth k's row i, best[0][i]: the target's best token of row i. */
void relaxed_window(struct relaxed *r, const int32_t *ids, size_t count, int32_t *const *best, int depths);

json_t *relaxed_json(const struct relaxed *r, int depths); /* null when it was not asked for */
void relaxed_print(const struct relaxed *r, int depths);

#endif
