/*
 * Hooks of allocations that the pool does not serve: stream-ordered, managed and pinned host
 * memory. The driver serves each call. The hooks enter the memory in the ledger (limit/unpooled.h)
 * and hold device memory to the limit. Called with no lock held.
 *
 * Freed pinned blocks are an exception: the library keeps some for the next request
 * (reuse/pinned.h).
 */
#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/hooks/captures.h"
#include "driver/hooks/graph_memory.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/retry.h"
#include "driver/limit/unpooled.h"
#include "driver/limit/unpooled_hook.h"
#include "driver/reuse/pinned.h"
#include "driver/state/device.h"
#include "driver/state/shutdown.h"
#include "driver/table/entries.h"
#include "process/process.h"

/* Value of a ledger row for memory of the program that cuMemHostRegister() pinned. */
#define REGISTERED UINT64_MAX

/* --- stream-ordered, managed --- */

/* Returns whether an allocation in a stream becomes a node of a graph, because the stream is being
 * captured. The memory then belongs to the graph, and not to the driver's pool. */
static bool becomes_node(CUstream stream,
                         CUresult (*capturing)(CUstream, CUstreamCaptureStatus *)) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return atomic_load(&capture_active) > 0 && capturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Records the addresses of a node that allocates. Returns the driver's answer. */
static CUresult became_node(CUresult answer, const CUdeviceptr *dptr, size_t bytes) {
    if (answer == CUDA_SUCCESS && bytes > 0) {
        graph_memory_given(process_ready() ? device_current() : NULL, *dptr, bytes);
    }
    return answer;
}

/* Frees an allocation that grew the driver's pool above the limit. Returns
 * CUDA_ERROR_OUT_OF_MEMORY. */
