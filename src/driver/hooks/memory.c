/*
 * Hooks of cuMemAlloc, cuMemAllocPitch, cuMemFree and cuMemFreeAsync: convert CUDA's arguments to
 * the pool's, and the pool's results to CUDA's error codes.
 *
 * The driver gets each call that the pool cannot answer: no current context, a context with a
 * fault, a pointer outside all pools, a request that the driver would refuse. Memory that the
 * driver gives out here is unpooled memory, counted and limited (limit/unpooled.h).
 *
 * Called with no lock held. Fast path: a call goes straight to the pool while fast_path_blocks is 0
 * (state/fast_path.h). Otherwise the slower functions check for captures, traces, stack recording,
 * exit handlers and forks.
 */
#include "base/likely.h"
#include "base/log.h"
#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/context/fault.h"
#include "driver/hooks/captures.h"
#include "driver/hooks/hook.h"
#include "driver/hooks/stream_entries.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/retry.h"
#include "driver/limit/unpooled.h"
#include "driver/observe/block_stacks.h"
#include "driver/observe/oom_snapshot.h"
#include "driver/observe/tracing.h"
#include "driver/reuse/deferred.h"
#include "driver/state/device.h"
#include "driver/state/fast_path.h"
#include "driver/state/shutdown.h"
#include "driver/table/entries.h"
#include "heap/block.h"
#include "live/live.h"
#include "options/options.h"
#include "pool/pool.h"
#include "process/process.h"
#include "report/report.h"

#include <errno.h>

#define PITCH_UNIT ((size_t)512) /* the driver rounds a pitch up to this: docs/cuda-facts.md */

#define SHOWN_OOMS 3 /* out-of-memory errors of the process that refresh the live page */

/* --- allocating --- */

/*
 * Records an out-of-memory error in the flight recorder and the trace. The first SHOWN_OOMS errors
 * also refresh the live page, with the sizes of live blocks. The number is limited because a
 * program may allocate until it fails, to find out how much memory there is.
 */
static void show_oom(const struct device *device, size_t bytes, size_t free_bytes) {
    static _Atomic unsigned shown;
    flight_event(FLIGHT_OOM, (unsigned)device->ordinal, 0, bytes, 0);
    if (trace_on()) {
        uint32_t stack = stack_recording_is_on() ? stacks_here(device->ordinal) : 0;
        trace_oom((unsigned)device->ordinal, bytes, free_bytes, trace_stack(stats_stacks(), stack));
    }
    if (atomic_load(&shown) < SHOWN_OOMS && atomic_fetch_add(&shown, 1) < SHOWN_OOMS)
        live_refresh(true);
}

