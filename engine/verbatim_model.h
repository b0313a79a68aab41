/* engine/verbatim_model.h -- facts about a model, conventions, writing GGUF files; a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_MODEL_H
#define VERBATIM_MODEL_H

typedef struct vb_model_facts {
    const char *architecture, *precision; /* valid while the model is open */
    int32_t layers, mtp_modules;          /* num_hidden_layers; number of MTP modules in the checkpoint */
    int32_t attention_heads;
    int rope_halves;      /* 1: RoPE rotates the pairs (i, i + r/2) of r numbers; 0: the adjacent pairs (2i, 2i+1) */
    int no_groups;        /* 1: a GGUF file without expert groups, so that experts are chosen among all */
    size_t copied_bytes;  /* bytes of weights that were rounded, quantised or reordered when the model was opened */
    double copy_seconds;  /* time that this took */
    char conventions[512]; /* the conventions that differ from the defaults, as a list for vb_model_options */
} vb_model_facts;
void vb_model_look(const vb_model *model, vb_model_facts *out);

/* Describes a model as a JSON object, which `verbatim inspect --json` prints: the configuration with its defaults, the
 * number of parameters, the MTP modules, bytes per part and type, and each unused tensor with the reason. The function
 * compares embeddings and heads that MTP modules store with the main ones, and so may read them completely. The caller
 * frees *json with vb_text_free. */
int vb_model_describe(const vb_model *model, char **json, vb_error *err);

/* Reads all weights and scales and checks that they are finite. If one is not, returns VB_BAD_CHECKPOINT, and the message
 * names the file, the tensor and the index. `progress` may be NULL. */
typedef void (*vb_progress)(void *context, size_t done, size_t total); /* called with the bytes read so far and in total */
int vb_model_check(const vb_model *model, vb_progress progress, void *context, vb_error *err);

#define VB_CONVENTION_VALUES 4 /* size of vb_convention.values */
/* A convention: a point on which implementations of these models differ, with its possible values
 * (vb_model_options.conventions). */
typedef struct vb_convention {
    const char *name, *values[VB_CONVENTION_VALUES]; /* the first value is the default; unused entries are NULL */
    int changes_output;           /* 1: a convention of the target model; 0: of drafting, which does not change the output */
    const char *who;              /* which implementations use which value */
} vb_convention;
/* Fills *out with convention i, counted from 0, and returns 1. Returns 0 if there are fewer. The strings are constants. */
int vb_convention_at(size_t i, vb_convention *out);
int vb_model_convention(const vb_model *model, size_t i); /* index of the value of convention i with which the model was opened */
/* Another system whose conventions can be selected with "as=NAME". */
typedef struct vb_system {
    const char *name, *conventions, *draft, *evidence; /* conventions is a list; draft is a method; evidence says what was seen */
    int changes_output; /* 1: some of its conventions change the output */
} vb_system;
/* Fills *out with system i, counted from 0, and returns 1. Returns 0 if there are fewer. The strings are constants. */
int vb_system_at(size_t i, vb_system *out);

/* ---- a model as one GGUF file -------------------------------------------------------------------------------------- */
typedef struct vb_quantise_options {
    const char *type;           /* type of linear layers, experts and heads: "f32", "bf16", "q8_0" or "q4_0". Q8_0 and Q4_0 need rows whose
                                   length is a multiple of 32; other matrices stay as stored (FP8 becomes F32) */
    const char *embedding_type; /* NULL or "as-stored"; or one of these four types */
    const char *head_type;      /* NULL: the same as `type`; or "as-stored", or one of these four types */
} vb_quantise_options;

/* Plans a GGUF file; nothing is computed yet. `model` must have been opened from the directory `dir` in precision f32 and
 * must outlive the plan. VB_UNSUPPORTED means that a GGUF file cannot express a setting of config.json; the message names
 * it. On an error *out is NULL. */
typedef struct gguf_plan vb_quantise;
int vb_quantise_open(vb_quantise **out, const vb_model *model, const char *dir, const vb_quantise_options *options, vb_error *err);
void vb_quantise_close(vb_quantise *plan);
/* Called with the bytes written so far and in total. A result other than 0 stops the function, which then returns
 * VB_STOPPED. */
typedef int (*vb_progress_or_stop)(void *context, size_t done, size_t total);
/* Converts the weights and writes the planned file to `fd`, an empty file that is open for writing. `name` is the file's
 * name for error messages. `threads` 0 means the number of processors in the affinity mask. `progress` may be NULL.
 *
 * VB_BAD_CHECKPOINT means that a weight is not finite or is too large for its new type; the message names the file, the
 * tensor and the index. VB_IO means that the file cannot be written. The caller closes `fd`, and deletes an incomplete file
 * after an error. */
int vb_quantise_write(const vb_quantise *plan, int fd, const char *name, int32_t threads, vb_progress_or_stop progress,
                      void *context, vb_error *err);

size_t vb_quantise_bytes(const vb_quantise *plan);           /* size of the whole file */
const char *vb_quantise_tokenizer(const vb_quantise *plan);  /* value of tokenizer.ggml.pre; NULL: the file has no tokenizer */
/* Returns note i, counted from 0: a sentence about a difference between the file and the directory. Returns NULL if there
 * are fewer. */
const char *vb_quantise_note(const vb_quantise *plan, size_t i);
typedef struct vb_quantised_tensor {
    const char *name, *type, *role; /* role: "linear", "embedding", "head" or "other"; the strings live as long as the plan */
    int kept;                       /* 1: stays as stored, because its rows are not a multiple of 32 numbers long */
    size_t bytes;
    int32_t ndim;
    size_t shape[3];                /* outermost extent first */
} vb_quantised_tensor;
/* Fills *out with tensor i of the file, counted from 0, and returns 1. Returns 0 if there are fewer tensors. */
int vb_quantise_tensor(const vb_quantise *plan, size_t i, vb_quantised_tensor *out);

#endif
