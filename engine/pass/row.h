/* engine/pass/row.h -- a row: one token on its way through a pass (engine/pass/forward.h). */
#ifndef VB_ROW_H
#define VB_ROW_H

#include "engine/pass/kvcache.h"

/* The tokens that the indexer of an MTP module chose for a row (convention mtp-set). */
struct kept_tokens {
    int32_t *slots; /* [index_topk] */
    size_t count;   /* 0: none were kept yet */
};

struct row {
    struct kvcache *cache;
    int32_t token;    /* the token whose embedding the row reads */
    int32_t slot;     /* the slot in the cache to which the row writes */
    int32_t index;    /* index of the token in its sequence; the row attends to tokens 0..index */
    int32_t position; /* RoPE position */
    int32_t skipped;  /* how many of the tokens 0..index have no row in the cache; they are just before this row. With
                         convention chain-module=step, a module does not compute the rows of the steps that other
                         modules make */
    int32_t draft;    /* only for taps and traces. 0: committed token; k: the k-th draft of its round; -1: padding */
    int32_t hidden_of, hidden_depth; /* for taps and traces: in a pass of an MTP module, where the hidden state comes
                                        from that is the input of this row (engine/verbatim.h) */
    int32_t expanded; /* nonzero: attention has the expanded form (ops/expanded.h). Then it has this form for all rows
                         of tokens 0..index */
    int32_t parent;   /* for taps and traces: number of the draft that this row's draft follows; 0: the draft follows no
                         other draft */
    const int32_t *forced; /* [layers, experts per token]: the experts that each layer must take, in ascending order; a
                              layer whose first number is -1 chooses; NULL: all layers choose. For rows of an MTP
                              module, [1, experts per token] */
    const int32_t *forced_kept; /* [layers, index_topk]: the tokens to which attention must attend, in ascending order,
                                   as places in the timeline of the row; a layer whose first number is -1 chooses; NULL:
                                   all choose. For rows of an MTP module, [1, index_topk] */
    int32_t *taken;        /* [layers, experts per token]: for rows of the target: receives the experts of each MoE
                              layer; NULL: nobody wants them */
    int32_t *taken_kept;   /* [layers, index_topk]: the same for the tokens to which attention attends, and -1 in layers
                              without an indexer */
    struct kept_tokens *keep;      /* receives the tokens to which attention attends; NULL: nobody wants them */
    const struct kept_tokens *use; /* if the row sees more than index_topk tokens, it attends to these; NULL or none:
                                      its indexer chooses */
    size_t tail;               /* with `expanded`: the row attends to so many more tokens, after tokens 0..index */
    const int32_t *tail_slots; /* [tail]: their slots. The lists of neighbouring rows follow each other in memory */
    const int32_t *slots; /* [index + 1]: slots of the tokens to which the row attends. If the row's token is a draft in
                             a tree, the row attends to the committed tokens, to the draft's ancestors and to the draft
                             itself. NULL: cache->slots */
};

/* Returns the number, from 1, of the row of the pass that writes the set that row `s` uses; 0: there is none. */
static inline size_t row_keeper(const struct row *rows, size_t S, size_t s)
{
    size_t keeper = 0;
    while (rows[s].use && keeper < S && rows[keeper].keep != rows[s].use)
        keeper++;
    return rows[s].use && keeper < S ? keeper + 1 : 0;
}


#endif
