/* ops/cuda/device.h -- a device that computes for the operators: a GPU, or in tests an emulated one.
 *
 * Operators get addresses of the CPU's memory. A range of this memory may have a twin: as many bytes of the device's
 * memory. If op_ctx.device is set, an operator does not read or write its arrays, but the twins of its arrays.
 * device_at translates an address. Nothing is copied between a range and its twin unless one of the functions below
 * says so.
 *
 * The work that is given to a device runs in the order in which it was given. Functions that return numbers to the CPU
 * wait for it. Other functions need not wait.
 *
 * If something fails on the device during a pass (its driver reports an error), the device remembers the first error,
 * and does nothing more. device_failure returns this error. */
#ifndef VB_DEVICE_H
#define VB_DEVICE_H

#include <pthread.h>

#include "ops/cuda/kernels.h"
#include "numbers/numbers.h"

struct device;

/* A product of BF16 matrices, with sums in f32: y[s*ldy + n] = sum_k w[n*ldw + k] * x[s*ldx + k] for s < S and n < N.
 * All addresses are the device's, those of w and x are multiples of 16 bytes, and ldw and ldx are multiples of 8. */
struct gemm {
    float *y;
    const uint16_t *w, *x;
    size_t S, N, K, ldy, ldw, ldx;
};

/* What kinds of devices do. They return 0, or -1 after they have written a sentence into device.failure. */
struct device_type {
    int (*allocate)(struct device *d, void **address, size_t bytes);            /* kernels may read up to the next
                                                                                   multiple of 16 bytes */
    void (*release)(struct device *d, void *address);
    int (*write)(struct device *d, void *to, const void *host, size_t bytes);   /* host memory may change when this
                                                                                   returns */
    int (*read)(struct device *d, void *host, const void *from, size_t bytes);  /* waits */
    int (*copy)(struct device *d, void *to, const void *from, size_t bytes);
    int (*launch)(struct device *d, enum device_kernel kernel, const unsigned grid[3], const void *args, size_t size);
    int (*wait)(struct device *d);
    int (*record)(struct device *d);
    void *(*recorded)(struct device *d); /* NULL after a failure */
    int (*replay)(struct device *d, void *recording);
    void (*forget)(struct device *d, void *recording);
    void (*close)(struct device *d); /* frees the device itself too */
    /* NULL if there is no library of matrix products. open_gemm writes its sentence to `message`, and sets
     * d->gemm_memory */
    int (*open_gemm)(struct device *d, char *message, size_t size);
    int (*gemm)(struct device *d, const struct gemm *g);
};

struct device_twin {
    const char *host;
    size_t bytes;
    char *at; /* the device's address */
};

/* An implementation of a device has this struct as its first member. */
struct device {
    const struct device_type *type;
    char name[128];       /* for messages: "NVIDIA H200" */
    size_t memory, taken; /* bytes of memory that may be used, and that are in use */
    int tensor_cores;     /* nonzero: it has tensor cores for BF16 and bytes (compute capability 8.0), and the kernels
                             use them */
    double peak_bandwidth; /* bytes per second that its memory delivers at most, as its driver says; 0: not known */
    int refused;          /* nonzero: a range could not get a twin, because the device has no memory for it */
    size_t given;         /* `taken` when this happened first */
    int left_to_cpu;      /* nonzero: the device had no memory for the cache or the passes of some session, so the CPU
                             computes them */
    char failure[256];    /* the first error, or "" */
    pthread_rwlock_t lock; /* of the twins */
    pthread_mutex_t work;  /* held while work is given to the device, and during a recording; recursive */
    int records;          /* nonzero during a recording */
    struct device_twin *twins; /* sorted by host address; they do not overlap */
    size_t twin_count, twin_room;
    char *gemm_memory;    /* with device_open_gemm: GEMM_BYTES of its memory, for weights in BF16 */
};

/* For implementations: sets up the common part, and frees it. */
int device_begin(struct device *d, const struct device_type *type, size_t memory);
void device_end(struct device *d);

void device_close(struct device *d); /* NULL is allowed */
/* Returns NULL, or a sentence that says what failed. */
const char *device_failure(const struct device *d);

/* Gives a range of host memory a twin, whose contents are undefined. Returns 0, or -1 if the device has no memory for
 * it. The range overlaps no other range that has a twin. `bytes` may be 0; then nothing happens. */
int device_add(struct device *d, const void *host, size_t bytes);
/* The same, and copies the range to its twin. */
int device_add_copy(struct device *d, const void *host, size_t bytes);
/* Frees the twin of the range that begins at `host`, if there is one. */
void device_remove(struct device *d, const void *host);

/* Returns the address of the device that belongs to a host address. NULL belongs to NULL. Every other address must lie
 * in a range that has a twin. */
void *device_at(struct device *d, const void *host);
/* Returns whether the address lies in a range that has a twin. */
int device_has(struct device *d, const void *host);

/* device_write copies a range to its twin, and device_read copies the twin to the range. device_put and device_get do
 * the same with other memory of the CPU in place of the range. A failure is remembered. */
void device_put(struct device *d, const void *host, const void *from, size_t bytes);
void device_get(struct device *d, void *to, const void *host, size_t bytes);
static inline void device_write(struct device *d, const void *host, size_t bytes) { device_put(d, host, host, bytes); }
static inline void device_read(struct device *d, void *host, size_t bytes) { device_get(d, host, host, bytes); }
/* Copies between twins: `to` and `from` are host addresses. */
void device_copy(struct device *d, void *to, const void *from, size_t bytes);

/* Starts a kernel with x * y * z blocks. If one of the numbers is 0, nothing happens. A failure is remembered; it is
 * one if y or z is more than DEVICE_MOST_BLOCKS, which no GPU allows. */
#define DEVICE_MOST_BLOCKS 65535
void device_launch(struct device *d, enum device_kernel kernel, size_t x, size_t y, size_t z, const void *args,
                   size_t size);
/* device_run(d, rmsnorm, S, 1, 1, .y = ..., .D = ...): the arguments by name */
#define device_run(d, name, x, y, z, ...) \
    device_launch(d, KERNEL_##name, x, y, z, &(struct name##_args){__VA_ARGS__}, sizeof(struct name##_args))

/* Opens the library of matrix products of this kind of device (a GPU: cuBLAS), if it is not open yet; it is closed with
 * the device. Returns 0, or -1 after it has written a sentence. Then the device can be used as before. */
int device_open_gemm(struct device *d, char *message, size_t size);
/* Multiplies by the library, in an order of sums that the library chooses: so the bits are those of this library on
 * this device. A failure is remembered. */
void device_gemm(struct device *d, const struct gemm *g);
#define GEMM_BYTES ((size_t)32 << 20)
/* What a thread gives to the device between these two calls is not mixed with the work of other threads. */
void device_lock(struct device *d);
void device_unlock(struct device *d);

/* Passes of the same shape start the same kernels with the same arguments, so they can be recorded (as a CUDA graph),
 * which makes starting them cheap. What is given to the device between device_record and device_recorded is not done,
 * but kept: kernels and copies between twins, and nothing else. device_replay does it. Between the two calls, other
 * threads that give work to the device wait. device_recorded returns NULL after a failure. */
void device_record(struct device *d);
void *device_recorded(struct device *d);
void device_replay(struct device *d, void *recording);
void device_forget(struct device *d, void *recording); /* NULL is allowed */

/* Waits until all work is done. Returns 0, or -1 if something has failed. */
int device_wait(struct device *d);

#endif
