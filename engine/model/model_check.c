/* engine/model/model_check.c -- `inspect --check`: checks that every weight is finite. */
#include "engine/model/model.h"
#include "simd/quantized.h"

#include <string.h>

#define PIECE (1u << 24) /* approximate number of bytes between two calls of `progress` */
#define NONE SIZE_MAX

/* How to recognise a number that is not finite: all bits of the mask `bits` are 1. For F32, F16 and BF16, these are the
 * bits of the exponent. E4M3 has no infinity; in a NaN of E4M3, all bits except the sign are 1. */
struct item {
    size_t size;
    uint32_t bits;
    size_t scale, minimum; /* for quantized types: offsets of the f16 scales in a block. If the scales are finite, so
                              are the weights: each is the product of a scale and small integers, which f32
                              represents */
    int split;             /* nonzero if the bits of the scale are in four pieces (IQ1_M), the last of which is at
                              `scale` */
    int exponents;         /* nonzero if the scale is the exponent of MXFP4 instead, one byte */
};
#define NUMBER(size_, bits_) {.size = size_, .bits = bits_, .scale = NONE, .minimum = NONE}
#define BLOCK(scale_, minimum_) {.scale = scale_, .minimum = minimum_}

/* The scales of MXFP4 matrices that are tensors of their own. */
static int is_exponents(const struct tensor *t)
{
    return (!strcmp(t->dtype_name, "U8") || !strcmp(t->dtype_name, "F8_E8M0")) && t->ndim == 2;
}

static int item_of(const struct tensor *t, struct item *item)
{
    static const struct item items[DTYPE_OTHER] = {
        [DTYPE_F32] = NUMBER(4, 0x7f800000),
        [DTYPE_F16] = NUMBER(2, 0x7c00),
        [DTYPE_BF16] = NUMBER(2, 0x7f80),
        [DTYPE_F8_E4M3] = NUMBER(1, 0x7f),
        [DTYPE_Q8_0] = BLOCK(0, NONE),
        [DTYPE_Q4_0] = BLOCK(0, NONE),
        [DTYPE_Q5_0] = BLOCK(0, NONE),
        [DTYPE_Q5_1] = BLOCK(0, 2),
        [DTYPE_Q4_K] = BLOCK(0, 2),
        [DTYPE_Q5_K] = BLOCK(0, 2),
        [DTYPE_Q6_K] = BLOCK(208, NONE),
        [DTYPE_MXFP4] = {.scale = 0, .minimum = NONE, .exponents = 1},
        [DTYPE_IQ2_XXS] = BLOCK(0, NONE),
        [DTYPE_IQ2_XS] = BLOCK(0, NONE),
        [DTYPE_IQ2_S] = BLOCK(0, NONE),
        [DTYPE_IQ3_XXS] = BLOCK(0, NONE),
        [DTYPE_IQ3_S] = BLOCK(0, NONE),
        [DTYPE_IQ1_S] = BLOCK(0, NONE),
        [DTYPE_IQ1_M] = {.scale = 54, .minimum = NONE, .split = 1},
        [DTYPE_TQ1_0] = BLOCK(52, NONE),
        [DTYPE_TQ2_0] = BLOCK(64, NONE),
        [DTYPE_Q4_1] = BLOCK(0, 2),
        [DTYPE_IQ4_NL] = BLOCK(0, NONE),
        [DTYPE_IQ4_XS] = BLOCK(0, NONE),
        /* all its scales are finite */
        [DTYPE_Q3_K] = BLOCK(108, NONE),
        [DTYPE_Q2_K] = BLOCK(80, 82),
        [DTYPE_GGUF_NVFP4] = BLOCK(NONE, NONE),
    };
    if ((t->dtype == DTYPE_OTHER && !is_exponents(t)) || t->dtype == DTYPE_I4 || t->dtype == DTYPE_F4 ||
        t->dtype == DTYPE_I8) /* every code of these is a number */
        return 0;
    *item = items[t->dtype == DTYPE_OTHER ? DTYPE_MXFP4 : t->dtype];
    if (t->dtype == DTYPE_OTHER)
        item->size = 1;
    if (dtype_is_quantized(t->dtype))
        item->size = quantized_format((enum weight_type)t->dtype)->bytes;
    return 1;
}

static int half_is_bad(const unsigned char *at) { return (at[1] & 0x7c) == 0x7c; }

/* In IQ1_M, the upper half of each of four integers of 16 bits has four bits of d. The sign and three bits
 * of the exponent are in the integer at `at`, and the lower two bits of the exponent in the integer before. */
static int split_half_is_bad(const unsigned char *at) { return (at[1] & 0x70) == 0x70 && (at[-1] & 0xc0) == 0xc0; }

