/* ops/cuda/mlp.cu -- feed-forward layers: the product between their matrices, and what experts need besides. */
#include "ops/cuda/expf.h"
#include "ops/cuda/round.h"

KERNEL(silu_mul)
{
    size_t i = (size_t)blockIdx.x * THREADS_silu_mul + threadIdx.x;
    if (i < a.n) {
        float g = a.h[i], h = g / (1.0f + device_expf(-g)) * a.u[i];
        a.h[i] = a.round ? round_input(h) : h;
    }
}

/* Each thread counts the pairs of some neighbouring experts, and later writes them. */
KERNEL(group_experts)
{
    SHARED(uint32_t, pairs, THREADS_group_experts * 2); /* the sums of threads, twice: each step reads one half and
                                                           writes the other */
    SHARED(uint32_t, tiles, THREADS_group_experts * 2);
    const unsigned N = THREADS_group_experts, me = threadIdx.x, each = (a.experts + N - 1) / N;
    const unsigned begin = me * each < a.experts ? me * each : a.experts,
                   end = begin + each < a.experts ? begin + each : a.experts;
    uint32_t count = 0, cut = 0;
    for (unsigned e = begin; e < end; e++) {
        uint32_t some = 0;
        for (unsigned i = 0; i < a.pairs; i++)
            some += (unsigned)a.expert[i] == e;
        count += some;
        cut += (some + a.rows - 1) / a.rows;
    }
    pairs[me] = count;
    tiles[me] = cut;
    unsigned half = 0;
    for (unsigned by = 1; by < N; by *= 2, half = N - half) {
        __syncthreads();
        pairs[N - half + me] = pairs[half + me] + (me >= by ? pairs[half + me - by] : 0);
        tiles[N - half + me] = tiles[half + me] + (me >= by ? tiles[half + me - by] : 0);
    }
    __syncthreads();
    uint32_t place = pairs[half + me] - count, tile = tiles[half + me] - cut;
    for (unsigned e = begin; e < end; e++) {
        uint32_t some = 0;
        for (unsigned i = 0; i < a.pairs; i++)
            if ((unsigned)a.expert[i] == e) {
                if (some % a.rows == 0)
                    a.tile[tile + some / a.rows] = {(int32_t)e, (int32_t)(place + some), 0};
                a.tile[tile + some / a.rows].count++;
                a.place[i] = (int32_t)(place + some);
                a.token[place + some] = (int32_t)(i / a.chosen);
                some++;
            }
        place += some;
        tile += (some + a.rows - 1) / a.rows;
    }
    for (unsigned i = tiles[half + N - 1] + me; i < a.tiles; i += N)
        a.tile[i].count = 0;
}

KERNEL(sum_experts)
{
    size_t j = (size_t)blockIdx.y * THREADS_sum_experts + threadIdx.x, s = blockIdx.x;
    if (j >= a.d)
        return;
    float acc = 0.0f;
    for (size_t i = s * a.chosen; i < (s + 1) * a.chosen; i++)
        acc = fmaf(a.weight[i], a.out[(a.place ? (size_t)a.place[i] : i) * a.d + j], acc);
    a.y[s * a.d + j] = a.shared ? acc + a.shared[s * a.d + j] : acc;
}
