/* tools/dump/dump.h -- a dump being written: tensors and their manifest. What `verbatim dump` fills from the engine's taps or
 * from the reference's hook. */
#ifndef VB_DUMP_H
#define VB_DUMP_H

#include "tools/cli/cli.h"
#include "tools/cli/naming.h"
#include "tools/cli/tensors.h"

enum dump_dtype { DUMP_F32, DUMP_F64, DUMP_I32 };

/* Some rows of one named value. Names and rows: vb_tap in verbatim.h. */
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

struct dump_tensor; /* rows gathered of one name in one pass */

struct dump {
    const struct cli *c;
    struct tensors tensors;
    char *path, *manifest_path; /* the two files */
    char *directory;            /* theirs, if it has to be made; else NULL */
    struct cli_stream manifest; /* the lines so far, and */
    size_t manifest_size;       /* their bytes */
    char **globs;           /* which names are wanted; none: all */
    int *matched;           /* whether a glob has met a name */
    size_t glob_count;
    const struct naming *naming; /* of the tensors, or NULL; the manifest has our names as well */
    int layers;             /* of the target */
    json_t *named;          /* what each tensor's name stands for */
    const char *layout;     /* of RoPE rows: "interleaved" or "halves" */
    size_t prompt;          /* tokens of the prompt */
    int decodes;            /* rounds follow it */
    int prompt_done;
    int64_t step;           /* of the target: 0 the prompt, r round r of decoding */
    uint64_t pass;
    struct dump_tensor *first, *last;
    struct dump_emitted { size_t index; int draft; } emitted[VB_MAX_DRAFT + 1]; /* in the newest target pass */
    size_t emitted_count, tensor_count;
    char error[512];        /* one sentence, once something failed */
};

/* path: NAME.safetensors, or a directory, which is made if it is missing and gets dump.safetensors. The manifest stands
 * beside it, .jsonl for .safetensors. Until dump_end both are files without a name. taps: globs separated by commas, or NULL.
 * Reports errors, after which nothing is left to do. */
int dump_begin(const struct cli *c, struct dump *d, const char *path, const char *taps);
/* Whether a glob meets the name of a layer's attention scores. Without globs they are left out. */
int dump_wants_scores(const struct dump *d, int layers, int heads);
/* Takes the rows over when their name is wanted. Rows of a pass that belong together may come in pieces. */
void dump_rows(struct dump *d, const struct dump_rows *r);
/* A token was chosen in the newest target pass; depth as in vb_event. */
void dump_emitted(struct dump *d, size_t index, int draft);
/* Writes the two files from what is gathered; *tensors: how many. A glob that met no name is an error. Reports errors. */
int dump_end(struct dump *d, size_t *tensors);
void dump_abandon(struct dump *d);

/* One pass over ids by c->model, or by the reference when c->reference; c->n > 0: decoding after it. perturb: see
 * reference_options. Reports errors; what is dumped is for dump_end or dump_abandon. */
int dump_values(struct cli *c, struct dump *d, const int32_t *ids, size_t count, uint64_t perturb);

#endif
