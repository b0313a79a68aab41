/* engine/export/gguf_write.c -- makes the plan of a GGUF file, and writes its data.
 *
 * A task decodes some rows of a tensor to f32, converts them to the new type, and writes them to their place in the
 * file. Tasks do not depend on each other. Each thread needs memory for a few rows only. */
#include "engine/export/gguf_write_internal.h"
#include "numbers/numbers.h"

#include "ops/op.h"
#include "ops/quantize.h"
#include "ops/weights.h"
#include "simd/decode.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- the plan ---- */

int gguf_no_memory(const struct vb_model *m, vb_error *err)
{
    return vb_fail(err, VB_NO_MEMORY, "%s: no memory to plan a GGUF file", checkpoint_dir(m->checkpoint));
}

void gguf_note(struct vb_quantize *p, const char *format, ...)
{
    va_list args;
    if (p->num_notes == GGUF_NOTES)
        return;
    va_start(args, format);
    vsnprintf(p->notes[p->num_notes], sizeof *p->notes, format, args);
    va_end(args);
    p->num_notes++;
}

static void put_info(struct gguf_bytes *b, const struct gguf_planned *t)
{
    gguf_put_text(b, t->name, strlen(t->name));
    gguf_put_number(b, (uint64_t)t->ndim, 4);
    for (int d = t->ndim; d-- > 0;)
        gguf_put_number(b, t->shape[d], 8);
    gguf_put_number(b, t->type->id, 4);
    gguf_put_number(b, t->offset, 8);
}

static int put_header(struct vb_quantize *p, const struct gguf_bytes *keys, vb_error *err)
{
    struct gguf_bytes b = {.a = &p->allocator};
    gguf_put(&b, "GGUF", 4);
    gguf_put_number(&b, 3, 4);
    gguf_put_number(&b, p->count, 8);
    gguf_put_number(&b, keys->keys, 8);
    gguf_put(&b, keys->data, keys->size);
    for (size_t i = 0; i < p->count; i++)
        put_info(&b, &p->tensors[i]);
    while (!b.failed && b.size % 32)
        gguf_put(&b, "", 1);
    p->header = b.data;
    p->header_bytes = b.size;
    return b.failed || keys->failed ? gguf_no_memory(p->model, err) : VB_OK;
}

int gguf_plan_open(struct vb_quantize **out, const struct vb_model *m, const char *dir,
                   const struct gguf_write_options *o, vb_error *err)
{
    struct vb_quantize *p = vb_alloc(m->allocator, 1, sizeof *p);
    struct gguf_bytes keys = {.a = m->allocator};
    int rc;
    *out = NULL;
    if (!p)
        return gguf_no_memory(m, err);
    p->allocator = m->allocator_copy;
    p->model = m;
    if (!(rc = gguf_put_config(&keys, m, o, err)) && !(rc = gguf_put_tokenizer(&keys, p, dir, err)) &&
        !(rc = gguf_plan_tensors(p, o, err)))
        rc = put_header(p, &keys, err);
    vb_free(m->allocator, keys.data);
    if (rc)
        gguf_plan_close(p);
    else
        *out = p;
    return rc;
}

void gguf_plan_close(struct vb_quantize *p)
{
    if (!p)
        return;
    vb_allocator a = p->allocator;
    vb_free(&a, p->tensors);
    vb_free(&a, p->header);
    vb_free(&a, p);
}

/* ---- rows ---- */

#define TASK 32768 /* approximate count of numbers in a task */
#define REGION 16  /* tasks per thread between two calls of `progress` */

struct writing {
    const struct vb_quantize *p;
    const struct gguf_planned *t;
    struct op_ctx cx;
    int fd;
    size_t rows, cols, each; /* rows and columns of the tensor; rows of a task */
    size_t first_task;
    char *scratch; /* `room` bytes for each thread: the numbers of a task, one column of them, and the encoded bytes */
    size_t room;
    atomic_int error;      /* errno of a write that failed */
    struct kept_scales {
        atomic_size_t count, inexact; /* number of scales, and of those that f16 cannot represent */
    } int4, int8; /* int4: groups of I4 weights that are written as Q4_0; int8: rows of I8 weights that are written as
                     Q8_0 */
    atomic_int not_finite; /* nonzero: a number is not finite, or is too large for the type */
};

static size_t rows_of(const struct gguf_planned *t)
{
    size_t rows = 1;
    for (int d = 0; d < t->ndim - 1; d++)
        rows *= t->shape[d];
    return rows;
}

static size_t rows_of_task(const struct gguf_planned *t)
{
    size_t cols = t->shape[t->ndim - 1];
    return cols < TASK ? TASK / cols : 1;
}

/* Row `row` of a tensor is made from one row of a matrix of the model. Returns this matrix, and sets *i to the number
 * of its row. The function is not for attn_k_b, whose rows are columns of W_uk. */
