/* tools/diff/diff.h -- `verbatim diff`: compares two dumps, value by value.
 *
 * read.c reads a side from a safetensors file and from its manifest, if there is one. If a side is a model, diff.c
 * first computes its values into such a file. All rows of one name are collected over all passes; a row is identified
 * by (sequence, index). Rows of rejected drafts and of padding are left out, and so are the rows that an MTP module
 * computed on top of drafts. If a row was computed more than once, the newest one counts. Therefore a dump of decoding
 * with drafts has the same rows as a dump of plain decoding.
 *
 * If two numbers have different dtypes, both are first rounded to the less precise dtype. All reported distances are
 * between these rounded numbers.
 *
 * There are six verdicts on a tap, that is, on all rows of one name (compare.c).
 *   `identical`    All numbers have the same bits.
 *   `rounding`     Every row is within the bound (bound.c).
 *   `tie-flip`     The two sides made different choices (of experts, of the tokens that an indexer keeps, or of the
 *                  best token), and the margin of the choice is at most twice the bound. Rounding can explain this:
 *                  each of two values moves by at most the bound. So their order can change only if the difference
 *                  between them was at most twice the bound.
 *   `biased`       Every row is within the bound, but the rows of A are together too large or too small: bias.h.
 *   `structural`   Any other difference: a row beyond its bound, another shape, another token, or a number that is
 *                  finite on one side only.
 *   `after a tie-flip`   All rows that differ depend on a tie-flip. Rows of two kinds depend on a tie-flip in a row.
 *                  The first kind is the same row in later steps of the computation. The second kind is every later row
 *                  from the next layer on, because of attention. Rows that depend on a tie-flip are counted, but they
 *                  get no verdict, and their differences are not reported. */
#ifndef VB_DIFF_H
#define VB_DIFF_H

#include "tools/cli/cli.h"
#include "tools/cli/naming.h"
#include "tools/diff/bias.h"
#include "tools/diff/explain.h"

enum diff_dtype { DIFF_BF16, DIFF_F16, DIFF_F32, DIFF_F64, DIFF_INTEGERS }; /* the least precise first */

struct diff_row {
    int32_t sequence, index, token; /* token -1: not known */
    int outside;                    /* nonzero: its step is not in --steps; it is compared only to find choices that
                                       later rows depend on */
    int chosen;                     /* nonzero: its step is not that of the prompt, so a round of decoding chose the
                                       token */
    size_t width;                   /* how many numbers the row has: series.width, or fewer if the row has attention
                                       scores; 0: statistics */
    const char *data;               /* points into the mapped file; may be unaligned. Of statistics: a struct
                                       stats_row */
};

struct diff_series { /* all rows of one name */
    char *name;                /* Verbatim's name, or the name in the file if it cannot be translated */
    int layer, depth;          /* depth: the MTP depth; -1 for the target */
    int rank, step;            /* place in the order of computation; see naming_place */
    enum diff_dtype dtype;
    size_t item;               /* size of a number in bytes */
    size_t width, count, room; /* how many numbers a row has; how many rows there are; how many fit into the
                                  allocation */
    struct diff_row *rows;
    char shape[64];            /* the shape in the file, for messages */
    const char *layout;        /* the order of the RoPE dimensions: "interleaved", "halves", or NULL if not known */
    /* if > 0: in each group of `block` columns, the last `rope` columns have the layout "halves"; diff_numbers
     * interleaves them */
    size_t block, rope;
    int disordered;            /* nonzero: the rows are not in ascending order, and may contain the same row twice */
    int is_stats;              /* nonzero: there are only statistics of the rows (tools/dump/stats.h) */
    int known_rows;            /* nonzero: the manifest gives the sequence and the index of each row */
};

