/* ops/cuda/argmax.cu -- the token with the largest logit. */
#include "ops/cuda/lanes.h"

/* A number of a row, and its place. */
struct placed_logit {
    float z;
    int32_t v; /* -1: there is a number that is not finite */
};

DEVICE struct placed_logit placed_logit_at(const struct best_of_rows_args &a, size_t i)
{
    size_t s = blockIdx.x;
    int32_t v = a.places ? a.places[s * a.count + i] : (int32_t)i;
    float z = v < 0 ? 0.0f : a.z[s * a.V + (size_t)v];
    struct placed_logit c = {z, (bits_of_float(z) & 0x7fffffffu) < 0x7f800000u ? v : -1};
    return c;
}

/* The result of two candidates. Any order of threads leads to the same one. */
DEVICE struct placed_logit better(const struct placed_logit &a, const struct placed_logit &b)
{
    if (a.v < 0 || b.v < 0)
        return a.v < 0 ? a : b;
    return b.z > a.z || (b.z == a.z && b.v < a.v) ? b : a;
}

KERNEL(best_of_rows)
{
    SHARED(struct placed_logit, found, THREADS_best_of_rows);
    size_t begin = blockIdx.y * a.part, end = begin + a.part < a.count ? begin + a.part : a.count;
    struct placed_logit mine = placed_logit_at(a, begin); /* threads without a candidate of their own take the first,
                                                             too */
    for (size_t i = begin + threadIdx.x; i < end; i += THREADS_best_of_rows)
        mine = better(mine, placed_logit_at(a, i));
    found[threadIdx.x] = mine;
    for (unsigned n = THREADS_best_of_rows / 2; n; n /= 2) {
        __syncthreads();
        if (threadIdx.x < n)
            found[threadIdx.x] = better(found[threadIdx.x], found[threadIdx.x + n]);
    }
    if (threadIdx.x == 0)
        a.best[blockIdx.x * gridDim.y + blockIdx.y] = found[0].v;
}
