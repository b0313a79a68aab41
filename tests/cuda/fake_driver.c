/* tests/cuda/fake_driver.c -- a libcuda.so.1 without a GPU: the functions of the CUDA driver API that ops/cuda/driver.c
 * calls, computed by the emulator.
 *
 * Work in the stream is done as late as the API allows: when somebody waits for it, copies from the device to the host,
 * or frees something. Host memory from which is copied to the device is read then.
 *
 * The environment variable FAKE_GPU changes what it does: "none": there is no GPU; "old": the driver is too old for the
 * kernels; "memory:N": the GPU has N bytes; "taken:N": it says that 4 GB are free, but gives N bytes;
 * "launch:N": launch number N fails, counted from 0; "silent": the driver does not say how fast its memory is;
 * "turing": the GPU has no tensor cores for BF16. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emulator.h"

#define PUBLIC __attribute__((visibility("default")))

static struct device *gpu;
static size_t memory = (size_t)4 << 30, launches, failing = SIZE_MAX, given = SIZE_MAX, used, ranges;

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
    if (said && !strncmp(said, "taken:", 6))
        given = strtoull(said + 6, NULL, 10);
    if (said && !strncmp(said, "launch:", 7))
        failing = strtoull(said + 7, NULL, 10);
    gpu = gpu ? gpu : emulator_open(memory);
    return gpu ? 0 : 2;
}

PUBLIC int cuGetErrorString(int code, const char **text)
{
    *text = code == 100 ? "no CUDA-capable device is detected"
            : code == 222 ? "the provided PTX was compiled with an unsupported toolchain."
            : code == 2 ? "out of memory"
            : "unspecified launch failure";
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
PUBLIC int cuModuleLoadData(void **module, const void *image)
{
    return *module = (void *)(uintptr_t)image, is("old") ? 222 : 0;
}
PUBLIC int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    *value = attribute != 5 || !function ? 0 : is("turing") ? 75 : 90; /* the version of its PTX */
    return 0;
}
PUBLIC int cuModuleUnload(void *module) { return module ? 0 : 1; }
PUBLIC int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    for (size_t i = 0; i < KERNEL_COUNT; i++)
        if (!strcmp(names[i], name))
            return *function = (void *)(uintptr_t)(i + 1), 0;
    return 500;
}

/* ---- the stream ---- */

enum kind { WRITE, COPY, LAUNCH, GRAPH, CALL };
struct task {
    enum kind kind;
    void *to;         /* or the graph */
    const void *from; /* or the arguments, which were copied */
    size_t bytes;
    enum device_kernel kernel;
    unsigned grid[3];
    void (*call)(const void *arguments); /* instead of a kernel; it changes no memory but the device's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct task *tasks;
static size_t count, room;
static int captures;

static int do_task(const struct task *t)
{
    const struct device_type *type = gpu->type;
    switch (t->kind) {
    case WRITE: return type->write(gpu, t->to, t->from, t->bytes);
    case COPY: return type->copy(gpu, t->to, t->from, t->bytes);
    case LAUNCH: return type->launch(gpu, t->kernel, t->grid, t->from, t->bytes);
    case CALL: return t->call(t->from), 0;
    default: return type->replay(gpu, t->to);
    }
}

/* Work that is captured goes to the emulator's recording at once. */
static int add(struct task t)
{
    int code = 0;
    pthread_mutex_lock(&lock);
    if (captures) {
        code = do_task(&t);
    } else {
        if (t.kind == LAUNCH || t.kind == CALL)
            t.from = memcpy(malloc(t.bytes), t.from, t.bytes);
        if (count == room)
            tasks = realloc(tasks, (room = 2 * room + 64) * sizeof *tasks);
        tasks[count++] = t;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int do_all(void)
{
    int code = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        code = code ? code : do_task(&tasks[i]);
        if (tasks[i].kind == LAUNCH || tasks[i].kind == CALL)
            free((void *)(uintptr_t)tasks[i].from);
    }
    count = 0;
    pthread_mutex_unlock(&lock);
    return code;
}

PUBLIC int cuMemAlloc_v2(unsigned long long *at, size_t bytes)
{
    void *address;
    if (bytes > given - used || gpu->type->allocate(gpu, &address, bytes))
        return 2;
    *at = (uintptr_t)address;
    used += bytes;
    ranges++;
    return 0;
}
PUBLIC int cuMemFree_v2(unsigned long long at)
{
    do_all();
    gpu->type->release(gpu, (void *)(uintptr_t)at);
    used = --ranges ? used : 0; /* what is freed is given again when all is */
    return 0;
}
PUBLIC int cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    return *at = malloc(bytes), *at && !flags ? 0 : 2;
}
PUBLIC int cuMemFreeHost(void *at) { return do_all(), free(at), 0; }
PUBLIC int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream)
{
    (void)stream;
    return add((struct task){.kind = WRITE, .to = (void *)(uintptr_t)to, .from = from, .bytes = bytes});
}
PUBLIC int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream)
{
    (void)stream;
    return do_all() ? 719 : gpu->type->read(gpu, to, (const void *)(uintptr_t)from, bytes);
}
PUBLIC int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void *stream)
{
    (void)stream;
    return add((struct task){.kind = COPY, .to = (void *)(uintptr_t)to, .from = (const void *)(uintptr_t)from,
                             .bytes = bytes});
}
PUBLIC int cuStreamCreate(void **stream, unsigned flags) { return *stream = gpu, flags != 1; }
PUBLIC int cuStreamDestroy_v2(void *stream) { return do_all(), stream != gpu; }
PUBLIC int cuStreamSynchronize(void *stream) { return do_all() ? 719 : stream != gpu; }

PUBLIC int cuStreamBeginCapture_v2(void *stream, int mode)
{
    if (stream != gpu || mode != 1 || captures)
        return 1;
    captures = 1;
    return gpu->type->record(gpu);
}
PUBLIC int cuStreamEndCapture(void *stream, void **graph)
{
    captures = 0;
    return *graph = gpu->type->recorded(gpu), stream != gpu;
}
PUBLIC int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags)
{
    return *executable = graph, flags != 0;
}
PUBLIC int cuGraphDestroy(void *graph) { return graph == NULL; }
PUBLIC int cuGraphLaunch(void *executable, void *stream)
{
    return stream == gpu ? add((struct task){.kind = GRAPH, .to = executable}) : 1;
}
PUBLIC int cuGraphExecDestroy(void *executable) { return do_all(), gpu->type->forget(gpu, executable), 0; }

PUBLIC int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **parameters, void **extra)
{
    (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    if (launches++ == failing)
        return 719;
    return add((struct task){.kind = LAUNCH, .from = *parameters, .bytes = 4096,
                             .kernel = (enum device_kernel)((uintptr_t)function - 1), .grid = {gx, gy, gz}});
}

/* What a library (tests/cuda/fake_cublas.c) gives to the stream. */
int fake_stream_call(void *stream, void (*call)(const void *arguments), const void *arguments, size_t bytes);
PUBLIC int fake_stream_call(void *stream, void (*call)(const void *arguments), const void *arguments, size_t bytes)
{
    return stream != gpu || captures
               ? 1
               : add((struct task){.kind = CALL, .from = arguments, .bytes = bytes, .call = call});
}
