/* tests/support/session.h -- session files whose checksums are made to fit whatever stands in them (engine/pass/session_file.h). */
#ifndef VB_TEST_SESSION_H
#define VB_TEST_SESSION_H

#include "engine/base/crc64.h"

#include <stdint.h>
#include <string.h>

#define SESSION_HEAD 224
#define SESSION_TABLE 72
#define SESSION_SECTIONS 6

/* Sizes in the table that reach the end, the last section taking what is left; then the checksums. size >= SESSION_HEAD. */
static inline void make_checksums_fit(uint8_t *bytes, size_t size)
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

#endif
