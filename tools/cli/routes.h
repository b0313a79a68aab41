/* tools/cli/routes.h -- files of routes: --routes-in, --routes-out, and the key routed_experts of a line of JSON.
 *
 * A file has an array of integers [tokens, layers, top_k]. Formats for reading, which are told apart by their content:
 *
 *     safetensors   the tensor routed_experts, or the only tensor of the file
 *     .npy          an array that numpy.save has written
 *     JSON          {"routed_experts": VALUE}, also inside of meta_info (SGLang), of the only element of outputs or choices (vLLM),
 *                   or of an array with one element. VALUE is an array of arrays of arrays, or a text in base64: either a .npy
 *                   file or int32 numbers as SGLang returns them. routed_experts_start_len beside routed_experts is the number of
 *                   tokens that have no row. prompt_routed_experts, if it is there, comes before routed_experts
 *
 * `layers` is num_hidden_layers, or the number of MoE layers. */
#ifndef VB_CLI_ROUTES_H
#define VB_CLI_ROUTES_H

#include "tools/cli/cli.h"

/* Reads the file of --routes-in, if there is one, into c->session.routes. The model must be open. The file must have rows for at
 * least tokens - 1 and at most `most` tokens. With --routes-out, sets c->session.record_routes. Reports errors. */
int cli_routes_in(struct cli *c, size_t tokens, size_t most);
/* Reads a file of routes. The caller frees *experts, to which routes->experts points. Reports errors. */
int routes_of_file(const struct cli *c, const char *path, vb_routes *routes, int32_t **experts);
/* Checks that there are routes of at least tokens - 1 and at most `most` tokens. `name` says in messages where they come from. */
int routes_check(const struct cli *c, const char *name, const vb_routes *routes, size_t tokens, size_t most);
/* Reads the routes in a JSON value; `name` says in messages where it comes from. The caller frees *experts, to which
 * routes->experts points. Reports errors. */
int routes_of_json(const struct cli *c, const char *name, const json_t *value, vb_routes *routes, int32_t **experts);
/* Returns routes as SGLang does: int32 numbers in base64, one after the other. Free the text. */
char *routes_base64(const vb_routes *routes);

/* Checks before the model is opened that --routes-out can be written and that its name ends with a known format. Reports
 * errors. */
int cli_check_routes_out(const struct cli *c);
/* Writes the file of --routes-out, if there is one. Reports errors. */
int cli_routes_out(const struct cli *c, const vb_routes *routes);
int cli_routes_out_of(const struct cli *c, const vb_session *session);

/* The routes of several sessions, one after the other. */
struct routes_list {
    vb_routes routes;
    int32_t *experts; /* at which routes.experts points; free it */
};
/* Adds the routes of a session, if it records any. `session` may be NULL. */
void routes_list_add(struct routes_list *list, const vb_session *session);

#endif
