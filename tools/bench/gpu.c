/* tools/bench/gpu.c -- the GPU that computes parts of the model: how fast its memory is. */
#include "ops/cuda/device.h"
#include "tools/bench/bench.h"

#define BLOCK ((size_t)128 << 20) /* more than the caches of GPUs hold */
#define COPIES 32
#define SLOW 0.02                 /* seconds for one copy: an emulator, which needs no more of them */

void bench_gpu_open(struct bench *b)
{
    struct device *d = b->c->model->device;
    const char *to = b->data, *from = to + BLOCK;
    if (!d)
        return;
    b->gpu_copies = !device_add(d, to, BLOCK) && !device_add(d, from, BLOCK);
    if (!b->gpu_copies)
        device_remove(d, to);
}

void bench_gpu_close(struct bench *b)
{
    if (!b->gpu_copies)
        return;
    device_remove(b->c->model->device, b->data);
    device_remove(b->c->model->device, (char *)b->data + BLOCK);
}

double bench_gpu_copy(const struct bench *b, double *seconds)
{
    struct device *d = b->c->model->device;
    for (size_t copies = 1;; copies = COPIES) {
        double start = cli_seconds();
        for (size_t i = 0; i < copies; i++)
            device_copy(d, b->data, (char *)b->data + BLOCK, BLOCK);
        device_wait(d);
        *seconds = cli_seconds() - start;
        if (copies == COPIES || *seconds > SLOW)
            return 2.0 * (double)BLOCK * (double)copies;
    }
}
