/* tests/cuda/fake_cublas.c -- a libcublas.so.13 without a GPU: the functions that ops/cuda/cublas.c calls. It
 * multiplies in plain C, in the stream of the driver that is none (tests/cuda/fake_driver.c), so in the emulator's
 * memory.
 *
 * The environment variable FAKE_CUBLAS changes what it does: "create": there is no handle; "gemm:N": product number N
 * fails, counted from 0. At the end of the program, a handle that was not destroyed ends it with a message. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

typedef unsigned cublas_status, cublas_transpose, cublas_number, cublas_sums;
typedef int cublas_algorithm;
typedef void *cublas_handle, *cublas_stream;

#include "ops/cuda/cublas_functions.h"

int fake_stream_call(void *stream, void (*call)(const void *arguments), const void *arguments, size_t bytes);

#define X(member, name, result, arguments) result name arguments;
CUBLAS_FUNCTIONS(X)
#undef X

enum { NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };

struct handle {
    void *stream, *workspace;
};
static int handles, products;

static void __attribute__((destructor)) look(void)
{
    if (handles) {
        fprintf(stderr, "fake cuBLAS: %d handles were not destroyed\n", handles);
        abort();
    }
}

static const char *said(void) { return getenv("FAKE_CUBLAS") ? getenv("FAKE_CUBLAS") : ""; }

PUBLIC cublas_status cublasCreate_v2(cublas_handle *handle)
{
    if (!strcmp(said(), "create"))
        return NOT_INITIALIZED;
    handles++;
    return *handle = calloc(1, sizeof(struct handle)), *handle ? 0 : 3;
}

PUBLIC cublas_status cublasDestroy_v2(cublas_handle handle)
{
    handles--;
    free(handle);
    return 0;
}

/* As in cuBLAS, another stream brings back the library's own workspace. */
PUBLIC cublas_status cublasSetStream_v2(cublas_handle handle, cublas_stream stream)
{
    *(struct handle *)handle = (struct handle){stream, NULL};
    return 0;
}

PUBLIC cublas_status cublasSetWorkspace_v2(cublas_handle handle, void *workspace, size_t bytes)
{
    ((struct handle *)handle)->workspace = workspace;
    return (uintptr_t)workspace % 256 || bytes < 4 << 20 ? INVALID_VALUE : 0;
}

PUBLIC const char *cublasGetStatusString(cublas_status status)
{
    return status == NOT_INITIALIZED ? "the library was not initialized"
           : status == INVALID_VALUE ? "an unsupported value or parameter was passed to the function"
           : status == EXECUTION_FAILED ? "the function failed to launch on the GPU"
           : "unknown error";
}

struct product {
    int m, n, k, lda, ldb, ldc;
    const uint16_t *a, *b;
    float *c;
};

static float widen(uint16_t code)
{
    union {
        uint32_t bits;
        float f;
    } u = {(uint32_t)code << 16};
    return u.f;
}

/* c [m,n] = a^T [m,k] b [k,n], by columns */
static void multiply(const void *arguments)
{
    const struct product *p = arguments;
    for (int j = 0; j < p->n; j++)
        for (int i = 0; i < p->m; i++) {
            float sum = 0.0f;
            for (int l = 0; l < p->k; l++)
                sum += widen(p->a[(size_t)i * (size_t)p->lda + (size_t)l]) *
                       widen(p->b[(size_t)j * (size_t)p->ldb + (size_t)l]);
            p->c[(size_t)j * (size_t)p->ldc + (size_t)i] = sum;
        }
}

PUBLIC cublas_status cublasGemmEx(cublas_handle handle, cublas_transpose of_a, cublas_transpose of_b, int m, int n,
                                  int k, const void *alpha, const void *a, cublas_number type_a, int lda, const void *b,
                                  cublas_number type_b, int ldb, const void *beta, void *c, cublas_number type_c,
                                  int ldc, cublas_sums sums, cublas_algorithm algorithm)
{
    const struct handle *h = handle;
    struct product p = {m, n, k, lda, ldb, ldc, a, b, c};
    int same = of_a == CUBLAS_TRANSPOSED && of_b == CUBLAS_AS_STORED && type_a == CUBLAS_BF16 &&
               type_b == CUBLAS_BF16 && type_c == CUBLAS_F32 && sums == CUBLAS_SUMS_F32 &&
               algorithm == CUBLAS_ANY_ALGORITHM && *(const float *)alpha == 1.0f && *(const float *)beta == 0.0f;
    if (!same || m < 1 || n < 1 || k < 1 || lda < k || ldb < k || ldc < m || ((uintptr_t)a | (uintptr_t)b) % 16 ||
        lda % 8 || ldb % 8 || !h->workspace)
        return INVALID_VALUE;
    if (!strncmp(said(), "gemm:", 5) && products++ == atoi(said() + 5))
        return EXECUTION_FAILED;
    return fake_stream_call(h->stream, multiply, &p, sizeof p) ? EXECUTION_FAILED : 0;
}
