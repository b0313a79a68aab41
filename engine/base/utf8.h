/* engine/base/utf8.h -- checks UTF-8, reads code points, and joins characters that arrive in parts. */
#ifndef VB_UTF8_H
#define VB_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* A stream decoder for text that arrives token by token. A token may end inside a character. The decoder writes a
 * character only when all its bytes have arrived. Invalid bytes become U+FFFD: one for each maximal invalid part, as
 * Unicode recommends. To start a stream, set all members to 0. */
struct utf8_stream {
    unsigned char pending[4]; /* the first n bytes of a character that is not complete yet */
    int n;
};

/* Adds `size` bytes to the stream, writes all characters that are now complete to `out`, and returns how many bytes it
 * wrote. The caller provides `out` with room for 3 * (size + 4) bytes. */
size_t utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t size, char *out);
/* Ends the stream: an incomplete character becomes U+FFFD. Returns how many bytes it wrote to `out`, which has room for
 * 12 bytes. */
size_t utf8_stream_finish(struct utf8_stream *s, char *out);

/* Returns the offset of the first byte that is not valid UTF-8, or `size` if all bytes are valid. */
size_t utf8_valid(const char *text, size_t size);

/* Returns the code point at s, which must be valid UTF-8, and writes its length in bytes to *size. */
uint32_t utf8_at(const char *s, size_t *size);
int is_white_space(uint32_t c); /* Unicode's White_Space property, the same set as \s in Oniguruma and in Rust's
                                   regex */

#endif
