/* engine/verbatim_routes.h -- routes: which experts tokens take, and to which tokens they attend; a part of the public
 * interface. verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_ROUTES_H
#define VERBATIM_ROUTES_H

/* Routes: the experts that each token takes in each layer of the target, [tokens, layers, top_k], from token 0 on.
 * Layers are those of the target, num_hidden_layers; in a dense layer the numbers have no meaning, and the library
 * writes 0. top_k is num_experts_per_tok. The order of the experts of a token in a layer has no meaning; the library
 * writes them in ascending order. SGLang and vLLM return the same arrays (routed_experts). MTP modules and draft models
 * always choose their experts themselves.
 *
 * For vb_evaluate alone, forced routes may have more layers than the target: layer num_hidden_layers + k is MTP depth
 * k. Saved sessions and batches, which compare the routes of tokens, ignore these layers.
 *
 * If top_k numbers are all -1, they force nothing: the router chooses the experts of this token in this layer. In
 * routes that the library writes, -1 stands for rows that this session did not compute.
 *
 * Kept sets: in models with sparse attention, routes can also say to which tokens each token attends: `kept`, [tokens,
 * layers, index_topk]. A set has the indices of min(index_topk, t + 1) different tokens from 0 to t, where t is the
 * token itself, in any order, and then -1. If all numbers are -1, the indexer chooses. SGLang returns such arrays
 * (indexer_topk). In a layer without an indexer the numbers have no meaning: a layer that shares a choice (IndexShare)
 * uses the set of the last layer that has an indexer. With MTP depths and convention first-row=phantom, indices count
 * the module's rows: 0 is the phantom row, and t + 1 is the row of token t. The library writes sets in ascending order,
 * and -1 in layers without an indexer. */
typedef struct vb_routes {
    const int32_t *experts; /* NULL: the router chooses all experts */
    size_t tokens;
    int32_t layers, top_k;
    const int32_t *kept;    /* NULL: indexers choose all sets */
    int32_t index_topk;     /* not read if `kept` is NULL */
    uint64_t reserved[4];
} vb_routes;
/* Sets layers, top_k and index_topk of *out to those of the model, and the other fields to 0. If the model has no MoE
 * layer, top_k is 0, and no expert can be forced or recorded. If it has no indexer, index_topk is 0, and no set can be
 * forced. */
void vb_model_routes(const vb_model *model, vb_routes *out);
/* Returns 1 if `layer` is a MoE layer of the target, else 0. */
int vb_is_moe_layer(const vb_model *model, int32_t layer);
/* Returns 1 if `layer` is a layer of the target with an indexer, else 0. */
int vb_has_indexer(const vb_model *model, int32_t layer);

/* Fills *out with the routes of all tokens whose rows were computed so far, and returns 1. After vb_generate, these are
 * all tokens except the last; after vb_evaluate, all tokens. The memory belongs to the session and is valid until the
 * session is changed or closed. `experts` is NULL if the option record_routes is 0, and `kept` if record_kept is 0.
 * Returns 0 and fills *out with zeros if both are 0. */
int vb_session_routes(const vb_session *session, vb_routes *out);

#endif
