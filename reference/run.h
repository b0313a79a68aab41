/* reference/run.h -- one computation of the reference: its options, the memory of its intermediate values, and how
 * values reach the hook. */
#ifndef VB_REFERENCE_RUN_H
#define VB_REFERENCE_RUN_H

#include "reference/reference.h"
#include "reference/weights.h"

/* A row that the indexer may keep. highest: of equal scores, the highest place is the best. */
struct place_score {
    double score;
    int place, highest;
};

/* The options of one call of a function in reference.h, and memory for the intermediate values of S tokens. Capital
 * letters in shapes are the sizes that docs/SEMANTICS.md lists, except D, which is the hidden size d. In addition, W
 * is the width of the widest MLP, X is the number of experts per token, and G is the number of groups of experts. */
struct reference_run {
    const struct reference *r;
    const struct config *c;
    struct reference_options options;
    uint64_t random;  /* state of the random generator for perturbations (reference_options.perturb) */
    int stretched;    /* nonzero if YaRN applies */
    /* For operators.c: every value except the one named `result` (NULL: none) is multiplied by 1 + u noise, where u is
     * random in [-1, 1). So is the x of a linear layer if its weights are finer than the arithmetic, or if noisy_x is
     * nonzero. */
    double noise;
    int noisy_x;
    double weight_unit; /* for operators.c: weights are rounded to numbers with this unit roundoff; 0: they are not */
    const char *result;
    int layer;        /* number of the layer that is computed now; -1 outside of the layers */
    int expert;       /* number of the expert that is computed now; -1 outside of the experts */
    /* Receives the residual stream before each layer of the target and, with layer num_hidden_layers, after the last;
     * NULL: nobody wants it */
    void (*watch)(void *context, int layer, const double *x, int S);
    void *watch_context;
    void *memory;     /* holds all arrays below */

    double *row;                        /* one row of a matrix, decoded */
    double *rounded;                    /* [S, longest row]: the rounded input of a linear layer */
    double *w_uk, *w_uv;                /* [N, C], [V, C]: W_UK and W_UV of one head */
    double *cosine, *sine;              /* [S, R/2] */
    double *query_scale;                /* [S]: the factor of each token's queries (ref_scale_queries) */
    double *normed, *delta;             /* [S, D]: input of attention or MLP; output to be added to the residual
                                           stream */
    double *q_a, *q;                    /* [S, Q], [S, H, N+R] */
    double *q_nope, *q_rope;            /* [S, H, N], [S, H, R] */
    double *kv_a, *latent, *k_rope;     /* [S, C+R], [S, C], [S, R] */
    double *kv, *k_nope, *v;            /* [S, H, N+V], [S, H, N], [S, H, V] */
    double *scores;                     /* [S, S]: of one head, and then their softmax */
    double *mixed;                      /* [S, C]: of one head, see absorbed.c */
    double *heads;                      /* [S, H, V] */
    double *gate, *up;                  /* [S, W] */
    double *router, *choice, *groups;   /* [S, E], [S, E], [S, G] */
    double *experts, *weights;          /* [S, X]: the chosen experts, ascending, and their weights */
    double *expert_in, *expert_out;     /* [S, D]: input and output of one expert, for the tokens that chose it */
    /* For models with an indexer; HI and DI are index_n_heads and index_head_dim. sparse: whether the layer that is
     * computed now attends to the places of `kept` only. kept [S, S]: kept[s, t] is 1 if row s attends to row t; shared
     * layers use what the last full layer chose. last_row: rows after it attend to the places that it keeps (convention
     * mtp-set); -1: none do */
    int sparse, last_row;
    double *index_q, *index_k;          /* [S, HI, DI], [S, DI] */
    double *index_weights, *index_scales; /* [S, HI]: weights of the heads; scales of the queries' codes */
    double *index_scores, *index_sets;  /* [S, S], [S, index_topk] */
    double *index_moves, *index_scale_moves; /* [S, HI+1, DI], [S, HI]: for operators_indexer.c */
    struct place_score *candidates;       /* [S] */
    char *kept;                         /* [S, S] */
    double *routed;                     /* [S, X, D]: the output of each chosen expert */
    /* Row s of an MTP module, where s >= from, has index s + first + (s - from) * more, because the module lacks rows
     * before it; other rows have index s. If from is 0, all have index s. Only chain-module=step sets this. */
    struct { int from, first, more; } gap;
    /* For aligned depths (backward_model.c): the index of each row [S], and whether row s attends to row t <= s [S,S].
     * NULL: see gap; rows attend to all rows up to their own */
    const int *places;
    const char *mask;
    double *embed, *concat, *taken, *stream; /* [S, D], [S, 2D], [S, D], [S, D]: MTP */
    char *chosen;                       /* [max(E, G)] */
};

