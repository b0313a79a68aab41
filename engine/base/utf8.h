/* engine/base/utf8.h -- UTF-8: checking it, reading code points, and joining characters that arrive in parts. */
#ifndef VB_UTF8_H
#define VB_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decoding while streaming: bytes go in as tokens come, only whole characters come out; invalid bytes become
 * U+FFFD (one per maximal invalid part, as Unicode's recommended practice has it). */
struct utf8_stream {
    unsigned char pending[4];
    int n;
};

/* Appends `size` bytes; writes what is complete to out, which has room for 3 * (size + 4) bytes; returns the count. */
size_t utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t size, char *out);
/* At the end: an unfinished character becomes U+FFFD. out has room for 12 bytes. */
size_t utf8_stream_finish(struct utf8_stream *s, char *out);

/* The offset of the first byte that is not valid UTF-8, or `size` when all is valid. */
size_t utf8_valid(const char *text, size_t size);

/* The code point at s (valid UTF-8), its length in bytes in *size. */
uint32_t utf8_at(const char *s, size_t *size);
int is_white_space(uint32_t c); /* Unicode's White_Space, which is \s in Oniguruma and in Rust's regex */

#endif
