/* engine/model/prefetch.h -- lets the kernel read a rank's rows of mapped matrices before a pass uses them.
 *
 * When a page is used that is not in the page cache, the kernel also reads its neighbours (read-ahead). With several
 * ranks, these are often rows of other ranks. Pages that are in the page cache, or are being read, cause no read-ahead.
 * So a rank asks for exactly its rows of a matrix, shortly before it uses the matrix for the first time. It asks
 * neither earlier nor for all experts: a model may be larger than the memory, and a short prompt needs few experts. It
 * asks once, because asking takes time even if nothing has to be read. If pages are dropped later, they are read with
 * read-ahead.
 *
 * Without ranks, and for matrices that were copied, the functions do nothing. docs/MEASUREMENTS.md, "Memory of
 * ranks". */
#ifndef VB_PREFETCH_H
#define VB_PREFETCH_H

#include "engine/model/model.h"

/* Asks for the matrices of a layer, without its routed experts, unless that was done before. */
void model_prefetch_layer(const struct vb_model *m, const struct layer *l);
/* Asks for the experts expert [count] of a layer, except those for which that was done before. Threads may call both
 * functions at the same time. */
void model_prefetch_experts(const struct vb_model *m, const struct layer *l, const int32_t *expert, size_t count);

#endif
