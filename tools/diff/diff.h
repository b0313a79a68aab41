/* tools/diff/diff.h -- `verbatim diff`: two dumps side by side.
 *
 * A side is read by read.c from a safetensors file and, where there is one, its manifest; a side that is a model is
 * computed into such a file first (diff.c). Rows of one name are gathered over all passes and known by (sequence, index);
 * rejected drafts and padding are left out, and so are an MTP module's rows behind drafts; of rows computed again the newest
 * counts. So a dump of decoding with drafts has the rows of one without.
 *
 * Numbers of two dtypes are both rounded to the coarser one first: everything that is told is told there.
 *
 * Verdicts of a tap (compare.c):
 *   identical   every number has the same bits
 *   rounding    every row is within the bound (bound.c)
 *   tie-flip    a choice fell the other way and the margin it fell by is within twice the bound: a value that A has above
 *               another by more than that cannot lie below it in B when each moved by at most the bound
 *   structural  anything else: out of bounds, another shape, a number that is not finite on one side only, other tokens
 *   after a tie-flip   only rows behind a tie-flip differ: the same row further on, and from the next layer on, through
 *               attention, every later row. They are not judged, and neither they nor their numbers are told. */
#ifndef VB_DIFF_H
#define VB_DIFF_H

#include "tools/cli/cli.h"
#include "tools/cli/naming.h"

enum diff_dtype { DIFF_BF16, DIFF_F16, DIFF_F32, DIFF_F64, DIFF_INTEGERS }; /* the coarser first */

struct diff_row {
    int32_t sequence, index, token; /* token -1: not known */
    size_t width;                   /* of attention scores, which are wider from pass to pass; else the series' */
    const char *data;               /* in the mapped file, at any address */
};

struct diff_series { /* the rows of one name */
    char *name;                /* ours, or as it is in the file */
    int layer, depth;          /* depth -1: the target */
    int rank, step;            /* order of computation; see naming_place */
    enum diff_dtype dtype;
    size_t item;               /* bytes of a number */
    size_t width, count, room; /* numbers of a row; rows */
    struct diff_row *rows;
    char shape[64];            /* as in the file, for messages */
    const char *layout;        /* of RoPE rows: "interleaved", "halves" or NULL */
    size_t block, rope;        /* > 0: the last `rope` of every `block` columns are halves and are read as interleaved */
    int disordered;            /* rows do not ascend: an index may be there already */
    int known_rows;            /* a manifest says which rows they are */
};

struct diff_side {
    const char *path, *kind;   /* kind: "dump", "engine", "reference" */
    void *bytes;               /* the mapped file */
    size_t size;
    struct diff_series *series; /* in the order of computation */
    size_t count, room;
    json_t *places;            /* "DEPTH NAME": its index in series; a V3 dump has 17,000 */
    int has_manifest, layers;  /* layers of the target, -1: not known */
    int32_t *tokens;           /* of the target, from the manifest or the file itself */
    size_t token_count;
    void **owned;              /* numbers that are not in the file: see router.c */
    size_t owned_count;
    json_t *notes;             /* what the reader of the result should know about this side */
};

/* Reads a dump. names: of a side without manifest, NULL: ours. layers: of the target if known, else -1. 0, or an exit code
 * after the error was reported. Call diff_close in any case. */
int diff_read(struct cli *c, struct diff_side *side, const char *path, const struct naming *names, int layers);
void diff_close(struct diff_side *side);

/* Joins what has other shapes or names for the same rows: fused columns, RoPE layouts, an engine that keeps the last row
 * only. layout_a, layout_b: where no manifest tells it, or NULL. */
void diff_align(struct diff_side *a, struct diff_side *b, const char *layout_a, const char *layout_b);
const struct diff_series *diff_find(const struct diff_side *side, const char *name, int depth);
/* x [series' width]: the numbers of a row; those that it is too short for are left as they are. */
void diff_numbers(const struct diff_series *s, const struct diff_row *row, double *x);

/* One pass over ids of c->model (or its reference), written under TMPDIR, read back, and gone. seed: see reference_options.
 * Reports errors. */
int diff_dump(struct cli *c, const int32_t *ids, size_t count, uint64_t seed, int scores, struct diff_side *side);

/* Where one side has router logits and no choices, its choices by the other side's rules; router.c. */
void diff_choose(struct diff_side *side, const struct diff_side *other);
/* Puts the series into the order of computation again, after some were added or renamed. */
void diff_sort(struct diff_side *side);
/* The series of this name, made if there is none. */
struct diff_series *diff_series_of(struct diff_side *side, const char *name, int depth);

/* --- how far rounding may take a value: bound.c --- */

struct bounds {
    int runs;               /* of the perturbed reference; 0: the bound is a priori */
    int arithmetic_given;
    enum diff_dtype arithmetic; /* of the coarser side: F32, F16 or BF16 */
    size_t longest;         /* terms of a sum */
    json_t *spread;         /* "DEPTH NAME": the largest relative distance of a row, measured */
    json_t *turned;         /* the same with roundings to groups of 32 turned near ties; NULL: there are none */
    int layers;
};
/* Measures over `runs` runs of the reference of c->model at these tokens. Reports errors. */
int bounds_measure(struct cli *c, struct bounds *b, int runs, const int32_t *ids, size_t count, int scores);
/* Relative to the largest magnitude in the row; `coarser`: the dtype that is told in. */
double bounds_of(const struct bounds *b, const struct diff_series *s, enum diff_dtype coarser);
void bounds_close(struct bounds *b);

/* --- the comparison: compare.c --- */

enum diff_verdict { NOT_COMPARED, IDENTICAL, AFTER_TIE_FLIP, ROUNDING, TIE_FLIP, STRUCTURAL };
extern const char *const verdict_name[];

struct diff_place { /* of a difference */
    int32_t sequence, index, token;
    size_t column;
    double a, b;
    uint64_t a_bits, b_bits, ulps;
};

#define ULP_BUCKETS 66 /* 0, 1, 2, 3-4, 5-8, ... */

struct tap {
    const struct diff_series *a, *b;
    enum diff_verdict verdict;
    enum diff_dtype dtype;      /* the coarser */
    char why[256];              /* of structural and tie-flip */
    size_t rows, after, only_a, only_b, numbers, equal;
    uint64_t ulps[ULP_BUCKETS], most_ulps;
    double max_abs, relative, bound, nmse, cosine;
    int differs, breaks;        /* first, worst are set */
    struct diff_place first, worst;  /* worst: the first that is out of bounds */
    int is_logits, is_choice;   /* what follows is of these */
    double kl_mean, kl_max, margin_a, margin_b; /* smallest margins; NAN: cannot be told */
    size_t top1_equal, flips;
};

struct comparison {
    struct tap *taps;           /* of the names that both have, in the order of computation */
    size_t count;
    enum diff_verdict verdict;       /* the worst */
    const struct tap *first, *structural; /* the first that differs; the first structural one */
    int32_t other_token;        /* the index from which the two read other tokens, or -1 */
};

/* bounds NULL: only distances are wanted, and every choice that fell the other way counts as a tie-flip. */
void diff_compare(struct comparison *r, const struct diff_side *a, const struct diff_side *b, const struct bounds *bounds);
void comparison_close(struct comparison *r);

/* --- print.c --- */
struct diff_told {
    const struct diff_side *a, *b;
    const struct comparison *r;
    const struct bounds *bounds;
    size_t tokens;
};
json_t *diff_json(const struct diff_told *t);
void diff_print(const struct diff_told *t, int all);

#endif
