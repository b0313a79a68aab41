/* ops/onednn.h -- a linear layer computed by oneDNN, Intel's library (github.com/oneapi-src/oneDNN; libdnnl2 in
 * Debian).
 *
 *     y[s,n] = sum_k W[n,k] x[s,k]
 *
 * oneDNN chooses the order of each sum, so the results have other bits than docs/ARITHMETIC.md defines. W [N,K] is
 * row-major, and is not copied. x and W have the types in struct onednn_shape. y [S,N] is f32, and does not overlap x
 * [S,K].
 *
 * `verbatim bench` compares the engine's speed with oneDNN's. With --prefill onednn, oneDNN also computes prompts; then
 * each thread has a struct onednn of its own. The program does not depend on the library, but loads it at the first
 * onednn_open. If the library is missing, or was missing when the program was built, onednn_open returns a sentence
 * that says so. */
#ifndef VB_ONEDNN_H
#define VB_ONEDNN_H

#include "ops/op.h"

/* The loaded library, and oneDNN's primitives (compiled code) for the shapes that were used last. Any thread may use
 * it, but only one at a time. */
struct onednn;
/* the largest number of primitives that are kept; oneDNN itself caches the newest 1024 primitives of the process */
#define ONEDNN_MOST_SHAPES 512

enum onednn_type { ONEDNN_F32, ONEDNN_BF16 };

struct onednn_shape {
    size_t S, N, K;
    size_t ldx, ldw, ldy;     /* distance from one row to the next, counted in numbers */
    enum onednn_type x, w;    /* must be equal: oneDNN 2.6 multiplies f32 by f32 and bf16 by bf16 only */
};

/* Opens the library; later calls with *out run on `threads` threads. Returns NULL on success. On failure, it sets *out
 * to NULL and returns a static string with the reason. The caller closes *out with onednn_close. */
const char *onednn_open(struct onednn **out, int threads);
void onednn_close(struct onednn *o);
/* Returns the version of the library, such as "2.6.3". */
const char *onednn_version(const struct onednn *o);

/* Returns NULL if oneDNN can multiply matrices of this type on this CPU, else a sentence that says that oneDNN cannot
 * do so. BF16 needs AVX-512. */
const char *onednn_lacks(struct onednn *o, enum onednn_type type);

/* Makes oneDNN's primitive for a shape and keeps it. This generates code, takes milliseconds, and allocates memory.
 * Returns NULL on success, else a sentence with the reason of the failure. */
const char *onednn_prepare(struct onednn *o, const struct onednn_shape *shape);
/* Multiplies x by W. If the shape was not prepared, onednn_prepare is called first. If `o` has more than one thread, do
 * not call onednn_linear inside a parallel region, because OpenMP would give it a single thread there. Returns NULL on
 * success. After a failure, the contents of y are undefined, and the returned sentence gives the reason. */
const char *onednn_linear(struct onednn *o, float *y, const void *x, const void *w, const struct onednn_shape *shape);
/* Returns the first failure of onednn_linear since the last call of onednn_failure, or NULL. Operators cannot return
 * errors, so the code that has called an operator calls this function after it. */
const char *onednn_failure(struct onednn *o);

#endif
