/* tests/kernels/sleef_hash.c -- refuses another SLEEF than the one whose bits are in the contract. Run by `make`. */
#include <inttypes.h>
#include <stdio.h>

#include "golden/sleef.h"
#include "simd/kernels.h"

extern const struct kernels kernels_scalar;

int main(void)
{
    if (!kernels_runs_here(&kernels_scalar)) {
        fprintf(stderr, "the bits of the SLEEF library were not checked: this CPU lacks fused multiply-add (FMA)\n");
        return 0;
    }
    uint64_t h = kernels_sleef_hash();
    if (h == SLEEF_HASH)
        return 0;
    fprintf(stderr,
            "this SLEEF library computes other bits (hash %016" PRIx64 ", wanted %016" PRIx64
            "): wanted version 3.5.1\n",
            h, (uint64_t)SLEEF_HASH);
    return 1;
}
