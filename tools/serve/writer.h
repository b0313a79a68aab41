/* tools/serve/writer.h -- a growing buffer for text, with functions that append JSON.
 *
 * If an allocation fails, `failed` is set, and nothing more is appended. So a caller needs to check `failed` only once,
 * at the end. */
#ifndef VB_WRITER_H
#define VB_WRITER_H

#include <stddef.h>

struct serve_writer {
    char *text; /* not 0-terminated; writer_close frees it; NULL: no text yet */
    size_t size, room;
    int failed;
};

void writer_close(struct serve_writer *w);
void writer_bytes(struct serve_writer *w, const char *bytes, size_t size);
void writer_put(struct serve_writer *w, const char *text);
void writer_format(struct serve_writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends a JSON string with its quotes. Each byte that is not part of valid UTF-8 becomes U+FFFD. */
void writer_string(struct serve_writer *w, const char *bytes, size_t size);
/* Appends a number with 17 digits, so that different numbers print differently. Infinities and NaN become null, because
 * JSON has no such numbers. */
void writer_number(struct serve_writer *w, double number);

#endif
