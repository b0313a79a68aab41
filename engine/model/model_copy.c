/* engine/model/model_copy.c -- copies of matrices. A copy is made if a matrix must be rounded to BF16, quantized,
 * decoded, or reordered into panels.
 *
 * While tensors are found by name, copies are only planned. When no tensor is missing, all copies are made in one block
 * of memory. Each thread works on a few megabytes at a time. Pages of the file are released as soon as they have been
 * copied, so that memory contains little more than the copies. */
#include "engine/model/model_internal.h"
#include "engine/base/seconds.h"
#include "numbers/numbers.h"
#include "engine/base/pages.h"

#include <math.h>
#include <string.h>

#include "ops/op.h"
#include "ops/quantize.h"
#include "ops/round.h"
#include "ops/weights.h"
#include "simd/decode.h"

#define AT_ONCE ((size_t)2 << 20) /* approximate number of bytes that a task reads or writes: as many as an L2 cache
                                     holds */
#define PROGRESS_BYTES ((size_t)8 << 20) /* fewest bytes between two calls of `progress` */

/* ---- what is to be copied ---- */

#define NO_ROWS ((struct op_share){0, 0})

struct op_share model_own_share(const struct binder *b, size_t rows, size_t unit)
{
    const struct vb_ranks *r = b->m->ranks;
    return r && unit ? op_share_of(&r->op, r->op.rank, rows, unit) : (struct op_share){0, rows};
}

static int quantizes(const struct binder *b)
{
    return b->c->precision == PRECISION_Q8 || b->c->precision == PRECISION_Q4;
}

/* Returns the type in which the model uses a matrix of a linear layer. `cols` is the length of the rows, over which the
 * layer sums. The result is the stored type if no other type was requested or the requested type is not possible. I4
 * and F4 stay as they are in precision bf16, because a copy would be four times as large; their weights are rounded
 * each time they are read. */
static enum weight_type wanted_type(const struct binder *b, enum weight_type type, size_t cols)
{
    if (weight_is_quantized(type) || b->c->precision == PRECISION_F32 || (quantizes(b) && cols % QUANTIZED_GROUP) ||
        (weight_is_packed(type) && b->c->precision == PRECISION_BF16))
        return type;
    if (type == WEIGHT_I4)
        return WEIGHT_Q4_BF16; /* the same codes and scales */
    if (type == WEIGHT_I8 && b->c->precision == PRECISION_Q8)
        return WEIGHT_Q8_F32; /* the same */
    return b->c->precision == PRECISION_BF16 ? WEIGHT_BF16
           : b->c->precision == PRECISION_Q8 ? WEIGHT_Q8_0
           : WEIGHT_Q4_0;
}

/* Does the same for a matrix. The codes and scales of F4 are kept, too. */
static enum weight_type wanted_of(const struct binder *b, const struct weight_view *w)
{
    enum weight_type type = wanted_type(b, w->type, w->cols);
    return w->type != WEIGHT_F4 || type == WEIGHT_F4 ? type : w->group_size == 32 ? WEIGHT_MXFP4 : WEIGHT_NVFP4;
}

static int wants_panels(const struct binder *b, enum weight_type type)
{
    return weight_has_panels(type) && !b->o->from_file && !b->on_device;
}

/* Returns the view of a copy of `from`, without its data. */
static struct weight_view result_of(const struct binder *b, enum weight_type type, const struct weight_view *from,
                                    size_t rows, size_t cols)
{
    return (struct weight_view){.type = type, .rows = rows, .cols = cols, .stride = cols,
                                .panels = wants_panels(b, type), .tensor_scale = from->tensor_scale,
                                .divides = from->divides};
}

static int plan(struct binder *b, const struct model_copy *copy)
{
    struct vb_model *m = b->m;
    if (m->num_copies == b->room) {
        size_t room = b->room ? 2 * b->room : 64;
        struct model_copy *more = vb_alloc(m->allocator, room, sizeof *more);
        if (!more)
            return vb_fail(b->err, VB_NO_MEMORY, "%s: no memory to plan copies of its matrices",
                           checkpoint_dir(m->checkpoint));
        if (m->num_copies)
            memcpy(more, m->copies, m->num_copies * sizeof *more);
        vb_free(m->allocator, m->copies);
        m->copies = more;
        b->room = room;
    }
    m->copies[m->num_copies++] = *copy;
    return VB_OK;
}

