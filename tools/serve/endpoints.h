/* tools/serve/endpoints.h -- the endpoints whose answers need no pass through the model.
 *
 * Each function writes the body of an answer to w, as JSON. A function that returns int returns 0 on success. If the
 * request is refused, it fills *f and returns the HTTP status. */
#ifndef VB_SERVE_ENDPOINTS_H
#define VB_SERVE_ENDPOINTS_H

#include "tools/serve/request.h"
#include "tools/serve/writer.h"

void endpoint_version(struct serve_writer *w);
int endpoint_health(const struct server *s, struct serve_writer *w, struct failure *f);
/* `path` is /v1/models, which lists the model, or /v1/models/NAME. */
int endpoint_models(const struct server *s, const char *path, struct serve_writer *w, struct failure *f);
int endpoint_tokenizer_info(const struct server *s, struct serve_writer *w, struct failure *f);
int endpoint_tokenize(const struct server *s, const json_t *body, struct serve_writer *w, struct failure *f);
int endpoint_detokenize(const struct server *s, const json_t *body, struct serve_writer *w, struct failure *f);
int endpoint_apply_template(const struct server *s, const json_t *body, struct serve_writer *w, struct failure *f);

#endif
