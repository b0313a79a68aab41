/* tools/serve/request_internal.h -- parts of reading a request. */
#ifndef VB_SERVE_REQUEST_INTERNAL_H
#define VB_SERVE_REQUEST_INTERNAL_H

#include "tools/serve/request.h"

/* Fields that are known and not supported: 400 names the field. */
int request_refuse(enum serve_api api, const json_t *body, struct failure *f);
/* Says once on stderr that an unknown field is ignored. */
void request_note_unknown(struct server *s, const json_t *body);

#endif
