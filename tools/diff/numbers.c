/* tools/diff/numbers.c -- rounds numbers to the dtypes of dumps, and measures distances between them. */
#include "tools/diff/diff.h"

#include <math.h>

double diff_round(enum diff_dtype dtype, double x)
{
    static const struct { int digits, least; double most; } f[] = {{8, -126, 0x1.fep127}, {11, -14, 0x1.ffcp15}};
    int e;
    if (dtype == DIFF_F32)
        return (double)(float)x;
    if (dtype > DIFF_F32 || !isfinite(x) || x == 0)
        return x;
    frexp(x, &e);
    double ulp = ldexp(1, (e - 1 < f[dtype].least ? f[dtype].least : e - 1) - (f[dtype].digits - 1)),
           y = rint(x / ulp) * ulp;
    return fabs(y) > f[dtype].most ? copysign(INFINITY, x) : copysign(y, x);
}

/* Returns the bits of a number of the dtype, without the sign. Consecutive numbers have consecutive bits. */
static uint64_t magnitude_bits(enum diff_dtype dtype, double x)
{
    union { double f64; uint64_t u64; } d = {.f64 = fabs(x)};
    union { float f32; uint32_t u32; } f = {.f32 = (float)fabs(x)};
    int e;
    if (dtype >= DIFF_F64)
        return d.u64;
    if (dtype == DIFF_F32)
        return f.u32;
    if (dtype == DIFF_BF16)
        return f.u32 >> 16;
    if (!isfinite(x))
        return isnan(x) ? 0x7e00 : 0x7c00;
    frexp(x, &e);
    return x == 0 || e - 1 < -14 ? (uint64_t)(fabs(x) * 0x1p24)
                                 : ((uint64_t)(e - 1 + 15) << 10) + (uint64_t)((ldexp(fabs(x), 1 - e) - 1) * 1024);
}

uint64_t diff_bits(enum diff_dtype dtype, double x)
{
    static const int sign_at[] = {15, 15, 31, 63};
    if (dtype == DIFF_INTEGERS)
        return x >= 0x1p63 ? INT64_MAX : (uint64_t)(int64_t)x; /* the double nearest to INT64_MAX is larger than
                                                                  INT64_MAX */
    return magnitude_bits(dtype, x) | (uint64_t)!!signbit(x) << sign_at[dtype];
}

uint64_t diff_ulps(enum diff_dtype dtype, double x, double y)
{
    uint64_t m = magnitude_bits(dtype, x), n = magnitude_bits(dtype, y);
    if (!!signbit(x) != !!signbit(y))
        return m + n;
    return m > n ? m - n : n - m;
}
