/*
 * Hooks of allocations that the pool does not serve: stream-ordered, managed and pinned host
 * memory, and imported blocks of the driver's pools. The driver serves each call. The hooks enter
 * the memory in the ledger (limit/unpooled.h). Only stream-ordered and managed memory is charged.
 * Called with no lock held.
 *
 * Freed pinned blocks are an exception: the library keeps some for the next request
 * (reuse/pinned.h).
 *
 * The hooks of prefetches give idle memory back first, for the pages of managed memory.
 */
#include "driver/context/context.h"
#include "driver/context/decay.h"
#include "driver/context/device_pool.h"
#include "driver/context/fault.h"
#include "driver/hooks/captures.h"
#include "driver/hooks/graph_memory.h"
#include "driver/hooks/hook.h"
#include "driver/hooks/stream_entries.h"
#include "driver/limit/charge.h"
#include "driver/limit/driver_pools.h"
#include "driver/reuse/pinned.h"
#include "driver/state/fast_path.h"
#include "driver/state/shutdown.h"

/* Value of a ledger row of pinned memory: its kind (reuse/pinned.h), or this, for memory of the
 * program that cuMemHostRegister() pinned. */
#define REGISTERED UINT64_MAX

/* --- stream-ordered and managed memory, and prefetches --- */

/* A call that allocates in the order of a stream. */
struct ordered_call {
    CUdeviceptr *dptr;
    size_t bytes;
    CUstream stream;
    struct stream_entries driver;
    bool is_node;                   /* the memory belongs to a graph, not to the driver's pool */
    struct driver_pool_claim claim; /* claim.pool: NULL if no pool counts the memory */
};

/* Describes a call. The allocation becomes a node of a graph if the stream is being captured. */
static struct ordered_call enter_stream(CUdeviceptr *dptr, size_t bytes, CUstream stream,
                                        struct stream_entries driver) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    bool is_node = atomic_load(&capture_active) > 0 &&
                   driver.capturing(stream, &status) == CUDA_SUCCESS &&
                   status != CU_STREAM_CAPTURE_STATUS_NONE;
    return (struct ordered_call){
        .dptr = dptr, .bytes = bytes, .stream = stream, .driver = driver, .is_node = is_node};
}

static struct ordered_call enter_legacy(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
    return enter_stream(dptr, bytes, stream, LEGACY_ENTRIES);
}

static struct ordered_call enter_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
    return enter_stream(dptr, bytes, stream, PTSZ_ENTRIES);
}

/*
 * Charges what the driver's pool may take from the device. Returns false if the limit refuses the
 * charge. Charges nothing if `dptr` is NULL or `bytes` is 0: the driver then returns its own error.
 * Charges nothing for a NULL pool: host memory, or a pool whose device is unknown.
 */
static bool charge_pool(struct ordered_call *call, struct driver_pool *pool) {
    return !pool || !call->dptr || call->bytes == 0 ||
           driver_pool_begin(pool, call->bytes, &call->claim);
}

/* Returns the device whose idle memory a retry releases, or NULL. */
static struct device *device_of(const struct ordered_call *call) {
    return call->claim.pool ? driver_pool_device(call->claim.pool) : NULL;
}

/* Frees an allocation that grew the driver's pool above the limit. Returns
 * CUDA_ERROR_OUT_OF_MEMORY. */
static CUresult give_up(const struct ordered_call *call) {
    struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_POINTER, *call->dptr, 0);
    unpooled_free_end(freeing, call->driver.free(*call->dptr, call->stream));
    *call->dptr = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Returns the device on which a node of a capture allocates: the device of its stream or pool. The
 * current context may be of another device. */
static struct device *device_of_node(CUdeviceptr address) {
    int ordinal = -1;
    REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    return ordinal >= 0 && process_ready() ? device_get(ordinal) : device_current();
}