/* Counts and reports an out-of-memory error. Returns CUDA_ERROR_OUT_OF_MEMORY. */
static __attribute__((noinline, cold)) CUresult out_of_memory(struct device *device, size_t bytes,
                                                              bool refused_at_limit) {
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t limit = atomic_load(&device->limit);
    /* The pool refuses more bytes than the limit with -ENOMEM, and does not ask the driver. */
    device_count_oom(device, refused_at_limit || (limit && bytes > limit));
    driver_pool_query_all(device);
    REAL(cuMemGetInfo_v2)(&free_bytes, &total_bytes);
    show_oom(device, bytes, free_bytes);
    struct report_oom oom = {
        .device = device->ordinal,
        .requested = bytes,
        .limit = limit,
        .device_free = free_bytes,
        .device_total = total_bytes,
    };
    report_oom(&oom);
    oom_snapshot_write(&oom);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Returns the driver's error for an allocation or free during a capture, else CUDA_SUCCESS. */
static __attribute__((noinline, cold)) CUresult capture_error(struct pool *pool) {
    return atomic_load(&capture_active) > 0 ? capture_verdict(pool) : CUDA_SUCCESS;
}

/*
 * Returns whether the driver may serve a request that a pool of the vmm backend could not. Call
 * after pool_alloc() has returned -ENOMEM. Two cases:
 *
 *   1. The driver lacks handles or addresses to map, and still serves cuMemAlloc.
 *   2. The driver trims its own pools for cuMemAlloc, but not for cuMemCreate. During a capture
 *      driver_pool_trim() does not trim them either, and cuMemGetInfo does not count their memory.
 */
static bool driver_may_serve(struct pool *pool, size_t bytes) {
    size_t free_bytes = 0, total_bytes = 0;
    return atomic_load(&device_of_pool(pool)->uses_vmm) &&
           (atomic_load(&capture_active) > 0 ||
            (REAL(cuMemGetInfo_v2)(&free_bytes, &total_bytes) == CUDA_SUCCESS &&
             bytes <= free_bytes));
}

/*
 * Handles a request for which pool_alloc() returned `r`. Returns true if the request is refused,
 * with CUDA_ERROR_OUT_OF_MEMORY in *result. Returns false if the caller must ask the driver.
 */
static bool refused_alloc(struct pool *pool, int r, CUdeviceptr *dptr, size_t bytes,
                          CUresult *result) {
    if ((r != -ENOMEM && r != -EDQUOT) || (r == -ENOMEM && driver_may_serve(pool, bytes)))
        return false;
    *dptr = 0; /* the driver also clears the pointer */
    *result = out_of_memory(device_of_pool(pool), bytes, r == -EDQUOT);
    return true;
}

/*
 * Allocates from a pool, unless it is NULL. Returns true with the answer in *result, or false if
 * the caller must ask the driver.
 */
static bool pooled_alloc(struct pool *pool, CUdeviceptr *dptr, size_t bytes, CUresult *result) {
    if (unlikely(!pool))
        return false;
    if (fast_path_is_blocked() && (*result = capture_error(pool)) != CUDA_SUCCESS)
        return true;
    uint64_t address;
    int r = pool_alloc(pool, bytes, &address);
    if (unlikely(r != 0))
        return refused_alloc(pool, r, dptr, bytes, result);
    uint32_t stack = 0;
    if (stack_recording_is_on()) {
        int ordinal = device_of_pool(pool)->ordinal;
        stack = stacks_here(ordinal);
        stacks_add(stack, address, bytes, bytes <= SMALL_MAX_BYTES);
    }
    *dptr = address;
    *result = CUDA_SUCCESS;
    if (unlikely(trace_on()))
        tracing_allocated(address, stack);
    return true;
}

/*
 * Charges an allocation that the driver must serve. Returns false if the limit refuses the
 * allocation: the caller then returns refused_native(). After true the caller passes the driver's
 * answer to account_native(). `pool` may be NULL.
 */
static bool enter_native(struct pool *pool, struct unpooled_call *request, size_t bytes) {
    struct device *device = pool ? device_of_pool(pool) : device_current();
    return unpooled_begin(request, UNPOOLED_NATIVE, device, bytes);
}

/*
 * Returns the answer to an allocation that the limit has refused, and sets *dptr as the driver
 * does. An error of the driver, for example because of a capture or a fault, wins: the program is
 * then not out of memory. Asks cuMemAlloc for a pitched allocation too: cuMemAllocPitch has further
 * bounds on its sizes, and could refuse IMPOSSIBLE_BYTES for another reason.
 */
static __attribute__((noinline, cold)) CUresult refused_native(const struct unpooled_call *request,
                                                               CUdeviceptr *dptr) {
    CUresult answer = REAL(cuMemAlloc_v2)(dptr, request->bytes | IMPOSSIBLE_BYTES);
    if (answer != CUDA_SUCCESS && answer != CUDA_ERROR_OUT_OF_MEMORY)
        return fault_notice(answer);
    return out_of_memory(request->device, request->bytes, true);
}

/* Enters the memory that the driver gave, or takes the charge back. Returns the driver's answer. */
static CUresult account_native(CUresult answer, struct unpooled_call *request,
                               const CUdeviceptr *dptr) {
    if (answer == CUDA_ERROR_OUT_OF_MEMORY && request->device)
        out_of_memory(request->device, request->bytes, false);
    bool recorded = stack_recording_is_on() && answer == CUDA_SUCCESS && request->device;
    if (recorded)
        request->stack = stacks_here(request->device->ordinal);
    unpooled_end(request, answer, dptr && answer == CUDA_SUCCESS ? *dptr : 0, 0);
    if (recorded)
        stacks_add(request->stack, *dptr, request->bytes, false);
    return answer;
}

/* Allocates from the driver. Counts the memory if its device is known: not in a forked child, and
 * not without a context. */
static CUresult native_alloc(struct pool *pool, CUdeviceptr *dptr, size_t bytes) {
    struct unpooled_call request;
    if (!enter_native(pool, &request, bytes))
        return refused_native(&request, dptr);
    CUresult answer = RETRY_FOR(bytes, request.device, REAL(cuMemAlloc_v2)(dptr, bytes));
    return account_native(answer, &request, dptr);
}

/* Allocates without the fast path: bad arguments, no pool, or fast_path_blocks is not 0. */
static __attribute__((noinline)) CUresult alloc_slowly(CUdeviceptr *dptr, size_t bytes) {
    if (!dptr || bytes == 0)
        return fault_notice(REAL(cuMemAlloc_v2)(dptr, bytes));
    CUresult result;
    struct pool *pool = context_pool();
    return pooled_alloc(pool, dptr, bytes, &result) ? result : native_alloc(pool, dptr, bytes);
}

/* Answers an allocation on the fast path for which pool_alloc() returned the error `r`. */
static __attribute__((noinline)) CUresult answer_failed_alloc(struct pool *pool, int r,
                                                              CUdeviceptr *dptr, size_t bytes) {
    CUresult result;
    return bytes == 0 ? fault_notice(REAL(cuMemAlloc_v2)(dptr, 0))
           : refused_alloc(pool, r, dptr, bytes, &result) ? result
                                                          : native_alloc(pool, dptr, bytes);
}

CUresult hook_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes) {
    struct pool *pool = dptr ? context_pool() : NULL;
    if (unlikely(!pool || fast_path_is_blocked()))
        return alloc_slowly(dptr, bytes);
    uint64_t address;
    int r = pool_alloc(pool, bytes, &address);
    if (unlikely(r != 0))
        return answer_failed_alloc(pool, r, dptr, bytes);
    *dptr = address;
    return CUDA_SUCCESS;
}