struct diff_side {
    const char *path, *kind;   /* kind: "dump", "engine" or "reference" */
    vb_tensors *file;
    struct diff_series *series; /* in the order of computation */
    size_t count, room;
    json_t *places;            /* the index in `series` for each "DEPTH NAME"; a dump of DeepSeek-V3 has 17,000 names */
    int followed;              /* a model that took choices of the other side (follow.c): bits of enum diff_choice */
    /* of a model with an indexer: conventions indexer-scores=bf16 and indexer-ties=highest */
    int bf16_scores, latest_first;
    int index_codes;           /* of the same: bits of enum index_codes, by convention indexer-codes */
    int is_stats;              /* nonzero: it has statistics, at least of wide rows; its operators cannot be judged */
    /* if not NULL: values of which that side has statistics are also compared as statistics; for the bounds of
     * statistics */
    const struct diff_side *like;
    int has_steps;             /* nonzero: the manifest gives steps or passes */
    int has_manifest, layers;  /* layers: how many the target has, -1 if not known */
    int32_t *tokens;           /* the target's tokens, from the manifest or the file itself */
    size_t token_count;
    struct diff_row *rejected; /* rows of the logits of drafts that were rejected after a row that was kept; see
                                  local_tokens.c */
    size_t rejected_count;
    void **owned;              /* arrays of computed values; diff_close frees them; see diff_own */
    size_t owned_count;
    struct diff_side *ranks;   /* [rank_count]: the dumps of the ranks of which this side consists (ranks.c); NULL: it
                                  is one dump */
    size_t rank_count;
    int rank;                  /* in `ranks`: the number of the rank */
    json_t *notes;             /* sentences about this side that are printed with the result */
};

/* Reads a dump. `names`: the engine whose names a dump without manifest uses; NULL: Verbatim. `layers`: how many layers
 * the target has, or -1 if not known. Reports errors. The caller must call diff_close even after an error. */
int diff_read(struct cli *c, struct diff_side *side, const char *path, const struct naming *names, int layers);
void diff_close(struct diff_side *side);
int diff_is_stats(const char *path); /* whether the file has statistics (read_stats.c) */
/* Sets side->tokens to the tokens of the target in a side with a manifest, up to the first token for which there is no
 * row. */
void diff_find_tokens(struct diff_side *side);
/* The side frees `block` when it is closed. Returns `block`. */
void *diff_own(struct diff_side *side, void *block);
void diff_add_row(struct diff_series *s, struct diff_row row);
/* If a token has several rows, the last one counts, because the token was computed again. It takes the place of the
 * first one. */
void diff_keep_last_rows(struct diff_series *s);
/* Copies the rows and the properties of a series, but not its name and place. */
void diff_copy_series(struct diff_series *to, const struct diff_series *from);

/* --- ranks.c and gather.c: a dump with a file for each rank.
 *
 * `path` is a list of files with commas between them, or a directory. The entries of the directory are .safetensors
 * files, or directories with one such file, with the number of the rank in their names: rank0, tp_1, TP1_PP0_Rank5
 * (here the rank is 5). Each value is joined by the first rule of --gather whose pattern matches its name:
 *   concat:0   The ranks have different rows, which are put one after the other.
 *   concat:1   The ranks have different columns. They are put side by side, in the order of the ranks.
 *   sum        The ranks have terms of a sum. They are added in double, and each sum is rounded once to the dtype of
 *              the dump. An engine rounds more often; --ranks counts these roundings when operators are judged alone.
 *   rank:N     The value of rank N is used.
 * Without a rule, all ranks that have the value must have the same bits. If they differ, the outputs of column-parallel
 * layers are concatenated if their widths add up to that of the other side. If there is such a value, the outputs of
 * row-parallel layers are added. Any other value that differs is an error. --- */

/* Reads a dump, which may consist of ranks. Otherwise like diff_read. */
int diff_read_ranks(struct cli *c, struct diff_side *side, const char *path, const struct naming *names, int layers);
/* Checks --gather when both sides are read. Reports errors. */
int diff_check_gather(struct cli *c, const struct diff_side *a, const struct diff_side *b);
int diff_joins_rows(const struct cli *c, const char *name); /* whether --gather says concat:0 */
/* Joins the values of the ranks. Reports errors. Without ranks, does nothing. */
int diff_gather(struct cli *c, struct diff_side *side, const struct diff_side *other);

