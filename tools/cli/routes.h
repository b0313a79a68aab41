/* tools/cli/routes.h -- files of routes: --routes-in, --routes-out, --kept-in, --kept-out, and the keys routed_experts
 * and indexer_topk of a line of JSON.
 *
 * A file of experts has an array of integers [tokens, layers, top_k]. Formats for reading, which are told apart by
 * their content:
 *
 *     safetensors   the tensor routed_experts, or the only tensor of the file
 *     .npy          an array that numpy.save has written
 *     JSON          {"routed_experts": VALUE}, also inside of meta_info (SGLang), of the only element of outputs or
 *                   choices (vLLM), or of an array with one element. VALUE is an array of arrays of arrays, or a text
 *                   in base64: either a .npy file or int32 numbers as SGLang returns them. routed_experts_start_len
 *                   beside routed_experts is the number of tokens that have no row. prompt_routed_experts, if it is
 *                   there, comes before routed_experts
 *
 * `layers` is num_hidden_layers, or the number of MoE layers.
 *
 * A file of kept sets has an array of integers [tokens, layers, index_topk] in the same formats, with the name
 * indexer_topk in place of routed_experts. `layers` is num_hidden_layers, or the number of layers with an indexer. */
#ifndef VB_CLI_ROUTES_H
#define VB_CLI_ROUTES_H

#include "tools/cli/cli.h"

/* An array of forced choices: the experts of each token, or the tokens to which each token attends. */
enum routes_kind { ROUTES_EXPERTS, ROUTES_KEPT };
struct routes_array {
    enum routes_kind kind;
    size_t tokens;
    int32_t layers, width; /* of the model: num_hidden_layers; experts per token or index_topk */
    int32_t *numbers;      /* [tokens, layers, width]; -1 where the file has no layer or no token */
};

/* Reads the files of --routes-in and --kept-in, if there are any, into c->session.routes. The model must be open. Each
 * file must have rows for at least tokens - 1 and at most `most` tokens. With --routes-out and --kept-out, sets
 * c->session.record_routes and record_kept. Reports errors. */
int cli_routes_in(struct cli *c, size_t tokens, size_t most);
/* Reads a file. The caller frees out->numbers. Reports errors. */
int routes_array_of_file(const struct cli *c, enum routes_kind kind, const char *path, struct routes_array *out);
/* Checks that there are rows for at least tokens - 1 and at most `most` tokens. Messages use `name` as the source of
 * the array. */
int routes_array_check(const struct cli *c, const char *name, const struct routes_array *choices, size_t tokens,
                       size_t most);
/* Reads the array in a JSON value. Messages use `name` as its source. The caller frees out->numbers. Reports errors. */
int routes_array_of_json(const struct cli *c, enum routes_kind kind, const char *name, const json_t *value,
                         struct routes_array *out);
/* Combines both arrays, either of which may be empty (numbers is NULL). If one has fewer tokens, rows of -1 are
 * appended to it. The result points to their numbers. */
vb_routes routes_join(const struct cli *c, struct routes_array *experts, struct routes_array *kept);
/* Returns routes as SGLang does: int32 numbers in base64, one after the other. Free the text. */
char *routes_base64(const vb_routes *routes, enum routes_kind kind);

/* Checks before the model is opened that --routes-out and --kept-out can be written and that their names end with a
 * known format. Reports errors. */
int cli_check_routes_out(const struct cli *c);
/* Writes the files of --routes-out and --kept-out, if there are any. Reports errors. */
int cli_routes_out(const struct cli *c, const vb_routes *routes);
int cli_routes_out_of(const struct cli *c, const vb_session *session);

/* The routes of several sessions, one after the other. */
struct routes_list {
    vb_routes routes;
    struct routes_array experts, kept; /* at which routes points; free their numbers */
};
/* Adds the routes of a session, if it records any. `session` may be NULL. */
void routes_list_add(struct routes_list *list, const vb_session *session);

#endif
