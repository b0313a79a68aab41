#include "engine/pass/vocab.h"

#include <stdlib.h>

#include "engine/model/ranks.h"
#include "engine/pass/lead.h"
#include "ops/gather.h"

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int take_tokens(vb_draft_vocab *v, const int32_t *tokens, size_t count, vb_error *err)
{
    int32_t V = v->model->config.vocab_size;
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= V)
            return vb_fail(err, VB_BAD_ARGUMENT, "draft vocabulary: token %zu is %d, outside the vocabulary of %d", i,
                           tokens[i], V);
        v->tokens[i] = tokens[i];
    }
    qsort(v->tokens, count, sizeof *v->tokens, by_id);
    for (size_t i = 1; i < count; i++)
        if (v->tokens[i] == v->tokens[i - 1])
            return vb_fail(err, VB_BAD_ARGUMENT, "draft vocabulary: token %d is listed twice", v->tokens[i]);
    v->count = count;
    return VB_OK;
}

static int ranks_of(const struct vb_model *m) { return m->ranks ? m->ranks->op.count : 1; }
static int own_rank(const struct vb_model *m) { return m->ranks ? m->ranks->op.rank : 0; }

/* Which rows of the heads a rank has. */
static struct op_share share_of(const struct vb_model *m, int rank)
{
    return m->ranks ? op_share_of(&m->ranks->op, rank, m->config.dims.V, OP_ROW_GROUP)
                    : (struct op_share){0, m->config.dims.V};
}

/* Divides the list as the heads are divided. */
static void cut(vb_draft_vocab *v)
{
    for (int rank = 0; rank < ranks_of(v->model); rank++) {
        size_t end = share_of(v->model, rank).end, at = v->cuts[rank];
        while (at < v->count && (size_t)v->tokens[at] < end)
            at++;
        v->cuts[rank + 1] = at;
    }
}

/* Returns the first module whose head is the same matrix as that of module k. */
static int first_with_head(const struct vb_model *m, int k)
{
    int first = 0;
    while (m->mtp[first].head.data != m->mtp[k].head.data)
        first++;
    return first;
}

static size_t copy_bytes(const struct vb_model *m, int k, size_t count)
{
    return first_with_head(m, k) < k ? 0 : (weight_gather_bytes(&m->mtp[k].head, count) + 63) & ~(size_t)63;
}

/* What kernels find out about the rows of the list does not hold for the whole head. */
static void note_magnitudes_apart(vb_draft_vocab *v, int k)
{
    if (v->model->mtp[k].head.magnitudes)
        v->heads[k].magnitudes = &v->magnitudes[k];
}

/* The tokens are 0 .. count-1, so the first rows of each head are used in place. */
static void use_first_rows(vb_draft_vocab *v, size_t count)
{
    for (int k = 0; k < v->model->num_mtp; k++) {
        v->heads[k] = weight_rows(&v->model->mtp[k].head, 0, count);
        note_magnitudes_apart(v, k);
    }
}

static int copy_rows(vb_draft_vocab *v, const int32_t *tokens, size_t count, vb_error *err)
{
    const struct vb_model *m = v->model;
    size_t first_row = share_of(m, own_rank(m)).begin;
    for (int k = 0; k < m->num_mtp; k++)
        v->bytes += copy_bytes(m, k, count);
    v->copies = vb_alloc_unset(m->allocator, v->bytes);
    if (!v->copies)
        return vb_fail(err, VB_NO_MEMORY, "no memory for a draft vocabulary, %zu bytes", v->bytes);
    char *data = v->copies;
    for (int k = 0; k < m->num_mtp; k++) {
        int first = first_with_head(m, k);
        v->heads[k] = first < k ? v->heads[first] : weight_gather(data, &m->mtp[k].head, tokens, count, first_row);
        if (first == k)
            note_magnitudes_apart(v, k);
        data += copy_bytes(m, k, count);
    }
    if (m->ranks)
        m->ranks->weight_bytes += v->bytes;
    return VB_OK;
}

/* Takes the rows that this rank has. */
static int take_rows(vb_draft_vocab *v, vb_error *err)
{
    cut(v);
    size_t first = v->cuts[own_rank(v->model)], count = v->cuts[own_rank(v->model) + 1] - first;
    if ((size_t)v->tokens[v->count - 1] + 1 != v->count)
        return copy_rows(v, v->tokens + first, count, err);
    use_first_rows(v, count);
    return VB_OK;
}

int vb_draft_vocab_open(vb_draft_vocab **out, const vb_model *model, const int32_t *tokens, size_t count, vb_error *err)
{
    const vb_allocator *a = model->allocator;
    *out = NULL;
    if (!model->num_mtp)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s: a draft vocabulary needs MTP modules, and the model has none",
                       checkpoint_dir(model->checkpoint));
    if (!count || count > (size_t)model->config.vocab_size)
        return vb_fail(err, VB_BAD_ARGUMENT, "the draft vocabulary has %zu tokens, wanted 1 to %d", count,
                       model->config.vocab_size);
    vb_draft_vocab *v = vb_alloc(a, 1, sizeof *v);
    if (!v)
        return vb_fail(err, VB_NO_MEMORY, "no memory for a draft vocabulary");
    v->model = model;
    v->tokens = vb_alloc(a, count, sizeof *v->tokens);
    v->heads = vb_alloc(a, (size_t)model->num_mtp, sizeof *v->heads);
    v->magnitudes = vb_alloc(a, (size_t)model->num_mtp, 1);
    v->cuts = vb_alloc(a, (size_t)ranks_of(model) + 1, sizeof *v->cuts);
    int code = !v->tokens || !v->heads || !v->magnitudes || !v->cuts
                   ? vb_fail(err, VB_NO_MEMORY, "no memory for a draft vocabulary of %zu tokens", count)
                   : take_tokens(v, tokens, count, err);
    if (!code)
        code = take_rows(v, err);
    if (!code)
        code = lead_vocab(v, err);
    if (code)
        vb_draft_vocab_close(v);
    else
        *out = v;
    return code;
}

size_t vb_draft_vocab_bytes(const vb_draft_vocab *vocab) { return vocab->bytes; }

void vb_draft_vocab_close(vb_draft_vocab *v)
{
    if (!v)
        return;
    const vb_allocator *a = v->model->allocator;
    lead_no_vocab(v);
    if (v->copies && v->model->ranks)
        v->model->ranks->weight_bytes -= v->bytes;
    vb_free(a, v->tokens);
    vb_free(a, v->heads);
    vb_free(a, v->magnitudes);
    vb_free(a, v->cuts);
    vb_free(a, v->copies);
    vb_free(a, v);
}