/* Returns whether there is nothing to copy: the checkpoint has no weights (checkpoint_from_list), and not even the
 * types of copies are wanted. */
static int has_no_copy(const struct binder *b, const struct weight_view *w) { return !w->data && !b->o->shapes_only; }

/* Like weight_rows, but if the view has no data, neither does the result. */
static struct weight_view some_of(const struct weight_view *w, size_t first, size_t count)
{
    struct weight_view part = *w;
    part.rows = count;
    return w->data ? weight_rows(w, first, count) : part;
}

/* Plans a copy of all rows of *w. If `also` is not NULL, *also is the part of *w that has rows `rows`. */
static int plan_whole(struct binder *b, struct weight_view *w, const struct tensor *t, struct weight_view *also,
                      struct op_share rows)
{
    enum weight_type type = wanted_of(b, w);
    struct model_copy copy = {.result = result_of(b, type, w, w->rows, w->cols), .to = w, .also = also,
                              .also_row = rows.begin, .also_rows = rows.end - rows.begin, .tensor = t,
                              .head_rows = w->rows};
    if (has_no_copy(b, w))
        return VB_OK;
    w->rounded = weight_is_packed(type) && b->c->precision == PRECISION_BF16;
    if (type == WEIGHT_BF16 && b->c->precision == PRECISION_BF16) {
        w->magnitudes = &b->m->magnitudes[b->m->magnitudes_used++];
        copy.result.magnitudes = w->magnitudes;
    }
    if (also)
        *also = some_of(w, copy.also_row, copy.also_rows);
    copy.from = *w;
    if (type == w->type && !copy.result.panels)
        return VB_OK;
    if (w->rows)
        return plan(b, &copy);
    *w = copy.result; /* this rank has no rows, but the type is still needed: the form of the layer's input follows from
                         it */
    if (also)
        *also = copy.result;
    return VB_OK;
}

/* If `parts` copies have been planned since there were `before` copies, they replace all of the tensor. Then the
 * function marks the tensor as copied. */
static int end_tensor(struct binder *b, const struct tensor *t, size_t before, size_t parts, int rc)
{
    if (!rc && b->m->num_copies == before + parts)
        checkpoint_set_copied(b->m->checkpoint, t);
    if (!rc && b->m->num_copies == before + parts)
        b->m->stored_bytes -= b->newest_bytes;
    return rc;
}

int model_plan_linear(struct binder *b, struct weight_view *w, const struct tensor *t)
{
    size_t before = b->m->num_copies;
    return end_tensor(b, t, before, 1, plan_whole(b, w, t, NULL, NO_ROWS));
}

int model_plan_tied_head(struct binder *b, struct weight_view *head, struct weight_view *embedding,
                         const struct tensor *t)
{
    size_t before = b->m->num_copies;
    struct op_share own = model_own_share(b, head->rows, OP_ROW_GROUP);
    *head = some_of(head, own.begin, own.end - own.begin);
    if (!weight_is_quantized(head->type)) /* the embedding uses the stored matrix */
        return plan_whole(b, head, t, NULL, NO_ROWS);
    return end_tensor(b, t, before, 1, plan_whole(b, embedding, t, head, own));
}

/* Plans a copy of W_uk of all attention heads, if one is needed. If W_uk is quantized along c, the copy is F32.
 * Otherwise the copy is quantized along n, if the precision requires it and n is a multiple of 32. The scales of I4 and
 * F4 are along c, and each row of I8 has its own scale, so the numbers of such a matrix are quantized like others. */
static int plan_keys(struct binder *b, struct mla *a, const struct tensor *t)
{
    size_t n = b->c->dims.n, latent = b->c->dims.c, H = (a->w_uk.rows + a->uk_stride - 1) / a->uk_stride;
    enum weight_type stored = a->w_uk.type,
                     numbers = weight_is_packed(stored) || stored == WEIGHT_I8 ? WEIGHT_F32 : stored;
    enum weight_type type = weight_is_quantized(stored) ? WEIGHT_F32 : wanted_type(b, numbers, n);
    struct model_copy copy = {.to = &a->w_uk, .from = a->w_uk, .tensor = t, .head_stride = a->uk_stride};
    if (type == numbers)
        return VB_OK;
    a->uk_transposed = weight_is_quantized(type);
    copy.transposed = a->uk_transposed;
    copy.head_rows = a->uk_transposed ? latent : n;
    copy.result = result_of(b, type, &a->w_uk, H * copy.head_rows, a->uk_transposed ? n : latent);
    a->uk_stride = copy.head_rows;
    if (H)
        return plan(b, &copy);
    a->w_uk = copy.result;
    return VB_OK;
}

