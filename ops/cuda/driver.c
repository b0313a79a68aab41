/* ops/cuda/driver.c -- a device (device.h) that is an NVIDIA GPU. All functions and their numbers are those of the CUDA
 * driver API. */
#include "ops/cuda/driver.h"
#include "ops/cuda/cublas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int result;             /* CUresult; 0: success */
typedef unsigned long long address; /* CUdeviceptr */

/* X(member, name in the library, arguments) */
#define DRIVER_FUNCTIONS(X) \
    X(init, "cuInit", (unsigned flags)) \
    X(driver_version, "cuDriverGetVersion", (int *version)) \
    X(device_count, "cuDeviceGetCount", (int *count)) \
    X(device_get, "cuDeviceGet", (int *device, int ordinal)) \
    X(device_name, "cuDeviceGetName", (char *name, int length, int device)) \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device)) \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device)) \
    X(context_set, "cuCtxSetCurrent", (void *context)) \
    X(memory_info, "cuMemGetInfo_v2", (size_t *free, size_t *total)) \
    X(module_load, "cuModuleLoadData", (void **module, const void *image)) \
    X(module_unload, "cuModuleUnload", (void *module)) \
    X(module_function, "cuModuleGetFunction", (void **function, void *module, const char *name)) \
    X(function_attribute, "cuFuncGetAttribute", (int *value, int attribute, void *function)) \
    X(memory_allocate, "cuMemAlloc_v2", (address * at, size_t bytes)) \
    X(memory_free, "cuMemFree_v2", (address at)) \
    X(host_allocate, "cuMemHostAlloc", (void **at, size_t bytes, unsigned flags)) \
    X(host_free, "cuMemFreeHost", (void *at)) \
    X(copy_to, "cuMemcpyHtoDAsync_v2", (address to, const void *from, size_t bytes, void *stream)) \
    X(copy_from, "cuMemcpyDtoHAsync_v2", (void *to, address from, size_t bytes, void *stream)) \
    X(copy_between, "cuMemcpyDtoDAsync_v2", (address to, address from, size_t bytes, void *stream)) \
    X(stream_create, "cuStreamCreate", (void **stream, unsigned flags)) \
    X(stream_destroy, "cuStreamDestroy_v2", (void *stream)) \
    X(stream_wait, "cuStreamSynchronize", (void *stream)) \
    X(launch, "cuLaunchKernel", \
      (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
       void *stream, void **parameters, void **extra)) \
    X(capture_begin, "cuStreamBeginCapture_v2", (void *stream, int mode)) \
    X(capture_end, "cuStreamEndCapture", (void *stream, void **graph)) \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", (void **executable, void *graph, unsigned long long flags)) \
    X(graph_destroy, "cuGraphDestroy", (void *graph)) \
    X(graph_launch, "cuGraphLaunch", (void *executable, void *stream)) \
    X(graph_forget, "cuGraphExecDestroy", (void *executable)) \
    X(error_text, "cuGetErrorString", (result code, const char **text))

#define STAGING ((size_t)16 << 20)

struct gpu {
    struct device device; /* first */
    void *library;
#define X(member, name, arguments) result (*member) arguments;
    DRIVER_FUNCTIONS(X)
#undef X
    int number, has_context;
    void *context, *module, *stream;
    char *staging; /* STAGING bytes of pinned memory, of which the first `staged` are still being copied */
    size_t staged;
    void *kernel[KERNEL_COUNT];
    struct cublas *cublas; /* NULL: it was not asked for */
};

static const char *const kernel_names[] = {
#define X(name, threads) #name,
    DEVICE_KERNELS(X)
#undef X
};
static const unsigned kernel_threads[] = {
#define X(name, threads) threads,
    DEVICE_KERNELS(X)
#undef X
};

/* Remembers the first error. Returns 0 if there was none. */
static int check(struct gpu *g, result code, const char *what)
{
    const char *text = NULL;
    if (!code)
        return 0;
    g->error_text(code, &text);
    if (!*g->device.failure)
        snprintf(g->device.failure, sizeof g->device.failure, "%s: %s failed: %s", g->device.name, what,
                 text ? text : "unknown error");
    return -1;
}

static struct gpu *of(struct device *d)
{
    struct gpu *g = (struct gpu *)(void *)d;
    g->context_set(g->context); /* of the thread that calls */
    return g;
}

/* ---- what a device does ---- */

static int allocate(struct device *d, void **at, size_t bytes)
{
    address a;
    if (of(d)->memory_allocate(&a, (bytes + 15) & ~(size_t)15)) /* no failure of the device: the caller may do
                                                                   without */
        return -1;
    *at = (void *)(uintptr_t)a;
    return 0;
}

static void release(struct device *d, void *at) { of(d)->memory_free((uintptr_t)at); }

static int wait_for(struct device *d)
{
    struct gpu *g = of(d);
    g->staged = 0;
    return check(g, g->stream_wait(g->stream), "a computation");
}

