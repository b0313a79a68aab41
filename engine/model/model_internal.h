/* engine/model/model_internal.h -- types and functions that are used only while a model is opened.
 *
 * model.c finds the tensor for each place in the model. model_copy.c decides which matrices need a copy, and makes all
 * copies after every tensor has been found. */
#ifndef VB_MODEL_INTERNAL_H
#define VB_MODEL_INTERNAL_H

#include "engine/model/model.h"
#include "engine/model/offload.h"
#include "engine/model/ranks.h"

#define PARALLEL_HEADS "extra_heads." /* the names of their tensors begin with this, in Meta's checkpoints too */

/* All memory of a model is in one linked list of blocks. So model_close can also close a model that was only partly
 * opened. */
struct model_block {
    struct model_block *next;
    char pad[64 - sizeof(struct model_block *)]; /* keeps the memory after this header aligned to 64 bytes */
};

/* A copy of a matrix, computed from the stored matrix `from` by rounding, quantizing, decoding or reordering.
 *
 * The rows of `result` belong to attention heads. Rows [h * head_rows, (h + 1) * head_rows) belong to attention head h.
 * In `from`, the rows of attention head h begin at row B = h * head_stride + first. If `transposed` is 0, row h *
 * head_rows + j of `result` is computed from row B + j of `from`. If `transposed` is 1, it is computed from column j of
 * rows [B, B + result.cols) of `from`. If a matrix is not divided into attention heads, head_rows is the number of its
 * rows, and h is 0. */
struct model_copy {
    struct weight_view result;    /* the copy; data is NULL until it has been computed */
    struct weight_view *to;       /* set to `result` once the copy has been computed */
    struct weight_view *also;     /* set at the same time to the also_rows rows of `result` that begin at row also_row;
                                     may be NULL */
    size_t also_row, also_rows;
    struct weight_view from;      /* the whole stored matrix */
    const struct tensor *tensor;
    size_t head_rows, head_stride, first;
    int transposed;
    /* set when all copies have been planned: */
    size_t at;                    /* offset of `result` in the block of all copies */
    size_t first_row, first_task; /* the number of rows, and of tasks, of all copies before this one */
};

struct binder {
    struct vb_model *m;
    const struct config *c;
    const struct model_options *o;
    vb_error *err;
    char prefix[64]; /* start of the tensor names of the current layer, such as "model.layers.3." */
    size_t newest_bytes; /* size of this rank's share of the matrix that was found last */
    struct offload_plan offload;
    int on_device; /* nonzero: a device will compute with the matrices that are found now, so no panels are made of
                      them */
    size_t room; /* number of elements for which m->copies has memory */
};

/* Allocates zeroed memory that lives as long as the model. If there is no memory, fills *err of the binder and
 * returns NULL. */
void *model_alloc(const struct binder *b, size_t count, size_t size);
/* Allocates memory that lives as long as the model, with vb_alloc_unset. If there is no memory, returns NULL and
 * does not fill *err. */
void *model_alloc_unset(const struct binder *b, size_t bytes);

/* Returns the number in a name that begins with "model.layers.NUMBER", or -1 for other names. */
int model_layer_of(const char *name);

/* Returns which of `rows` rows this rank has, in units of `unit` rows; all of them if unit is 0 or there is only one
 * process. */
struct op_share model_own_share(const struct binder *b, size_t rows, size_t unit);

/* Binds the layer of this number; those from num_hidden_layers on are layers of MTP modules or of parallel heads. */
int model_bind_layer(struct binder *b, struct layer *l, int index);
/* Binds parallel heads, with option heads_of. Only their layers are their own, all else is the target's. */
int model_bind_heads(struct binder *b);

/* Plans a copy of *w, the matrix of a linear layer, if the precision or the option repack requires another form of
 * it. */
int model_plan_linear(struct binder *b, struct weight_view *w, const struct tensor *t);
/* Plans a copy for an output head that is also the embedding, if a copy is needed. If the file stores the matrix
 * quantized, the embedding also uses the reordered copy (panels). */
int model_plan_tied_head(struct binder *b, struct weight_view *head, struct weight_view *embedding,
                         const struct tensor *t);
/* model_plan_kv_b plans copies of kv_b_proj [H(n+v), c], and model_plan_keys plans a copy of a separate W_uk [H n,
 * c], if copies are needed. Before the call, *a has the views and strides of the stored matrices. */
int model_plan_kv_b(struct binder *b, struct mla *a, const struct tensor *t);
int model_plan_keys(struct binder *b, struct mla *a, const struct tensor *t);
/* Computes all planned copies, or maps the file that keeps them. With the option shapes_only, the views get the types
 * and shapes of the copies, and no data. */
int model_make_copies(struct binder *b);

/* Stores precision, cache type and conventions in *c, the configuration of `dir`, and checks that the cache can have
 * this type. */
int model_set_options(struct config *c, const char *dir, const struct model_options *o, vb_error *err);
/* model_bind with options. */
int model_bind_under(struct vb_model **out, const struct config *config, struct checkpoint *checkpoint,
                     const struct model_options *o, const vb_allocator *a, vb_error *err);

/* copy_cache_map looks for the file with the copies that have been planned and laid out. It returns the mapped block of
 * copies, or NULL if there is no usable file. Then, if m->cache is CACHE_WANTED, copy_cache_write writes the copies
 * that have been made. Neither function fails: they set m->cache, and m->cache_note if something is wrong. */
const unsigned char *copy_cache_map(const struct binder *b);
void copy_cache_write(const struct binder *b);

/* Takes the tensor whose name is PREFIX PART SUFFIX. It must have `ndim` dimensions: `rows`, and `cols` if ndim is
 * 2. */
int model_take(const struct binder *b, const struct tensor **out, const char *part, const char *suffix, int ndim,
               size_t rows, size_t cols);

/* ---- model_scales.c ----
 * `part` is the middle of the matrix's name, and `file` names the file in errors. Each returns VB_OK or an error. */

/* Takes the scales of an FP8 matrix. There is one scale for each block. Blocks at the edges may be incomplete. */
int model_bind_scale(struct binder *b, struct weight_view *w, const char *part, const char *file);
/* Takes the scales of an I8 matrix, one for each row, and its offsets, which must be 0. */
int model_bind_row_scales(struct binder *b, struct weight_view *w, const char *part, const char *file);
/* Takes the number that multiplies an NVFP4 matrix of a GGUF file. If there is none, it is 1. */
int model_bind_tensor_scale(struct binder *b, struct weight_view *w, const char *part);
/* Takes the scales of a matrix of packed codes. They stay in the file, because they are an eighth of the matrix. */
int model_bind_groups(struct binder *b, struct weight_view *w, const char *part, const char *file);
/* Takes the scales of a matrix of E2M1 codes. Their type tells NVFP4 (E4M3, one for each 16 weights of a row) from
 * MXFP4 (a byte, one for each 32). They stay in the file, because they are at most an eighth of the matrix. */
int model_bind_floats_of_4_bits(struct binder *b, struct weight_view *w, const char *part, const char *file);

#endif
