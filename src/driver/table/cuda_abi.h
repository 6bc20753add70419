/*
 * Includes cuda.h, and declares types and functions of newer drivers that an older cuda.h lacks.
 *
 * The library knows every entry of entry_points.def, whatever toolkit builds it. At run time it
 * asks the driver which of them exist. This file therefore declares the types and prototypes that
 * are newer than CUDA 11.8, each for headers of earlier versions. These declarations are the
 * driver's ABI, which never changes: a new layout gets a new name. A struct whose members the
 * library does not use has no members here.
 *
 * `scripts/test.sh headers` builds with one header of each version, and compares the results.
 */
#ifndef GPUCACHE_DRIVER_TABLE_CUDA_ABI_H
#define GPUCACHE_DRIVER_TABLE_CUDA_ABI_H

#include <cuda.h>

#if CUDA_VERSION < 11080
#error "this cuda.h is older than CUDA 11.8; name a newer toolkit with CUDA_HOME or -Dtoolkit="
#endif

#include <assert.h>
#include <stddef.h>

#if CUDA_VERSION < 12000
#define CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1 ((CUdevice_attribute)92)
#define CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED ((CUdevice_attribute)125)

typedef enum {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
} CUdriverProcAddressQueryResult;

typedef enum {
    CUDA_GRAPH_INSTANTIATE_SUCCESS = 0,
    CUDA_GRAPH_INSTANTIATE_ERROR = 1,
} CUgraphInstantiateResult;

typedef struct {
    cuuint64_t flags;
    CUstream hUploadStream;
    CUgraphNode hErrNode_out;
    CUgraphInstantiateResult result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef unsigned CUlibraryOption;
typedef struct CUgraphExecUpdateResultInfo_st CUgraphExecUpdateResultInfo;

typedef struct {
    CUfunction func;
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    void **kernelParams, **extra;
    CUkernel kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS_v2;
#endif

#if CUDA_VERSION < 12010
typedef struct CUmulticastObjectProp_st CUmulticastObjectProp;
#endif

#if CUDA_VERSION < 12020
typedef struct {
    CUgraphNodeType type;
    int reserved0[3];
    union {
        long long reserved1[29];
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    };
    long long reserved2;
} CUgraphNodeParams;
#endif

#if CUDA_VERSION < 12030
typedef struct {
    unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;
#endif

#if CUDA_VERSION < 12040
#define CUDA_ERROR_INVALID_RESOURCE_TYPE ((CUresult)914)
enum { CU_GREEN_CTX_DEFAULT_STREAM = 1 };

typedef enum { CU_DEV_RESOURCE_TYPE_SM = 1 } CUdevResourceType;

typedef struct {
    CUdevResourceType type;
    unsigned char reserved0[92];
    union {
        struct {
            unsigned smCount;
        } sm;
        unsigned char reserved1[48];
    };
} CUdevResource;

typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef struct CUgreenCtx_st *CUgreenCtx;
#endif

#if CUDA_VERSION < 12050
typedef struct CUctxCreateParams_st CUctxCreateParams;
#endif

#if CUDA_VERSION < 12080
#define CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE ((CUpointer_attribute)21)
#define CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK ((CUdevice_attribute)136)
#define CU_MEM_CREATE_USAGE_HW_DECOMPRESS 0x2
#endif

#if CUDA_VERSION < 13000
#define CUDA_ERROR_CONTAINED ((CUresult)226)
#define CUDA_ERROR_TENSOR_MEMORY_LEAK ((CUresult)721)
#define CUDA_ERROR_MPS_CLIENT_TERMINATED ((CUresult)810)
#endif

#if CUDA_VERSION < 13030
typedef int CUgraphRecaptureStatus;
typedef CUresult (*CUgraphRecaptureCallback)(void *data, CUgraphNode node,
                                             const CUgraphNodeParams *original,
                                             const CUgraphNodeParams *recaptured,
                                             CUgraphRecaptureStatus status);
#endif

/* A build checks these values with every header: the declarations above must be equal to those of
 * the headers that have them. */
static_assert(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1 == 92, "of the driver");
static_assert(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED == 125, "of the driver");
static_assert(CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE == 21, "of the driver");
static_assert(CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK == 136, "of the driver");
static_assert(CU_MEM_CREATE_USAGE_HW_DECOMPRESS == 2, "of the driver");
static_assert(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND == 1, "of the driver");
static_assert(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT == 2, "of the driver");
static_assert(CUDA_GRAPH_INSTANTIATE_ERROR == 1, "of the driver");
static_assert(CUDA_ERROR_INVALID_RESOURCE_TYPE == 914, "of the driver");
static_assert(CUDA_ERROR_CONTAINED == 226, "of the driver");
static_assert(CUDA_ERROR_TENSOR_MEMORY_LEAK == 721, "of the driver");
static_assert(CUDA_ERROR_MPS_CLIENT_TERMINATED == 810, "of the driver");
static_assert(CU_GREEN_CTX_DEFAULT_STREAM == 1, "of the driver");
static_assert(CU_DEV_RESOURCE_TYPE_SM == 1, "of the driver");
static_assert(sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS) == 32, "of the driver");
static_assert(offsetof(CUDA_GRAPH_INSTANTIATE_PARAMS, result_out) == 24, "of the driver");
static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v2) == 72, "of the driver");
static_assert(offsetof(CUDA_KERNEL_NODE_PARAMS_v2, kern) == 56, "of the driver");
static_assert(sizeof(CUgraphNodeParams) == 256, "of the driver");
static_assert(offsetof(CUgraphNodeParams, alloc) == 16, "of the driver");
static_assert(sizeof(CUgraphEdgeData) == 8, "of the driver");
static_assert(sizeof(CUdevResource) == 144, "of the driver");
static_assert(offsetof(CUdevResource, sm.smCount) == 96, "of the driver");
static_assert(sizeof(CUmemPoolProps) == 88, "of the driver");