/* Sets the pitch after success and after CUDA_ERROR_OUT_OF_MEMORY, as the driver does
 * (tests/programs/limit_codes.c). Returns `answer`. */
static CUresult set_pitch(CUresult answer, size_t *pitch, size_t row) {
    if (answer == CUDA_SUCCESS || answer == CUDA_ERROR_OUT_OF_MEMORY)
        *pitch = row;
    return answer;
}

CUresult hook_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
                                 unsigned int element) {
    size_t row = (width + PITCH_UNIT - 1) & ~(PITCH_UNIT - 1), bytes = 0;
    bool regular = dptr && pitch && width > 0 && height > 0 && row >= width &&
                   (element == 4 || element == 8 || element == 16) &&
                   !__builtin_mul_overflow(row, height, &bytes);
    CUresult result;
    struct pool *pool = regular ? context_pool() : NULL;
    if (regular && pooled_alloc(pool, dptr, bytes, &result))
        return set_pitch(result, pitch, row);
    if (!regular)
        return fault_notice(REAL(cuMemAllocPitch_v2)(dptr, pitch, width, height, element));
    struct unpooled_call request;
    if (!enter_native(pool, &request, bytes))
        return set_pitch(refused_native(&request, dptr), pitch, row);
    CUresult answer = RETRY_FOR(bytes, request.device,
                                REAL(cuMemAllocPitch_v2)(dptr, pitch, width, height, element));
    return account_native(answer, &request, dptr);
}

/* --- freeing --- */

/* Counts a free of an address in a pool where no live block starts. Returns the error. */
static __attribute__((noinline, cold)) CUresult refused_free(CUdeviceptr dptr) {
    struct pool *pool = context_pool();
    if (pool) {
        struct device *device = device_of_pool(pool);
        device_count(device, &device->unpooled.invalid_frees);
    }
    if (fault_of(pool))
        return fault_of(pool);
    log_debug("free of %p: inside a pool, but no live allocation starts there", (void *)dptr);
    return CUDA_ERROR_INVALID_VALUE;
}

/*
 * Handles a free after the driver has ended, in a forked child, or during a capture that forbids
 * frees. Returns true with the error or the driver's answer in *answer. Returns false if the caller
 * must free the block.
 */
static __attribute__((noinline, cold)) bool answer_unusual_free(CUdeviceptr dptr,
                                                                CUresult *answer) {
    if (shutdown_over()) {
        *answer = CUDA_ERROR_DEINITIALIZED;
        return true;
    }
    if (process_is_forked()) {
        *answer = REAL(cuMemFree_v2)(dptr);
        return true;
    }
    struct pool *pool = context_pool();
    *answer = pool ? capture_error(pool) : CUDA_SUCCESS;
    if (!pool && atomic_load(&capture_active) > 0) { /* the driver's answer for this thread */
        CUresult native = REAL(cuMemFree_v2)(UNKNOWN_ADDRESS);
        *answer = native == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? native : CUDA_SUCCESS;
    }
    return *answer != CUDA_SUCCESS;
}

/* Answers a free for which pool_free() returned `r`. -ENOENT: frees unpooled memory by the driver.
 * -EINVAL: no live block starts at `dptr`. Any other value is the driver's error. */
