/* tools/serve/page.h -- the page at /: a conversation with the model, in a browser. */
#ifndef VB_SERVE_PAGE_H
#define VB_SERVE_PAGE_H

#include <microhttpd.h>

/* Returns the response to GET /, with all headers that only the page has, and sets *status: 200, or 304 if the browser
 * has the same page already. Returns NULL if memory is missing. */
struct MHD_Response *page_response(struct MHD_Connection *connection, int *status);

#endif
