/* engine/base/crc64.h -- CRC-64/XZ (polynomial 0x42F0E1EBA9EA3693, reflected, start and end inverted), the checksum of session files.
 *
 * Why this one: whatever differs within 64 bits side by side is noticed for certain, so every byte that changed is, and of
 * damage of other kinds one in 2^64 is not. It is no defence against a forger. Its result for "123456789" is
 * 0x995DC9BBDF1939FA; of the standard ones it is the one that `xz --check=crc64` and many tools know. */
#ifndef VB_CRC64_H
#define VB_CRC64_H

#include <stddef.h>
#include <stdint.h>

/* Eight tables, so that eight bytes are one step: 1 to 2 GB/s, more than most disks. Whoever checks has one of these. */
struct crc64 {
    uint64_t table[8][256];
};

void crc64_open(struct crc64 *c);
/* Of nothing it is 0; what comes after goes on with what came before. */
uint64_t crc64(const struct crc64 *c, uint64_t before, const void *data, size_t size);

#endif
