/* tools/serve/endpoints.h -- answers that need no pass through the model. Each writes JSON to w, or fills *f and returns its status. */
#ifndef VB_SERVE_ENDPOINTS_H
#define VB_SERVE_ENDPOINTS_H

#include "tools/serve/request.h"
#include "tools/serve/writer.h"

void endpoint_version(struct serve_writer *w);
int endpoint_health(const struct server *s, struct serve_writer *w, struct failure *f);
/* path: /v1/models, or /v1/models/NAME */
int endpoint_models(const struct server *s, const char *path, struct serve_writer *w, struct failure *f);
int endpoint_tokenizer_info(const struct server *s, struct serve_writer *w, struct failure *f);
int endpoint_tokenize(const struct server *s, const json_t *body, struct serve_writer *w, struct failure *f);
int endpoint_detokenize(const struct server *s, const json_t *body, struct serve_writer *w, struct failure *f);
int endpoint_apply_template(const struct server *s, const json_t *body, struct serve_writer *w, struct failure *f);

#endif
