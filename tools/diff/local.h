/* tools/diff/local.h -- `verbatim diff --local`: judges every operator of a dump alone.
 *
 * The reference computes each value of the dump from the dump's own inputs of that value (reference/operators.h). So an
 * error that was made earlier does not count again, and the bound is that of one operator. If the dump lacks an input,
 * the input is computed from the nearest values before it; these operators are then judged together ("merged"). Results
 * of layers before the previous one are not computed again, except sums of the residual stream.
 *
 * A number x of the dump may differ from the number y of the reference by
 *     h  +  slack  +  LOCAL_TIMES sigma  +  sqrt(K) 2^-24 m.
 * h is half an ulp of the result, in the tensor's dtype or in --arithmetic. (If a tensor of F32 in a BF16 dump contains
 * BF16 numbers only, an ulp is one of BF16.) `slack` bounds roundings inside of the operator (reference/operators.h).
 * sigma is the standard deviation of y in `runs` computations with roundings at random places inside of the operator
 * and in merged operators, and at least that of its row: 8 runs of one number measure it only roughly. The last term is
 * for the order of the sums in norms and in the softmax of the router: K terms are added in f32, and m is the largest
 * number of the row.
 *
 * Other sums in f32 are rounded as ref_sum_variance says (reference/run.h): in linear layers, slack is LOCAL_TIMES
 * standard deviations of the sum, and inside of attention and of experts the sums of the noisy computations get random
 * errors of this size. A sum of independent roundings, each uniform between -h and h, exceeds 8 standard deviations
 * with a probability of less than 2 exp(-8^2 / 2) = 2.5e-14: in a dump of 10^9 numbers, one false alarm in 40000 dumps.
 *
 * --ranks N: N tensor-parallel ranks round their parts p of the sums in o_proj and down_proj before they are added.
 * Slack includes half an ulp of each |p|, and of each sum of parts except the last (reference/operators.c). A rank
 * holds N-th parts of the heads or of the intermediate columns, in their order.
 *
 * The bound of single numbers is wide where many roundings happen inside of an operator. Errors that are not random are
 * found by their root mean square. Each error is divided by its standard deviation, sqrt(h^2 / 3 + slack^2 / 3 +
 * sigma^2 + ...); a rounding of at most h has a standard deviation of at most h / sqrt(3). Every rounding that some
 * engine makes is counted, so the mean square of the quotients is at most about 1. It may be larger by chance if few
 * roundings dominate: a rounded score moves all numbers of a head. So a row is wrong if the root is more than
 * LOCAL_ROW, and a tensor of LOCAL_ROWS rows or more if it is more than LOCAL_TAP.
 *
 * An operator whose numbers are within all these bounds, but together too large or too small, is `biased`:
 * local_bias.h.
 *
 * If --arithmetic is finer than the dtype of the dump, the engine computed in --arithmetic, and the dump has rounded
 * copies of what it computed with. Then the inputs have random roundings too. If it is coarser, linear layers round
 * their inputs to it. */
#ifndef VB_DIFF_LOCAL_H
#define VB_DIFF_LOCAL_H

#include "reference/operators.h"
#include "tools/diff/diff.h"
#include "tools/diff/local_bias.h"

#define LOCAL_TIMES 8.0
#define LOCAL_ROW 3.0
#define LOCAL_TAP 2.0
#define LOCAL_ROWS 4
#define LOCAL_NUMBERS 8 /* the mean square of fewer scores, in the first rows, is not judged */
#define LOCAL_MASKED (-1e4) /* engines add -infinity to scores that are masked, or a number such as -10000 */

struct local_result { /* of one name of the dump */
    const struct diff_series *series;
    const char *operator;       /* NULL: no operator computes this value */
    enum diff_verdict verdict;  /* NOT_COMPARED: not judged; IDENTICAL: the reference rounds to the same bits; ROUNDING;
                                   BIASED; STRUCTURAL */
    size_t rows, wrong_rows;    /* how many were judged; in how many some number is out of bounds */
    size_t without_inputs, ties; /* rows that were not judged because an input is missing; because a merged router has a
                                    tie */
    double ratio;               /* the largest quotient of a distance and its bound */
    double errors;              /* the root of the mean square of (distance / its standard deviation) */
    int32_t sequence, index, token;
    size_t column;              /* where the ratio is largest; `first_*`: the first number out of bounds */
    double dump, expected, bound;
    char why[256];              /* why it was not judged, or what is wrong with a choice */
    struct local_bias *bias;    /* NULL: not judged */
    char where[EXPLAIN_ROOM];   /* of a bias: which rows, and which heads, columns or experts */
    char merged[200];           /* the operators that were judged together with this one */
};

