/* engine/verbatim_model.h -- facts about a model, conventions, writing GGUF files; a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_MODEL_H
#define VERBATIM_MODEL_H

typedef struct vb_model_facts {
    const char *architecture, *precision, *cache_type; /* valid while the model is open */
    int32_t layers, mtp_modules;          /* num_hidden_layers; number of MTP modules in the checkpoint */
    int32_t attention_heads;
    int rope_halves;      /* 1: RoPE rotates the pairs (i, i + r/2) of r numbers; 0: the adjacent pairs (2i, 2i+1) */
    int no_groups;        /* 1: the model is a GGUF file without expert groups, so each token chooses among all
                             experts */
    int no_query_scale;   /* 1: the model is a GGUF file of Mistral 4 without the factor by which queries are scaled */
    size_t copied_bytes;  /* bytes of weights that were rounded, quantized or reordered when the model was opened */
    double copy_seconds;  /* seconds that making these copies took */
    int repack_cache;     /* what became of vb_model_options.repack_cache: 0: there is no file of copies; 1: the copies
                             are mapped from the file; 2: the file was written, by this process or by another at the
                             same time */
    char repack_cache_note[256]; /* why the file of copies was not used or not written; empty if there is no reason */
    char conventions[512]; /* the conventions that differ from the defaults, as a list for vb_model_options */
} vb_model_facts;
void vb_model_look_sized(const vb_model *model, vb_model_facts *out, size_t size);
static inline void vb_model_look(const vb_model *model, vb_model_facts *out)
{
    vb_model_look_sized(model, out, sizeof *out);
}

/* Describes a model as a JSON object, which `verbatim inspect --json` prints: the configuration with its defaults, the
 * number of parameters, the MTP modules, the bytes per part and type, and for each unused tensor the reason why it is
 * unused. MTP modules may store copies of the embedding and the output head. The function compares these copies with
 * the main model's embedding and output head. So it may read all of these matrices. The caller frees *json with
 * vb_text_free. */
int vb_model_describe(const vb_model *model, char **json, vb_error *err);

/* Reads all weights and scales and checks that they are finite. Returns VB_BAD_CHECKPOINT if a number is not finite;
 * the message names the file, the tensor and the index. `progress` may be NULL. */
typedef void (*vb_progress)(void *context, size_t done, size_t total); /* `done` is the number of bytes read so far, and
                                                                          `total` the number of all bytes */
int vb_model_check(const vb_model *model, vb_progress progress, void *context, vb_error *err);

/* Sets *out to a hash of everything in a model that results depend on: all weights that the model uses (names, types,
 * shapes and bytes, as the file stores them), config.json, the end tokens, the precision and the conventions. Two
 * models with the same fingerprint give the same results. Names, types and shapes of tensors that the model does not
 * use are part of the hash, too. With sampled = 0, an accidental change goes unnoticed with a probability of about
 * 2^-64. An attacker can make two models with the same fingerprint.
 *
 * A model in a directory and the same model as a GGUF file have different fingerprints, because the files store vectors
 * and expert matrices in different types or layouts. The fingerprint does not depend on the instruction set, the file
 * names, or the options repack, numa and threads.
 *
 * With sampled = 0, the function reads all weights, with `threads` threads (0: the number of processors in the affinity
 * mask), at the speed of memory if the file is in the page cache. With sampled = 1, it reads all vectors, but only 64
 * bytes at each of 256 places of the matrices. This takes milliseconds, and misses most changes of single weights. */
int vb_model_fingerprint(const vb_model *model, int sampled, int32_t threads, uint64_t *out, vb_error *err);

#define VB_CONVENTION_VALUES 4 /* size of vb_convention.values */
/* Describes a convention (vb_model_options.conventions). A convention is a detail that implementations of these models
 * compute differently, together with a list of the possible choices. */
typedef struct vb_convention {
    const char *name, *values[VB_CONVENTION_VALUES]; /* the first value is the default; unused entries are NULL */
    int changes_output;           /* 1: a convention of the target model; 0: a convention of drafting, which does not
                                     change the output */
    const char *who;              /* says which implementations use which value */
} vb_convention;
/* Fills *out with convention i, counted from 0, and returns 1. Returns 0 if there are fewer. The strings are
 * constants. */
int vb_convention_at_sized(size_t i, vb_convention *out, size_t size);
static inline int vb_convention_at(size_t i, vb_convention *out)
{
    return vb_convention_at_sized(i, out, sizeof *out);
}
/* Returns the index in `values` of the value that convention i has in this model, or -1 if convention i cannot change
 * anything in this model, because it concerns sparse attention and the model has none. */
