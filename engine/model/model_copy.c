/* engine/model/model_copy.c -- copies of matrices. A copy is made if a matrix must be rounded to BF16, quantised, decoded,
 * or reordered into panels.
 *
 * While tensors are found by name, copies are only planned. When no tensor is missing, all copies are made in one block of
 * memory. They are made one after the other; all threads work on a few megabytes at a time. Pages of the file are released
 * as soon as they have been copied, so that memory contains little more than the copies. */
#include "engine/model/model_internal.h"
#include "engine/base/numbers.h"

#include <math.h>
#include <string.h>

#include "ops/op.h"
#include "ops/quantise.h"
#include "ops/round.h"
#include "ops/weights.h"
#include "simd/decode.h"

#define AT_ONCE ((size_t)8 << 20) /* approximate number of bytes of a file or of a copy between two calls of `progress` */

/* ---- what is to be copied ---- */

static int quantises(const struct binder *b) { return b->c->precision == PRECISION_Q8 || b->c->precision == PRECISION_Q4; }

/* Returns the type in which the model uses a matrix of a linear layer. `cols` is the length of the rows, over which the
 * layer sums. The result is the stored type if no other type was requested or the requested type is not possible. */
static enum weight_type wanted_type(const struct binder *b, enum weight_type type, size_t cols)
{
    if (weight_is_quantised(type) || b->c->precision == PRECISION_F32 || (quantises(b) && cols % QUANTISED_GROUP))
        return type;
    return b->c->precision == PRECISION_BF16 ? WEIGHT_BF16 : b->c->precision == PRECISION_Q8 ? WEIGHT_Q8_0 : WEIGHT_Q4_0;
}

static int wants_panels(const struct binder *b, enum weight_type type) { return weight_has_panels(type) && !b->o->from_file; }

static struct weight_view result_of(const struct binder *b, enum weight_type type, size_t rows, size_t cols)
{
    return (struct weight_view){.type = type, .rows = rows, .cols = cols, .stride = cols, .panels = wants_panels(b, type)};
}

static int plan(struct binder *b, const struct model_copy *copy)
{
    struct model *m = b->m;
    if (m->num_copies == b->room) {
        size_t room = b->room ? 2 * b->room : 64;
        struct model_copy *more = vb_alloc(m->allocator, room, sizeof *more);
        if (!more)
            return vb_fail(b->err, VB_NO_MEMORY, "%s: no memory to plan copies of its matrices", checkpoint_dir(m->checkpoint));
        if (m->num_copies)
            memcpy(more, m->copies, m->num_copies * sizeof *more);
        vb_free(m->allocator, m->copies);
        m->copies = more;
        b->room = room;
    }
    m->copies[m->num_copies++] = *copy;
    return VB_OK;
}

/* Plans a copy of all rows of *w. If `also` is not NULL, *also is the part of *w that begins at row also_row. */
static int plan_whole(struct binder *b, struct weight_view *w, const struct tensor *t, struct weight_view *also, size_t also_row)
{
    enum weight_type type = wanted_type(b, w->type, w->cols);
    struct model_copy copy = {.result = result_of(b, type, w->rows, w->cols), .to = w, .also = also, .also_row = also_row,
                              .tensor = t, .head_rows = w->rows};
    if (!w->data) /* the checkpoint has no weights (checkpoint_from_list) */
        return VB_OK;
    if (type == WEIGHT_BF16 && b->c->precision == PRECISION_BF16) {
        w->magnitudes = &b->m->magnitudes[b->m->magnitudes_used++];
        copy.result.magnitudes = w->magnitudes;
    }
    if (also)
        *also = weight_rows(w, also_row, w->rows - also_row);
    copy.from = *w;
    return type == w->type && !copy.result.panels ? VB_OK : plan(b, &copy);
}

/* If `parts` copies have been planned since there were `before` copies, they replace all of the tensor. Then the function
 * marks the tensor as copied. */
static int end_tensor(struct binder *b, const struct tensor *t, size_t before, size_t parts, int rc)
{
    if (!rc && b->m->num_copies == before + parts)
        checkpoint_set_copied(b->m->checkpoint, t);
    return rc;
}

int model_plan_linear(struct binder *b, struct weight_view *w, const struct tensor *t)
{
    size_t before = b->m->num_copies;
    return end_tensor(b, t, before, 1, plan_whole(b, w, t, NULL, 0));
}

int model_plan_tied_head(struct binder *b, struct weight_view *head, struct weight_view *embedding, const struct tensor *t)
{
    size_t before = b->m->num_copies;
    if (!weight_is_quantised(head->type)) /* the embedding uses the stored matrix */
        return plan_whole(b, head, t, NULL, 0);
    return end_tensor(b, t, before, 1, plan_whole(b, head, t, embedding, 0));
}

