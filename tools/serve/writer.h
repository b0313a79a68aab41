/* tools/serve/writer.h -- a text that grows: answers, written as JSON piece by piece. After a failed allocation it stays as it is and
 * `failed` is set, so that only the end has to be checked. */
#ifndef VB_WRITER_H
#define VB_WRITER_H

#include <stddef.h>

struct serve_writer {
    char *text; /* free it with writer_close; NULL: empty */
    size_t size, room;
    int failed;
};

void writer_close(struct serve_writer *w);
void writer_bytes(struct serve_writer *w, const char *bytes, size_t size);
void writer_put(struct serve_writer *w, const char *text);
void writer_format(struct serve_writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string with its quotes. The bytes are UTF-8; what is not becomes U+FFFD. */
void writer_string(struct serve_writer *w, const char *bytes, size_t size);
/* A log-probability: 17 digits, so that equal numbers print equally; null where JSON has no such number. */
void writer_number(struct serve_writer *w, double number);

#endif