/* Makes both sides comparable if they store the same rows in different forms. Splits fused columns, brings the RoPE
 * dimensions into one order, and, if a side without manifest has only one row of the logits, takes this row for the
 * last one. `layout_a` and `layout_b` give the order of the RoPE dimensions for sides whose manifest does not give it;
 * NULL: not known. Finds out which tokens the rows of an expert, and the rows of a dump
 * without manifest, belong to. Adds notes about what is left out, and about layers that one side lacks. */
void diff_align(struct diff_side *a, struct diff_side *b, const char *layout_a, const char *layout_b);
/* Does the same for one side. `model` has a series without rows for each name that matters, with the width and the RoPE
 * layout of the checkpoint. */
void diff_align_to_model(struct diff_side *side, const struct diff_side *model, const char *layout);
/* Finds out which tokens the rows of experts belong to, in a dump without manifest that contains the choices.
 * diff_align calls it. */
void diff_expert_rows(struct diff_side *side);
/* Adds a note about the first number of a side that is not finite, if there is one, and about the first number beyond
 * the range of the arithmetic, or of the dtype in which a side stores it (finite.c). */
void diff_note_finite(struct diff_side *side, const struct diff_side *other, enum diff_dtype arithmetic);
/* Keeps row i of a line of the manifest, which is a rejected draft, in side->rejected (local_tokens.c). */
void local_reject(struct diff_side *side, const struct diff_series *s, const json_t *line, size_t i,
                  const struct diff_row *row);
/* Finds the rows of this name; NULL if there are none. */
const struct diff_series *diff_find(const struct diff_side *side, const char *name, int depth);
/* Returns the row of the same sequence and index, or NULL. *hint: where to look first; it is changed. */
const struct diff_row *diff_partner(const struct diff_series *s, const struct diff_row *row, size_t *hint);
/* Converts the numbers of a row to x [s->width]. If the row is shorter, the rest of x is not changed. */
void diff_numbers(const struct diff_series *s, const struct diff_row *row, double *x);

/* Runs c->model, or its reference, over ids in one pass. The values are written to a file in TMPDIR and read from
 * there; the file is then deleted. `seed`: see reference_options.perturb. `scores`: whether attention scores are wanted
 * too. Reports errors. */
int diff_dump(struct cli *c, const int32_t *ids, size_t count, uint64_t seed, int scores, struct diff_side *side);

/* If a side has router logits but no chosen experts, computes its choices with the routing rules of the other side
 * (router.c). */
void diff_choose(struct diff_side *side, const struct diff_side *other);
/* Sorts the series into the order of computation, after some were added or renamed. */
void diff_sort(struct diff_side *side);
/* Finds the series of this name, or adds an empty one. */
struct diff_series *diff_series_of(struct diff_side *side, const char *name, int depth);

/* --- follow.c: with --follow-choices, a model takes the experts and the kept sets of the other side, as forced routes.
 * So all values can be compared, also those after a choice that the two sides make differently. Routers and indexers of
 * the model compute their scores as always. The choice that follows from these scores is compared with the choice of
 * the other side: it is a tie-flip if rounding explains the difference, and else structural. The perturbed runs that
 * measure the bound take the same choices. --- */

enum diff_choice { CHOICE_EXPERTS = 1, CHOICE_KEPT = 2 };
enum diff_choice diff_kind(const struct diff_series *s); /* what the choices of this series are */

/* Copies the experts of a side to routes for a model whose shape is `model` (vb_model_routes), with `modules` MTP
 * depths as further layers. `computed` is the side of the model, whose router logits tell how many experts there are.
 * Rows without a valid choice contain -1. Returns the number of rows with a choice. The caller frees *experts, at which
 * out->experts points. */
size_t diff_routes(const struct diff_side *side, const struct diff_side *computed, const vb_routes *model, int modules,
                   size_t tokens, vb_routes *out, int32_t **experts);
/* The same for the tokens that indexers kept: sets out->kept. The rows of MTP modules see one row more if `phantom` is
 * nonzero. */
