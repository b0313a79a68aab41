/* ops/kv_rows.h -- how rows of the KV cache of MLA are stored (option cache-type).
 *
 * A row holds the latent (c numbers) and the rotated rope part (r numbers) of one token. They are rounded once, when
 * the row is written. Every reader uses the rounded numbers.
 *
 *     f32     one row of c + r numbers of type f32, in packed order (simd/kernels.h)
 *     bf16    one row of c + r numbers of type BF16, in natural order, rounded to nearest, ties to even
 *     q8      the latent as c / 32 groups of type CACHE_Q8 (simd/quantized.h), quantized by rule 2
 *             (docs/ARITHMETIC.md); then the rope part as BF16, rounded as above. c is a multiple of 32
 *
 * Rows are padded with 0. */
#ifndef VB_KV_ROWS_H
#define VB_KV_ROWS_H

#include "simd/kernels.h"

enum kv_type { KV_F32, KV_BF16, KV_Q8 };

struct kv_layout {
    enum kv_type type;
    size_t latent, rope; /* the sizes c and r */
    size_t index_layers; /* number of layers that have an index cache too (ops/indexer.h) */
    size_t index_row;    /* bytes in a row of the index cache; a multiple of 4 */
};

/* Returns the size of a row in bytes, with its padding; a multiple of 4. */
size_t kv_row_bytes(const struct kv_layout *l);
/* Returns where the rope part of a row of type q8 begins, in bytes. */
size_t kv_rope_at(const struct kv_layout *l);
/* Returns how many words of 4 bytes hold the numbers of a row, without its padding. */
size_t kv_row_words(const struct kv_layout *l);

/* Writes x [c+r], in natural order, to a row. */
void kv_row_write(const struct kernels *k, const struct kv_layout *l, void *row, const float *x);
/* Reads the numbers of a row to x [c+r], in natural order. */
void kv_row_read(const struct kv_layout *l, float *x, const void *row);

/* Returns a view of `count` rows that begin at `rows` and are adjacent. A row of the view is the whole row of c + r
 * numbers; with type q8, it is the latent alone. */
struct weight_view kv_rows_view(const struct kv_layout *l, const void *rows, size_t count);
/* Returns a view of the rope parts of these rows, of type BF16. The type of the rows is q8. */
struct weight_view kv_rope_view(const struct kv_layout *l, const void *rows, size_t count);

#endif