static const struct weight_view *source_of(const struct gguf_planned *t, size_t row, size_t *i)
{
    size_t rows = t->ndim == 3 ? t->shape[1] : 0;
    *i = row;
    if (t->layout == GGUF_VALUES)
        *i = row / rows * t->head_stride + row % rows;
    if (t->layout != GGUF_EXPERTS)
        return &t->matrix;
    *i = row % rows;
    return expert_matrix(t->which, &t->experts[row / rows]);
}

/* Decodes `count` rows of attn_k_b, all of attention head h, from row `from` of this head on. Row c of attn_k_b is
 * column c of the head's n rows of W_uk. */
static void decode_keys(float *out, float *column, const struct gguf_planned *t, size_t h, size_t from, size_t count)
{
    size_t n = t->shape[2];
    for (size_t i = 0; i < n; i++) {
        decode_weights(column, &t->matrix, h * t->head_stride + i, from, count);
        for (size_t c = 0; c < count; c++)
            out[c * n + i] = column[c];
    }
}

static void decode_rows(float *out, float *column, const struct gguf_planned *t, size_t first, size_t count)
{
    size_t cols = t->shape[t->ndim - 1], i;
    for (size_t done = 0, n; done < count; done += n) {
        size_t row = first + done;
        n = 1;
        if (t->layout == GGUF_KEYS) { /* one attention head at a time */
            size_t latent = t->shape[1], from = row % latent;
            n = count - done < latent - from ? count - done : latent - from;
            decode_keys(out + done * cols, column, t, row / latent, from, n);
        } else {
            const struct weight_view *w = source_of(t, row, &i);
            decode_weights(out + done * cols, w, i, 0, cols);
        }
    }
}

static int all_finite_f32(const float *x, size_t count)
{
    uint32_t bits, most = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return most < 0x7f800000;
}

/* Numbers that are too large for BF16 have become infinite, so this function also finds them. */
static int all_finite_bf16(const uint16_t *x, size_t count)
{
    int most = 0;
    for (size_t i = 0; i < count; i++)
        most = (x[i] & 0x7fff) > most ? x[i] & 0x7fff : most;
    return most < 0x7f80;
}

/* Returns -1 if a number is not finite or is too large for the type, else 0. MXFP4 is not encoded: put_codes copies its
 * codes. */
static int encode(void *bytes, const float *x, enum gguf_as as, size_t count)
{
    if (as == GGUF_AS_Q8_0)
        return op_quantize_q8_0(bytes, x, count);
    if (as == GGUF_AS_Q4_0)
        return op_quantize_q4_0(bytes, x, count);
    if (as == GGUF_AS_BF16) {
        op_store_bf16(bytes, x, count);
        return all_finite_bf16(bytes, count) ? 0 : -1;
    }
    if (as == GGUF_AS_F32)
        memcpy(bytes, x, count * sizeof *x);
    else if (as == GGUF_AS_STORED)
        op_store_f16(bytes, x, count); /* the source is F16 too */
    return all_finite_f32(x, count) ? 0 : -1;
}

