/* tests/cuda/checkcuda.h -- compares operators on an emulated device with the same operators on the CPU, bit by bit. */
#ifndef VB_CHECKCUDA_H
#define VB_CHECKCUDA_H

#include "ops/cuda/operators.h"
#include "ops/embed.h"
#include "ops/weights.h"
#include "tests/cuda/checked_device.h"
#include "tests/ops/checkops.h"

/* A loop over orders of blocks and lanes: `d` is an emulated device that runs them so. A GPU has an order of its
 * own. */
#define FOR_EACH_ORDER(d) \
    for (struct device *d = open_checked_device(), *d##_ = d; d##_; close_checked_device(d), d##_ = NULL) \
        for (int order_ = 0; order_ < (is_emulated() ? 3 : 1) && (set_order(d, order_), 1); order_++)

/* A buffer for tests (checkops.h: guarded memory) with a twin. The twin has the same contents. */
static inline void *with_twin(struct device *d, void *buffer, size_t bytes)
{
    device_remove(d, buffer);
    assert_int_equal(device_add_copy(d, buffer, bytes), 0);
    return buffer;
}

static inline size_t scale_floats(const struct weight_view *w)
{
    return weight_is_byte(w->type) ? (w->rows + w->scale_row + w->block_rows - 1) / w->block_rows * w->scale_stride : 0;
}

static inline size_t group_bytes(const struct weight_view *w)
{
    return w->type == WEIGHT_I4 ? w->rows * w->stride / 32 * 2
           : w->type == WEIGHT_F4 ? w->rows * w->stride / w->group_size
           : 0;
}

/* Returns a copy of a matrix that has twins, `shift` bytes behind an aligned address. Its stride is the old one plus
 * `more`. */
static inline struct weight_view on_device(struct device *d, const struct weight_view *w, size_t more, size_t shift)
{
    struct weight_view copy = *w;
    copy.stride += more;
    size_t bytes = weight_type_bytes(w->type, (w->rows - 1) * copy.stride + w->cols + (w->cols & 1)) + shift;
    char *data = guarded(bytes + 64); /* guarded memory ends at a page, and need not begin at an aligned address */
    data += -(uintptr_t)data & 63;
    for (size_t n = 0; n < w->rows; n++)
        memcpy(data + shift + weight_type_bytes(w->type, n * copy.stride),
               (const char *)w->data + weight_type_bytes(w->type, n * w->stride),
               weight_type_bytes(w->type, w->cols + (weight_is_packed(w->type) && w->cols & 1)));
    with_twin(d, data, bytes);
    copy.data = data + shift;
    if (w->scale)
        with_twin(d, (void *)(uintptr_t)w->scale, scale_floats(w) * sizeof(float));
    if (w->group_scale)
        with_twin(d, (void *)(uintptr_t)w->group_scale, group_bytes(w));
    return copy;
}

static inline void without_twin(struct device *d, const struct weight_view *w, size_t shift)
{
    device_remove(d, (const char *)w->data - shift);
    device_remove(d, w->scale);
    device_remove(d, w->group_scale);
}

/* A context whose scratch has a twin, which contains NaN of all types. */
static inline struct op_ctx device_context(struct device *d, size_t bytes)
{
    struct op_ctx cx = context_of(scalar_table(), 1, bytes);
    if (bytes) {
        memset(cx.scratch, 0xff, bytes);
        assert_int_equal(device_add_copy(d, cx.scratch, bytes), 0);
    }
    operators_place(&cx, d);
    return cx;
}

/* Rows of an embedding matrix of at least two rows, which has twins, on the device and on the CPU. */
static inline void check_embed(struct device *d, const struct weight_view *w, uint64_t *seed)
{
    size_t S = 3, ldy = w->cols + 3, bytes = S * ldy * sizeof(float);
    int32_t *tok = guarded(S * sizeof *tok);
    float *want = guarded_floats(S * ldy), *got = with_twin(d, guarded_floats(S * ldy), bytes);
    struct op_ctx cpu = context_of(scalar_table(), 1, 0), cx = cpu;
    operators_place(&cx, d);
    for (size_t s = 0; s < S; s++)
        tok[s] = (int32_t)(s ? random_below(seed, (unsigned)w->rows) : w->rows - 1);
    with_twin(d, tok, S * sizeof *tok);
    op_embed(&cpu, want, ldy, w, tok, S);
    cx.op->embed(&cx, got, ldy, w, tok, S);
    device_read(d, got, bytes);
    check_same_bits(got, ldy, want, ldy, S, w->cols);
    check_untouched(got, ldy, S, w->cols);
    device_remove(d, got), device_remove(d, tok);
}

/* Precision bf16 has BF16 and types of 4 bits. */
#define FOR_EACH_PRECISION(type) \
    for (in_bf16 = 0; in_bf16 <= (weight_is_packed(type) || type == WEIGHT_BF16); in_bf16++)

#endif
