/* ops/gather.h -- copies some rows of a weight matrix into a smaller matrix. */
#ifndef VB_GATHER_H
#define VB_GATHER_H

#include "ops/weights.h"

/* Returns the size in bytes of a copy of `count` rows of w. */
size_t weight_gather_bytes(const struct weight_view *w, size_t count);

/* Copies rows rows[0..count) to `data`, which has weight_gather_bytes(w, count) bytes and is aligned to 64 bytes. They
 * are numbered so that w has rows `first`, first + 1 and so on. Row i of the result is row rows[i]. The result has the
 * type of w, and panels if w has panels. F8_E4M3, I8, I4 and F4 weights are decoded to F32, because their scales lie
 * elsewhere. A product with a row of the result has the same bits as a product with the row of w. The result has no
 * `magnitudes`. */
struct weight_view weight_gather(void *data, const struct weight_view *w, const int32_t *rows, size_t count,
                                 size_t first);

#endif
