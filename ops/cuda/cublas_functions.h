/* ops/cuda/cublas_functions.h -- the functions of cuBLAS that ops/cuda/cublas.c calls. A test compares them with
 * cuBLAS's own header, where there is one.
 *
 * Before CUBLAS_FUNCTIONS is used, the types cublas_status, cublas_handle, cublas_stream, cublas_transpose,
 * cublas_number, cublas_sums and cublas_algorithm must be defined: the types of cuBLAS, or types that are passed to
 * functions in the same way. */
#ifndef VB_CUBLAS_FUNCTIONS_H
#define VB_CUBLAS_FUNCTIONS_H

/* X(member, name in the library, type of the result, arguments) */
#define CUBLAS_FUNCTIONS(X) \
    X(create, cublasCreate_v2, cublas_status, (cublas_handle * handle)) \
    X(destroy, cublasDestroy_v2, cublas_status, (cublas_handle handle)) \
    X(set_stream, cublasSetStream_v2, cublas_status, (cublas_handle handle, cublas_stream stream)) \
    X(set_workspace, cublasSetWorkspace_v2, cublas_status, (cublas_handle handle, void *workspace, size_t bytes)) \
    X(gemm, cublasGemmEx, cublas_status, \
      (cublas_handle handle, cublas_transpose of_a, cublas_transpose of_b, int m, int n, int k, const void *alpha, \
       const void *a, cublas_number type_a, int lda, const void *b, cublas_number type_b, int ldb, const void *beta, \
       void *c, cublas_number type_c, int ldc, cublas_sums sums, cublas_algorithm algorithm)) \
    X(text, cublasGetStatusString, const char *, (cublas_status status))

/* The numbers of cuBLAS: CUBLAS_OP_N, CUBLAS_OP_T, CUDA_R_32F, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT */
enum {
    CUBLAS_AS_STORED = 0,
    CUBLAS_TRANSPOSED = 1,
    CUBLAS_F32 = 0,
    CUBLAS_BF16 = 14,
    CUBLAS_SUMS_F32 = 68,
    CUBLAS_ANY_ALGORITHM = -1
};

#endif
