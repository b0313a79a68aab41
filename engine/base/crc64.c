/* engine/base/crc64.c -- the checksum of session files, eight bytes at a time ("slicing by 8", Kounavis and Berry
 * 2005). */
#include "engine/base/crc64.h"

#define POLYNOMIAL 0xC96C5795D7870F42u /* 0x42F0E1EBA9EA3693, its bits in reverse */

void crc64_open(struct crc64 *c)
{
    for (unsigned i = 0; i < 256; i++) {
        uint64_t r = i;
        for (int bit = 0; bit < 8; bit++)
            r = r >> 1 ^ (r & 1 ? POLYNOMIAL : 0);
        c->table[0][i] = r;
    }
    for (unsigned i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++)
            c->table[t][i] = c->table[t - 1][i] >> 8 ^ c->table[0][c->table[t - 1][i] & 255];
}

/* Reads byte by byte, so the result is the same on every machine. The compiler turns this into one load. */
static uint64_t eight(const unsigned char *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 | (uint64_t)p[4] << 32 |
           (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
}

uint64_t crc64(const struct crc64 *c, uint64_t before, const void *data, size_t size)
{
    const uint64_t (*t)[256] = c->table;
    const unsigned char *p = data;
    uint64_t r = ~before;
    for (; size >= 8; p += 8, size -= 8) {
        r ^= eight(p);
        r = t[7][r & 255] ^ t[6][r >> 8 & 255] ^ t[5][r >> 16 & 255] ^ t[4][r >> 24 & 255] ^ t[3][r >> 32 & 255] ^
            t[2][r >> 40 & 255] ^ t[1][r >> 48 & 255] ^ t[0][r >> 56];
    }
    for (; size; p++, size--)
        r = r >> 8 ^ t[0][(r ^ *p) & 255];
    return ~r;
}