size_t diff_kept(const struct diff_side *side, const vb_routes *model, int modules, int phantom, size_t tokens,
                 vb_routes *out, int32_t **kept);
/* Sorts a set [n], without numbers below 0. Returns how many numbers remain. */
size_t diff_squeeze(double *set, size_t n);
struct bounds;
/* `experts` is the series of a router's experts on a side that followed, and `set` [k] are the experts in this row.
 * Replaces them by those that the router would have chosen. The tokens that an indexer kept are replaced too. If
 * `experts` is another series, or the router's values are missing, nothing changes. The set may contain experts of a
 * group that the router did not keep. They count as its choice if rounding can explain that another group was kept. */
void diff_own_choice(const struct diff_side *side, const struct bounds *bounds, const struct diff_series *experts,
                     const struct diff_row *row, double *set, size_t k);

/* Copies the values `what` (".groups") of the router whose choice is the series `s`, in the same row. Returns their
 * series, or NULL. The caller frees *x. */
const struct diff_series *diff_router_values(const struct diff_side *side, const struct diff_series *s,
                                             const struct diff_row *row, const char *what, double **x);
/* Copies the values from which a side chose the experts or groups of a row. Returns their series, or NULL. The caller
 * frees *x. */
const struct diff_series *diff_candidates(const struct diff_side *side, const struct diff_series *s,
                                          const struct diff_row *row, double **x);
/* Sets the values x [E] of experts outside of the `count` kept groups to -infinity. E is a multiple of `groups`. */
void diff_keep_groups(double *x, size_t E, size_t groups, const double *kept, size_t count);

/* --- how far rounding can move a value: bound.c --- */

struct bounds {
    int runs;               /* how many perturbed runs of the reference were made; 0: the bound is estimated, not
                               measured */
    int arithmetic_given;   /* --arithmetic was given */
    enum diff_dtype arithmetic; /* the arithmetic of the less precise side: F32, F16 or BF16 */
    size_t longest;         /* the number of terms in the longest sum */
    /* for each "DEPTH NAME": the largest relative distance of a row of a perturbed run from the same row without
     * perturbation */
    json_t *spread;
    /* NULL unless inputs of linear layers are quantized. Like `spread`, but from a second set of runs, in which an
     * input that is nearly halfway between two quantized values may become either of them */
    json_t *turned;
    const struct diff_side *like; /* a side with statistics, for which bounds are measured too; NULL: no side has any */
    int layers;             /* how many layers the target has */
    struct bias_noise *noise; /* the slopes of the perturbed runs */
};
/* Measures the bounds with `runs` perturbed runs of the reference of c->model on these tokens. Reports errors. */
int bounds_measure(struct cli *c, struct bounds *b, int runs, const int32_t *ids, size_t count, int scores);
/* Sets *groups to whether the inputs of some matrix, or the cache, are quantized in groups of 32. Reports errors. */
int bounds_groups(const struct cli *c, int *groups);
/* The bound for the statistics of this series, relative to the root mean square of a row: stats.c. */
double bounds_of_stats(const struct bounds *b, const struct diff_series *s, enum diff_dtype coarser);
/* The bound for this series, relative to the largest magnitude in a row. `coarser`: the dtype to which both sides are
 * rounded. */
double bounds_of(const struct bounds *b, const struct diff_series *s, enum diff_dtype coarser);
void bounds_close(struct bounds *b);

double diff_unit(enum diff_dtype dtype); /* the unit roundoff; 0 for integers */

/* --- the comparison: compare.c --- */

/* The bits of a number of the dtype; how many numbers of the dtype lie between x and y, plus 1 (0: x is y). */
uint64_t diff_bits(enum diff_dtype dtype, double x);
uint64_t diff_ulps(enum diff_dtype dtype, double x, double y);
/* Rounds x to the nearest number of the dtype, ties to even. */
double diff_round(enum diff_dtype dtype, double x);

enum diff_verdict { NOT_COMPARED, IDENTICAL, AFTER_TIE_FLIP, ROUNDING, TIE_FLIP, BIASED, STRUCTURAL };
extern const char *const verdict_name[];

