/* engine/files/tensor_names.h -- the tensors of a model, and their names in the files of several programs.
 *
 * Everywhere in this project, a tensor has its name in Hugging Face's layout. The names in a layer follow a prefix:
 * "model.layers.L." (Hugging Face), "blk.L." (GGUF), "layers.L." (Mistral). What a tensor is for is in
 * docs/SEMANTICS.md, "Checkpoint"; what the engine does with it is in engine/model/layer_tensors.h. */
#ifndef VB_TENSOR_NAMES_H
#define VB_TENSOR_NAMES_H

#include <stddef.h>

enum model_tensor { /* in the order in which a model is opened */
    /* of a layer */
    TENSOR_INPUT_NORM, TENSOR_POST_ATTENTION_NORM,
    TENSOR_Q_PROJ, TENSOR_Q_A_PROJ, TENSOR_Q_A_NORM, TENSOR_Q_B_PROJ,
    TENSOR_KV_A_PROJ, TENSOR_KV_A_NORM,
    /* W_uk and W_uv are stored in one of three ways: as kv_b_proj; as K_B and V_B; as K_B_TRANSPOSED and V_B */
    TENSOR_KV_B_PROJ, TENSOR_K_B_PROJ, TENSOR_K_B_TRANSPOSED, TENSOR_V_B_PROJ,
    TENSOR_INDEX_WQ_B, TENSOR_INDEX_WK, TENSOR_INDEX_K_NORM, TENSOR_INDEX_K_NORM_BIAS, TENSOR_INDEX_WEIGHTS_PROJ,
    TENSOR_O_PROJ,
    TENSOR_GATE_PROJ, TENSOR_UP_PROJ, TENSOR_DOWN_PROJ, /* of a dense layer */
    TENSOR_ROUTER, TENSOR_ROUTER_BIAS,
    TENSOR_EXPERT_GATE_PROJ, TENSOR_EXPERT_UP_PROJ, TENSOR_EXPERT_DOWN_PROJ,
    TENSOR_SHARED_GATE_PROJ, TENSOR_SHARED_UP_PROJ, TENSOR_SHARED_DOWN_PROJ,
    /* of an MTP module, beside those of its layer */
    TENSOR_ENORM, TENSOR_HNORM, TENSOR_EH_PROJ, TENSOR_MODULE_NORM, TENSOR_MODULE_EMBED_TOKENS, TENSOR_MODULE_HEAD,
    /* outside of layers */
    TENSOR_EMBED_TOKENS, TENSOR_NORM, TENSOR_LM_HEAD,
    MODEL_TENSORS
};
#define TENSORS_OF_MODULE  TENSOR_ENORM        /* the first of them, and so the end of those of a layer */
#define TENSORS_OUTSIDE    TENSOR_EMBED_TOKENS

enum megatron_part { WHOLE_TENSOR, FIRST_HALF, SECOND_HALF };

/* %d stands for the number of an expert. NULL: there is no such name. */
struct tensor_names {
    const char *hf;
    const char *gguf;    /* the matrices of all experts are one tensor */
    const char *mistral; /* in Mistral's own files */
    const char *megatron, *megatron_also; /* in Megatron-LM (tools/training/megatron.c); the second is used by other
                                             versions */
    enum megatron_part part;              /* the rows that the tensor has in Megatron's */
};
extern const struct tensor_names tensor_names[MODEL_TENSORS];

/* Writes a name to out [room], with the number of an expert in place of %d. If `end` is not NULL, it replaces the
 * "weight" at the end. */
void tensor_name(char *out, size_t room, const char *name, size_t expert, const char *end);

/* If `text` begins with `name`, returns the rest of it and sets *expert to the number in place of %d, or to 0.
 * Otherwise, and if `name` is NULL, returns NULL. The "weight" at the end of `name` counts as part of the rest. */
const char *tensor_name_rest(const char *name, const char *text, size_t *expert);

/* Whether `text` is this name, and the number of the expert. */
int tensor_name_is(const char *name, const char *text, size_t *expert);

#endif
