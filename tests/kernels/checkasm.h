/* tests/kernels/checkasm.h -- declarations shared by the source files of checkasm: random data, buffers that end at an
 * unreadable page, and the comparison of results. */
#ifndef VB_CHECKASM_H
#define VB_CHECKASM_H

#include "simd/kernels.h"
#include "tests/support/scratch.h"

#include <stdint.h>
#include <string.h>

extern int quick; /* the option --quick, for emulators: run fewer random cases */

/* --- random data; all of it comes from one generator (splitmix64) --- */

extern uint64_t rng_state;
uint64_t rng(void);
static inline size_t below(size_t n) { return n ? (size_t)(rng() % n) : 0; }

/* Kinds of random numbers. VANISH: the weights are negative, and the numbers that they are multiplied with (from
 * random_factors) are positive and so small that every product rounds to -0. */
enum kind { UNIFORM, WIDE, SUBNORMAL, UNDERFLOW, ZEROS, CANCEL, HUGE_RANGE, VANISH, KINDS };
extern const char *const kind_names[KINDS];

/* Writes n random numbers of this kind, stored as this type. out may be unaligned. */
void random_numbers(void *out, enum weight_type type, enum kind kind, size_t n);

/* Writes n random numbers that are to be multiplied with weights of this kind. For CANCEL, each number appears twice,
 * at x[i] and x[i + apart]. */
void random_factors(float *x, enum kind kind, size_t n, size_t apart);

/* The size of one number in bytes. */
size_t type_size(enum weight_type type);
extern const char *const type_names[WEIGHT_TYPES];

/* --- memory --- */

/* Returns a buffer of `bytes` bytes that ends `slack` bytes before an unreadable page. The buffer and the memory around
 * it are filled with 0xff (NaN as floats). Each slot has one buffer: a second call for a slot makes its earlier pointer
 * invalid. */
enum slot { SLOT_W, SLOT_SCALE, SLOT_X, SLOT_X2, SLOT_WANT, SLOT_GOT, SLOTS };
void *ending_at_a_page(enum slot slot, size_t bytes, size_t slack);

#define CANARY 0x5ca1ab1eu /* the bits that outputs are filled with before a kernel runs */
void fill_canary(float *y, size_t n);

/* --- results: one for each kernel of each instruction set's table --- */

enum kernel {
    MATMUL, /* one for each type: MATMUL + type */
    FMA_ROWS = MATMUL + WEIGHT_TYPES,
    FMA_ROWS_ONTO = FMA_ROWS + WEIGHT_TYPES,
    MATMUL_NARROW = FMA_ROWS_ONTO + WEIGHT_TYPES,
    MATMUL_QUANTIZED, /* one for each type: MATMUL_QUANTIZED + type - WEIGHT_TYPES */
    FMA_ROWS_CACHE_Q8 = MATMUL_QUANTIZED + WEIGHT_KINDS - WEIGHT_TYPES,
    FMA_OUTER,
    DOT,
    PACK,
    NARROW,
    QUANTIZE,
    AXPY,
    SCALE,
    DIVIDE,
    INDEX_SCORES,
    COUNT_FROM,
    SOFTMAX,
    EXP,
    SILU_MUL,
    KERNELS
};
extern const char *const kernel_names[KERNELS];
int wanted(enum kernel kernel); /* whether --filter matches the kernel's name */

/* Records what runs next, so that a crash can be reported with this description. */
void about_to_run(enum kernel kernel, const struct kernels *k, const char *what);

/* Compares n outputs with those of the scalar kernel, bit by bit. NaN equals NaN: its payload bits are not part of the
 * contract. For each kernel and table, the first difference is printed with `what`, a description of the case. Returns
 * whether all are equal. */
int same_bits(enum kernel kernel, const struct kernels *k, const char *what, const float *got, const float *want,
              size_t n);
/* Records and prints a failure of another kind. `why` says what is wrong. */
void failed(enum kernel kernel, const struct kernels *k, const char *what, const char *why);

/* Returns the next table after k whose kernels this CPU can run; the scalar table is skipped. Returns NULL after the
 * last one. Start with k = NULL. */
const struct kernels *next_table(const struct kernels *k);
extern const struct kernels kernels_scalar;

void check_matrix_kernels(void);
void check_every_code(void);
void check_bf16_kernels(void);
void check_quantized_kernels(void);
void check_index_kernels(void);
int bench(void);

#endif
