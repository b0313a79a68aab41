/* engine/base/loss.h -- the losses of MTP modules by name, as numbers that the reference and the trainer read.
 *
 * docs/TRAINING.md states the formulas, and where they were published. With D depths,
 *
 *     total   = main * (main loss) + sum_k depth[k] * depth_k
 *     depth_k = the mean of row(i, k) over all rows i of depth k in a step
 *     row     = data * CE(z, token) + soft * CE(z, p) + top * (the K largest terms of CE(z, p)) + features *
 *             smooth_L1(h, f)
 *
 * where p is the target's distribution of the same token, and f the hidden state that the target has for it. */
#ifndef VB_LOSS_H
#define VB_LOSS_H

#include "engine/base/support.h"

/* The weights of the terms of a row. */
struct loss_terms {
    double data, soft, top, features;
    int top_tokens; /* K; not used if top is 0 */
};

/* What depth k > 0 computes. */
enum loss_chain {
    CHAIN_MODULES,  /* module k mod (number of modules); its keys come from all rows of depth k */
    CHAIN_UNROLLED, /* module 0 again, in the same way */
    CHAIN_ALIGNED   /* module 0 as mtp-eagle runs it: row i of depth k is the k-th draft after row i of depth 0. It has
                       the RoPE position i + k, and attends to rows 0..i of depth 0 and to row i of the depths 1..k */
};

struct loss {
    struct loss_terms terms; /* of rows of modules; the main loss always is CE(z, token) */
    enum loss_chain chain;
    int detached;            /* nonzero: the hidden states that a depth reads are constants, so no gradient flows
                                through them to the depth before it or to the target */
    int depths;
    double main, depth[VB_MAX_DRAFT];
};

/* Sets *out to a published loss:
 *
 *     name       terms                                   chain      main   depth[k]                        factor
 *     megatron   data 1                                  modules    1      factor / D                      0.1
 *     fastmtp    data 1                                  unrolled   0      factor^k / sum_j factor^j       0.6
 *     sum        data 1                                  modules    1      factor                          1
 *     eagle      soft 0.1, features 1                    modules    0      factor                          1
 *     eagle3     soft 1                                  aligned    0      factor^k                        0.8
 *     hass       soft 0.1, top 1 (K = 10), features 1    aligned    0      factor                          1
 *                detached
 *
 * The last column is the published factor, which is used if `factor` is negative. Callers may change *out: soft targets
 * for any loss of data are terms.data = 1 - w and terms.soft = w.
 *
 * Returns VB_BAD_ARGUMENT if there is no such loss, if depths is not in 0..VB_MAX_DRAFT, or if the factor is not
 * finite. */
int loss_named(struct loss *out, const char *name, int depths, double factor, vb_error *err);

#endif
