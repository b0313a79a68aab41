/* engine/export/gguf_write.h -- writes a model in the Hugging Face layout as one GGUF file and rounds or quantizes its
 * weights.
 *
 * The file has llama.cpp's architecture "deepseek2", with the keys and tensor names of llama.cpp's converter. The
 * converter leaves out the MTP layers (nextn), but this file includes them. engine/files/gguf.h describes the file
 * format.
 *
 * Writing has two steps. gguf_plan_open makes a plan: the whole header, and the type, place and source of every tensor.
 * gguf_plan_write then converts the mapped weights in small pieces and writes them to the file, so a large model needs
 * little memory. Some tensors differ from those of the Hugging Face layout:
 *
 *   kv_b_proj [H(n+v), c] becomes attn_k_b [H, c, n] and attn_v_b [H, v, c]. attn_k_b is W_uk, transposed. Attention
 *   sums over the index n when it multiplies by W_uk, and quantized blocks must run along the index of the sum.
 *
 *   GGUF has no FP8 type. Therefore an FP8 matrix that would keep its stored type is written as F32. This does not
 *   change the weights, because the engine also decodes each FP8 weight to an f32 number (code * scale, rounded to
 *   f32).
 *
 *   An MTP module's embedding or head whose bytes equal the main model's is left out. A reader that does not find such
 *   a tensor uses the main model's tensor.
 *
 *   A tied output head (tie_word_embeddings) is the same matrix as the embedding, so it is left out too. It is written
 *   as a tensor of its own only if the options ask for different types for the head and the embedding. */
#ifndef VB_GGUF_WRITE_H
#define VB_GGUF_WRITE_H

#include "engine/model/layer_tensors.h"

/* The type to write. GGUF_AS_STORED keeps the type of the source. Q8_0 and Q4_0 need rows whose length is a multiple of
 * 32; a matrix whose rows have another length keeps its stored type. GGUF_AS_MXFP4 is not an option of the caller: a
 * matrix of MXFP4 codes is written as MXFP4 instead of Q8_0 or Q4_0, which keeps its codes and scales. */
enum gguf_as { GGUF_AS_STORED, GGUF_AS_F32, GGUF_AS_BF16, GGUF_AS_Q8_0, GGUF_AS_Q4_0, GGUF_AS_MXFP4 };

/* The types in which three kinds of matrices are written: linear layers, the embedding, and the output heads.
 * `linear` must not be GGUF_AS_STORED. Weights of norms, and the matrices and biases of routers, are always written as
 * F32. */
struct gguf_write_options {
    enum gguf_as linear, embedding, head;
};

enum gguf_role { GGUF_LINEAR, GGUF_EMBEDDING, GGUF_HEAD, GGUF_OTHER };
/* How a tensor of the file is made from matrices of the model: ROWS copies one matrix row by row; EXPERTS joins the
 * gate, up or down matrices of all experts; KEYS is W_uk of all heads, transposed; VALUES is W_uv of all heads. */
enum gguf_layout { GGUF_ROWS, GGUF_EXPERTS, GGUF_KEYS, GGUF_VALUES };

struct gguf_planned {
    char name[64];
    enum gguf_role role;
    const struct gguf_written_type *type;
    int kept;                  /* 1: the tensor keeps its stored type, because the length of its rows is no multiple of
                                  32 */
    int ndim;
    size_t shape[3];           /* outermost extent first */
    size_t offset, bytes;      /* place in the data section of the file, and size in bytes */
    enum gguf_layout layout;
    struct weight_view matrix; /* source; for EXPERTS: the matrix of expert 0; for KEYS and VALUES: begins at the first
                                  row of attention head 0 */
    size_t head_stride;        /* for KEYS and VALUES: number of rows of `matrix` from the start of one attention head
                                  to the start of the next */
    const struct mlp *experts; /* for EXPERTS: all experts of the layer */
    enum model_tensor which;   /* for EXPERTS: the matrix of each expert */
};

struct gguf_written_type {
    const char *name;
    unsigned id, numbers, bytes; /* GGUF's id of the type; how many numbers and bytes a block has */
    enum gguf_as as;             /* the option that selects this type; for F16, GGUF_AS_STORED, since no option converts
                                    to F16 */
};

#define GGUF_NOTES 8

struct vb_quantize {
    vb_allocator allocator;
    const struct vb_model *model;
    struct gguf_planned *tensors;
    size_t count;
    unsigned char *header; /* all bytes of the file before the data section, padding included */
    size_t header_bytes, data_bytes;
    const char *pre;                 /* value of tokenizer.ggml.pre; NULL: the file has no tokenizer, and a note says
                                        why */
    char notes[GGUF_NOTES][256];     /* sentences about differences between the file and the directory */
    int num_notes;
};

/* Plans a GGUF file. The model must have been opened from the directory `dir` in precision f32, and must stay open
 * until gguf_plan_close. Returns VB_UNSUPPORTED if the format cannot express a setting of config.json; the message
 * names the key and its value. Such settings are: a dense layer after a layer with experts; rope_interleave false; an
 * mscale that differs from mscale_all_dim; a router that is neither DeepSeek-V2's nor V3's; a number with more digits
 * than a 32-bit float holds. A tokenizer that the format cannot express is left out, and a note says so. */
int gguf_plan_open(struct vb_quantize **out, const struct vb_model *m, const char *dir,
                   const struct gguf_write_options *o, vb_error *err);
void gguf_plan_close(struct vb_quantize *p);

/* Writes the planned file to `fd`, an empty file that is open for writing. `path` is the file's name for error
 * messages. `threads` 0 means as many threads as the affinity mask allows. `progress` is called with the bytes written
 * so far and in total; it may be NULL. If `progress` returns a value other than 0, writing stops, and gguf_plan_write
 * returns VB_STOPPED.
 *
 * I4 weights that become Q4_0 keep their codes and scales, except for groups whose scale is no f16: these are quantized
 * like other weights, and a note says how many there are. The same is true of I8 weights that become Q8_0, row by row.
 * F4 weights of the form MXFP4 become MXFP4 instead (W_uk: Q8_0 or Q4_0), with the same codes and scales.
 *
 * Returns VB_IO if the file cannot be written. Returns VB_BAD_CHECKPOINT if a weight is not finite, or is too large for
 * its new type or for the scale of its block; the message names the file, the tensor and the index. */
int gguf_plan_write(struct vb_quantize *p, int fd, const char *path, int threads,
                    int (*progress)(void *context, size_t done, size_t total), void *context, vb_error *err);

#endif
