#include "ops/cuda/cublas.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned cublas_status; /* 0: success */
typedef unsigned cublas_transpose, cublas_number, cublas_sums;
typedef int cublas_algorithm;
typedef void *cublas_handle, *cublas_stream;

#include "ops/cuda/cublas_functions.h"

static const char *const libraries[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"};
#define LIBRARIES (sizeof libraries / sizeof *libraries)

struct cublas {
    void *library;
    cublas_handle handle;
#define X(member, name, result, arguments) result (*member) arguments;
    CUBLAS_FUNCTIONS(X)
#undef X
};

/* Returns 0, or -1 after it has written a sentence. A library that is not installed leaves the message as it is. */
static int open_library(struct cublas *c, const char *name, char *message, size_t size)
{
    void *found;
    c->library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* never unloaded: it may have threads of its
                                                                         own */
    if (!c->library)
        return -1;
#define X(member, function, result, arguments)                                                    \
    if (!(found = dlsym(c->library, #function))) {                                                \
        snprintf(message, size, "%s is too old: it has no function %s", name, #function);         \
        return -1;                                                                                \
    }                                                                                             \
    memcpy(&c->member, &found, sizeof found);
    CUBLAS_FUNCTIONS(X)
#undef X
    cublas_status status = c->create(&c->handle);
    if (status) {
        c->handle = NULL;
        snprintf(message, size, "%s does not work: %s", name, c->text(status));
    }
    return status ? -1 : 0;
}

static void close_library(struct cublas *c)
{
    if (c->handle)
        c->destroy(c->handle);
    if (c->library)
        dlclose(c->library);
    memset(c, 0, sizeof *c);
}

struct cublas *cublas_open(void *stream, void *memory, size_t bytes, char *message, size_t size)
{
    struct cublas *c = calloc(1, sizeof *c);
    cublas_status status = 0;
    snprintf(message, size,
             c ? "cuBLAS is not installed: libcublas.so.13, .12 and .11 are missing" : "no memory for cuBLAS");
    for (size_t i = 0; c && !c->handle && i < LIBRARIES; i++)
        if (open_library(c, libraries[i], message, size))
            close_library(c);
    if (c && c->handle) {
        status = c->set_stream(c->handle, stream);
        status = status ? status : c->set_workspace(c->handle, memory, bytes); /* set_stream would undo it */
        if (!status)
            return c;
        snprintf(message, size, "cuBLAS cannot use the GPU's stream and memory: %s", c->text(status));
    }
    cublas_close(c);
    return NULL;
}

void cublas_close(struct cublas *c)
{
    if (c)
        close_library(c);
    free(c);
}

/* Our matrices are stored row by row. cuBLAS reads matrices column by column, so it sees the transpose of each of ours.
 * It therefore computes y^T [N,S] = W [N,K] x^T [K,S]. */
const char *cublas_gemm(const struct cublas *c, const struct gemm *g)
{
    const float one = 1.0f, zero = 0.0f;
    assert(g->N <= INT_MAX && g->S <= INT_MAX && g->K <= INT_MAX && g->ldw <= INT_MAX && g->ldx <= INT_MAX &&
           g->ldy <= INT_MAX);
    cublas_status status = c->gemm(c->handle, CUBLAS_TRANSPOSED, CUBLAS_AS_STORED, (int)g->N, (int)g->S, (int)g->K,
                                   &one, g->w, CUBLAS_BF16, (int)g->ldw, g->x, CUBLAS_BF16, (int)g->ldx, &zero, g->y,
                                   CUBLAS_F32, (int)g->ldy, CUBLAS_SUMS_F32, CUBLAS_ANY_ALGORITHM);
    return status ? c->text(status) : NULL;
}
