/* engine/model/model_internal.h -- a model while it is being bound: model.c says which tensor is what, model_copy.c which of them
 * are read from a copy, and makes the copies when all is known to be there. */
#ifndef VB_MODEL_INTERNAL_H
#define VB_MODEL_INTERNAL_H

#include "engine/model/model.h"

/* Everything a model owns is in one list, so that closing half a model is closing a model. */
struct model_block {
    struct model_block *next;
    char pad[64 - sizeof(struct model_block *)]; /* what follows is 64-byte aligned, as vb_alloc made it */
};

/* A matrix that is to be made of a stored one. Row r of it is row r / head_rows * head_stride + first + r % head_rows of `from`;
 * or, transposed, it is column r % head_rows of as many rows as it has columns, from r / head_rows * head_stride + first on. */
struct model_copy {
    struct weight_view result;    /* data is NULL until it is made; then */
    struct weight_view *to;       /* becomes it, and */
    struct weight_view *also;     /* its rows from also_row on; or NULL */
    size_t also_row;
    struct weight_view from;      /* all of the tensor */
    const struct tensor *tensor;
    size_t head_rows, head_stride, first;
    int transposed;
};

struct binder {
    struct model *m;
    const struct config *c;
    const struct model_options *o;
    vb_error *err;
    char prefix[64]; /* "model.layers.3." */
    size_t room; /* of m->copies */
};

/* Zeroed memory that lives as long as the model, or NULL, told. */
void *model_alloc(const struct binder *b, size_t count, size_t size);
/* The same by vb_alloc_unset; not told. */
void *model_alloc_unset(const struct binder *b, size_t bytes);

/* The matrix of a linear layer as precision and repack want it: plans a copy of *w if that is not as it is stored. */
int model_plan_linear(struct binder *b, struct weight_view *w, const struct tensor *t);
/* The same of an output head that is the embedding; panels made of it are the embedding's, too. */
int model_plan_tied_head(struct binder *b, struct weight_view *head, struct weight_view *embedding, const struct tensor *t);
/* The same of kv_b_proj [H(n+v), c], or of its first part alone, [H n, c], of which *a has the views and strides of what is stored. */
int model_plan_kv_b(struct binder *b, struct mla *a, const struct tensor *t);
int model_plan_keys(struct binder *b, struct mla *a, const struct tensor *t);
/* Makes all copies that were planned. */
int model_make_copies(struct binder *b);

#endif
