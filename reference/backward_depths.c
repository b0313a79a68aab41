/* reference/backward_depths.c -- which rows the depths of a draft network compute, for the backward passes of MTP
 * modules and EAGLE heads. */
#include "reference/backward_layers.h"

#include <string.h>

static int is_aligned(const struct ref_depths *p) { return p->loss->chain == CHAIN_ALIGNED; }

struct ref_depth_rows ref_depth_rows(const struct loss *loss, int T, int k)
{
    struct ref_depth_rows a = {k, loss->chain == CHAIN_ALIGNED ? 0 : k, 0, T - k - 2};
    for (int m = a.lowest; m < k; m++)
        a.first += T - m - 2;
    a.rows += a.first;
    return a;
}

int ref_depth_most(const struct loss *loss, int S)
{
    int most = S;
    for (int k = 0; k < loss->depths && k < S - 1; k++) {
        struct ref_depth_rows a = ref_depth_rows(loss, S + 1, k);
        most = a.rows > most ? a.rows : most;
    }
    return most;
}

/* Row i of depth m sees rows 0..i of depth 0 and row i of the depths 1..m. */
static int is_seen(int m, int i, int depth, int row) { return depth ? depth <= m && row == i : row <= i; }

void ref_depth_begin(struct ref_depths *p, struct reference_run *run, const struct ref_depth_rows *a,
                     const int32_t *tok, int T)
{
    size_t d = p->width, plane = p->S * d, s = 0;
    for (int m = a->lowest; m <= a->k; m++)
        for (int i = 0; i < T - m - 2; i++, s++) {
            size_t t = 0;
            memcpy(p->in + s * d, p->taken + (size_t)m * plane + (size_t)i * d, d * sizeof *p->in);
            p->tok[s] = tok[i + m + 1];
            p->places[s] = i + m;
            for (int depth = 0; is_aligned(p) && depth <= a->k; depth++)
                for (int row = 0; row < T - depth - 2; row++, t++)
                    p->mask[s * (size_t)a->rows + t] = (char)is_seen(m, i, depth, row);
        }
    run->places = is_aligned(p) ? p->places : NULL;
    run->mask = is_aligned(p) ? p->mask : NULL;
}

void ref_depth_end(struct reference_run *run)
{
    run->places = NULL;
    run->mask = NULL;
}

static int is_label(const struct reference_sequence *q, int i) { return !q->loss_mask || q->loss_mask[i]; }

void ref_labels(int32_t *labels, const struct reference_sequence *q)
{
    for (int i = 0; i < q->count; i++)
        labels[i] = is_label(q, i) ? q->tokens[i] : -1;
}

int ref_count_rows(struct reference_losses *losses, int depths, const struct reference_sequence *sequences, int count)
{
    int S = 0;
    for (int i = 0; i < count; i++) {
        int T = sequences[i].count;
        S = T - 1 > S ? T - 1 : S;
        for (int t = 1; t < T; t++) {
            losses->rows += is_label(&sequences[i], t);
            for (int k = 0; k < depths && k + 2 <= t; k++)
                losses->depth_rows[k] += is_label(&sequences[i], t);
        }
    }
    return S;
}

struct loss ref_loss_of(const struct reference_loss_options *o)
{
    struct loss megatron = {.terms.data = 1, .chain = CHAIN_MODULES, .depths = o->depths, .main = 1};
    for (int k = 0; k < o->depths && k < VB_MAX_DRAFT; k++)
        megatron.depth[k] = o->mtp_loss_scaling_factor / o->depths;
    return o->loss ? *o->loss : megatron;
}