/* Records the addresses of a node, or replaces the charge by the growth of the driver's pool.
 * Returns `answer`, or CUDA_ERROR_OUT_OF_MEMORY if the pool grew above the limit. */
static CUresult account_ordered(CUresult answer, const struct ordered_call *call) {
    if (call->is_node && answer == CUDA_SUCCESS && call->bytes > 0)
        graph_memory_given(device_of_node(*call->dptr), *call->dptr, call->bytes);
    bool allowed = !call->claim.pool || driver_pool_end(answer, &call->claim, *call->dptr);
    return allowed ? fault_notice(answer) : give_up(call);
}

CUresult hook_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
    struct ordered_call call = enter_legacy(dptr, bytes, stream);
    if (!call.is_node && !charge_pool(&call, driver_pool_current())) {
        return refused(device_of(&call),
                       REAL(cuMemAllocAsync)(dptr, bytes | IMPOSSIBLE_BYTES, stream));
    }
    CUresult answer =
        RETRY_FOR(bytes, device_of(&call), REAL(cuMemAllocAsync)(dptr, bytes, stream));
    return account_ordered(answer, &call);
}

CUresult hook_cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
    struct ordered_call call = enter_ptsz(dptr, bytes, stream);
    if (!call.is_node && !charge_pool(&call, driver_pool_current())) {
        return refused(device_of(&call),
                       REAL(cuMemAllocAsync_ptsz)(dptr, bytes | IMPOSSIBLE_BYTES, stream));
    }
    CUresult answer =
        RETRY_FOR(bytes, device_of(&call), REAL(cuMemAllocAsync_ptsz)(dptr, bytes, stream));
    return account_ordered(answer, &call);
}

CUresult hook_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
    struct ordered_call call = enter_legacy(dptr, bytes, stream);
    if (!call.is_node && !charge_pool(&call, driver_pool_of(pool))) {
        return refused(device_of(&call),
                       REAL(cuMemAllocFromPoolAsync)(dptr, bytes | IMPOSSIBLE_BYTES, pool, stream));
    }
    CUresult answer = RETRY_FOR(bytes, device_of(&call),
                                REAL(cuMemAllocFromPoolAsync)(dptr, bytes, pool, stream));
    return account_ordered(answer, &call);
}

CUresult hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
                                           CUstream stream) {
    struct ordered_call call = enter_ptsz(dptr, bytes, stream);
    if (!call.is_node && !charge_pool(&call, driver_pool_of(pool))) {
        return refused(device_of(&call), REAL(cuMemAllocFromPoolAsync_ptsz)(
                                             dptr, bytes | IMPOSSIBLE_BYTES, pool, stream));
    }
    CUresult answer = RETRY_FOR(bytes, device_of(&call),
                                REAL(cuMemAllocFromPoolAsync_ptsz)(dptr, bytes, pool, stream));
    return account_ordered(answer, &call);
}

/* Imports a block of another process's pool. Only the driver knows the size of the block, after the
 * import. */
CUresult hook_cuMemPoolImportPointer(CUdeviceptr *dptr, CUmemoryPool pool,
                                     CUmemPoolPtrExportData *data) {
    size_t bytes = 0;
    CUresult answer = RETRY(REAL(cuMemPoolImportPointer)(dptr, pool, data));
    if (answer == CUDA_SUCCESS &&
        REAL(cuMemGetAddressRange_v2)(NULL, &bytes, *dptr) == CUDA_SUCCESS) {
        context_address_given(*dptr, bytes);
        unpooled_enter(UNPOOLED_POOL_IMPORTED, device_current(), context_current_resolved(), bytes,
                       *dptr, 0);
    }
    return fault_notice(answer);
}

/* Gives the idle memory of an overcommitted device back: natively the pages of managed memory would
 * get the memory that the program has freed. Waits as the native frees did, and not for later
 * work. */
