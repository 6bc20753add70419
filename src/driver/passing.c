/*
 * The entries that take memory past the pool. Each is the driver's own; we count what it gives and
 * hold it to the limit.
 */
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/device.h"
#include "driver/entries.h"
#include "driver/mempool.h"
#include "driver/outside.h"
#include "driver/pinned.h"
#include "driver/shutdown.h"
#include "process/process.h"

#define REGISTERED                                                                                 \
    UINT64_MAX /* in the ledger: pinned by cuMemHostRegister, the program's own memory */

static struct device *here(void) {
    return process_ready() ? device_current() : NULL;
}

/* The same, if the driver would go on to read what the program's arguments point to. */
static struct device *here_and_well(void) {
    int least, greatest;
    bool well = REAL(cuCtxGetStreamPriorityRange)(&least, &greatest) == CUDA_SUCCESS;
    return well ? here() : NULL;
}

/*
 * What is wrong with a call's arguments is the driver's to find, also where the limit refuses: it is
 * asked for more than there is (cuda-facts: that much is never there), which takes nothing.
 */
#define TOO_MUCH ((size_t)1 << 50)

/* The limit has refused; `judged` is what the driver thinks of the call. */
static CUresult refused(CUresult judged) {
    return judged == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : judged;
}

/* Runs `call` if the limit allows `bytes` more, and enters what it gave under `key`. Else `judge` says
 * what the driver thinks of its arguments. */
#define TAKE(kind, place, bytes, judge, call, key)                                                 \
    do {                                                                                           \
        struct device *where = (place);                                                            \
        uint64_t amount = (bytes);                                                                 \
        if (!outside_begin(kind, where, amount)) {                                                 \
            return refused(judge);                                                                 \
        }                                                                                          \
        CUresult answer = (call);                                                                  \
        if (outside_make_room(answer, where)) {                                                    \
            answer = (call);                                                                       \
        }                                                                                          \
        return outside_end(answer, kind, where, amount,                                            \
                           answer == CUDA_SUCCESS ? (uint64_t)(key) : 0);                          \
    } while (0)

#define GIVE(space, key, call)                                                                     \
    do {                                                                                           \
        CUresult answer = (call);                                                                  \
        if (answer == CUDA_SUCCESS) {                                                              \
            outside_leave(space, (uint64_t)(key));                                                 \
        }                                                                                          \
        return answer;                                                                             \
    } while (0)

/* --- stream-ordered, managed --- */

