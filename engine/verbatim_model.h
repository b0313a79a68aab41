/* engine/verbatim_model.h -- what a model is: facts, conventions, its weights as one GGUF file; a part of the public interface.
 * verbatim.h includes this file; it cannot be used without it. */
#ifndef VERBATIM_MODEL_H
#define VERBATIM_MODEL_H

typedef struct vb_model_facts {
    const char *architecture, *precision; /* valid while the model is open */
    int32_t layers, mtp_modules;          /* num_hidden_layers; modules stored */
    int32_t attention_heads;
    int rope_halves;      /* RoPE rotates halves, else adjacent pairs */
    int no_groups;        /* a GGUF file that does not say its expert groups: experts are chosen among all */
    size_t copied_bytes;  /* of weights that were rounded, quantised or put into another order when the model was opened */
    double copy_seconds;
    char conventions[512]; /* those that differ from the defaults, as in vb_model_options */
} vb_model_facts;
void vb_model_look(const vb_model *model, vb_model_facts *out);

/* Everything, as JSON (an object; `verbatim inspect --json` prints it): the configuration with its defaults, parameters, MTP modules,
 * bytes per part and type, and each tensor that is not used, with the reason. Compares the MTP modules' copies, which reads
 * them. Free *json with vb_text_free. */
int vb_model_describe(const vb_model *model, char **json, vb_error *err);

/* Reads every byte: weights and scales must be finite. VB_BAD_CHECKPOINT names file, tensor and index. progress may be NULL. */
typedef void (*vb_progress)(void *context, size_t done, size_t total); /* bytes */
int vb_model_check(const vb_model *model, vb_progress progress, void *context, vb_error *err);

/* Where implementations disagree (vb_model_options.conventions). Number i, from 0; returns 0 behind the last one. */
#define VB_CONVENTION_VALUES 4 /* at most */
typedef struct vb_convention {
    const char *name, *values[VB_CONVENTION_VALUES]; /* the first is the default; NULL behind the last */
    int changes_output;           /* of the target; else of drafting, which changes no output */
    const char *who;              /* which implementation does what */
} vb_convention;
int vb_convention_at(size_t i, vb_convention *out);
int vb_model_convention(const vb_model *model, size_t i); /* which of the values it was opened with, from 0 */
/* Systems of the field ("as=NAME"): the conventions that they set, their draft method, and where that is to be seen. */
typedef struct vb_system {
    const char *name, *conventions, *draft, *evidence;
    int changes_output; /* some of its conventions do */
} vb_system;
int vb_system_at(size_t i, vb_system *out);

/* ---- a model as one GGUF file -------------------------------------------------------------------------------------- */
typedef struct vb_quantise_options {
    const char *type;           /* of linear layers, experts and heads: "f32", "bf16", "q8_0", "q4_0". Q8_0 and Q4_0 want rows of a
                                   multiple of 32 numbers; other matrices stay as stored (FP8: F32) */
    const char *embedding_type; /* NULL: "as-stored"; or one of these five */
    const char *head_type;      /* NULL: `type`; or one of these five */
} vb_quantise_options;

/* What will be written, planned: nothing is computed yet. The model was opened from `dir`, a directory, in precision f32, and
 * outlives the plan. VB_UNSUPPORTED: the format cannot say something that config.json says; it is named. */
typedef struct gguf_plan vb_quantise;
int vb_quantise_open(vb_quantise **out, const vb_model *model, const char *dir, const vb_quantise_options *options, vb_error *err);
void vb_quantise_close(vb_quantise *plan);
/* Writes the file to `fd`, an empty file open for writing; `name` stands for it in messages. threads: 0: the processors of the
 * affinity mask. progress (may be NULL) is told bytes, and stops with VB_STOPPED when it does not return 0. A weight that is not
 * finite is VB_BAD_CHECKPOINT; file, tensor and index are named. Whether the file is kept is the caller's affair. */
typedef int (*vb_progress_or_stop)(void *context, size_t done, size_t total);
int vb_quantise_write(const vb_quantise *plan, int fd, const char *name, int32_t threads, vb_progress_or_stop progress,
                      void *context, vb_error *err);

size_t vb_quantise_bytes(const vb_quantise *plan);           /* of the whole file */
const char *vb_quantise_tokenizer(const vb_quantise *plan);  /* tokenizer.ggml.pre; NULL: the file has no tokenizer, a note says why */
const char *vb_quantise_note(const vb_quantise *plan, size_t i); /* what the file does not say as the directory does; NULL: no more */
typedef struct vb_quantised_tensor {
    const char *name, *type, *role; /* role: "linear", "embedding", "head", "other" */
    int kept;                       /* as stored, because its rows are no multiple of 32 numbers */
    size_t bytes;
    int32_t ndim;
    size_t shape[3];                /* outermost first */
} vb_quantised_tensor;
int vb_quantise_tensor(const vb_quantise *plan, size_t i, vb_quantised_tensor *out); /* returns 0 behind the last one */

#endif
