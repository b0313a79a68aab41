/* tools/dump/dump.h -- writes a dump: a file of tensors, and its manifest. The values come from the engine's taps or
 * from the reference's hook. */
#ifndef VB_DUMP_H
#define VB_DUMP_H

#include "tools/cli/cli.h"
#include "tools/cli/naming.h"
#include "tools/cli/tensors.h"

enum dump_dtype { DUMP_F32, DUMP_F64, DUMP_I32 };

/* Some rows of one named value. The members have the meaning that they have in vb_tap (engine/verbatim.h). */
struct dump_rows {
    const char *name;
    int32_t layer, depth;
    uint64_t pass;
    size_t rows;
    const vb_tap_row *row;
    size_t outer, inner, stride, outer_stride;
    enum dump_dtype dtype;
    const void *data;
};

struct dump_tensor; /* all rows of one pass that have the same tensor name */

struct dump {
    const struct cli *c;
    struct tensors tensors;
    char *path, *manifest_path; /* the names of the two files */
    char *directory;            /* the directory for these files if it must be created, else NULL */
    struct cli_stream manifest; /* the lines of the manifest so far */
    size_t manifest_size;       /* their size in bytes */
    char **globs;           /* [glob_count]: patterns of the wanted names; if there are none, all names are wanted */
    int *matched;           /* [glob_count]: whether the pattern has matched a name */
    size_t glob_count;
    int no_hashes;          /* nonzero: the lines of the manifest have no SHA-256, because this process reads the dump
                               itself */
    int no_attention_scores; /* attention scores are left out, even if a pattern matches their names */
    const struct naming *naming; /* the engine whose names are used for the tensors; NULL: Verbatim */
    int layers;             /* how many layers the target has */
    json_t *named;          /* if `naming` is set: Verbatim's name for each name in the file */
    const char *layout;     /* the order of the RoPE dimensions: "interleaved" or "halves" */
    int stats;              /* nonzero: statistics are written instead of tensors (stats.h); `path` is then the file of
                               them */
    size_t prompt;          /* the number of tokens in the prompt */
    int decodes;            /* nonzero: after the prompt, the run generates tokens */
    int prompt_done;        /* nonzero: the last pass over the prompt has begun, so later target passes are for
                               generated tokens */
    int64_t step;           /* the target's step: 0 for the prompt, r for round r of decoding */
    uint64_t pass;          /* the number of the current pass */
    struct dump_tensor *first, *last;
    struct dump_emitted { size_t index; int draft; } emitted[VB_MAX_DRAFT + 1]; /* tokens chosen in the newest target
                                                                                   pass */
    size_t emitted_count, tensor_count;
    char error[512];        /* the error message, if something has failed */
};

/* Begins a dump. With c->stats, `path` is a file NAME.jsonl of statistics. Otherwise, `path`: NAME.safetensors, or a
 * directory (created if it is missing) for dump.safetensors. The manifest has the same name with .jsonl in place of
 * .safetensors. Until dump_end, both are temporary files without a name. `taps`: patterns separated by commas, or NULL.
 * Reports errors. After an error, no file is left behind. */
int dump_begin(const struct cli *c, struct dump *d, const char *path, const char *taps);
/* Whether a pattern matches the attention scores of any layer. Without patterns, attention scores are left out. */
int dump_wants_scores(const struct dump *d, int layers, int heads);
/* Copies the rows into the dump if their name is wanted. The rows of one name in a pass may come in several calls. */
void dump_rows(struct dump *d, const struct dump_rows *r);
/* Call this for each token that was chosen in the newest target pass. `draft`: see draft_depth in vb_event. */
void dump_emitted(struct dump *d, size_t index, int draft);
/* Writes both files. *tensors: how many tensors were written. It is an error if a pattern matched no name. Reports
 * errors. */
int dump_end(struct dump *d, size_t *tensors);
/* Ends a dump without writing its files. */
void dump_abandon(struct dump *d);

/* Runs c->model over ids in one pass and dumps its values; if c->reference is set, runs the reference instead. If c->n
 * > 0, generates tokens after that. `perturb`: see reference_options. Reports errors. Whether there was an error or
 * not, the caller then calls dump_end or dump_abandon. */
int dump_values(struct cli *c, struct dump *d, const int32_t *ids, size_t count, uint64_t perturb);

#endif