static __attribute__((noinline)) CUresult answer_failed_free(int r, CUdeviceptr dptr) {
    if (r == -ENOENT) {
        struct ledger_row *freeing = dptr ? unpooled_free_begin(UNPOOLED_POINTER, dptr, 0) : NULL;
        return unpooled_free_end(freeing, REAL(cuMemFree_v2)(dptr));
    }
    if (r != -EINVAL)
        return (CUresult)r;
    /* Another thread may have ended the current context. The driver reports that error first. */
    CUresult refused = refused_free(dptr), native = REAL(cuMemFree_v2)(UNKNOWN_ADDRESS);
    return native == CUDA_ERROR_INVALID_VALUE ? refused : native;
}

static inline CUresult answer_free(int r, CUdeviceptr dptr) {
    return likely(r == 0) ? CUDA_SUCCESS : answer_failed_free(r, dptr);
}

static inline CUresult free_pooled_or_native(CUdeviceptr dptr) {
    return answer_free(pool_free(dptr), dptr);
}

/* Frees while fast_path_blocks is not 0: checks all that the fast path leaves out. */
static __attribute__((noinline, cold)) CUresult free_slowly(CUdeviceptr dptr) {
    CUresult answer;
    struct stacks_block block;
    if (answer_unusual_free(dptr, &answer))
        return answer;
    bool recorded = block_stacks_free_begin(dptr, &block);
    answer = answer_free(trace_on() ? tracing_free(dptr) : pool_free(dptr), dptr);
    if (recorded)
        block_stacks_free_end(&block, answer != CUDA_SUCCESS);
    return answer;
}

CUresult hook_cuMemFree_v2(CUdeviceptr dptr) {
    return fast_path_is_blocked() ? free_slowly(dptr) : free_pooled_or_native(dptr);
}

/* --- freeing in the order of a stream --- */

/*
 * Returns the driver's error for a free in `stream` made now: because of the stream, the context,
 * or a capture, which the driver then invalidates. Asks the driver to free an unknown address. If
 * the address is the only error, returns CUDA_SUCCESS. Returns CUDA_ERROR_INVALID_VALUE if the
 * stream itself is being captured: only memory of a graph can be freed there.
 */
static __attribute__((noinline, cold)) CUresult
stream_verdict(CUstream stream, const struct stream_entries *driver) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = driver->free(UNKNOWN_ADDRESS, stream);
    if (r != CUDA_ERROR_INVALID_VALUE)
        return r;
    driver->capturing(stream, &status);
    return status == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult free_pooled_or_native_in_stream(CUdeviceptr dptr, CUstream stream,
                                                const struct stream_entries *driver) {
    if (!pool_has(dptr)) {
        struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_POINTER, dptr, 0);
        return unpooled_free_end(freeing, driver->free(dptr, stream));
    }
    CUcontext current = context_pool() ? context_last.handle : NULL;
    if (atomic_load(&capture_active) > 0 || !current) {
        CUresult verdict = stream_verdict(stream, driver);
        if (verdict != CUDA_SUCCESS)
            return verdict; /* not a misuse of the address: not counted as an invalid free */
    }
    struct tracing_freed freed = {.known = false};
    if (trace_on())
        freed = tracing_free_begin(dptr);
    CUresult r = deferred_add(dptr, current, stream, driver->per_thread, driver->record);
    if (r == CUDA_SUCCESS)
        tracing_free_end(&freed, stream);
    return r == CUDA_ERROR_INVALID_VALUE ? refused_free(dptr) : r;
}

/* Frees when `stream` reaches this point, by a deferred free if the block is a pool's. */
static CUresult free_in_stream(CUdeviceptr dptr, CUstream stream,
                               const struct stream_entries *driver) {
    if (shutdown_over())
        return CUDA_ERROR_DEINITIALIZED;
    if (process_is_forked())
        return driver->free(dptr, stream);
    struct stacks_block block;
    bool recorded = block_stacks_free_begin(dptr, &block);
    CUresult answer = free_pooled_or_native_in_stream(dptr, stream, driver);
    if (recorded)
        block_stacks_free_end(&block, answer != CUDA_SUCCESS);
    return fault_notice(answer);
}

CUresult hook_cuMemFreeAsync(CUdeviceptr dptr, CUstream stream) {
    const struct stream_entries driver = LEGACY_ENTRIES;
    return free_in_stream(dptr, stream, &driver);
}

CUresult hook_cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream) {
    const struct stream_entries driver = PTSZ_ENTRIES;
    return free_in_stream(dptr, stream, &driver);
}
