/* engine/model/layer_tensors.h -- the tensors of a model in one table: shape, place in memory, kind, and share of each
 * rank.
 *
 * Code that treats all tensors of a layer in the same way walks over the table:
 *
 *     for (struct tensor_walk w = walk_layer(c, l->index, W_UK_AND_W_UV); walk_next(&w);)
 *         if (layer_tensors[w.tensor].kind != KIND_VECTOR)
 *             use(tensor_matrix(w.tensor, l, w.expert));
 *
 * The names of the tensors are in engine/files/tensor_names.h. */
#ifndef VB_LAYER_TENSORS_H
#define VB_LAYER_TENSORS_H

#include "engine/files/tensor_names.h"
#include "engine/model/model.h"

enum tensor_owner { OWNER_LAYER, OWNER_EXPERT, OWNER_MODULE, OWNER_MODEL };

enum tensor_kind {
    KIND_VECTOR,   /* converted to f32 */
    KIND_LINEAR,   /* the matrix of a linear layer, for which the precision chooses a type */
    KIND_EXACT,    /* the matrix of a linear layer whose input and matrix are never rounded or quantized, except by a
                      convention */
    KIND_EMBEDDING /* stays as it is stored; a row is read for each token */
};

enum tensor_group { GROUP_ATTENTION, GROUP_INDEXER, GROUP_MLP, GROUP_ENDS };

/* How the ranks divide a matrix: not at all, by attention heads, or by rows. */
enum tensor_share { SHARE_WHOLE, SHARE_BY_HEADS, SHARE_BY_ROWS };

/* A layer has an MLP or experts. */
enum tensor_layers { ANY_LAYER, DENSE_LAYERS, MOE_LAYERS };

/* The three ways to store W_uk and W_uv. In memory, each layer has two views, struct mla.w_uk and w_uv. */
enum tensor_form { W_UK_AND_W_UV, W_UK_TRANSPOSED, ONE_KV_B };

typedef size_t tensor_size(const struct dims *s);

struct layer_tensor {
    enum tensor_owner owner;
    size_t at; /* offset in the owner: struct layer, mlp, mtp_module or vb_model. kv_b_proj: as w_uk */
    enum tensor_kind kind;
    enum tensor_group group;
    tensor_size *rows, *cols; /* cols NULL: a vector */
    enum tensor_share share;
    enum tensor_layers layers;
    int (*exists)(const struct config *c, int layer); /* NULL: in all these layers, or wherever there is such an
                                                         owner */
    unsigned char forms;           /* 0: any; else bit f is set if the tensor exists in enum tensor_form f */
    enum convention rounds;        /* KIND_EXACT: with value 1 of this convention, the matrix is rounded to BF16 */
    unsigned char optional;        /* 1: a module that does not store it uses that of the main model */
    unsigned char without_scales;  /* 1: BF16 in published files whose linear layers are FP8 or int8 */
};
extern const struct layer_tensor layer_tensors[MODEL_TENSORS];

/* A walk visits the tensors that exist, in the order of enum model_tensor, and all matrices of an expert one after the
 * other. walk_next returns 0 at the end. */
struct tensor_walk {
    enum model_tensor tensor;
    size_t expert; /* its number, or 0 */
    /* The caller may change these before the first call of walk_next: the number of experts, and whether there are
     * any. */
    size_t experts;
    int is_moe;
    const struct config *c;
    int layer;
    enum tensor_form form;
    int next, end;
};
struct tensor_walk walk_layer(const struct config *c, int layer, enum tensor_form form);
struct tensor_walk walk_module(const struct config *c); /* without its layer */
struct tensor_walk walk_model(const struct config *c);  /* without layers and modules */
int walk_next(struct tensor_walk *w);

/* Returns the place of a tensor. `owner` is a struct layer (for an expert's tensor, too), mtp_module or vb_model. */
void *tensor_place(enum model_tensor t, const void *owner, size_t expert);
static inline struct weight_view *tensor_matrix(enum model_tensor t, const void *owner, size_t expert)
{
    return tensor_place(t, owner, expert);
}
static inline const float *tensor_vector(enum model_tensor t, const void *owner)
{
    return *(const float *const *)tensor_place(t, owner, 0);
}
/* Returns a matrix of one expert. */
static inline struct weight_view *expert_matrix(enum model_tensor t, const struct mlp *expert)
{
    return (struct weight_view *)((uintptr_t)expert + layer_tensors[t].at);
}

/* Returns how many rows of the matrix are in a unit that is not divided among ranks; 0: all of them. */
size_t tensor_share_unit(const struct config *c, enum model_tensor t);

#endif