static int write_at(int fd, const unsigned char *bytes, size_t size, size_t at)
{
    while (size) {
        ssize_t n = pwrite(fd, bytes, size, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? errno : ENOSPC;
        bytes += n;
        size -= (size_t)n;
        at += (size_t)n;
    }
    return 0;
}

/* Sets *half to the scale rounded to f16. Returns 1 if this is exact, else 0. Counts both. */
static int scale_as_f16(struct kept_scales *kept, uint16_t *half, float scale)
{
    op_store_f16(half, &scale, 1);
    int exact = f16_to_f32(*half) == scale;
    atomic_fetch_add(&kept->count, 1);
    atomic_fetch_add(&kept->inexact, !exact);
    return exact;
}

/* Replaces the Q8_0 blocks of a row of I8 weights by the stored codes and the scale of the row, if f16 can represent
 * the scale. */
static void keep_bytes(struct writing *w, unsigned char *blocks, const struct weight_view *from, size_t i)
{
    const char *codes = (const char *)from->data + i * from->stride;
    uint16_t half;
    if (!scale_as_f16(&w->int8, &half, weight_scale(from, i, 0)))
        return;
    for (size_t k = 0; k < from->cols; k += QUANTIZE_BLOCK, blocks += QUANTIZE_Q8_0_BYTES) {
        memcpy(blocks, &half, sizeof half);
        memcpy(blocks + 2, codes + k, QUANTIZE_BLOCK);
    }
}

/* Does the same for the Q4_0 blocks of a row of I4 weights, where each block has a scale. */
static void keep_codes(struct writing *w, unsigned char *blocks, const struct weight_view *from, size_t i)
{
    size_t groups = from->cols / QUANTIZE_BLOCK;
    const unsigned char *codes = (const unsigned char *)from->data + i * from->stride / 2;
    for (size_t g = 0; g < groups; g++, blocks += QUANTIZE_Q4_0_BYTES) {
        uint16_t half;
        if (!scale_as_f16(&w->int4, &half, group_scale(from, i * from->stride / QUANTIZE_BLOCK + g)))
            continue;
        memcpy(blocks, &half, sizeof half);
        op_reorder_i4(blocks + 2, codes + g * QUANTIZE_BLOCK / 2);
    }
}

/* Writes a row of MXFP4 codes as GGUF's blocks. */
static void put_codes(unsigned char *blocks, const struct weight_view *from, size_t i)
{
    struct weight_view row = weight_rows(from, i, 1);
    const unsigned char *codes = row.data, *scales = row.group_scale;
    for (size_t g = 0; g < row.cols / QUANTIZE_BLOCK; g++, blocks += 17) {
        blocks[0] = scales[g];
        op_reorder_i4(blocks + 1, codes + g * QUANTIZE_BLOCK / 2);
    }
}

static void write_rows(void *arg, size_t task, int thread)
{
    struct writing *w = arg;
    const struct gguf_planned *t = w->t;
    size_t first = (w->first_task + task) * w->each, count = w->rows - first < w->each ? w->rows - first : w->each;
    size_t row_bytes = w->cols / t->type->numbers * t->type->bytes;
    float *x = (float *)(void *)(w->scratch + (size_t)thread * w->room), *column = x + w->each * w->cols;
    unsigned char *bytes = (unsigned char *)(column + w->each);
    if (atomic_load(&w->error) || atomic_load(&w->not_finite))
        return;
    decode_rows(x, column, t, first, count);
    if (encode(bytes, x, t->type->as, count * w->cols))
        atomic_store(&w->not_finite, 1);
    for (size_t r = 0, i; t->layout != GGUF_KEYS && r < count; r++) {
        const struct weight_view *from = source_of(t, first + r, &i);
        if (from->type == WEIGHT_I4 && t->type->as == GGUF_AS_Q4_0)
            keep_codes(w, bytes + r * row_bytes, from, i);
        if (from->type == WEIGHT_I8 && t->type->as == GGUF_AS_Q8_0)
            keep_bytes(w, bytes + r * row_bytes, from, i);
        if (t->type->as == GGUF_AS_MXFP4)
            put_codes(bytes + r * row_bytes, from, i);
    }
    int error = write_at(w->fd, bytes, count * row_bytes, w->p->header_bytes + t->offset + first * row_bytes);
    if (error)
        atomic_store(&w->error, error);
}

/* ---- what goes wrong ---- */

/* Returns the tensor of the checkpoint that contains matrix *w. *i is a row of the matrix; the function changes it to
 * the row of the tensor. */
static const struct tensor *tensor_of(const struct vb_model *m, const struct weight_view *w, size_t *i)
{
    for (size_t k = 0; k < checkpoint_count(m->checkpoint); k++) {
        const struct tensor *t = checkpoint_at(m->checkpoint, k);
        size_t at = (size_t)((uintptr_t)w->data - (uintptr_t)t->data);
        if (at >= t->bytes)
            continue;
        *i += at / (t->bytes / (size_t)t->shape[0]);
        return t;
    }
    return NULL;
}

/* Returns the index of the number because of which a block of n numbers cannot be written: the first number that is not
 * finite, or else the number with the largest absolute value. */
static size_t worst_of(const float *x, size_t n)
{
    size_t worst = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return i;
        if (fabsf(x[i]) > fabsf(x[worst]))
            worst = i;
    }
    return worst;
}

/* Reports a number that cannot be written. Threads may have found such numbers in any order. Therefore the function
 * searches again, row by row, and reports the first one. */
static int tell_not_finite(const struct writing *w, vb_error *err)
{
    const struct gguf_planned *t = w->t;
    float *x = (float *)(void *)w->scratch, *column = x + w->each * w->cols;
    unsigned char *bytes = (unsigned char *)(column + w->each);
    for (size_t row = w->first_task * w->each; row < w->rows; row++) {
        decode_rows(x, column, t, row, 1);
        for (size_t k = 0; k < w->cols; k += QUANTIZE_BLOCK) {
            size_t n = w->cols - k < QUANTIZE_BLOCK ? w->cols - k : QUANTIZE_BLOCK, i;
            if (!encode(bytes, x + k, t->type->as, n))
                continue;
            size_t j = k + worst_of(x + k, n);
            float value = x[j];
            const struct weight_view *from = source_of(t, row, &i);
            if (t->layout == GGUF_KEYS) { /* transposed */
                i = row / t->shape[1] * t->head_stride + j;
                j = row % t->shape[1];
            }
            const struct tensor *source = tensor_of(w->p->model, from, &i);
            const char *file = source ? source->file : checkpoint_dir(w->p->model->checkpoint),
                       *name = source ? source->name : t->name;
            if (t->type->numbers == 1 && !isfinite(value))
                return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s [%zu,%zu] is %g, wanted a finite number", file, name, i,
                               j, (double)value);
            return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s [%zu,%zu] is %g, which %s cannot hold", file, name, i, j,
                           (double)value, t->type->name);
        }
    }
    return VB_OK; /* not reached */
}