int vb_model_convention(const vb_model *model, size_t i);
/* Another system whose conventions can be selected with "as=NAME". */
typedef struct vb_system {
    const char *name, *conventions, *draft, *evidence; /* conventions: a list as in vb_model_options; draft: the draft
                                                          method; evidence: which behaviour was seen in the system's
                                                          code */
    int changes_output; /* 1: some of the system's conventions change the output */
} vb_system;
/* Fills *out with system i, counted from 0, and returns 1. Returns 0 if there are fewer. The strings are constants. */
int vb_system_at_sized(size_t i, vb_system *out, size_t size);
static inline int vb_system_at(size_t i, vb_system *out)
{
    return vb_system_at_sized(i, out, sizeof *out);
}

/* ---- a model as one GGUF file ------------------------------------------------------------------------------------ */
typedef struct vb_quantize_options {
    size_t size;                /* sizeof(vb_quantize_options), or 0 */
    const char *type;           /* type of linear layers, experts and output heads: "f32", "bf16", "q8_0" or "q4_0".
                                   With Q8_0 and Q4_0, the length of a row must be a multiple of 32. A matrix whose rows
                                   have another length keeps its stored type, except that FP8 and INT4 become F32 */
    const char *embedding_type; /* NULL or "as-stored": the stored type; else "f32", "bf16", "q8_0" or "q4_0" */
    const char *head_type;      /* type of output heads. NULL: the same as `type`; "as-stored": the stored type; else
                                   "f32", "bf16", "q8_0" or "q4_0" */
} vb_quantize_options;

/* Plans a GGUF file, but computes and writes nothing yet. `model` must have been opened from the directory `dir` in
 * precision f32 and must outlive the plan. Returns VB_UNSUPPORTED if a GGUF file cannot express a setting of
 * config.json; the message names the setting. On an error *out is NULL. */
typedef struct vb_quantize vb_quantize;
int vb_quantize_open(vb_quantize **out, const vb_model *model, const char *dir, const vb_quantize_options *options,
                     vb_error *err);
void vb_quantize_close(vb_quantize *plan);
/* `done` is the number of bytes written so far, and `total` the number of all bytes. If the callback returns a value
 * other than 0, vb_quantize_write or vb_tensors_write stops writing and returns VB_STOPPED. */
typedef int (*vb_progress_or_stop)(void *context, size_t done, size_t total);
/* Converts the weights and writes the planned file to `fd`, which is an empty file that is open for writing. Error
 * messages call the file `name`. `threads` 0 means the number of processors in the affinity mask. `progress` may be
 * NULL.
 *
 * Returns VB_BAD_CHECKPOINT if a weight is not finite or is too large for its new type; the message names the file, the
 * tensor and the index. Returns VB_IO if the file cannot be written. The caller closes `fd`. After an error, the caller
 * deletes the incomplete file. */
int vb_quantize_write(vb_quantize *plan, int fd, const char *name, int32_t threads, vb_progress_or_stop progress,
                      void *context, vb_error *err);

size_t vb_quantize_bytes(const vb_quantize *plan);           /* size of the whole file */
const char *vb_quantize_tokenizer(const vb_quantize *plan);  /* value of tokenizer.ggml.pre; NULL: the file has no
                                                                tokenizer */
/* Returns note i, counted from 0, or NULL if there are not so many notes. A note is a sentence about a difference
 * between the planned GGUF file and the directory `dir`. */
const char *vb_quantize_note(const vb_quantize *plan, size_t i);
typedef struct vb_quantized_tensor {
    const char *name, *type, *role; /* role is "linear", "embedding", "head" or "other"; the strings are valid until the
                                       plan is closed */
    int kept;                       /* 1: the tensor keeps its stored type, because the length of its rows is not a
                                       multiple of 32 */
    size_t bytes;
    int32_t ndim;
    size_t shape[3];                /* outermost extent first */
} vb_quantized_tensor;
/* Fills *out with tensor i of the file, counted from 0, and returns 1. Returns 0 if there are fewer tensors. */
int vb_quantize_tensor_sized(const vb_quantize *plan, size_t i, vb_quantized_tensor *out, size_t size);
static inline int vb_quantize_tensor(const vb_quantize *plan, size_t i, vb_quantized_tensor *out)
{
    return vb_quantize_tensor_sized(plan, i, out, sizeof *out);
}

#endif
