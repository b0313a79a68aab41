/* tests/support/session.c -- session files with valid checksums. */
#include "tests/support/session.h"

#include "engine/base/crc64.h"

#include <string.h>

void make_checksums_fit(uint8_t *bytes, size_t size)
{
    struct crc64 crc;
    uint64_t at = SESSION_HEAD, sum, all = size;
    crc64_open(&crc);
    memcpy(bytes + 16, &all, 8);
    for (int i = 0; i < SESSION_SECTIONS; i++) {
        uint8_t *entry = bytes + SESSION_TABLE + 24 * i;
        uint64_t n;
        memcpy(&n, entry + 8, 8);
        if (n > size - at || i == SESSION_SECTIONS - 1)
            n = size - at;
        sum = crc64(&crc, 0, bytes + at, n);
        memcpy(entry + 8, &n, 8);
        memcpy(entry + 16, &sum, 8);
        at += n;
    }
    sum = crc64(&crc, 0, bytes, SESSION_HEAD - 8);
    memcpy(bytes + SESSION_HEAD - 8, &sum, 8);
}