struct diff_place { /* the place of a difference, and the two numbers there */
    int32_t sequence, index, token;
    size_t column;
    double a, b;
    uint64_t a_bits, b_bits, ulps;
};

#define ULP_BUCKETS 66 /* the histogram of distances in ULPs counts 0, 1, 2, 3-4, 5-8, ... separately */

#define DIFF_NO_COLUMN ((size_t)-1) /* the column of a place in statistics */

struct tap { /* the result for one name */
    const struct diff_series *a, *b;
    enum diff_verdict verdict;
    enum diff_dtype dtype;      /* the less precise of the two dtypes */
    char why[256];              /* why the verdict is structural, biased or tie-flip */
    size_t rows, after;         /* rows: how many were compared; after: how many depend on a tie-flip and were not
                                   compared */
    size_t only_a, only_b;      /* how many rows exist only in A; only in B */
    size_t numbers, equal;      /* how many numbers were compared; how many of them have equal bits */
    uint64_t ulps[ULP_BUCKETS], most_ulps; /* a histogram of the distances in ULPs; the largest distance */
    int is_stats;               /* one of the sides has statistics: a row is equal if its hash is, and there are no
                                   ULPs, NMSE and cosine */
    double projected;           /* with diff_side.like: the largest relative distance of statistics */
    double typical;             /* distances of a row are divided by this, if the row's largest number is smaller; or
                                   0 */
    double max_abs, relative, bound, nmse, cosine;
    struct bias bias;           /* of all rows that were compared */
    int differs, breaks;        /* whether `first` is set; whether `worst` is set */
    /* first: the first number that differs. worst: the first number that rounding cannot explain. It is beyond the
     * bound, or finite on one side only, or another integer, choice or token */
    struct diff_place first, worst;
    /* whether the values are logits; whether they are choices of experts or groups. Other values do not use the members
     * below */
    int is_logits, is_choice;
    double kl_mean, kl_max;     /* for logits: KL(A || B) */
    double margin_a, margin_b;  /* the smallest margin of any choice on each side; NAN: not known */
    size_t no_logits;           /* rows of logits that have no softmax on some side: NaN, +inf, or only -inf */
    size_t top1_equal, flips;   /* rows with the same best token on both sides; rows in which the two sides chose other
                                   experts or another best token */
};

/* --- scales.c --- */
enum index_codes { INDEX_WITHOUT_CODES = 1, INDEX_WITHOUT_HADAMARD = 2 };
/* x and y are rows of an indexer's weights, one number for each of n heads, in A and B. Where rounding explains that
 * the codes of a query have another scale in A, takes the power of two away from x, and makes the tap a tie-flip.
 * Without bounds, the sides are runs of the reference. */
void diff_scale_flips(struct tap *t, const struct diff_side *a, const struct diff_side *b, const struct bounds *bounds,
                      const struct diff_row *row, double *x, const double *y, size_t n);

struct comparison {
    struct tap *taps;           /* one for each name that both sides have, in the order of computation */
    size_t count;
    int unselected;             /* whether --taps, --layers or --steps left out something that was compared */
    enum diff_verdict verdict;  /* the worst verdict of all taps */
    const struct tap *first, *structural, *biased; /* the first tap that differs; the first structural one; the first
                                                      biased one */
    /* of the first structural tap: the rows and columns that differ, and a mistake that would explain it; or empty
     * (explain.h) */
    char where[EXPLAIN_ROOM], looks_like[EXPLAIN_ROOM];
    char biased_where[EXPLAIN_ROOM]; /* the same of the first biased tap */
    int32_t other_token;        /* the first index where the two sides read different tokens, or -1 */
};

/* Compares two sides. If bounds is NULL, only distances are computed, and every different choice counts as a
 * tie-flip. */
void diff_compare(struct comparison *r, const struct diff_side *a, const struct diff_side *b,
                  const struct bounds *bounds);
