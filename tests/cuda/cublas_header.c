/* tests/cuda/cublas_header.c -- compiles if the functions and numbers of ops/cuda/cublas_functions.h are those of
 * cuBLAS's header. */
#include <cublas_v2.h>

typedef cublasStatus_t cublas_status;
typedef cublasHandle_t cublas_handle;
typedef cudaStream_t cublas_stream;
typedef cublasOperation_t cublas_transpose;
typedef cudaDataType cublas_number;
typedef cublasComputeType_t cublas_sums;
typedef cublasGemmAlgo_t cublas_algorithm;

#include "ops/cuda/cublas_functions.h"

#define X(member, function, result, arguments) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(function), result arguments), \
                   #function " has other arguments");
CUBLAS_FUNCTIONS(X)
#undef X

/* The program passes these types as unsigned, int and pointers. */
_Static_assert(sizeof(cublas_status) == sizeof(unsigned) && sizeof(cublas_transpose) == sizeof(unsigned) &&
                   sizeof(cublas_number) == sizeof(unsigned),
               "enum");
_Static_assert(sizeof(cublas_sums) == sizeof(unsigned) && sizeof(cublas_algorithm) == sizeof(int), "enum");
_Static_assert(sizeof(cublas_handle) == sizeof(void *) && sizeof(cublas_stream) == sizeof(void *), "pointer");
_Static_assert(CUBLAS_STATUS_SUCCESS == 0 && CUBLAS_AS_STORED == (int)CUBLAS_OP_N &&
                   CUBLAS_TRANSPOSED == (int)CUBLAS_OP_T,
               "numbers");
_Static_assert(CUBLAS_F32 == (int)CUDA_R_32F && CUBLAS_BF16 == (int)CUDA_R_16BF, "numbers");
_Static_assert(CUBLAS_SUMS_F32 == (int)CUBLAS_COMPUTE_32F && CUBLAS_ANY_ALGORITHM == (int)CUBLAS_GEMM_DEFAULT,
               "numbers");
