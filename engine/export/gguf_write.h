/* engine/export/gguf_write.h -- a model of the Hugging Face layout as one GGUF file of llama.cpp's architecture "deepseek2", its
 * weights rounded or quantised on the way. gguf.h draws the format; the keys and the tensors' names are those of llama.cpp's
 * converter, with the MTP layers (nextn), which it leaves out.
 *
 * First a plan: the whole header, and of every tensor its type, place and source. Then the data, in pieces, straight from
 * the mapped weights to the file, whatever the size of the model. What surprises:
 *
 *   kv_b_proj [H(n+v), c]   becomes attn_k_b [H, c, n], transposed so that its blocks run along n, the index that attention
 *                           sums over, and attn_v_b [H, v, c].
 *   FP8                     is not a type of GGUF: where such a matrix is to stay as stored it becomes F32, which holds
 *                           fl32(code * scale) exactly.
 *   MTP copies              a module's embedding or head that is, byte for byte, the main one is left out: who finds none
 *                           uses the main one.
 *   tied head               the embedding, unless the head is to be of another type: then a tensor of its own. */
#ifndef VB_GGUF_WRITE_H
#define VB_GGUF_WRITE_H

#include "engine/model/model.h"

/* AS_STORED keeps the source's type. Matrices of linear layers are of one type, `linear`, where their rows allow it (Q8_0 and
 * Q4_0 want a multiple of 32; others stay as stored); so is the embedding, and the heads. Norms, routers' matrices and their
 * biases are F32. */
enum gguf_as { GGUF_AS_STORED, GGUF_AS_F32, GGUF_AS_BF16, GGUF_AS_Q8_0, GGUF_AS_Q4_0 };

struct gguf_write_options {
    enum gguf_as linear, embedding, head; /* linear is not AS_STORED */
};

enum gguf_role { GGUF_LINEAR, GGUF_EMBEDDING, GGUF_HEAD, GGUF_OTHER };
enum gguf_layout { GGUF_ROWS, GGUF_EXPERTS, GGUF_KEYS, GGUF_VALUES }; /* what a row of the tensor is of its source */

struct gguf_planned {
    char name[64];
    enum gguf_role role;
    const struct gguf_written_type *type;
    int kept;                  /* as stored, because its rows are no multiple of 32 numbers */
    int ndim;
    size_t shape[3];           /* outermost first */
    size_t offset, bytes;      /* in the data */
    enum gguf_layout layout;
    struct weight_view matrix; /* its source; of experts the first one's; of KEYS and VALUES it begins with head 0's */
    size_t head_stride;        /* rows of it from a head's first to the next head's: KEYS, VALUES */
    const struct mlp *experts; /* their matrices, `which` of each */
    int which;
};

struct gguf_written_type {
    const char *name;
    unsigned id, numbers, bytes; /* blocks of so many numbers and bytes */
    enum gguf_as as;             /* AS_STORED: F16, which is never asked for */
};

#define GGUF_NOTES 8

struct gguf_plan {
    vb_allocator allocator;
    const struct model *model;
    struct gguf_planned *tensors;
    size_t count;
    unsigned char *header; /* ends where the data begin */
    size_t header_bytes, data_bytes;
    const char *pre;                 /* tokenizer.ggml.pre; NULL: the file has no tokenizer, a note says why */
    char notes[GGUF_NOTES][256];     /* sentences about what the file does not say as the directory does */
    int num_notes;
};

/* The model was opened from `dir` in precision f32, and stays open. VB_UNSUPPORTED: something that the format cannot say
 * (key and value are named): experts in other layers than all behind the first ones, rotation in halves, two different
 * mscales, a router that is neither DeepSeek-V2's nor V3's, a number with more digits than a 32-bit float. A tokenizer
 * that it cannot say is left out, with a note. */
int gguf_plan_open(struct gguf_plan **out, const struct model *m, const char *dir, const struct gguf_write_options *o,
                   vb_error *err);
void gguf_plan_close(struct gguf_plan *p);

/* Writes the file to `fd`, an empty file open for writing, on so many threads (0: as many as there are processors).
 * `progress` (may be NULL) is told the bytes done and in all, and stops with VB_STOPPED when it does not return 0. VB_IO names
 * `path`. VB_BAD_CHECKPOINT: a weight, whatever its type becomes, is not finite, or too large for that type or its block's scale;
 * file, tensor and index are named. */
int gguf_plan_write(const struct gguf_plan *p, int fd, const char *path, int threads,
                    int (*progress)(void *context, size_t done, size_t total), void *context, vb_error *err);

#endif