/* Plans a copy of W_uk of all attention heads, if one is needed. If W_uk is quantised along c, the copy is F32. Otherwise
 * the copy is quantised along n, if the precision requires it and n is a multiple of 32. */
static int plan_keys(struct binder *b, struct mla *a, const struct tensor *t)
{
    size_t H = b->c->dims.H, n = b->c->dims.n, latent = b->c->dims.c;
    enum weight_type type = weight_is_quantised(a->w_uk.type) ? WEIGHT_F32 : wanted_type(b, a->w_uk.type, n);
    struct model_copy copy = {.to = &a->w_uk, .from = a->w_uk, .tensor = t, .head_stride = a->uk_stride};
    if (type == a->w_uk.type)
        return VB_OK;
    a->uk_transposed = weight_is_quantised(type);
    copy.transposed = a->uk_transposed;
    copy.head_rows = a->uk_transposed ? latent : n;
    copy.result = result_of(b, type, H * copy.head_rows, a->uk_transposed ? n : latent);
    a->uk_stride = copy.head_rows;
    return plan(b, &copy);
}

static int plan_values(struct binder *b, struct mla *a, const struct weight_view *kv_b, const struct tensor *t)
{
    size_t H = b->c->dims.H, v = b->c->dims.v;
    enum weight_type type = wanted_type(b, kv_b->type, kv_b->cols);
    struct model_copy copy = {.result = result_of(b, type, H * v, kv_b->cols), .to = &a->w_uv, .from = *kv_b, .tensor = t,
                              .head_rows = v, .head_stride = a->uv_stride, .first = a->uv_stride - v};
    if (type == kv_b->type && !copy.result.panels)
        return VB_OK;
    a->uv_stride = v;
    return plan(b, &copy);
}

int model_plan_keys(struct binder *b, struct mla *a, const struct tensor *t)
{
    size_t before = b->m->num_copies;
    if (!a->w_uk.data)
        return VB_OK;
    int rc = quantises(b) ? plan_keys(b, a, t) : plan_whole(b, &a->w_uk, t, NULL, 0);
    return end_tensor(b, t, before, 1, rc);
}

int model_plan_kv_b(struct binder *b, struct mla *a, const struct tensor *t)
{
    struct weight_view kv_b = a->w_uk;
    size_t n = b->c->dims.n, before = b->m->num_copies;
    if (!kv_b.data)
        return VB_OK;
    if (!weight_is_quantised(kv_b.type) && !quantises(b))
        return end_tensor(b, t, before, 1, plan_whole(b, &a->w_uk, t, &a->w_uv, n));
    a->w_uv = weight_rows(&kv_b, n, kv_b.rows - n);
    int rc = plan_keys(b, a, t);
    if (!rc)
        rc = plan_values(b, a, &kv_b, t);
    return end_tensor(b, t, before, 2, rc);
}

/* ---- how it is made ---- */

struct making {
    const struct model_copy *copy;
    struct op_ctx cx;
    unsigned char *data;  /* the rows of the copy */
    size_t row, end;      /* rows [row, end) of the copy are made now */
    char *scratch;        /* `room` bytes for each thread: first the numbers of PANEL_ROWS rows, then their blocks */
    size_t room;
    size_t bad;           /* the first row with a number that is too large for the type; accessed atomically */
};

static size_t block_row_bytes(enum weight_type type, size_t cols)
{
    const struct quantised_format *f = quantised_format(type);
    return cols / f->numbers * f->bytes;
}

static size_t scratch_bytes(const struct weight_view *w)
{
    size_t blocks = weight_is_quantised(w->type) ? PANEL_ROWS * block_row_bytes(w->type, w->cols) : 0;
    return op_scratch_bytes(PANEL_ROWS * w->cols) + ((blocks + 63) & ~(size_t)63);
}

static size_t source_row(const struct model_copy *c, size_t row)
{
    return row / c->head_rows * c->head_stride + c->first + row % c->head_rows;
}

/* Decodes rows [row, row + count) of the copy from the stored matrix; count is at most PANEL_ROWS. */
static void decode_rows(float *x, const struct model_copy *c, size_t row, size_t count)
{
    size_t cols = c->result.cols;
    float column[PANEL_ROWS];
    for (size_t r = 0, n; r < count; r += n) {
        size_t at = (row + r) % c->head_rows;
        n = 1;
        if (!c->transposed) {
            decode_weights(x + r * cols, &c->from, source_row(c, row + r), 0, cols);
            continue;
        }
        n = count - r < c->head_rows - at ? count - r : c->head_rows - at;
        for (size_t k = 0; k < cols; k++) {
            decode_weights(column, &c->from, source_row(c, row + r - at) + k, at, n);
            for (size_t i = 0; i < n; i++)
                x[(r + i) * cols + k] = column[i];
        }
    }
}