static void give_idle_to_managed(struct device *device) {
    if (device_is_overcommitted(device) &&
        device_idle_bytes(device, NULL) > device_unreleasable_bytes(device)) {
        device_pool_wait_for_events_in_free(device);
        device_release_others(device, NULL, UINT64_MAX, false);
    }
}

CUresult hook_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags) {
    struct unpooled_call call;
    struct device *device = device_current();
    if (!unpooled_begin(&call, UNPOOLED_MANAGED, device, bytes))
        return refused(device, REAL(cuMemAllocManaged)(dptr, bytes | IMPOSSIBLE_BYTES, flags));
    CUresult answer = RETRY_FOR(bytes, device, REAL(cuMemAllocManaged)(dptr, bytes, flags));
    unpooled_end(&call, answer, answer == CUDA_SUCCESS ? *dptr : 0, 0);
    if (answer == CUDA_SUCCESS && device) {
        give_idle_to_managed(device);
        decay_check_managed(); /* for memory that the program frees later */
    }
    return answer;
}

/* Gives idle memory back before a prefetch to the current device, if it takes the space of managed
 * memory. For another device the driver does not say how much memory is free. Waits as
 * give_idle_to_managed() does. */
static void prepare_prefetch(CUdevice to) {
    struct device *device = device_current();
    if (device && device->ordinal == to && device_pool_displaces_managed(device))
        give_idle_to_managed(device);
}

#define PREFETCHES(symbol, parameters, arguments, to)                                              \
    HOOK(hook_##symbol, parameters, prepare_prefetch(to), real_entries.real_##symbol arguments,    \
         fault_notice(answer))
#define DEVICE_AT(location) ((location).type == CU_MEM_LOCATION_TYPE_DEVICE ? (location).id : -1)

PREFETCHES(cuMemPrefetchAsync, (CUdeviceptr dptr, size_t bytes, CUdevice to, CUstream stream),
           (dptr, bytes, to, stream), to)
PREFETCHES(cuMemPrefetchAsync_ptsz, (CUdeviceptr dptr, size_t bytes, CUdevice to, CUstream stream),
           (dptr, bytes, to, stream), to)
PREFETCHES(cuMemPrefetchAsync_v2,
           (CUdeviceptr dptr, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream),
           (dptr, bytes, to, flags, stream), DEVICE_AT(to))
PREFETCHES(cuMemPrefetchAsync_v2_ptsz,
           (CUdeviceptr dptr, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream),
           (dptr, bytes, to, flags, stream), DEVICE_AT(to))

/* --- pinned host memory: counted, but not as device memory; kept for the next request --- */

/* Returns the driver's error for an allocation or free during a capture, else CUDA_SUCCESS. A hook
 * that serves a kept block makes no driver call, so it must look for this error itself. */
static CUresult capture_error_here(void) {
    struct pool *pool =
        fast_path_is_blocked() && atomic_load(&capture_active) > 0 ? context_pool() : NULL;
    return pool ? capture_verdict(pool) : CUDA_SUCCESS;
}

/*
 * Releases memory after the driver ran out of memory for pinned memory. Returns true if the caller
 * should repeat the call. Two kinds of memory help: device memory, because the driver needs some to
 * map host memory, and kept pinned blocks, which are locked host memory.
 */
static bool released_for_host(CUresult answer, struct device *device, struct oom_retry *oom_retry) {
    bool first = oom_retry->count == 0, any = retry_after(answer, device, 0, oom_retry),
         more = false;
    if (answer == CUDA_ERROR_OUT_OF_MEMORY && device && (first || any) &&
        pinned_release(&more) != 0) {
        /* Waits for work for limited times (pool_trim()): pinned blocks need an idle device. */
        device_pool_release_idle(device);
        pinned_release(&more);
    }
    return any || more;
}

typedef CUresult native_host_alloc(void **host, size_t bytes, unsigned int flags);

