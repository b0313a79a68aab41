/* ops/onednn.h -- a linear layer by oneDNN (Intel's library of primitives, github.com/oneapi-src/oneDNN; Debian's libdnnl2).
 *
 *     y[s,n] = sum_k W[n,k] x[s,k]            in whatever order oneDNN likes: not the contract's bits
 *
 *   W [N,K] row-major, in place   x [S,K]   y [S,N], not x         (x and W of the types asked for, y f32)
 *
 * The yardstick of `verbatim bench`, and with --prefill onednn, one to a thread, who computes prompts. The library is loaded when it is first asked for and is no dependency of the program:
 * without it, or built without its header, onednn_open says so. */
#ifndef VB_ONEDNN_H
#define VB_ONEDNN_H

#include "ops/op.h"

struct onednn; /* the library, and a primitive for each of the shapes used last; for one thread at a time, whichever */
#define ONEDNN_MOST_SHAPES 512 /* kept at once; oneDNN itself remembers its newest 1024, of all who use it in the process */

enum onednn_type { ONEDNN_F32, ONEDNN_BF16 };

struct onednn_shape {
    size_t S, N, K;
    size_t ldx, ldw, ldy;     /* numbers from one row to the next */
    enum onednn_type x, w;    /* 2.6 knows f32 x f32 and bf16 x bf16 only */
};

/* NULL, or one sentence why there is none (static). Every call of it then runs on `threads` threads. */
const char *onednn_open(struct onednn **out, int threads);
void onednn_close(struct onednn *o);
/* "2.6.3" */
const char *onednn_version(const struct onednn *o);

/* NULL, or one sentence why matrices of this type cannot be multiplied here: BF16 wants a CPU with AVX-512. */
const char *onednn_lacks(struct onednn *o, enum onednn_type type);

/* Makes the primitive of a shape, and keeps it: generated code, milliseconds, memory. NULL, or why it could not. */
const char *onednn_prepare(struct onednn *o, const struct onednn_shape *shape);
/* Runs it; one of more threads not within op_with_crew (OpenMP would give it one there). Of a shape that was not prepared it
 * is made now. NULL, or why it failed: y is then undefined. */
const char *onednn_linear(struct onednn *o, float *y, const void *x, const void *w, const struct onednn_shape *shape);
/* The first failure of onednn_linear since this was asked last, or NULL: for who called operators, which return nothing. */
const char *onednn_failure(struct onednn *o);

#endif
