/* tests/kernels/checkasm.h -- what the parts of checkasm share: random data, memory that ends at an unreadable page, results. */
#ifndef VB_CHECKASM_H
#define VB_CHECKASM_H

#include "simd/kernels.h"
#include "tests/support/scratch.h"

#include <stdint.h>
#include <string.h>

extern int quick; /* fewer random cases, for emulators */

/* --- random data, all from one state (splitmix64) --- */

extern uint64_t rng_state;
uint64_t rng(void);
static inline size_t below(size_t n) { return n ? (size_t)(rng() % n) : 0; }

/* VANISH: weights negative, the other factor positive and so small (random_factors) that every product rounds to -0. */
enum kind { UNIFORM, WIDE, SUBNORMAL, UNDERFLOW, ZEROS, CANCEL, HUGE_RANGE, VANISH, KINDS };
extern const char *const kind_names[KINDS];

/* n numbers of this kind, stored as this type, at out (any address) */
void random_numbers(void *out, enum weight_type type, enum kind kind, size_t n);

/* n numbers to multiply with weights of this kind; for CANCEL each comes twice, `apart` numbers from each other */
void random_factors(float *x, enum kind kind, size_t n, size_t apart);

size_t type_size(enum weight_type type);
extern const char *const type_names[WEIGHT_TYPES];

/* --- memory --- */

/* `bytes` bytes whose end is `slack` bytes before an unreadable page; what lies before them is filled with 0xff (NaN as
 * floats). One buffer per slot: a slot's earlier pointer is invalid. */
enum slot { SLOT_W, SLOT_SCALE, SLOT_X, SLOT_X2, SLOT_WANT, SLOT_GOT, SLOTS };
void *ending_at_a_page(enum slot slot, size_t bytes, size_t slack);

#define CANARY 0x5ca1ab1eu /* what outputs hold before a kernel runs */
void fill_canary(float *y, size_t n);

/* --- results: one per kernel and table --- */

enum kernel {
    MATMUL, /* + type */
    FMA_ROWS = MATMUL + WEIGHT_TYPES,
    MATMUL_NARROW = FMA_ROWS + WEIGHT_TYPES,
    MATMUL_QUANTISED, /* + type - WEIGHT_TYPES */
    DOT = MATMUL_QUANTISED + WEIGHT_ALL_TYPES - WEIGHT_TYPES,
    PACK,
    NARROW,
    QUANTISE,
    AXPY,
    SCALE,
    DIVIDE,
    SOFTMAX,
    EXP,
    SILU_MUL,
    KERNELS
};
extern const char *const kernel_names[KERNELS];
int wanted(enum kernel kernel); /* by --filter */

/* Says what is about to run, so that a crash can be told. */
void about_to_run(enum kernel kernel, const struct kernels *k, const char *what);

/* Compares n outputs with scalar's as bits; NaN equals NaN (its payload is not part of the contract). The first
 * difference of each kernel and table is printed with `what` (a description of the case). Returns whether equal. */
int same_bits(enum kernel kernel, const struct kernels *k, const char *what, const float *got, const float *want,
              size_t n);
void failed(enum kernel kernel, const struct kernels *k, const char *what, const char *why);

/* The next table that is not scalar and runs here; NULL after the last. Start with NULL. */
const struct kernels *next_table(const struct kernels *k);
extern const struct kernels kernels_scalar;

void check_matrix_kernels(void);
void check_every_code(void);
void check_bf16_kernels(void);
void check_quantised_kernels(void);
int bench(void);

#endif