/* An allocation that becomes a node of a graph: none of the pool's. */
static bool becomes_node(CUstream stream,
                         CUresult (*capturing)(CUstream, CUstreamCaptureStatus *)) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return atomic_load(&capture_active) > 0 && capturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult give_up(CUdeviceptr *dptr, CUstream stream,
                        CUresult (*free_async)(CUdeviceptr, CUstream)) {
    free_async(*dptr, stream);
    outside_leave(OUTSIDE_POINTER, *dptr);
    *dptr = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Runs `call`, which allocates from the driver's pool, if the limit allows what the pool may take. */
#define TAKE_ORDERED(from, suffix, call)                                                           \
    do {                                                                                           \
        struct mempool_claim claim;                                                                \
        if (becomes_node(stream, REAL(cuStreamIsCapturing##suffix))) {                             \
            mempool_graphs(process_ready() ? device_current() : NULL);                             \
            return (call);                                                                         \
        }                                                                                          \
        struct mempool *source = (from);                                                           \
        if (!source || !dptr || bytes == 0) {                                                      \
            return (call);                                                                         \
        }                                                                                          \
        if (!mempool_begin(source, bytes, &claim)) {                                               \
            CUstreamCaptureStatus status;                                                          \
            return refused(REAL(cuStreamIsCapturing##suffix)(stream, &status));                    \
        }                                                                                          \
        CUresult answer = (call);                                                                  \
        if (outside_make_room(answer, mempool_device(source))) {                                   \
            answer = (call);                                                                       \
        }                                                                                          \
        return mempool_end(answer, &claim, *dptr)                                                  \
                   ? answer                                                                        \
                   : give_up(dptr, stream, REAL(cuMemFreeAsync##suffix));                          \
    } while (0)

CUresult hook_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
    TAKE_ORDERED(mempool_current(), , REAL(cuMemAllocAsync)(dptr, bytes, stream));
}

CUresult hook_cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
    TAKE_ORDERED(mempool_current(), _ptsz, REAL(cuMemAllocAsync_ptsz)(dptr, bytes, stream));
}

CUresult hook_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
    TAKE_ORDERED(mempool_of(pool), , REAL(cuMemAllocFromPoolAsync)(dptr, bytes, pool, stream));
}

CUresult hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
                                           CUstream stream) {
    TAKE_ORDERED(mempool_of(pool), _ptsz,
                 REAL(cuMemAllocFromPoolAsync_ptsz)(dptr, bytes, pool, stream));
}

/* A block of another process's pool: what it is long, the driver says once it is here. */
CUresult hook_cuMemPoolImportPointer(CUdeviceptr *dptr, CUmemoryPool pool,
                                     CUmemPoolPtrExportData *data) {
    size_t bytes = 0;
    CUresult r = REAL(cuMemPoolImportPointer)(dptr, pool, data);
    if (r == CUDA_SUCCESS && REAL(cuMemGetAddressRange_v2)(NULL, &bytes, *dptr) == CUDA_SUCCESS) {
        outside_end(r, OUTSIDE_IPC_IMPORTED, here(), bytes, *dptr);
    }
    return r;
}

CUresult hook_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags) {
    TAKE(OUTSIDE_MANAGED, here(), bytes, REAL(cuMemAllocManaged)(dptr, bytes | TOO_MUCH, flags),
         REAL(cuMemAllocManaged)(dptr, bytes, flags), *dptr);
}

/* --- arrays: the bytes their descriptor asks for, without the driver's own padding --- */

static uint64_t element_bytes(CUarray_format format, unsigned int channels) {
    switch ((unsigned)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return (uint64_t)channels * 2;
    default:
        return (uint64_t)channels * 4;
    }
}

/* More than there is, where a product does not fit; 0 if the driver is sure to refuse. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    uint64_t bytes =
        d->NumChannels > 4 || d->NumChannels == 3 ? 0 : element_bytes(d->Format, d->NumChannels);
    if (__builtin_mul_overflow(bytes, d->Width, &bytes) ||
        __builtin_mul_overflow(bytes, d->Height ? d->Height : 1, &bytes) ||
        __builtin_mul_overflow(bytes, d->Depth ? d->Depth : 1, &bytes)) {
        return TOO_MUCH;
    }
    return bytes;
}

CUresult hook_cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    if (!array || !d) {
        return REAL(cuArrayCreate_v2)(array, d);
    }
    struct device *device = here_and_well();
    CUDA_ARRAY3D_DESCRIPTOR flat = {0};
    if (device) {
        flat = (CUDA_ARRAY3D_DESCRIPTOR){.Width = d->Width,
                                         .Height = d->Height,
                                         .Format = d->Format,
                                         .NumChannels = d->NumChannels};
    }
    TAKE(OUTSIDE_ARRAY, device, array_bytes(&flat), CUDA_ERROR_OUT_OF_MEMORY,
         REAL(cuArrayCreate_v2)(array, d), *array);
}

CUresult hook_cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    if (!array || !d) {
        return REAL(cuArray3DCreate_v2)(array, d);
    }
    struct device *device = here_and_well();
    TAKE(OUTSIDE_ARRAY, device, device ? array_bytes(d) : 0, CUDA_ERROR_OUT_OF_MEMORY,
         REAL(cuArray3DCreate_v2)(array, d), *array);
}

CUresult hook_cuArrayDestroy(CUarray array) {
    GIVE(OUTSIDE_ARRAYS, array, REAL(cuArrayDestroy)(array));
}

/* There are no more levels than down to 1 x 1 x 1. */
static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    CUDA_ARRAY3D_DESCRIPTOR level = *d;
    uint64_t bytes = 0;
    for (bool last = false; levels > 0 && !last; levels--) {
        last = level.Width <= 1 && level.Height <= 1 && level.Depth <= 1;
        if (__builtin_add_overflow(bytes, array_bytes(&level), &bytes)) {
            return TOO_MUCH;
        }
        level.Width = level.Width > 1 ? level.Width / 2 : level.Width;
        level.Height = level.Height > 1 ? level.Height / 2 : level.Height;
        level.Depth = level.Depth > 1 ? level.Depth / 2 : level.Depth;
    }
    return bytes;
}

CUresult hook_cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d,
                                     unsigned int levels) {
    if (!array || !d) {
        return REAL(cuMipmappedArrayCreate)(array, d, levels);
    }
    struct device *device = here_and_well();
    TAKE(OUTSIDE_ARRAY, device, device ? mipmap_bytes(d, levels) : 0, CUDA_ERROR_OUT_OF_MEMORY,
         REAL(cuMipmappedArrayCreate)(array, d, levels), *array);
}

CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray array) {
    GIVE(OUTSIDE_ARRAYS, array, REAL(cuMipmappedArrayDestroy)(array));
}

/* --- the virtual memory API: memory lives while its handle or a mapping of it does --- */

CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                          const CUmemAllocationProp *prop, unsigned long long flags) {
    if (!handle || !prop) {
        return REAL(cuMemCreate)(handle, bytes, prop, flags);
    }
    CUcontext any; /* no context is needed, but a driver that has started */
    bool reads = process_ready() && REAL(cuCtxGetCurrent)(&any) == CUDA_SUCCESS;
    bool on_device = reads && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct device *device = on_device ? device_get(prop->location.id) : NULL;
    TAKE(OUTSIDE_VIRTUAL, device, bytes, REAL(cuMemCreate)(handle, bytes | TOO_MUCH, prop, flags),
         REAL(cuMemCreate)(handle, bytes, prop, flags), *handle);
}

CUresult hook_cuMemRelease(CUmemGenericAllocationHandle handle) {
    GIVE(OUTSIDE_HANDLES, handle, REAL(cuMemRelease)(handle));
}

CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CUresult r = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (r == CUDA_SUCCESS) {
        outside_hold(OUTSIDE_HANDLES, *handle);
    }
    return r;
}

/* Another process's memory, whose size shows when it is mapped; or this process's own once more. */
CUresult hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                             CUmemAllocationHandleType type) {
    CUresult r = REAL(cuMemImportFromShareableHandle)(handle, os_handle, type);
    CUmemAllocationProp prop;
    if (r != CUDA_SUCCESS || !process_ready()) {
        return r;
    }
    if (outside_device(OUTSIDE_HANDLES, *handle)) {
        outside_hold(OUTSIDE_HANDLES, *handle);
    } else if (REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, *handle) == CUDA_SUCCESS &&
               prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        outside_end(r, OUTSIDE_HANDLE_IMPORTED, device_get(prop.location.id), 0, *handle);
    }
    return r;
}

CUresult hook_cuMemMap(CUdeviceptr dptr, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags) {
    CUresult r = REAL(cuMemMap)(dptr, bytes, offset, handle, flags);
    struct device *device = r == CUDA_SUCCESS ? outside_device(OUTSIDE_HANDLES, handle) : NULL;
    if (device) {
        outside_hold(OUTSIDE_HANDLES, handle);
        outside_grow(OUTSIDE_HANDLES, handle, offset + bytes);
        outside_end(r, OUTSIDE_MAPPING, device, bytes, dptr);
        outside_set_value(OUTSIDE_RANGES, dptr, handle);
    }
    return r;
}