static CUresult give_up(CUdeviceptr *dptr, CUstream stream,
                        CUresult (*free_async)(CUdeviceptr, CUstream)) {
    struct ledger_row *freeing = unpooled_leave_begin(UNPOOLED_POINTER, *dptr, 0);
    unpooled_leave_end(freeing, free_async(*dptr, stream) == CUDA_SUCCESS);
    *dptr = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Body of a hook that allocates from a pool of the driver. `from` is the pool, `suffix` the variant
 * of the entry points, `call` the driver call. Charges what the pool may take from the device. If
 * the limit refuses the charge, asks the driver whether the stream is valid: that error comes
 * first.
 */
#define TAKE_ORDERED(from, suffix, call)                                                           \
    do {                                                                                           \
        struct driver_pool_claim claim;                                                            \
        if (becomes_node(stream, REAL(cuStreamIsCapturing##suffix))) {                             \
            return became_node((call), dptr, bytes);                                               \
        }                                                                                          \
        struct driver_pool *source = (from);                                                       \
        if (!source || !dptr || bytes == 0) {                                                      \
            return (call);                                                                         \
        }                                                                                          \
        if (!driver_pool_begin(source, bytes, &claim)) {                                           \
            CUstreamCaptureStatus status;                                                          \
            return refused(REAL(cuStreamIsCapturing##suffix)(stream, &status));                    \
        }                                                                                          \
        CUresult answer = RETRY_FOR(bytes, driver_pool_device(source), call);                      \
        return driver_pool_end(answer, &claim, *dptr)                                              \
                   ? answer                                                                        \
                   : give_up(dptr, stream, REAL(cuMemFreeAsync##suffix));                          \
    } while (0)

CUresult hook_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
    TAKE_ORDERED(driver_pool_current(), , REAL(cuMemAllocAsync)(dptr, bytes, stream));
}

CUresult hook_cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
    TAKE_ORDERED(driver_pool_current(), _ptsz, REAL(cuMemAllocAsync_ptsz)(dptr, bytes, stream));
}

CUresult hook_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
    TAKE_ORDERED(driver_pool_of(pool), , REAL(cuMemAllocFromPoolAsync)(dptr, bytes, pool, stream));
}

CUresult hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
                                           CUstream stream) {
    TAKE_ORDERED(driver_pool_of(pool), _ptsz,
                 REAL(cuMemAllocFromPoolAsync_ptsz)(dptr, bytes, pool, stream));
}

/* Imports a block of another process's pool. Only the driver knows the size of the block, after the
 * import. */
CUresult hook_cuMemPoolImportPointer(CUdeviceptr *dptr, CUmemoryPool pool,
                                     CUmemPoolPtrExportData *data) {
    size_t bytes = 0;
    CUresult r = RETRY(REAL(cuMemPoolImportPointer)(dptr, pool, data));
    if (r == CUDA_SUCCESS && REAL(cuMemGetAddressRange_v2)(NULL, &bytes, *dptr) == CUDA_SUCCESS) {
        context_address_given(*dptr, bytes);
        unpooled_enter(UNPOOLED_POOL_IMPORTED, here(), bytes, *dptr, 0);
    }
    return r;
}

CUresult hook_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags) {
    TAKE(UNPOOLED_MANAGED, here(), bytes, REAL(cuMemAllocManaged)(dptr, bytes | TOO_MUCH, flags),
         REAL(cuMemAllocManaged)(dptr, bytes, flags), *dptr);
}

/* --- pinned host memory: counted, but not as device memory; kept for the next request --- */

/* Returns the driver's error for an allocation or free during a capture, else CUDA_SUCCESS. A kept
 * block needs no driver call that would return the error. */
static CUresult capture_error(void) {
    struct pool *pool =
        capture_is_unusual() && atomic_load(&capture_active) > 0 ? context_pool() : NULL;
    return pool ? capture_verdict(pool) : CUDA_SUCCESS;
}

/*
 * Releases memory after the driver had none for pinned memory. Returns true if the call is worth
 * another try. Two kinds of memory help: device memory, because the driver needs some to map host
 * memory, and kept pinned blocks, which are locked host memory.
 */
static bool released_for_host(CUresult answer, struct device *device, struct oom_retry *oom_retry) {
    bool first = oom_retry->count == 0, any = retry_after(answer, device, 0, oom_retry),
         more = false;
    if (answer == CUDA_ERROR_OUT_OF_MEMORY && device && (first || any) &&
        pinned_release(&more) != 0) {
        /* Waits for a short time for work in progress. Pinned blocks need an idle device. */
        device_pool_release_idle(device);
        pinned_release(&more);
    }
    return any || more;
}

typedef CUresult native_host_alloc(void **host, size_t bytes, unsigned int flags);

static CUresult plain_host_alloc(void **host, size_t bytes, unsigned int unused) {
    (void)unused;
    return REAL(cuMemAllocHost_v2)(host, bytes);
}

/* Allocates pinned memory: a kept block of the same size and `kind`, else by `native`. */
static CUresult host_alloc(void **host, size_t bytes, unsigned int flags, unsigned kind,
                           native_host_alloc *native) {
    struct device *device = here();
    if (!device || !host || bytes == 0 || capture_error() != CUDA_SUCCESS) {
        return native(host, bytes, flags);
    }
    struct unpooled_call request;
    unpooled_begin(&request, UNPOOLED_PINNED_HOST, device, bytes);
    void *kept = pinned_take(bytes, kind);
    CUresult r = CUDA_SUCCESS;
    if (kept) {
        *host = kept;
    } else {
        struct oom_retry oom_retry = {.returns = oom_retry_returns()};
        do {
            r = native(host, bytes, flags);
        } while (released_for_host(r, device, &oom_retry));
    }
    if (r == CUDA_SUCCESS) {
        device_count(device, kept ? &device->outside.pinned_hits : &device->outside.pinned_misses);
    }
    return unpooled_end(&request, r, r == CUDA_SUCCESS ? (uint64_t)*host : 0, kind);
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
    CUresult refusal = capture_error();
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    uint64_t ends = pinned_ends();
    struct unpooled_entry entry = unpooled_find(UNPOOLED_HOST, (uint64_t)host);
    bool ours = entry.bytes > 0 && entry.value != REGISTERED;
    struct ledger_row *freeing = unpooled_leave_begin(UNPOOLED_HOST, (uint64_t)host, 0);
    if ((ours && !freeing) || pinned_has(host)) { /* another thread frees or has freed the block */
        unpooled_leave_end(freeing, false);
        return REAL(cuMemFreeHost)((void *)UNKNOWN_ADDRESS);
    }
    bool kept = ours && pinned_keep(host, entry.bytes, (unsigned)entry.value, ends);
    CUresult r = kept ? CUDA_SUCCESS : REAL(cuMemFreeHost)(host);
    unpooled_leave_end(freeing, r == CUDA_SUCCESS);
    return r;
}

CUresult hook_cuMemHostRegister_v2(void *host, size_t bytes, unsigned int flags) {
    struct device *device = here();
    struct unpooled_call request;
    unpooled_begin(&request, UNPOOLED_PINNED_HOST, device, bytes);
    struct oom_retry oom_retry = {.returns = oom_retry_returns()};
    CUresult r;
    do {
        r = REAL(cuMemHostRegister_v2)(host, bytes, flags);
    } while (released_for_host(r, device, &oom_retry));
    return unpooled_end(&request, r, (uint64_t)host, REGISTERED);
}

CUresult hook_cuMemHostUnregister(void *host) {
    GIVE(UNPOOLED_HOST, host, REAL(cuMemHostUnregister)(host));
}
