/* engine/crc64.c -- the checksum of session files, eight bytes at a time ("slicing by 8", Kounavis and Berry 2005). */
#include "crc64.h"

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

uint64_t crc64(const struct crc64 *c, uint64_t before, const void *data, size_t size)
{
    const unsigned char *p = data;
    uint64_t r = ~before;
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t next = 0;
        for (int i = 0; i < 8; i++) /* by bytes: the same on every machine */
            next |= (uint64_t)p[i] << 8 * i;
        r ^= next;
        next = 0;
        for (int i = 0; i < 8; i++)
            next ^= c->table[7 - i][r >> 8 * i & 255];
        r = next;
    }
    for (; size; p++, size--)
        r = r >> 8 ^ c->table[0][(r ^ *p) & 255];
    return ~r;
}
