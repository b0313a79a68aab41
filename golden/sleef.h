/* golden/sleef.h -- the value that kernels_sleef_hash() returns with SLEEF 3.5.1, on every instruction set. Another
 * value means that SLEEF computes other bits. */
#define SLEEF_HASH 0x57db3dff4f15f5b8u