/* Adapts cuMemAllocHost, which has no flags, to native_host_alloc. */
static CUresult plain_host_alloc(void **host, size_t bytes, unsigned int unused) {
    (void)unused;
    return REAL(cuMemAllocHost_v2)(host, bytes);
}

/* Allocates pinned memory: a kept block of the same size and `kind`, else by `native`. */
static CUresult host_alloc(void **host, size_t bytes, unsigned int flags, unsigned kind,
                           native_host_alloc *native) {
    struct device *device = device_current();
    if (!device || !host || bytes == 0 || capture_error_here() != CUDA_SUCCESS)
        return fault_notice(native(host, bytes, flags));
    struct unpooled_call request;
    unpooled_begin(&request, UNPOOLED_PINNED_HOST, device, bytes); /* cannot refuse: not charged */
    void *kept = pinned_take(bytes, kind);
    CUresult answer = CUDA_SUCCESS;
    if (kept) {
        *host = kept;
    } else {
        struct oom_retry oom_retry = {.process_returns = oom_retry_returns()};
        do {
            answer = native(host, bytes, flags);
        } while (released_for_host(answer, device, &oom_retry));
    }
    if (answer == CUDA_SUCCESS) {
        device_count(device,
                     kept ? &device->unpooled.pinned_hits : &device->unpooled.pinned_misses);
    }
    return unpooled_end(&request, answer, answer == CUDA_SUCCESS ? (uint64_t)*host : 0, kind);
}

CUresult hook_cuMemAllocHost_v2(void **host, size_t bytes) {
    return host_alloc(host, bytes, 0, PINNED_PLAIN, plain_host_alloc);
}

CUresult hook_cuMemHostAlloc(void **host, size_t bytes, unsigned int flags) {
    /* The bit of PINNED_PLAIN is no flag of CUDA, and the driver refuses it. Without this change,
     * flags of that bit alone would get a kept block of cuMemAllocHost(). */
    unsigned kind = flags & PINNED_PLAIN ? PINNED_PLAIN | 1 : flags;
    return host_alloc(host, bytes, flags, kind, REAL(cuMemHostAlloc));
}

CUresult hook_cuMemFreeHost(void *host) {
    if (!process_is_started() || shutdown_over())
        return REAL(cuMemFreeHost)(host);
    CUresult refusal = capture_error_here();
    if (refusal != CUDA_SUCCESS)
        return refusal;
    uint64_t ends = pinned_ends();
    struct unpooled_entry entry = unpooled_find(UNPOOLED_HOST, (uint64_t)host);
    bool allocated = entry.bytes > 0 && entry.value != REGISTERED;
    struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_HOST, (uint64_t)host, 0);
    if ((allocated && !freeing) || pinned_has(host)) { /* being freed, or freed and kept */
        unpooled_free_end(freeing, CUDA_ERROR_INVALID_VALUE);
        return REAL(cuMemFreeHost)((void *)UNKNOWN_ADDRESS);
    }
    bool kept = allocated && pinned_keep(host, entry.bytes, (unsigned)entry.value, ends);
    return unpooled_free_end(freeing, kept ? CUDA_SUCCESS : REAL(cuMemFreeHost)(host));
}

CUresult hook_cuMemHostRegister_v2(void *host, size_t bytes, unsigned int flags) {
    struct device *device = device_current();
    struct unpooled_call request;
    unpooled_begin(&request, UNPOOLED_PINNED_HOST, device, bytes);
    struct oom_retry oom_retry = {.process_returns = oom_retry_returns()};
    CUresult answer;
    do {
        answer = REAL(cuMemHostRegister_v2)(host, bytes, flags);
    } while (released_for_host(answer, device, &oom_retry));
    return unpooled_end(&request, answer, (uint64_t)host, REGISTERED);
}

CUresult hook_cuMemHostUnregister(void *host) {
    struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_HOST, (uint64_t)host, 0);
    return unpooled_free_end(freeing, REAL(cuMemHostUnregister)(host));
}