CUresult hook_cuMemUnmap(CUdeviceptr dptr, size_t bytes) {
    CUresult r = REAL(cuMemUnmap)(dptr, bytes);
    for (CUdeviceptr at = dptr; r == CUDA_SUCCESS && at < dptr + bytes;) {
        struct outside_entry mapping = outside_find(OUTSIDE_RANGES, at);
        if (mapping.bytes == 0) {
            break;
        }
        outside_leave(OUTSIDE_RANGES, at);
        outside_leave(OUTSIDE_HANDLES, mapping.value);
        at += mapping.bytes;
    }
    return r;
}

/* --- pinned host memory: counted, but no memory of the device; kept for the next request --- */

/* What the driver says of such a call while a capture is under way; asked because a kept block needs no call. */
static CUresult verdict(void) {
    struct pool *pool =
        capture_is_unusual() && atomic_load(&capture_active) > 0 ? context_pool() : NULL;
    return pool ? capture_verdict(pool) : CUDA_SUCCESS;
}

typedef CUresult native_host_alloc(void **host, size_t bytes, unsigned int flags);

static CUresult plain_host_alloc(void **host, size_t bytes, unsigned int unused) {
    (void)unused;
    return REAL(cuMemAllocHost_v2)(host, bytes);
}

static CUresult host_alloc(void **host, size_t bytes, unsigned int flags, unsigned kind,
                           native_host_alloc *native) {
    struct device *device = here();
    if (!device || !host || bytes == 0 || verdict() != CUDA_SUCCESS) {
        return native(host, bytes, flags);
    }
    void *kept = pinned_take(bytes, kind);
    CUresult r = CUDA_SUCCESS;
    if (kept) {
        *host = kept;
    } else {
        r = native(host, bytes, flags);
        if (r == CUDA_ERROR_OUT_OF_MEMORY && pinned_release()) {
            r = native(host, bytes, flags);
        }
    }
    r = outside_end(r, OUTSIDE_PINNED_HOST, device, bytes, r == CUDA_SUCCESS ? (uint64_t)*host : 0);
    if (r == CUDA_SUCCESS) {
        outside_set_value(OUTSIDE_HOST, (uint64_t)*host, kind);
    }
    return r;
}

CUresult hook_cuMemAllocHost_v2(void **host, size_t bytes) {
    return host_alloc(host, bytes, 0, PINNED_PLAIN, plain_host_alloc);
}

CUresult hook_cuMemHostAlloc(void **host, size_t bytes, unsigned int flags) {
    return host_alloc(host, bytes, flags, flags, REAL(cuMemHostAlloc));
}

CUresult hook_cuMemFreeHost(void *host) {
    if (atomic_load(&process_state) != PROCESS_STARTED || shutdown_over()) {
        return REAL(cuMemFreeHost)(host);
    }
    CUresult refusal = verdict();
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    if (pinned_has(host)) {
        return REAL(cuMemFreeHost)((void *)UNKNOWN_ADDRESS);
    }
    struct outside_entry entry = outside_find(OUTSIDE_HOST, (uint64_t)host);
    bool registered = entry.value == REGISTERED;
    if (entry.bytes > 0 && !registered && pinned_keep(host, entry.bytes, (unsigned)entry.value)) {
        outside_leave(OUTSIDE_HOST, (uint64_t)host);
        return CUDA_SUCCESS;
    }
    GIVE(OUTSIDE_HOST, host, REAL(cuMemFreeHost)(host));
}

CUresult hook_cuMemHostRegister_v2(void *host, size_t bytes, unsigned int flags) {
    struct device *device = here();
    CUresult r = REAL(cuMemHostRegister_v2)(host, bytes, flags);
    r = outside_end(r, OUTSIDE_PINNED_HOST, device, bytes, (uint64_t)host);
    if (r == CUDA_SUCCESS) {
        outside_set_value(OUTSIDE_HOST, (uint64_t)host, REGISTERED);
    }
    return r;
}

CUresult hook_cuMemHostUnregister(void *host) {
    GIVE(OUTSIDE_HOST, host, REAL(cuMemHostUnregister)(host));
}