/* Returns CUmemPoolProps.maxSize, which CUDA 12.2 put in place of reserved bytes: reads the bytes
 * after `win32SecurityAttributes`, which every header has. */
static inline size_t pool_props_max_size(const CUmemPoolProps *props) {
    return *(const size_t *)((const char *)props +
                             offsetof(CUmemPoolProps, win32SecurityAttributes) +
                             sizeof props->win32SecurityAttributes);
}

/*
 * Prototypes of entries. Only the simulated driver and the tests call these entries by name.
 */
#ifdef __cplusplus
extern "C" {
#endif

/* cuda.h 13 declares no cuCtxCreate_v2: its cuCtxCreate is a macro for cuCtxCreate_v4. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device);

#if CUDA_VERSION < 12000
CUresult CUDAAPI cuGetProcAddress_v2(const char *name, void **pfn, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *status);
CUresult CUDAAPI cuCtxGetId(CUcontext ctx, unsigned long long *id);
CUresult CUDAAPI cuStreamGetId(CUstream stream, unsigned long long *id);
CUresult CUDAAPI cuStreamGetId_ptsz(CUstream stream, unsigned long long *id);
CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph,
                                         const CUgraphNode *dependencies, size_t count,
                                         const CUDA_KERNEL_NODE_PARAMS_v2 *params);
CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS *params);
CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS *params);
CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit,
                                   void **jit_values, unsigned jit_count, CUlibraryOption *options,
                                   void **values, unsigned count);
CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *file, CUjit_option *jit,
                                       void **jit_values, unsigned jit_count,
                                       CUlibraryOption *options, void **values, unsigned count);
CUresult CUDAAPI cuLibraryUnload(CUlibrary library);
CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);
CUresult CUDAAPI cuLibraryGetModule(CUmodule *module, CUlibrary library);
CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel);
CUresult CUDAAPI cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                                      CUdevice device);
CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                      CUdevice device);
#endif

#if CUDA_VERSION < 12010
CUresult CUDAAPI cuCtxSetFlags(unsigned flags);
#endif

#if CUDA_VERSION < 12020
CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr dptr, size_t bytes, CUmem_advise advice,
                                CUmemLocation location);
CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr dptr, size_t bytes, CUmemLocation location,
                                       unsigned flags, CUstream stream);
CUresult CUDAAPI cuMemPrefetchAsync_v2_ptsz(CUdeviceptr dptr, size_t bytes, CUmemLocation location,
                                            unsigned flags, CUstream stream);
#endif

#if CUDA_VERSION < 12030
CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction function);
CUresult CUDAAPI cuKernelGetName(const char **name, CUkernel kernel);
CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                             const CUgraphNode *dependencies,
                                             const CUgraphEdgeData *edges, size_t count,
                                             CUstreamCaptureMode mode);
CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                  const CUgraphNode *dependencies,
                                                  const CUgraphEdgeData *edges, size_t count,
                                                  CUstreamCaptureMode mode);
CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
                                           cuuint64_t *id, CUgraph *graph,
                                           const CUgraphNode **dependencies,
                                           const CUgraphEdgeData **edges, size_t *count);
CUresult CUDAAPI cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status,
                                                cuuint64_t *id, CUgraph *graph,
                                                const CUgraphNode **dependencies,
                                                const CUgraphEdgeData **edges, size_t *count);
CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *dependencies,
                                                      const CUgraphEdgeData *edges, size_t count,
                                                      unsigned flags);
CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream,
                                                           CUgraphNode *dependencies,
                                                           const CUgraphEdgeData *edges,
                                                           size_t count, unsigned flags);
#endif

#if CUDA_VERSION < 12040
CUresult CUDAAPI cuDeviceGetDevResource(CUdevice device, CUdevResource *out,
                                        CUdevResourceType type);
CUresult CUDAAPI cuCtxGetDevResource(CUcontext ctx, CUdevResource *out, CUdevResourceType type);
CUresult CUDAAPI cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *out,
                                          CUdevResourceType type);
CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned *count,
                                             const CUdevResource *whole, CUdevResource *rest,
                                             unsigned flags, unsigned least);
CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc *description, CUdevResource *resources,
                                           unsigned count);
CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device,
                                  unsigned flags);
CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green);
CUresult CUDAAPI cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event);
CUresult CUDAAPI cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event);
CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green);
CUresult CUDAAPI cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset,
                                    size_t *bytes);
CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes);
#endif

#if CUDA_VERSION < 12050
CUresult CUDAAPI cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned flags,
                                CUdevice device);
CUresult CUDAAPI cuCtxRecordEvent(CUcontext ctx, CUevent event);
CUresult CUDAAPI cuCtxWaitEvent(CUcontext ctx, CUevent event);
CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags,
                                        int priority);
CUresult CUDAAPI cuStreamGetCtx_v2(CUstream stream, CUcontext *ctx, CUgreenCtx *green);
CUresult CUDAAPI cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *ctx, CUgreenCtx *green);
#endif

#if CUDA_VERSION < 12020
CUresult CUDAAPI cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                size_t count, CUgraphNodeParams *params);
#endif

#if CUDA_VERSION < 12030
CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph,
                                   const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                   size_t count, CUgraphNodeParams *params);
#endif

#if CUDA_VERSION < 12080
CUresult CUDAAPI cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end);
CUresult CUDAAPI cuStreamGetDevice(CUstream stream, CUdevice *device);
CUresult CUDAAPI cuStreamGetDevice_ptsz(CUstream stream, CUdevice *device);
#endif

#if CUDA_VERSION < 13000
CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx);
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx);
CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                        CUmemAllocationType type);
CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                 CUmemAllocationType type);
CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                 CUmemoryPool pool);
#endif

#ifdef __cplusplus
}
#endif
#endif
