/* engine/base/crc64.h -- CRC-64/XZ, the checksum of session files.
 *
 * The polynomial is 0x42F0E1EBA9EA3693, processed with reflected bits; the initial value and the result are inverted.
 * The CRC of the string "123456789" is 0x995DC9BBDF1939FA. `xz --check=crc64` and many other tools compute the same
 * CRC.
 *
 * A 64-bit CRC is used because it detects all damage that lies within 64 consecutive bits, such as one wrong byte. It
 * misses other damage with probability 2^-64. A CRC does not protect against deliberate forgery. */
#ifndef VB_CRC64_H
#define VB_CRC64_H

#include <stddef.h>
#include <stdint.h>

/* Lookup tables with which crc64 processes eight bytes per step. With them crc64 reaches 1 to 2 GB/s, which is faster
 * than most disks. The caller provides the memory; crc64_open fills it. */
struct crc64 {
    uint64_t table[8][256];
};

void crc64_open(struct crc64 *c);
/* Returns the CRC of `size` bytes at `data`, continued from `before`, which is the CRC of the bytes that precede them.
 * Pass before = 0 for the first call. The CRC of no bytes at all is 0. */
uint64_t crc64(const struct crc64 *c, uint64_t before, const void *data, size_t size);

#endif