static int scale_is_bad(const struct item *item, const unsigned char *block)
{
    return item->split ? split_half_is_bad(block + item->scale) : half_is_bad(block + item->scale);
}

/* The largest weight of an MXFP4 block is 12 * 2^(e-128). Also, the value 255 is no number in the format's
 * specification. */
static int exponent_is_bad(unsigned e) { return e > 252; }

static size_t find_bad_block(const unsigned char *data, size_t count, const struct item *item)
{
    for (size_t i = 0; i < count; i++) {
        const unsigned char *block = data + i * item->size;
        if (item->exponents
                ? exponent_is_bad(block[0])
                : scale_is_bad(item, block) || (item->minimum != NONE && half_is_bad(block + item->minimum)))
            return i;
    }
    return count;
}

/* Returns the index of the first of `count` items that is not finite, or `count` if there is none. There is one loop
 * for each size, without an early exit, so that the compiler can vectorise it. */
static size_t find_bad(const unsigned char *data, size_t count, const struct item *item)
{
    unsigned bad = 0;
    uint32_t word, bits = item->bits;
    uint16_t half;
    size_t size = item->size;
    if (item->scale != NONE)
        return find_bad_block(data, count, item);
    if (size == 1)
        for (size_t i = 0; i < count; i++)
            bad |= (data[i] & bits) == bits;
    if (size == 2)
        for (size_t i = 0; i < count; i++) {
            memcpy(&half, data + 2 * i, sizeof half);
            bad |= (half & bits) == bits;
        }
    if (size == 4)
        for (size_t i = 0; i < count; i++) {
            memcpy(&word, data + 4 * i, sizeof word);
            bad |= (word & bits) == bits;
        }
    for (size_t i = 0; bad && i < count; i++) {
        word = 0;
        for (size_t b = 0; b < size; b++) /* safetensors files and all supported machines are little-endian */
            word |= (uint32_t)data[i * size + b] << 8 * b;
        if ((word & bits) == bits)
            return i;
    }
    return count;
}

static int not_finite(const struct tensor *t, size_t item, vb_error *err)
{
    size_t cols = t->ndim == 2 ? (size_t)t->shape[1] : 0;
    const char *what = t->dtype == DTYPE_F8_E4M3 ? "not a number" : "not finite";
    if (cols)
        return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s [%zu,%zu] is %s", t->file, t->name, item / cols, item % cols,
                       what);
    return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s [%zu] is %s", t->file, t->name, item, what);
}

static int block_not_finite(const struct tensor *t, size_t i, const struct item *item, vb_error *err)
{
    const struct quantized_format *f = quantized_format((enum weight_type)t->dtype);
    const unsigned char *block = (const unsigned char *)t->data + i * item->size;
    size_t row = (size_t)t->shape[t->ndim - 1] / f->numbers;
    if (item->exponents)
        return vb_fail(err, VB_BAD_CHECKPOINT,
                       "%s: %s, block %zu of row %zu: its scale has the exponent %d, wanted at most 252", t->file,
                       t->name, i % row, i / row, block[0]);
    return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s, block %zu of row %zu: its %s is not finite", t->file, t->name,
                   i % row, i / row,
                   scale_is_bad(item, block) ? "scale d"
                   : t->dtype == DTYPE_Q5_1 || t->dtype == DTYPE_Q4_1 ? "minimum m"
                   : "scale dmin");
}

int model_check(const struct vb_model *m, void (*progress)(void *context, size_t done, size_t total), void *context,
                vb_error *err)
{
    size_t total = 0, done = 0, count = checkpoint_count(m->checkpoint);
    struct item item;
    for (size_t i = 0; i < count; i++)
        total += checkpoint_at(m->checkpoint, i)->taken ? checkpoint_at(m->checkpoint, i)->bytes : 0;
    for (size_t i = 0; i < count; i++) {
        const struct tensor *t = checkpoint_at(m->checkpoint, i);
        if (!t->taken || !t->data || !item_of(t, &item))
            continue;
        for (size_t at = 0, piece; at < t->bytes; at += piece) {
            piece = PIECE / item.size * item.size;
            piece = t->bytes - at < piece ? t->bytes - at : piece;
            size_t bad = find_bad((const unsigned char *)t->data + at, piece / item.size, &item);
            if (bad < piece / item.size && dtype_is_quantized(t->dtype))
                return block_not_finite(t, at / item.size + bad, &item, err);
            if (bad < piece / item.size)
                return not_finite(t, at / item.size + bad, err);
            done += piece;
            if (progress)
                progress(context, done, total);
        }
    }
    return VB_OK;
}
