#include "tools/cli/base64.h"

#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_write(char *to, const void *bytes, size_t size)
{
    const unsigned char *u = bytes;
    for (size_t i = 0; i < size; i += 3) {
        size_t left = size - i;
        unsigned three = (unsigned)u[i] << 16 | (left > 1 ? (unsigned)u[i + 1] << 8 : 0) | (left > 2 ? u[i + 2] : 0u);
        for (int k = 0; k < 4; k++)
            *to++ = k > (int)(left > 2 ? 3 : left) ? '=' : digits[three >> (18 - 6 * k) & 63];
    }
    *to = '\0';
}

char *base64_encode(const char *bytes, size_t size)
{
    char *text = cli_must(malloc(BASE64_ROOM(size)));
    base64_write(text, bytes, size);
    return text;
}

char *base64_decode(const char *text, size_t length, size_t *size)
{
    if (length % 4)
        return NULL;
    size_t padding = length ? (size_t)(text[length - 1] == '=') +
                                  (size_t)(text[length - 2] == '=' && text[length - 1] == '=')
                            : 0;
    char *bytes = cli_must(malloc(length / 4 * 3 + 1));
    for (size_t i = 0; i < length; i += 4) {
        unsigned three = 0;
        for (size_t k = 0; k < 4; k++) {
            const char *at = i + k >= length - padding ? digits : text[i + k] ? strchr(digits, text[i + k]) : NULL;
            if (!at) {
                free(bytes);
                return NULL;
            }
            three = three << 6 | (unsigned)(at - digits);
        }
        for (size_t k = 0; k < 3; k++)
            bytes[i / 4 * 3 + k] = (char)(three >> (16 - 8 * k) & 255);
    }
    *size = length / 4 * 3 - padding;
    return bytes;
}