/* Who else sees the numbers that are judged. */
struct local_reader {
    int (*wants)(const char *operator); /* whether this operator is to be computed */
    void (*see)(void *context, const struct diff_series *s, int32_t sequence, int32_t index, const double *dump,
                const double *expected, size_t width);
    void *context;
};

struct local {
    const struct local_reader *reader; /* set by the caller: NULL, or it sees each row of numbers, and bias is not
                                          judged */
    struct local_result *results; /* one for each series of the side */
    size_t count, judged, wrong, biased; /* wrong: how many are STRUCTURAL */
    const struct local_result *first; /* the first that is STRUCTURAL or BIASED */
    int runs;
};

/* Judges the values of `side`, which diff_align has aligned with the values of a model or of another dump. `c` is the
 * open model. ids: the tokens, for dumps that do not say them. ranks: how many tensor-parallel ranks the engine has.
 * Reports errors. The caller closes *l, even after an error. */
int diff_local(struct cli *c, const struct diff_side *side, const struct bounds *b, const int32_t *ids, size_t count,
               int runs, int ranks, struct local *l);
/* Leaves out the results that --taps and --layers do not choose (select.c). */
void local_select(const struct cli *c, struct local *l);
/* Sets what `l` says of all its results. */
void local_sum_up(struct local *l);
void local_close(struct local *l);

json_t *local_json(const struct diff_side *side, const struct local *l);
void local_print(const struct diff_side *side, const struct local *l, int all);

/* Whether each token that a dump chose has the largest logit of the row before it (local_tokens.c). With `greedy`, it
 * is wrong if it has not; else it is not judged, because it may have been sampled. r->ties: how many share the largest
 * logit with a lower token. Returns 0 if the dump has no chosen tokens. */
int local_tokens(const struct diff_side *side, int greedy, struct local_result *r);

/* --- between local.c and local_values.c --- */

struct local_value { /* all rows of one value; row i is index i - 1 */
    char *name;
    int depth, given;       /* given: it is the dump's */
    size_t width;
    double *x;              /* [rows, width] */
    unsigned char *present; /* [rows] */
    char *merged;           /* if it is not given: the operators that were computed for it */
    double unit;            /* given: the rounding that it has */
};

struct local_values {
    const struct diff_side *side;
    const struct reference *r;
    struct reference_bench *bench;
    struct conventions conventions;
    int32_t sequence;
    const int32_t *ids;
    size_t id_count, rows;
    int ranks;                 /* tensor-parallel ranks */
    double arithmetic;         /* the unit roundoff of the arithmetic */
    int arithmetic_given;
    int only_given;            /* values that the dump lacks are not computed */
    int is_cast;               /* whether the dump has rounded copies of the values that the engine computed with */
    enum diff_dtype dtype;     /* of the arithmetic */
    struct local_value *list[2]; /* exact values, and values with noise */
    size_t count[2], room[2];
    char missing[NAMING_ROOM]; /* the name of the last value that could not be found or computed */
};

/* The value of this name, for an operator of layer `layer` (-1: outside of the layers). noisy: merged operators round
 * at random. NULL: the dump neither has it, nor what it is computed from. The result is valid until the next call. */
const struct local_value *local_value(struct local_values *v, int noisy, const char *name, int depth, int layer);
/* Fills a call with the inputs of an operator. present [rows] becomes the rows that have all inputs. merged (or NULL)
 * [200] gets the names of operators that were computed for them. Returns 0 if an input is missing. The caller frees
 * call->in[i] for all i. */
int local_inputs(struct local_values *v, int noisy, const struct reference_operator *op, int layer,
                 struct reference_call *call, unsigned char *present, char *merged);
/* Computes call->out (and slack) for all rows. only [rows]: NULL, or the rows that an expert computes. */
void local_compute(struct local_values *v, struct reference_call *call, int depth, const unsigned char *only);
/* How many numbers a row of the operator's result has. Scores have one for each row of the dump, from local_base on. */
size_t local_width(const struct local_values *v, const struct reference_operator *op, int layer);
size_t local_base(const struct local_values *v, int depth); /* the first row: 0 if there is a phantom row, else 1 */
int local_position(const struct local_values *v, int depth); /* the RoPE position of this row */
double local_unit(const struct local_values *v, const struct diff_series *s); /* the rounding of a tensor of the dump */
/* Copies the rows of a series of the dump to x [rows, width], in the order of the checkpoint. */
void local_numbers(const struct local_values *v, const struct diff_series *s, double *x, unsigned char *present,
                   int32_t *tokens);
void local_forget(struct local_values *v, int noisy, int before_layer); /* drops values of layers before this one;
                                                                           INT_MAX: all */

#endif
