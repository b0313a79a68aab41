/* tools/cli/base64.h -- base64 (RFC 4648, section 4). */
#ifndef VB_CLI_BASE64_H
#define VB_CLI_BASE64_H

#include <stddef.h>

/* Room for the text of `size` bytes, with a final 0. */
#define BASE64_ROOM(size) (((size) + 2) / 3 * 4 + 1)
/* Writes this text. */
void base64_write(char *to, const void *bytes, size_t size);
/* Returns the text. Free it. */
char *base64_encode(const char *bytes, size_t size);
/* Returns the bytes of a text, and sets *size. Returns NULL if the text is not base64. Free the bytes. */
char *base64_decode(const char *text, size_t length, size_t *size);

#endif
