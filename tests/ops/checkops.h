/* tests/ops/checkops.h -- for tests of operators: guarded memory, matrices of every stored type with the values of
 * their weights, plain C versions of the arithmetic rules, error bounds, and a kernel table that records its callers.
 *
 * Each operator is checked in two ways. First, its results must have the same bits as the results of plain C code that
 * follows the order in the operator's header. This must hold for any number of other rows in the call, any number of
 * threads and any kernel table. Second, the formula of the operator is computed in double, and the results must be
 * within an error bound of it. Each test derives this bound from the operands by the usual forward error analysis. */
#ifndef VB_CHECKOPS_H
#define VB_CHECKOPS_H

#include "ops/arithmetic.h"
#include "ops/operators.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/random.h"
#include "tests/support/test.h"

/* A loop over the kernel tables in this program whose kernels this CPU can run. */
#define FOR_EACH_TABLE(k)                                                                                              \
    for (const struct kernels *const *k##_ = kernel_tables, *k; (k = *k##_); k##_++)                                   \
        if (kernels_runs_here(k))

/* Each type of stored weights, then BF16 once more with precision bf16 (in_bf16 is 1). */
#define FOR_EACH_TYPE(type)                                                                                            \
    for (int type##_ = 0, type = 0; in_bf16 = type##_ == WEIGHT_TYPES, type = in_bf16 ? (int)WEIGHT_BF16 : type##_,    \
             type##_ <= WEIGHT_TYPES;                                                                                  \
         type##_++)

extern const size_t some_rows[4];
extern const int some_threads[3];
extern const char *const type_names[WEIGHT_TYPES];

const struct kernels *scalar_table(void);

/* ---- the case that is being checked ---- */

extern int in_bf16; /* precision bf16: context_of and contract_x use it */

/* CASE sets case_name, the name of the case; every message begins with this name. case_table is a part of it: who
 * computes, if there are several. */
extern char case_name[256];
extern const char *case_table;
void __attribute__((format(printf, 1, 2))) CASE(const char *format, ...);

/* ---- random numbers ---- */

/* Returns a random number in [-1, 1); it uses all 24 bits of the significand. */
float random_float(uint64_t *seed);

/* ---- memory ----
 *
 * Each buffer ends where an inaccessible page begins, so that an access beyond its end crashes. A new buffer contains
 * NaN. */

extern size_t guard_count; /* the number of allocated buffers; to free the newest ones, pass an earlier value of it to
                              release_to */

void *guarded(size_t bytes);
float *guarded_floats(size_t n);
float *random_floats(size_t n, uint64_t *seed);
float *copy_of(const float *x, size_t n);

/* Frees the buffers that were allocated since guard_count was `mark`. The test fails if something was written to the
 * memory just before one of these buffers. */
void release_to(size_t mark);

/* Frees all buffers. It is also a teardown function for cmocka. Tests that call it directly pass NULL. */
int release_all(void **state);

extern const struct arithmetic precisions[2]; /* f32 and bf16 */
/* Returns a context for operators, in the precision that in_bf16 says. Its scratch memory has exactly `bytes`
 * bytes. */
struct op_ctx context_of(const struct kernels *k, int threads, size_t bytes);

/* ---- comparisons ---- */

uint32_t bits_of(float f);

/* Whether the bits are equal. Two NaN are equal: the contract doesn't define their payload. */
int same_bits(float a, float b);

/* Compares whole matrices. ld_got and ld_want: the number of floats from one row to the next. If the environment
 * variable CHECK_ALL is set, a test that ends with release_all goes on after a difference, and fails at its end: so one
 * run shows which cases differ. */
void check_same_bits(const float *got, size_t ld_got, const float *want, size_t ld_want, size_t rows, size_t cols);

/* |got - want| must be at most `bound`; row and index are for the message. */
void check_within(float got, double want, double bound, size_t row, size_t index);

/* The numbers between the end of a row and the next row must be unchanged since the buffer was allocated. */
void check_untouched(const float *y, size_t ld, size_t rows, size_t cols);

/* ---- bounds. u = 2^-24: when a normal number is rounded to nearest, its relative error is at most u. ---- */

/* gamma(k): after k roundings, |error| <= gamma(k) |operand|  (Higham 2002, lemma 3.1) */
double rounding_gamma(double k);

/* The largest number of roundings that one product goes through in a dot product of rule 1: two fma in each chunk of
 * its block, four additions of the fold, and one addition per block after the first. The product itself is not rounded,
 * because of fma. */
double dot_depth(size_t K);

/* Returns a bound for the error of a dot product of K numbers. |dot - sum w x| <= gamma(depth) sum|w x|, and each fma
 * with a result below 2^-126 adds at most half of 2^-149. The dot product is compared with a sum in double. The error
 * of this sum is at most K 2^-53 sum|w x|. */
double dot_bound(size_t K, double sum_abs);

/* ---- rules of docs/ARITHMETIC.md in plain C ---- */

/* Rule 1, for vectors in natural order (not packed). */
float contract_dot(const float *w, const float *x, size_t K);

/* Writes to y the inputs that a linear layer multiplies with its weights. In precision bf16, each x is rounded to 8
 * significant bits, ties to even, and results smaller than 2^-56 in magnitude become 0. In precision f32, y is x. */
void contract_x(float *y, const float *x, size_t n);

/* One block of rule 4c: p[j] = exp(s[j] - m), and *sum is their sum. Returns m. */
float contract_softmax_block(float *p, const float *s, size_t n, float *sum);

/* ---- matrices ---- */

/* A stored matrix. value [rows, cols] has its weights as f32; the code that computes them shares no code with the
 * engine's decoders. In `view` the rows have gaps between them, and the data begins at an odd address. An F8 matrix
 * also begins inside a block of weights that share a scale. */
struct stored_matrix {
    struct weight_view view;
    float *value;
};

struct stored_matrix random_matrix(enum weight_type type, size_t rows, size_t cols, uint64_t *seed);

/* ---- a table that records its callers ----
 *
 * When a thread calls a kernel for the first time, it waits until all threads of its parallel region have called a
 * kernel. This proves that the threads run at the same time, and changes the order in which tasks are done. The
 * operator's first parallel region must have work for every thread; otherwise the test fails. */

/* A table with the kernels of `real` that records which threads call it. */
struct kernels spy_begin(const struct kernels *real);

/* Since spy_begin, the kernels must have been called in parallel regions of exactly `threads` threads. */
void check_threads_ran(int threads);

/* ---- a floating-point environment that no bit may depend on: flush to zero, round towards zero ---- */

/* Sets this environment in `threads` threads, including the caller's. Returns the environment that the caller's thread
 * had before. */
uint64_t spoil_environment(int threads);

/* Sets the environment of `threads` threads to `before`. Fails the test if a kernel has run in the spoiled environment
 * since spy_begin, or if a thread no longer has the spoiled environment. */
void restore_environment(int threads, uint64_t before);

/* Runs call() on `threads` threads in a spoiled floating-point environment (see above). Operators must run kernels in
 * the default environment, and must restore the spoiled one. */
#define IN_SPOILED_ENVIRONMENT(threads, call)                       \
    do {                                                            \
        uint64_t environment_before_ = spoil_environment(threads);  \
        call;                                                       \
        restore_environment(threads, environment_before_);          \
    } while (0)

#endif