static int quantise(void *blocks, const float *x, enum weight_type type, size_t K)
{
    return type == WEIGHT_Q8_0 ? op_quantise_q8_0(blocks, x, K) : op_quantise_q4_0(blocks, x, K);
}

/* Sets m->bad to `row` if `row` is lower. Threads may call this in any order. */
static void note_bad(struct making *m, size_t row)
{
    size_t seen = __atomic_load_n(&m->bad, __ATOMIC_RELAXED);
    while (row < seen && !__atomic_compare_exchange_n(&m->bad, &seen, row, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Writes the blocks of `count` rows. If the stored matrix has the type of the copy, its blocks are copied. Otherwise the
 * rows are quantised. */
static void make_blocks(struct making *m, unsigned char *blocks, float *x, size_t row, size_t count)
{
    const struct model_copy *c = m->copy;
    size_t cols = c->result.cols, bytes = block_row_bytes(c->result.type, cols);
    if (c->from.type != c->result.type)
        decode_rows(x, c, row, count);
    for (size_t r = 0; r < count; r++) {
        if (c->from.type == c->result.type)
            memcpy(blocks + r * bytes, weight_rows(&c->from, source_row(c, row + r), 1).data, bytes);
        else if (quantise(blocks + r * bytes, x + r * cols, c->result.type, cols))
            note_bad(m, row + r);
    }
}

static void make_panel(struct making *m, unsigned char *blocks, float *x, size_t row, size_t count)
{
    const struct weight_view *to = &m->copy->result;
    struct weight_view rows = *to;
    make_blocks(m, blocks, x, row, count);
    rows.data = blocks;
    rows.rows = count;
    rows.panels = 0;
    panel_from_blocks(m->data + row / PANEL_ROWS * panel_bytes(to->type, to->cols), &rows, 0);
}

static void make_numbers(const struct making *m, float *x, size_t row, size_t count)
{
    const struct weight_view *to = &m->copy->result;
    size_t n = count * to->cols, at = row * to->cols;
    decode_rows(x, m->copy, row, count);
    if (to->type == WEIGHT_F32) {
        memcpy((float *)(void *)m->data + at, x, n * sizeof *x);
        return;
    }
    op_round_bf16(x, x, n);
    for (size_t i = 0; i < n; i++)
        ((uint16_t *)(void *)m->data)[at + i] = (uint16_t)(f32_to_bits(x[i]) >> 16);
}

static void make_rows(void *arg, size_t task, int thread)
{
    struct making *m = arg;
    const struct weight_view *to = &m->copy->result;
    size_t row = m->row + task * PANEL_ROWS, count = m->end - row < PANEL_ROWS ? m->end - row : PANEL_ROWS;
    float *x = (float *)(void *)(m->scratch + (size_t)thread * m->room);
    unsigned char *blocks = (unsigned char *)x + op_scratch_bytes(PANEL_ROWS * to->cols);
    if (to->panels)
        make_panel(m, blocks, x, row, count);
    else if (weight_is_quantised(to->type))
        make_blocks(m, m->data + row * block_row_bytes(to->type, to->cols), x, row, count);
    else
        make_numbers(m, x, row, count);
}

/* ---- what goes wrong ---- */

/* Returns the index of the number because of which a block cannot be quantised: the first number that is not finite, or
 * else the number with the largest absolute value. */
static size_t worst_of(const float *x)
{
    size_t worst = 0;
    for (size_t i = 0; i < QUANTISED_GROUP; i++) {
        if (!isfinite(x[i]))
            return i;
        if (fabsf(x[i]) > fabsf(x[worst]))
            worst = i;
    }
    return worst;
}

static int tell_bad(const struct making *m, vb_error *err)
{
    const struct model_copy *c = m->copy;
    size_t j = 0, i = m->bad;
    float *x = (float *)(void *)m->scratch;
    unsigned char block[QUANTISE_Q8_0_BYTES];
    decode_rows(x, c, i, 1);
    while (j + QUANTISED_GROUP < c->result.cols && !quantise(block, x + j, c->result.type, QUANTISED_GROUP))
        j += QUANTISED_GROUP;
    j += worst_of(x + j);
    double value = x[j];
    size_t at = i % c->head_rows;
    i = c->transposed ? source_row(c, i - at) + j : source_row(c, i);
    j = c->transposed ? at : j;
    return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s [%zu,%zu] is %g, which %s cannot hold", c->tensor->file, c->tensor->name, i, j,
                   value, quantised_format(c->result.type)->name);
}

/* ---- all of them ---- */

static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* Releases the pages of the file from which rows [row, end) were made. */
static void release(const struct binder *b, const struct model_copy *c, size_t row, size_t end)
{
    size_t from = row / c->head_rows * c->head_stride, to = ((end - 1) / c->head_rows + 1) * c->head_stride;
    if (!c->head_stride) { /* the matrix is not divided into attention heads */
        from = row;
        to = end;
    }
    struct weight_view rows = weight_rows(&c->from, from, to - from);
    checkpoint_release(b->m->checkpoint, rows.data, weight_bytes(&rows));
}

/* The work of making all copies. It runs in a crew of waiting threads, because starting threads for each matrix would be
 * slow: some matrices take only 0.1 ms. */
struct model_copy_work {
    struct binder *b;
    struct making m;
    unsigned char *all;
    size_t done, total; /* bytes of copies that have been made; bytes of all copies */
    int rc;
};

/* Returns how many rows of the copy are made at once. These rows, and the rows from which they are made, have about AT_ONCE
 * bytes at most. */
static size_t rows_at_once(const struct model_copy *c)
{
    const struct weight_view *from = &c->from, *to = &c->result;
    size_t before = weight_bytes(from) / from->rows * to->cols / from->cols, after = weight_bytes(to) / to->rows;
    return AT_ONCE / (max_size(before, after) + 1) / PANEL_ROWS * PANEL_ROWS + PANEL_ROWS;
}

static int make_copy(struct model_copy_work *w)
{
    struct making *m = &w->m;
    const struct binder *b = w->b;
    const struct weight_view *to = &m->copy->result;
    size_t bytes = weight_bytes(to), each = rows_at_once(m->copy);
    for (m->row = 0; m->row < to->rows; m->row = m->end) {
        m->end = to->rows - m->row < each ? to->rows : m->row + each;
        size_t rows = m->end - m->row;
        op_parallel(&m->cx, (rows + PANEL_ROWS - 1) / PANEL_ROWS, 4.0 * (double)rows * (double)to->cols, make_rows, m);
        if (m->bad != SIZE_MAX)
            return tell_bad(m, b->err);
        release(b, m->copy, m->row, m->end);
        if (b->o->progress)
            b->o->progress(b->o->progress_context, w->done + (size_t)((double)bytes * (double)m->end / (double)to->rows),
                           w->total);
    }
    w->done += bytes;
    return VB_OK;
}

/* Adds the size of a copy to the sizes that `inspect` prints. */
static void count_bytes(struct model *m, const struct model_copy *c)
{
    size_t bytes = weight_bytes(&c->result);
    if (c->result.type == WEIGHT_F32)
        m->widened_bytes += bytes;
    else if (c->result.type == WEIGHT_BF16)
        m->rounded_bytes += bytes;
    else if (c->from.type == c->result.type)
        m->repacked_bytes += bytes;
    else
        m->quantised_bytes += bytes;
}

static void use(struct model_copy *c, const unsigned char *data)
{
    c->result.data = data;
    *c->to = c->result;
    if (c->also)
        *c->also = weight_rows(&c->result, c->also_row, c->result.rows - c->also_row);
}

static void make_all(struct model_copy_work *w)
{
    struct model *m = w->b->m;
    size_t at = 0;
    for (size_t i = 0; i < m->num_copies && !w->rc; i++) {
        struct model_copy *copy = &m->copies[i];
        w->m.copy = copy;
        w->m.data = w->all + at;
        w->rc = make_copy(w);
        at += round_up(weight_bytes(&copy->result));
        use(copy, w->m.data);
        count_bytes(m, copy);
    }
}

int model_make_copies(struct binder *b)
{
    struct model *m = b->m;
    struct model_copy_work w = {.b = b, .m = {.cx.threads = b->o->threads ? b->o->threads : vb_processors(), .bad = SIZE_MAX}};
    double start = monotonic_seconds();
    for (size_t i = 0; i < m->num_copies; i++) {
        size_t room = scratch_bytes(&m->copies[i].result), bytes = weight_bytes(&m->copies[i].result);
        w.m.room = max_size(room, w.m.room);
        w.total += bytes;
        m->copied_bytes += round_up(bytes);
    }
    if (!m->num_copies)
        return VB_OK;
    m->copied = w.all = model_alloc_unset(b, m->copied_bytes);
    w.m.scratch = w.all ? vb_alloc(m->allocator, (size_t)w.m.cx.threads, w.m.room) : NULL;
    if (w.m.scratch)
        make_all(&w);
    else
        w.rc = vb_fail(b->err, VB_NO_MEMORY, "%s: no memory for copies of its matrices, %zu bytes", checkpoint_dir(m->checkpoint),
                       m->copied_bytes);
    vb_free(m->allocator, w.m.scratch);
    m->copy_seconds = monotonic_seconds() - start;
    return w.rc;
}