static int cannot_write(const char *path, int error, vb_error *err)
{
    return vb_fail(err, VB_IO, "%s: %s", path, strerror(error));
}

/* ---- the file ---- */

struct meter {
    int (*progress)(void *context, size_t done, size_t total);
    void *context;
    size_t done, total;
};

static int count(struct meter *m, size_t bytes, vb_error *err)
{
    m->done += bytes;
    if (m->progress && m->progress(m->context, m->done, m->total))
        return vb_fail(err, VB_STOPPED, "stopped after %zu of %zu bytes", m->done, m->total);
    return VB_OK;
}

static int write_tensor(struct writing *w, const char *path, struct meter *m, vb_error *err)
{
    const struct gguf_planned *t = w->t;
    w->rows = rows_of(t);
    w->cols = t->shape[t->ndim - 1];
    w->each = rows_of_task(t);
    size_t tasks = (w->rows + w->each - 1) / w->each, region = REGION * (size_t)w->cx.threads, told = 0;
    for (w->first_task = 0; w->first_task < tasks; w->first_task += region) {
        size_t some = tasks - w->first_task < region ? tasks - w->first_task : region;
        op_parallel(&w->cx, some, 4.0 * (double)(some * w->each * w->cols), write_rows, w);
        if (w->error)
            return cannot_write(path, w->error, err);
        if (w->not_finite)
            return tell_not_finite(w, err);
        size_t so_far = (size_t)((double)t->bytes * (double)(w->first_task + some) / (double)tasks);
        int rc = count(m, so_far - told, err);
        if (rc)
            return rc;
        told = so_far;
    }
    return VB_OK;
}

/* Reserves disk space for the whole file. So a disk that is too small is reported at the beginning, and not after an
 * hour. If the file system cannot reserve space, the writes report the error. */
static int reserve(const struct vb_quantize *p, int fd, const char *path, vb_error *err)
{
    off_t size = (off_t)(p->header_bytes + p->data_bytes);
    if (fallocate(fd, 0, 0, size) && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
        return cannot_write(path, errno, err);
    return ftruncate(fd, size) ? cannot_write(path, errno, err) : VB_OK;
}

static int processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* Returns the memory in bytes that a task of any tensor needs at most, rounded up to a multiple of 64. */
static size_t room_of(const struct vb_quantize *p)
{
    size_t most = 0;
    for (size_t i = 0; i < p->count; i++) {
        size_t each = rows_of_task(&p->tensors[i]), cols = p->tensors[i].shape[p->tensors[i].ndim - 1];
        size_t bytes = (2 * each * cols + each) * sizeof(float);
        most = max_size(bytes, most);
    }
    return (most + 63) & ~(size_t)63;
}

int gguf_plan_write(struct vb_quantize *p, int fd, const char *path, int threads,
                    int (*progress)(void *context, size_t done, size_t total), void *context, vb_error *err)
{
    struct meter meter = {.progress = progress, .context = context};
    struct writing w = {.p = p, .fd = fd, .room = room_of(p)};
    for (size_t i = 0; i < p->count; i++)
        meter.total += p->tensors[i].bytes;
    w.cx.threads = threads ? threads : processors();
    w.scratch = vb_alloc(&p->allocator, (size_t)w.cx.threads, w.room);
    int rc = w.scratch ? reserve(p, fd, path, err) : gguf_no_memory(p->model, err), error;
    if (!rc && (error = write_at(fd, p->header, p->header_bytes, 0)))
        rc = cannot_write(path, error, err);
    for (size_t i = 0; !rc && i < p->count; i++) {
        w.t = &p->tensors[i];
        rc = write_tensor(&w, path, &meter, err);
    }
    vb_free(&p->allocator, w.scratch);
    if (w.int4.inexact)
        gguf_note(p,
                  "%zu of %zu groups of INT4 weights have a scale that is no f16: they were quantized again, so they "
                  "differ",
                  (size_t)w.int4.inexact, (size_t)w.int4.count);
    if (w.int8.inexact)
        gguf_note(p,
                  "%zu of %zu rows of int8 weights have a scale that is no f16: they were quantized again, so they "
                  "differ",
                  (size_t)w.int8.inexact, (size_t)w.int8.count);
    return rc;
}