void comparison_close(struct comparison *r);
/* Sets the verdict of a tap to STRUCTURAL. The first reason is kept in t->why. */
void diff_structural(struct tap *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* --- rows of which one side has statistics: stats.c --- */
struct stats_row;
/* Sets *s to the statistics of a row; if the side has its numbers, rounded to the dtype of the series `like`. Returns 0
 * if they cannot be compared with those of `like`, because the RoPE dimensions have another order. */
int diff_stats(const struct diff_series *series, const struct diff_row *row, const struct diff_series *like,
               struct stats_row *s);
double diff_stats_typical(const struct diff_series *s); /* the median of the root mean squares of all rows */
/* The largest distance of the root mean squares and of the projections, relative to the larger root mean square, which
 * is at least `typical`. *which: the number of the projection; -1: the root mean square. */
double diff_stats_distance(const struct stats_row *a, const struct stats_row *b, double typical, int *which);
/* Compares a row of which a side has statistics; the sides' statistics become *x and *y. judged: a difference beyond
 * t->bound is structural. Returns 0 if the row cannot be compared. */
int diff_stats_row(struct tap *t, const struct diff_row *row, const struct diff_row *other, int judged,
                   struct stats_row *x, struct stats_row *y);
/* Of a perturbed run: widens t->projected by what the statistics of a row have moved. */
void diff_stats_move(struct tap *t, const struct diff_row *row, const struct diff_row *other);

/* --- select.c: --taps, --layers and --steps --- */
/* Sets `outside` of the rows that --steps leaves out: by the steps in the manifest of A, or of B if A is a model or has
 * none. */
int diff_select_rows(struct cli *c, struct diff_side *a, struct diff_side *b);
/* Leaves out the taps that --taps and --layers do not choose. All values have been compared, because rows depend on
 * earlier choices. */
void diff_select(const struct cli *c, struct comparison *r);
/* The worst verdict of all taps, and the first taps that have a difference; diff_compare calls it. */
void diff_sum_up(struct comparison *r);
/* Sets of experts or groups: whether set [k] has the number e; the order of two doubles, for qsort. */
int diff_holds(const double *set, size_t k, double e);
int diff_by_number(const void *p, const void *q);
/* Returns the value of --ties, or its default. */
const char *diff_ties(const struct cli *c);
/* Applies --ties. fail: nothing changes. report: if the worst verdict is tie-flip, the verdict of the comparison is
 * rounding. ok: the verdicts of taps change too. */
void diff_settle_ties(struct comparison *r, const char *ties);
/* Says where a tap differs and what mistake explains it, by explain.h. model: the checkpoint, for the matrices; or
 * NULL. */
void diff_explain(const struct tap *t, const struct diff_side *a, const struct diff_side *b, const char *model,
                  char where[EXPLAIN_ROOM], char why[EXPLAIN_ROOM]);

/* Says which rows, and which heads, columns or experts, of a biased tap are off by more than rounding explains; empty:
 * none of them alone. */
void diff_explain_bias(const struct tap *t, const struct diff_side *a, const struct diff_side *b,
                       char where[EXPLAIN_ROOM]);

/* --- print.c --- */
struct local;
struct diff_told { /* everything that is printed */
    const struct cli *c; /* for --taps and --layers */
    const struct diff_side *a, *b;
    const struct comparison *r;
    const struct bounds *bounds;
    const struct local *local[2]; /* the operators of A and of B alone; NULL: not judged */
    int chain;     /* whether the values were compared too */
    enum diff_verdict verdict; /* of all */
    size_t tokens; /* how many tokens both sides read; 0: not known */
};
json_t *diff_json(const struct diff_told *t);
/* Prints the result as text. `all`: --all was given. `missing`: the patterns of --require that match nothing. */
void diff_print(const struct diff_told *t, int all, const json_t *missing);

/* --- report.c. `told` is what diff_json returns. --- */
/* Returns the patterns of `require` (separated by commas, or NULL) that match no value that was compared, as a new
 * array. */
json_t *diff_missing(const char *require, const json_t *told);
/* Write c->junit and c->html. Return an exit code. */
int diff_junit(const struct cli *c, const json_t *told);
int diff_html(const struct cli *c, const json_t *told);

#endif