/* --- run.c --- */

/* ref_run_open allocates the memory of a run for S tokens. If `options` is NULL, all options are 0. */
int ref_run_open(struct reference_run *run, const struct reference *r, const struct reference_options *options, int S,
                 vb_error *err);
void ref_run_close(struct reference_run *run);
int ref_check_tokens(const struct reference *r, const int32_t *tokens, int S, vb_error *err);

/* An array of `count` numbers in a larger block of memory. ref_carve gives each part its place after `next` (NULL: it
 * does not), and returns the number of all numbers. */
struct ref_part {
    double **at;
    size_t count;
};
size_t ref_carve(const struct ref_part *part, size_t parts, double *next);

/* A copy [S,D] of the residual stream before one layer, for run->watch. */
struct ref_kept {
    double *to;
    int layer; /* 0 .. num_hidden_layers */
    size_t width; /* D */
};
void ref_keep(void *context, int layer, const double *x, int S);

/* --- noise.c --- */

/* The formulas call ref_value for every intermediate value after its computation. It perturbs the value if
 * options.perturb is not 0, and then passes the value to the hook. name NULL: it does nothing. */
void ref_value(struct reference_run *run, const char *name, int index, int rows, int cols, double *data);
/* Passes a value to the hook without perturbing it. The formulas call it for values that are copies of other values,
 * because copying has no rounding error. */
void ref_show(struct reference_run *run, const char *name, int index, int rows, int cols, const double *data);
void ref_stream(struct reference_run *run, const double *x, int S); /* passes the residual stream to run->watch */
void ref_noise(struct reference_run *run, double *x, size_t n); /* as run->noise says */
double ref_uniform(struct reference_run *run); /* a random number in [-1, 1), for perturbations */

double ref_dot(const double *a, const double *b, int n);
/* The variance of the rounding of a sum of n terms in f32, whose result is `sum` and whose squared terms have the sum
 * `squares`. Each of the n partial sums is rounded by at most h = 2^-24 times its size, which has the variance h^2 / 3.
 * The k-th partial sum has the drift (k / n) sum, and moves around it by the root of (k / n) squares if the signs of
 * the terms are random. The squares of both, added for all k, give n (sum^2 / 9 + squares / 6) 2^-48. (Sums of many
 * short sums have a smaller variance.) */
double ref_sum_variance(double sum, double squares, size_t n);
/* The sum of a[i step_a] b[i step_b] for i < n. If run->noise is not 0, a random number of this variance is added. */
double ref_sum(struct reference_run *run, const double *a, size_t step_a, const double *b, size_t step_b, size_t n);
/* a . b + c . d of n and m numbers */
double ref_two_dots(struct reference_run *run, const double *a, const double *b, size_t n, const double *c,
                    const double *d, size_t m);

/* Returns the index of row s of an MTP module. */
static inline int ref_index(const struct reference_run *run, int s)
{
    return run->gap.from && s >= run->gap.from ? s + run->gap.first + (s - run->gap.from) * run->gap.more : s;
}

/* Returns the value of a convention; 0 is its default. */
static inline int ref_convention(const struct reference_run *run, enum convention c)
{
    return run->options.conventions.value[c];
}

#endif
