/* simd/grids.h -- the grids of GGUF's IQ types. A block stores the number of a row of a grid instead of eight or four
 * codes.
 *
 * Each entry is one row; its lowest byte is the first code, as all supported machines are little-endian. Codes of IQ2
 * and IQ3 are magnitudes, whose signs are stored beside them. Codes of grid_iq1 are signed: -8, 0 or 8. */
#ifndef VB_GRIDS_H
#define VB_GRIDS_H

#include <stdint.h>

extern const uint64_t grid_iq2_xxs[256], grid_iq2_xs[512], grid_iq2_s[1024], grid_iq1[2048];
extern const uint32_t grid_iq3_xxs[256], grid_iq3_s[512];

#endif
