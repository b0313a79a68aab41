/* engine/verbatim_routes.h -- routes: which experts tokens take; a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_ROUTES_H
#define VERBATIM_ROUTES_H

/* Routes: the experts that each token takes in each layer of the target, [tokens, layers, top_k], from token 0 on. Layers are
 * those of the target, num_hidden_layers; in a dense layer the numbers have no meaning, and the library writes 0. top_k is
 * num_experts_per_tok. The order of the experts of a token in a layer has no meaning; the library writes them in ascending
 * order. SGLang and vLLM return the same arrays (routed_experts). MTP modules and draft models always choose their experts
 * themselves.
 *
 * For vb_evaluate alone, forced routes may have more layers than the target: layer num_hidden_layers + k is MTP depth k. Saved
 * sessions and batches, which compare the routes of tokens, ignore these layers.
 *
 * If top_k numbers are all -1, they force nothing: the router chooses the experts of this token in this layer. In routes
 * that the library writes, -1 stands for rows that this session did not compute. */
typedef struct vb_routes {
    const int32_t *experts; /* NULL: there are no routes */
    size_t tokens;
    int32_t layers, top_k;
} vb_routes;
/* Sets layers and top_k of *out to those of the model, and the other fields to 0. If the model has no MoE layer, top_k is
 * 0, and no route can be forced or recorded. */
void vb_model_routes(const vb_model *model, vb_routes *out);
/* Returns 1 if `layer` is a MoE layer of the target, else 0. */
int vb_is_moe_layer(const vb_model *model, int32_t layer);

/* Fills *out with the routes of all tokens whose rows were computed so far, and returns 1. After vb_generate, these are all
 * tokens except the last; after vb_evaluate, all tokens. The memory belongs to the session and is valid until the session
 * is changed or closed. Returns 0 and fills *out with zeros if the option record_routes is 0. */
int vb_session_routes(const vb_session *session, vb_routes *out);

#endif