/* The driver may read host memory after a copy to the device was asked for. The caller may change its memory then, so
 * the driver gets a copy of it. */
static int write_to(struct device *d, void *to, const void *host, size_t bytes)
{
    struct gpu *g = of(d);
    for (size_t done = 0, some; done < bytes; done += some) {
        if (g->staged == STAGING && wait_for(d))
            return -1;
        some = bytes - done < STAGING - g->staged ? bytes - done : STAGING - g->staged;
        memcpy(g->staging + g->staged, (const char *)host + done, some);
        if (check(g, g->copy_to((uintptr_t)to + done, g->staging + g->staged, some, g->stream), "a copy to its memory"))
            return -1;
        g->staged += some;
    }
    return 0;
}

static int read_from(struct device *d, void *host, const void *from, size_t bytes)
{
    struct gpu *g = of(d);
    return check(g, g->copy_from(host, (uintptr_t)from, bytes, g->stream), "a copy from its memory") || wait_for(d);
}

static int copy(struct device *d, void *to, const void *from, size_t bytes)
{
    struct gpu *g = of(d);
    return check(g, g->copy_between((uintptr_t)to, (uintptr_t)from, bytes, g->stream), "a copy in its memory");
}

static int launch(struct device *d, enum device_kernel kernel, const unsigned grid[3], const void *args, size_t size)
{
    struct gpu *g = of(d);
    char copied[4096];
    void *parameters[] = {copied};
    memcpy(copied, args, size);
    return check(g,
                 g->launch(g->kernel[kernel], grid[0], grid[1], grid[2], kernel_threads[kernel], 1, 1, 0, g->stream,
                           parameters, NULL),
                 kernel_names[kernel]);
}

/* A recording is a CUDA graph: the stream's work is captured while it is given. */
static int record(struct device *d)
{
    struct gpu *g = of(d);
    return check(g, g->capture_begin(g->stream, 1), "beginning a graph"); /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */
}

static void *recorded(struct device *d)
{
    struct gpu *g = of(d);
    void *graph = NULL, *executable = NULL;
    if (check(g, g->capture_end(g->stream, &graph), "ending a graph"))
        return NULL;
    int code = check(g, g->graph_instantiate(&executable, graph, 0), "making a graph");
    g->graph_destroy(graph);
    return code ? NULL : executable;
}

static int replay(struct device *d, void *recording)
{
    struct gpu *g = of(d);
    return check(g, g->graph_launch(recording, g->stream), "a graph");
}

static void forget(struct device *d, void *recording) { of(d)->graph_forget(recording); }

/* cuBLAS gets this much memory, as NVIDIA recommends for its largest GPUs. Its own would be allocated where the program
 * does not count it. */
#define CUBLAS_BYTES ((size_t)32 << 20)

static int open_gemm(struct device *d, char *message, size_t size)
{
    struct gpu *g = of(d);
    void *at = NULL;
    if (GEMM_BYTES + CUBLAS_BYTES > d->memory - d->taken || allocate(d, &at, GEMM_BYTES + CUBLAS_BYTES)) {
        snprintf(message, size,
                 "%s has no memory for cuBLAS: %.1f of %.1f MB are free, wanted %.1f MB; offload fewer layers", d->name,
                 1e-6 * (double)(d->memory - d->taken), 1e-6 * (double)d->memory,
                 1e-6 * (double)(GEMM_BYTES + CUBLAS_BYTES));
        return -1;
    }
    g->cublas = cublas_open(g->stream, (char *)at + GEMM_BYTES, CUBLAS_BYTES, message, size);
    if (!g->cublas) {
        release(d, at);
        return -1;
    }
    d->gemm_memory = at;
    d->taken += GEMM_BYTES + CUBLAS_BYTES;
    return 0;
}

static int gemm(struct device *d, const struct gemm *product)
{
    const char *why = cublas_gemm(of(d)->cublas, product);
    if (why)
        snprintf(d->failure, sizeof d->failure, "%s: cuBLAS failed: %s", d->name, why);
    return why ? -1 : 0;
}

static void close_gpu(struct device *d)
{
    struct gpu *g = (struct gpu *)(void *)d;
    if (g->has_context) {
        g->context_set(g->context);
        cublas_close(g->cublas);
        if (d->gemm_memory)
            release(d, d->gemm_memory);
        for (size_t i = 0; i < d->twin_count; i++)
            g->memory_free((uintptr_t)d->twins[i].at);
        if (g->stream)
            g->stream_destroy(g->stream);
        if (g->staging)
            g->host_free(g->staging);
        if (g->module)
            g->module_unload(g->module);
        g->context_release(g->number);
    }
    if (g->library)
        dlclose(g->library);
    device_end(d);
    free(g);
}

static const struct device_type type = {allocate, release, write_to, read_from, copy, launch, wait_for, record,
                                        recorded, replay, forget, close_gpu, open_gemm, gemm};

/* ---- opening ---- */

