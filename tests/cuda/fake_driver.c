/* tests/cuda/fake_driver.c -- a libcuda.so.1 without a GPU: the functions of the CUDA driver API that ops/cuda/driver.c calls, computed by the emulator.
 *
 * The environment variable FAKE_GPU changes what it does: "none": there is no GPU; "old": the driver is too old for the kernels; "memory:N": the GPU has N bytes;
 * "launch:N": launch number N fails, counted from 0; "silent": the driver does not say how fast its memory is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emulator.h"

#define PUBLIC __attribute__((visibility("default")))

static struct device *gpu;
static size_t memory = (size_t)4 << 30, launches, failing = SIZE_MAX;

static const char *const names[] = {
#define X(name, threads) #name,
    DEVICE_KERNELS(X)
#undef X
};

static int is(const char *wanted) { return getenv("FAKE_GPU") && !strcmp(getenv("FAKE_GPU"), wanted); }

PUBLIC int cuInit(unsigned flags)
{
    const char *said = getenv("FAKE_GPU");
    (void)flags;
    if (is("none"))
        return 100;
    if (said && !strncmp(said, "memory:", 7))
        memory = strtoull(said + 7, NULL, 10);
    if (said && !strncmp(said, "launch:", 7))
        failing = strtoull(said + 7, NULL, 10);
    gpu = gpu ? gpu : emulator_open(memory);
    return gpu ? 0 : 2;
}

PUBLIC int cuGetErrorString(int code, const char **text)
{
    *text = code == 100 ? "no CUDA-capable device is detected" : code == 222 ? "the provided PTX was compiled with an unsupported toolchain."
            : code == 2 ? "out of memory" : "unspecified launch failure";
    return 0;
}

PUBLIC int cuDriverGetVersion(int *version) { return *version = 11040, 0; }
PUBLIC int cuDeviceGetCount(int *count) { return *count = 1, 0; }
PUBLIC int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
PUBLIC int cuDeviceGetName(char *name, int length, int device)
{
    (void)device;
    snprintf(name, (size_t)length, "an emulated GPU");
    return 0;
}
PUBLIC int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = is("silent") ? 0 : attribute == 36 ? 1000000 : attribute == 37 ? 4096 : 0; /* kHz, bits: 1024 GB/s */
    return device;
}
PUBLIC int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = gpu, device; }
PUBLIC int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
PUBLIC int cuCtxSetCurrent(void *context) { return context == gpu ? 0 : 201; }
PUBLIC int cuMemGetInfo_v2(size_t *unused, size_t *total) { return *unused = *total = memory, 0; }
PUBLIC int cuModuleLoadData(void **module, const void *image) { return *module = (void *)(uintptr_t)image, is("old") ? 222 : 0; }
PUBLIC int cuModuleUnload(void *module) { return module ? 0 : 1; }
PUBLIC int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    for (size_t i = 0; i < KERNEL_COUNT; i++)
        if (!strcmp(names[i], name))
            return *function = (void *)(uintptr_t)(i + 1), 0;
    return 500;
}

PUBLIC int cuMemAlloc_v2(unsigned long long *at, size_t bytes)
{
    void *address;
    if (gpu->type->allocate(gpu, &address, bytes))
        return 2;
    *at = (uintptr_t)address;
    return 0;
}
PUBLIC int cuMemFree_v2(unsigned long long at) { return gpu->type->release(gpu, (void *)(uintptr_t)at), 0; }
PUBLIC int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream)
{
    (void)stream;
    return gpu->type->write(gpu, (void *)(uintptr_t)to, from, bytes);
}
PUBLIC int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream)
{
    (void)stream;
    return gpu->type->read(gpu, to, (const void *)(uintptr_t)from, bytes);
}
PUBLIC int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void *stream)
{
    (void)stream;
    return gpu->type->copy(gpu, (void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
}
PUBLIC int cuStreamCreate(void **stream, unsigned flags) { return *stream = gpu, flags != 1; }
PUBLIC int cuStreamDestroy_v2(void *stream) { return stream != gpu; }
PUBLIC int cuStreamSynchronize(void *stream) { return stream != gpu; }

PUBLIC int cuStreamBeginCapture_v2(void *stream, int mode) { return stream == gpu && mode == 1 ? gpu->type->record(gpu) : 1; }
PUBLIC int cuStreamEndCapture(void *stream, void **graph) { return *graph = gpu->type->recorded(gpu), stream != gpu; }
PUBLIC int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) { return *executable = graph, flags != 0; }
PUBLIC int cuGraphDestroy(void *graph) { return graph == NULL; }
PUBLIC int cuGraphLaunch(void *executable, void *stream) { return stream == gpu ? gpu->type->replay(gpu, executable) : 1; }
PUBLIC int cuGraphExecDestroy(void *executable) { return gpu->type->forget(gpu, executable), 0; }

PUBLIC int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
                          void **parameters, void **extra)
{
    const unsigned grid[3] = {gx, gy, gz};
    (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    if (launches++ == failing)
        return 719;
    return gpu->type->launch(gpu, (enum device_kernel)((uintptr_t)function - 1), grid, *parameters, 4096);
}