static int plan_values(struct binder *b, struct mla *a, const struct weight_view *kv_b, const struct tensor *t)
{
    size_t H = kv_b->rows / a->uv_stride, v = b->c->dims.v;
    enum weight_type type = wanted_of(b, kv_b);
    struct model_copy copy = {.result = result_of(b, type, kv_b, H * v, kv_b->cols), .to = &a->w_uv, .from = *kv_b,
                              .tensor = t, .head_rows = v, .head_stride = a->uv_stride, .first = a->uv_stride - v};
    if (type == kv_b->type && !copy.result.panels)
        return VB_OK;
    a->uv_stride = v;
    if (H)
        return plan(b, &copy);
    a->w_uv = copy.result;
    return VB_OK;
}

int model_plan_keys(struct binder *b, struct mla *a, const struct tensor *t)
{
    size_t before = b->m->num_copies;
    if (has_no_copy(b, &a->w_uk))
        return VB_OK;
    int rc = quantizes(b) ? plan_keys(b, a, t) : plan_whole(b, &a->w_uk, t, NULL, NO_ROWS);
    return end_tensor(b, t, before, 1, rc);
}

int model_plan_kv_b(struct binder *b, struct mla *a, const struct tensor *t)
{
    struct weight_view kv_b = a->w_uk;
    size_t n = b->c->dims.n, before = b->m->num_copies;
    if (has_no_copy(b, &kv_b))
        return VB_OK;
    if (!weight_is_quantized(kv_b.type) && !quantizes(b))
        return end_tensor(b, t, before, 1,
                          plan_whole(b, &a->w_uk, t, &a->w_uv, (struct op_share){kv_b.rows ? n : 0, kv_b.rows}));
    a->w_uv = some_of(&kv_b, kv_b.rows ? n : 0, kv_b.rows - (kv_b.rows ? n : 0));
    int rc = plan_keys(b, a, t);
    if (!rc)
        rc = plan_values(b, a, &kv_b, t);
    return end_tensor(b, t, before, 2, rc);
}

/* ---- how it is made ---- */

/* The work of making all copies. A task makes some rows of one copy. All tasks are one parallel region, because threads
 * would wait for each other at the end of each region. */
struct making {
    const struct binder *b;
    struct op_ctx cx;
    unsigned char *all;   /* the block of all copies */
    struct pages pages;   /* of this block */
    char *scratch;        /* `room` bytes for each thread: first the numbers of PANEL_ROWS rows, then their blocks */
    size_t room;
    size_t bad;           /* the first row with a number that is too large for the type, where the rows of all copies
                             are numbered in one sequence; SIZE_MAX: none. Accessed atomically */
    size_t done, told, total; /* bytes of copies that have been made (atomic), that `progress` was told, and of all
                                 copies */
};

static size_t block_row_bytes(enum weight_type type, size_t cols)
{
    const struct quantized_format *f = quantized_format(type);
    return cols / f->numbers * f->bytes;
}

