/* tests/cuda/checkcuda.h -- compares the operators of all tables (ops/operators.h), bit by bit.
 *
 * One set of cases: each runs with the CPU's operators, with every kernel table and three threads, and with those of an
 * emulated device. The results must have the bits of the CPU's operators with scalar kernels and one thread, which
 * tests/ops compares with plain C. */
#ifndef VB_CHECKCUDA_H
#define VB_CHECKCUDA_H

#include "ops/cuda/operators.h"
#include "ops/embed.h"
#include "ops/weights.h"
#include "tests/cuda/checked_device.h"
#include "tests/ops/checkops.h"

static int order_; /* of the present run, if it is of a device; else 0 */

/* A loop over orders of blocks and lanes: `d` is an emulated device that runs them so. A GPU has an order of its
 * own. For what has no counterpart on the CPU. */
#define FOR_EACH_ORDER(d)                                                                                       \
    for (struct device *d = open_checked_device(), *d##_ = d; d##_; close_checked_device(d##_), d##_ = NULL)      \
        for (order_ = 0; order_ < (is_emulated() ? 3 : 1) && (set_order(d, order_), 1); order_++)

/* A loop over all tables: first the CPU's, where d is NULL, with each kernel table; then the device's, in each
 * order. */
#define FOR_EACH_OPERATORS(d)                                                                                  \
    for (struct device *d##_ = open_checked_device(), *d = d##_; d##_; close_checked_device(d##_), d##_ = NULL) \
        for (size_t step_ = 0; next_operators(&d, d##_, step_); step_++)
static const struct kernels *cpu_kernels; /* of the present run, if it is of the CPU */

static inline int next_operators(struct device **d, struct device *device, size_t step)
{
    case_table = "";
    for (const struct kernels *const *k = kernel_tables; *k; k++)
        if (kernels_runs_here(*k) && !step--) {
            cpu_kernels = *k;
            case_table = (*k)->name;
            *d = NULL;
            order_ = 0;
            return 1;
        }
    *d = device;
    order_ = (int)step;
    if (order_ >= (is_emulated() ? 3 : 1))
        return 0;
    case_table = operators_cuda.name;
    set_order(device, order_);
    return 1;
}

/* What operators of a device do with twins is nothing for those of the CPU, with whom d is NULL. */
static inline void fetch(struct device *d, void *buffer, size_t bytes)
{
    if (d)
        device_read(d, buffer, bytes);
}
static inline void drop(struct device *d, const void *buffer)
{
    if (d)
        device_remove(d, buffer);
}
static inline void *address(struct device *d, void *buffer) { return d ? device_at(d, buffer) : buffer; }

/* A buffer for tests (checkops.h: guarded memory) with a twin. The twin has the same contents. */
static inline void *with_twin(struct device *d, void *buffer, size_t bytes)
{
    drop(d, buffer);
    if (d)
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
    drop(d, (const char *)w->data - shift);
    drop(d, w->scale);
    drop(d, w->group_scale);
}

#define CPU_THREADS 3
/* A context for the operators of the present run. The scratch of a device has a twin, which contains NaN of all
 * types. */
static inline struct op_ctx device_context(struct device *d, size_t bytes)
{
    struct op_ctx cx = context_of(d ? scalar_table() : cpu_kernels, d ? 1 : CPU_THREADS, bytes);
    if (d && bytes) {
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
    struct op_ctx cpu = context_of(scalar_table(), 1, 0), cx = device_context(d, 0);
    for (size_t s = 0; s < S; s++)
        tok[s] = (int32_t)(s ? random_below(seed, (unsigned)w->rows) : w->rows - 1);
    with_twin(d, tok, S * sizeof *tok);
    op_embed(&cpu, want, ldy, w, tok, S);
    cx.op->embed(&cx, got, ldy, w, tok, S);
    fetch(d, got, bytes);
    check_same_bits(got, ldy, want, ldy, S, w->cols);
    check_untouched(got, ldy, S, w->cols);
    drop(d, got), drop(d, tok);
}

/* Precision bf16 has BF16 and types of 4 bits. */
#define FOR_EACH_PRECISION(type) \
    for (in_bf16 = 0; in_bf16 <= (weight_is_packed(type) || type == WEIGHT_BF16); in_bf16++)

#endif
