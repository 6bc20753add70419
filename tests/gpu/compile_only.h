/*
 * Lets clang check a CUDA program against any version of the runtime's headers, without a toolkit.
 * Declares the names of nvcc's own headers that the programs of this folder use. It is included
 * before all other headers; the result cannot run.
 */
#ifndef GPUCACHE_TESTS_COMPILE_ONLY_H
#define GPUCACHE_TESTS_COMPILE_ONLY_H

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __device_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __cudart_builtin__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define CUDARTAPI
#define CUDARTAPI_CDECL

#include <stddef.h>
#include <stdlib.h>
#include <vector_types.h>

extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;

/* A launch by <<<>>> calls the first function if clang knows a CUDA version of at least 9.2. It
 * calls the second function if clang knows none, as clang 18 without a toolkit. */
extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared = 0,
                                                struct CUstream_st *stream = nullptr);
extern "C" int cudaConfigureCall(dim3 grid, dim3 block, size_t shared = 0,
                                 struct CUstream_st *stream = nullptr);

__device__ void __nanosleep(unsigned ns);
__device__ void __syncthreads();
__device__ void __threadfence();
__device__ void __threadfence_system();
__device__ long long clock64();
extern "C" __device__ int printf(const char *format, ...);
__device__ int min(int a, int b);
__device__ int max(int a, int b);
template <typename T> __device__ T atomicAdd(T *address, T value);
template <typename T> __device__ T atomicExch(T *address, T value);
template <typename T> __device__ T atomicCAS(T *address, T expected, T value);
#endif
