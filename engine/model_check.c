/* engine/model_check.c -- `inspect --check`: every weight is a number. The only part of opening that reads the weights. */
#include "model.h"

#include <string.h>

#define PIECE (1u << 24) /* bytes between two calls of progress; a multiple of every item */

/* Items of which these bits are all set are no finite numbers: the exponent of F32, F16, BF16. E4M3 has no infinity, and
 * its NaN is the code of all ones. */
static int item_of(const struct tensor *t, size_t *size, uint32_t *bits)
{
    switch (t->dtype) {
    case DTYPE_F32: *size = 4; *bits = 0x7f800000; return 1;
    case DTYPE_F16: *size = 2; *bits = 0x7c00; return 1;
    case DTYPE_BF16: *size = 2; *bits = 0x7f80; return 1;
    case DTYPE_F8_E4M3: *size = 1; *bits = 0x7f; return 1;
    default: return 0;
    }
}

/* The first bad item among `count`, or `count`. One plain loop for each size, without an exit, so that it vectorises. */
static size_t find_bad(const unsigned char *data, size_t count, size_t size, uint32_t bits)
{
    unsigned bad = 0;
    uint32_t word;
    uint16_t half;
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
        for (size_t b = 0; b < size; b++) /* safetensors are little-endian, and so are the machines we run on */
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
        return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s [%zu,%zu] is %s", t->file, t->name, item / cols, item % cols, what);
    return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s [%zu] is %s", t->file, t->name, item, what);
}

int model_check(const struct model *m, void (*progress)(void *context, size_t done, size_t total), void *context, vb_error *err)
{
    size_t total = 0, done = 0, size, count = checkpoint_count(m->checkpoint);
    uint32_t bits;
    for (size_t i = 0; i < count; i++)
        total += checkpoint_at(m->checkpoint, i)->taken ? checkpoint_at(m->checkpoint, i)->bytes : 0;
    for (size_t i = 0; i < count; i++) {
        const struct tensor *t = checkpoint_at(m->checkpoint, i);
        if (!t->taken || !t->data || !item_of(t, &size, &bits))
            continue;
        for (size_t at = 0; at < t->bytes; at += PIECE) {
            size_t piece = t->bytes - at < PIECE ? t->bytes - at : PIECE;
            size_t bad = find_bad((const unsigned char *)t->data + at, piece / size, size, bits);
            if (bad < piece / size)
                return not_finite(t, at / size + bad, err);
            done += piece;
            if (progress)
                progress(context, done, total);
        }
    }
    return VB_OK;
}