static size_t scratch_bytes(const struct weight_view *w)
{
    size_t blocks = weight_is_quantized(w->type) ? PANEL_ROWS * block_row_bytes(w->type, w->cols) : 0;
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

static int quantize(void *blocks, const float *x, enum weight_type type, size_t K)
{
    return type == WEIGHT_Q8_0 ? op_quantize_q8_0(blocks, x, K) : op_quantize_q4_0(blocks, x, K);
}

/* Sets m->bad to `row` if `row` is lower. Threads may call this in any order. */
static void note_bad(struct making *m, size_t row)
{
    size_t seen = __atomic_load_n(&m->bad, __ATOMIC_RELAXED);
    while (row < seen && !__atomic_compare_exchange_n(&m->bad, &seen, row, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Rows [row, row + count) of a copy that are made now; count is at most PANEL_ROWS. x and blocks are scratch of the
 * thread. */
struct some_rows {
    const struct model_copy *copy;
    size_t row, count;
    float *x;
    unsigned char *blocks;
    unsigned char *data; /* of the copy */
};

/* Makes the Q4_BF16 blocks of one row of an I4 matrix. */
static void reorder_i4(unsigned char *blocks, const struct weight_view *from, size_t row)
{
    struct weight_view w = weight_rows(from, row, 1);
    const unsigned char *codes = w.data, *scales = w.group_scale;
    for (size_t g = 0; g < w.cols / QUANTIZED_GROUP; g++, blocks += QUANTIZE_Q4_0_BYTES) {
        memcpy(blocks, scales + 2 * g, 2);
        op_reorder_i4(blocks + 2, codes + 16 * g);
    }
}

/* Makes the Q8_F32 blocks of one row of an I8 matrix. */
static void reorder_i8(unsigned char *blocks, const struct weight_view *from, size_t row)
{
    struct weight_view w = weight_rows(from, row, 1);
    float scale = weight_scale(&w, 0, 0);
    for (size_t g = 0; g < w.cols / QUANTIZED_GROUP; g++, blocks += 36) {
        memcpy(blocks, &scale, sizeof scale);
        memcpy(blocks + sizeof scale, (const char *)w.data + g * QUANTIZED_GROUP, QUANTIZED_GROUP);
    }
}

/* Makes the MXFP4 or NVFP4 blocks of one row of an F4 matrix. */
static void reorder_f4(unsigned char *blocks, const struct weight_view *from, size_t row)
{
    struct weight_view w = weight_rows(from, row, 1);
    const unsigned char *codes = w.data, *scales = w.group_scale;
    size_t count = QUANTIZED_GROUP / w.group_size; /* scales in a block */
    for (size_t g = 0; g < w.cols / QUANTIZED_GROUP; g++, blocks += count + 16) {
        memcpy(blocks, scales + count * g, count);
        op_reorder_i4(blocks + count, codes + 16 * g);
    }
}

static void quantize_rows(struct making *m, const struct some_rows *s, unsigned char *blocks)
{
    const struct weight_view *to = &s->copy->result;
    void (*reorder)(unsigned char *, const struct weight_view *, size_t) =
        to->type == WEIGHT_Q4_BF16 ? reorder_i4 : to->type == WEIGHT_MXFP4 || to->type == WEIGHT_NVFP4 ? reorder_f4
                                   : to->type == WEIGHT_Q8_F32 ? reorder_i8 : NULL;
    if (reorder) {
        for (size_t r = 0; r < s->count; r++)
            reorder(blocks + r * block_row_bytes(to->type, to->cols), &s->copy->from, source_row(s->copy, s->row + r));
        return;
    }
    decode_rows(s->x, s->copy, s->row, s->count);
    for (size_t r = 0; r < s->count; r++)
        if (quantize(blocks + r * block_row_bytes(to->type, to->cols), s->x + r * to->cols, to->type, to->cols))
            note_bad(m, s->copy->first_row + s->row + r);
}

/* Makes a panel from the blocks of the file or, if the file has no blocks of this type, from rows that are quantized
 * first. */
static void make_panel(struct making *m, const struct some_rows *s)
{
    const struct weight_view *to = &s->copy->result, *from = &s->copy->from;
    const unsigned char *row[PANEL_ROWS];
    if (from->type != to->type)
        quantize_rows(m, s, s->blocks);
    for (size_t r = 0; r < s->count; r++)
        row[r] = from->type == to->type ? weight_rows(from, source_row(s->copy, s->row + r), 1).data
                                        : s->blocks + r * block_row_bytes(to->type, to->cols);
    panel_from_rows(s->data + s->row / PANEL_ROWS * panel_bytes(to->type, to->cols), to->type, to->cols, row, s->count);
}

static void make_numbers(const struct some_rows *s)
{
    const struct weight_view *to = &s->copy->result;
    size_t n = s->count * to->cols, at = s->row * to->cols;
    float *x = s->x;
    decode_rows(x, s->copy, s->row, s->count);
    if (to->type == WEIGHT_F32) {
        memcpy((float *)(void *)s->data + at, x, n * sizeof *x);
        return;
    }
    op_round_bf16(x, x, n);
    for (size_t i = 0; i < n; i++)
        ((uint16_t *)(void *)s->data)[at + i] = (uint16_t)(f32_to_bits(x[i]) >> 16);
}

static void make_rows(struct making *m, const struct some_rows *s)
{
    const struct weight_view *to = &s->copy->result;
    if (to->panels)
        make_panel(m, s);
    else if (weight_is_quantized(to->type))
        quantize_rows(m, s, s->data + s->row * block_row_bytes(to->type, to->cols));
    else
        make_numbers(s);
}

/* ---- what goes wrong ---- */

/* Returns the index of the number because of which a block cannot be quantized: the first number that is not finite, or
 * else the number with the largest absolute value. */
static size_t worst_of(const float *x)
{
    size_t worst = 0;
    for (size_t i = 0; i < QUANTIZED_GROUP; i++) {
        if (!isfinite(x[i]))
            return i;
        if (fabsf(x[i]) > fabsf(x[worst]))
            worst = i;
    }
    return worst;
}

static int tell_bad(const struct making *m, vb_error *err)
{
    const struct model_copy *c = m->b->m->copies;
    while (m->bad - c->first_row >= c->result.rows)
        c++;
    size_t j = 0, i = m->bad - c->first_row;
    float *x = (float *)(void *)m->scratch;
    unsigned char block[QUANTIZE_Q8_0_BYTES];
    decode_rows(x, c, i, 1);
    while (j + QUANTIZED_GROUP < c->result.cols && !quantize(block, x + j, c->result.type, QUANTIZED_GROUP))
        j += QUANTIZED_GROUP;
    j += worst_of(x + j);
    double value = x[j];
    size_t at = i % c->head_rows;
    i = c->transposed ? source_row(c, i - at) + j : source_row(c, i);
    j = c->transposed ? at : j;
    return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s [%zu,%zu] is %g, which %s cannot hold", c->tensor->file,
                   c->tensor->name, i, j, value, quantized_format(c->result.type)->name);
}

/* ---- all of them ---- */

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

/* Returns how many rows of a copy one task makes. A task reads at most about AT_ONCE bytes, and writes at most about
 * AT_ONCE bytes. */
static size_t rows_at_once(const struct model_copy *c)
{
    const struct weight_view *from = &c->from, *to = &c->result;
    size_t before = weight_bytes(from) / from->rows * to->cols / from->cols, after = weight_bytes(to) / to->rows;
    return AT_ONCE / (max_size(before, after) + 1) / PANEL_ROWS * PANEL_ROWS + PANEL_ROWS;
}

static const struct model_copy *copy_of_task(const struct vb_model *m, size_t task)
{
    size_t low = 0, high = m->num_copies;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(m->copies[middle].first_task <= task ? &low : &high) = middle;
    }
    return &m->copies[low];
}

/* Only the caller's thread, number 0, calls `progress`. */
static void show_progress(struct making *m, size_t bytes, int thread)
{
    size_t done = __atomic_add_fetch(&m->done, bytes, __ATOMIC_RELAXED);
    if (thread || !m->b->o->progress || (done - m->told < PROGRESS_BYTES && done < m->total))
        return;
    m->told = done;
    m->b->o->progress(m->b->o->progress_context, done, m->total);
}

static size_t bytes_before(const struct weight_view *w, size_t row)
{
    struct weight_view before = *w;
    before.rows = row;
    return row ? weight_bytes(&before) : 0;
}

/* A task is skipped only if an earlier row is bad. So the first bad row is found on any number of threads. */
static void make_task(void *arg, size_t task, int thread)
{
    struct making *m = arg;
    const struct model_copy *c = copy_of_task(m->b->m, task);
    size_t each = rows_at_once(c), row = (task - c->first_task) * each, end = min_size(row + each, c->result.rows);
    size_t before = bytes_before(&c->result, row), bytes = bytes_before(&c->result, end) - before;
    float *x = (float *)(void *)(m->scratch + (size_t)thread * m->room);
    struct some_rows s = {.copy = c, .x = x, .data = m->all + c->at};
    if (c->first_row + row > __atomic_load_n(&m->bad, __ATOMIC_RELAXED))
        return;
    s.blocks = (unsigned char *)x + op_scratch_bytes(PANEL_ROWS * c->result.cols);
    pages_want(&m->pages, s.data + before, bytes);
    for (s.row = row; s.row < end; s.row += s.count) {
        s.count = min_size(end - s.row, PANEL_ROWS);
        make_rows(m, &s);
    }
    release(m->b, c, row, end);
    show_progress(m, bytes, thread);
}

/* Adds the size of a copy to the sizes that `inspect` prints. */
static void count_bytes(struct vb_model *m, const struct model_copy *c)
{
    size_t bytes = weight_bytes(&c->result);
    if (c->result.type == WEIGHT_F32)
        m->widened_bytes += bytes;
    else if (c->result.type == WEIGHT_BF16)
        m->rounded_bytes += bytes;
    else if (c->from.type == c->result.type)
        m->repacked_bytes += bytes;
    else
        m->quantized_bytes += bytes;
}

static void use(struct model_copy *c, const unsigned char *data)
{
    c->result.data = data;
    *c->to = c->result;
    if (c->also)
        *c->also = some_of(&c->result, c->also_row, c->also_rows);
}

/* Decides where each copy lies, and which tasks make it. Returns the number of tasks. */
static size_t lay_out(struct making *m, double *cost)
{
    struct vb_model *model = m->b->m;
    size_t rows = 0, tasks = 0;
    for (size_t i = 0; i < model->num_copies; i++) {
        struct model_copy *c = &model->copies[i];
        size_t each = rows_at_once(c), bytes = weight_bytes(&c->result);
        c->at = model->copied_bytes;
        c->first_row = rows;
        c->first_task = tasks;
        rows += c->result.rows;
        tasks += (c->result.rows + each - 1) / each;
        m->room = max_size(m->room, scratch_bytes(&c->result));
        m->total += bytes;
        model->copied_bytes += round_up(bytes, 64);
        *cost += 4.0 * (double)c->result.rows * (double)c->result.cols;
    }
    return tasks;
}

static int make_all(struct making *m, size_t tasks, double cost)
{
    struct vb_model *model = m->b->m;
    op_parallel(&m->cx, tasks, cost, make_task, m);
    pages_close(&m->pages);
    for (size_t i = 0; i < model->num_copies; i++) { /* a file of copies contains the bytes between them, too */
        size_t bytes = weight_bytes(&model->copies[i].result);
        memset(m->all + model->copies[i].at + bytes, 0, round_up(bytes, 64) - bytes);
    }
    if (m->bad != SIZE_MAX)
        return tell_bad(m, m->b->err);
    if (m->b->o->progress && m->told < m->total)
        m->b->o->progress(m->b->o->progress_context, m->total, m->total);
    return VB_OK;
}

static int make_in_memory(struct making *m, size_t tasks, double cost)
{
    struct vb_model *model = m->b->m;
    int rc;
    model->copied = m->all = model_alloc_unset(m->b, model->copied_bytes);
    m->scratch = m->all ? vb_alloc(model->allocator, (size_t)m->cx.threads, m->room) : NULL;
    if (m->scratch && !pages_open(&m->pages, m->all, model->copied_bytes, model->allocator))
        rc = make_all(m, tasks, cost);
    else
        rc = vb_fail(m->b->err, VB_NO_MEMORY, "%s: no memory for copies of its matrices, %zu bytes",
                     checkpoint_dir(model->checkpoint), model->copied_bytes);
    vb_free(model->allocator, m->scratch);
    if (!rc && model->cache == CACHE_WANTED)
        copy_cache_write(m->b);
    return rc;
}

int model_make_copies(struct binder *b)
{
    struct vb_model *model = b->m;
    struct making m = {.b = b, .cx.threads = b->o->threads ? b->o->threads : vb_processors(), .bad = SIZE_MAX};
    double start = monotonic_seconds(), cost = 0.0;
    int rc;
    for (size_t i = 0; b->o->shapes_only && i < model->num_copies; i++) {
        use(&model->copies[i], NULL);
        count_bytes(model, &model->copies[i]);
    }
    if (!model->num_copies || b->o->shapes_only)
        return VB_OK;
    size_t tasks = lay_out(&m, &cost);
    model->copied = b->o->repack_cache ? copy_cache_map(b) : NULL;
    if (!model->copied && (rc = make_in_memory(&m, tasks, cost)))
        return rc;
    for (size_t i = 0; i < model->num_copies; i++) {
        use(&model->copies[i], (const unsigned char *)model->copied + model->copies[i].at);
        count_bytes(model, &model->copies[i]);
    }
    model->copy_seconds = monotonic_seconds() - start;
    return VB_OK;
}
