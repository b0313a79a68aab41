#include "tools/mpi/measure.h"

#include <stdlib.h>
#include <string.h>

#include "ops/op.h"
#include "simd/machine.h"

#define BLOCK ((size_t)256 << 20) /* more than the CPU caches hold */
#define SECONDS 0.2

struct read_block {
    char *block;
    size_t part; /* bytes of each thread, a multiple of 256 */
};

static void fill_part(void *arg, size_t task, int thread)
{
    const struct read_block *r = arg;
    (void)thread;
    memset(r->block + task * r->part, 1, r->part);
}

static void read_part(void *arg, size_t task, int thread)
{
    const struct read_block *r = arg;
    (void)thread;
    (void)machine_read(r->block + task * r->part, r->part);
}

uint32_t measure_read_speed(int threads)
{
    struct op_ctx cx = {.threads = threads, .thread_cost = 1};
    struct read_block r = {.block = aligned_alloc(4096, BLOCK), .part = BLOCK / (size_t)threads / 256 * 256};
    if (!r.block)
        return 0;
    op_parallel(&cx, (size_t)threads, 1e9, fill_part, &r);
    double begun = op_seconds(), seconds = 0, bytes = 0;
    while (seconds < SECONDS) {
        op_parallel(&cx, (size_t)threads, 1e9, read_part, &r);
        bytes += (double)r.part * threads;
        seconds = op_seconds() - begun;
    }
    free(r.block);
    double speed = bytes / seconds / 1e6;
    return speed < 1 ? 1 : speed > UINT32_MAX ? UINT32_MAX : (uint32_t)speed;
}