static int find_functions(struct gpu *g, char *message, size_t size)
{
    void *found;
    g->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!g->library) {
        snprintf(message, size, "the driver of NVIDIA GPUs is not installed: libcuda.so.1 is missing");
        return -1;
    }
#define X(member, name, arguments)                                                                               \
    if (!(found = dlsym(g->library, name))) {                                                                    \
        snprintf(message, size, "the driver of NVIDIA GPUs is too old: its library has no function %s", name);   \
        return -1;                                                                                               \
    }                                                                                                            \
    memcpy(&g->member, &found, sizeof found);
    DRIVER_FUNCTIONS(X)
#undef X
    return 0;
}

static const char *text_of(const struct gpu *g, result code)
{
    const char *text = NULL;
    g->error_text(code, &text);
    return text ? text : "unknown error";
}

static int find_gpu(struct gpu *g, int number, char *message, size_t size)
{
    int count = 0;
    result code = g->init(0);
    if (!code)
        code = g->device_count(&count);
    if (code) {
        snprintf(message, size, "the driver of NVIDIA GPUs does not work: %s", text_of(g, code));
        return -1;
    }
    if (number >= count) {
        snprintf(message, size, "there is no GPU number %d; the driver has %d, counted from 0", number, count);
        return -1;
    }
    code = g->device_get(&g->number, number);
    if (!code)
        code = g->device_name(g->device.name, (int)sizeof g->device.name, g->number);
    if (!code)
        code = g->context_retain(&g->context, g->number);
    g->has_context = !code;
    if (!code)
        code = g->context_set(g->context);
    if (!code)
        code = g->stream_create(&g->stream, 1); /* CU_STREAM_NON_BLOCKING */
    if (!code)
        code = g->host_allocate((void **)&g->staging, STAGING, 0);
    if (code)
        snprintf(message, size, "GPU number %d cannot be used: %s", number, text_of(g, code));
    return code ? -1 : 0;
}

/* Asks the code that was loaded: what was compiled for older GPUs runs on new ones, too, but does not use their tensor
 * cores. */
static int has_tensor_cores(const struct gpu *g)
{
    const int ptx_version = 5; /* CU_FUNC_ATTRIBUTE_PTX_VERSION: 80 for compute_80 */
    int version = 0;
    return !g->function_attribute(&version, ptx_version, g->kernel[KERNEL_tensor8]) && version >= 80;
}

/* Of double data rate: two transfers in each cycle. Drivers of some GPUs say 0. */
static double peak_bandwidth(const struct gpu *g)
{
    const int memory_clock_rate = 36, global_memory_bus_width = 37; /* CU_DEVICE_ATTRIBUTE_...: kHz, bits */
    int khz = 0, bits = 0;
    if (g->device_attribute(&khz, memory_clock_rate, g->number) ||
        g->device_attribute(&bits, global_memory_bus_width, g->number))
        return 0;
    return 2e3 * khz * bits / 8;
}

static int find_kernels(struct gpu *g, char *message, size_t size)
{
    int version = 0;
    result code = g->module_load(&g->module, cuda_image());
    g->driver_version(&version);
    if (code) {
        snprintf(message, size, "%s cannot run the kernels: %s (its driver is for CUDA %d.%d)", g->device.name,
                 text_of(g, code), version / 1000, version % 1000 / 10);
        return -1;
    }
    for (int i = 0; i < KERNEL_COUNT; i++)
        if ((code = g->module_function(&g->kernel[i], g->module, kernel_names[i]))) {
            snprintf(message, size, "%s: kernel %s is missing: %s", g->device.name, kernel_names[i], text_of(g, code));
            return -1;
        }
    return 0;
}

struct device *driver_open(int number, char *message, size_t size)
{
    size_t unused = 0, total = 0;
    if (!cuda_image()) {
        snprintf(message, size, "this program was built without kernels for GPUs; make CUDA=yes builds it with them");
        return NULL;
    }
    struct gpu *g = calloc(1, sizeof *g);
    if (!g || device_begin(&g->device, &type, 0)) {
        snprintf(message, size, "no memory");
        free(g);
        return NULL;
    }
    int code = find_functions(g, message, size) || find_gpu(g, number, message, size) || find_kernels(g, message, size);
    if (!code && (code = g->memory_info(&unused, &total)))
        snprintf(message, size, "%s: its memory cannot be asked for: %s", g->device.name, text_of(g, code));
    g->device.memory = unused;
    g->device.peak_bandwidth = code ? 0 : peak_bandwidth(g);
    g->device.tensor_cores = !code && has_tensor_cores(g);
    if (!code)
        return &g->device;
    close_gpu(&g->device);
    return NULL;
}

int driver_parse(int *number, const char *name)
{
    char *end;
    *number = 0;
    if (!strcmp(name, "cuda"))
        return 1;
    if (strncmp(name, "cuda:", 5) || name[5] < '0' || name[5] > '9')
        return 0;
    long n = strtol(name + 5, &end, 10);
    *number = (int)n;
    return !*end && n < 1024;
}
