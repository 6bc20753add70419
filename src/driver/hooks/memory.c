/*
 * Allocating and freeing device memory: CUDA's terms in, the pool's terms out.
 *
 * The driver is asked whenever the pool is not the one to answer: no current context, a request it
 * would refuse, a pointer that is not ours, a context that a fault has killed.
 */
#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/context/fault.h"
#include "driver/hooks/captures.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/retry.h"
#include "driver/limit/unpooled.h"
#include "driver/observe/block_stacks.h"
#include "driver/observe/tracing.h"
#include "driver/reuse/deferred.h"
#include "driver/state/device.h"
#include "driver/state/shutdown.h"
#include "driver/table/entries.h"
#include "live/live.h"
#include "pool/pool.h"
#include "process/log.h"
#include "process/options.h"
#include "process/process.h"
#include "report/report.h"

#include <errno.h>

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define PITCH_UNIT ((size_t)512) /* the driver rounds a pitch up to this: docs/cuda-facts.md */

#define SHOWN_OOMS 3

/* --- allocating --- */

/* The first ones at once and with the sizes of what is live; a program may find out by failing what there is. */
static void show_oom(const struct device *device, size_t bytes, size_t free_bytes) {
    static _Atomic unsigned shown;
    flight_event(FLIGHT_OOM, (unsigned)device->ordinal, 0, bytes, 0);
    if (trace_on()) {
        uint32_t stack = block_stacks_on() ? stacks_here(device->ordinal) : 0;
        trace_oom((unsigned)device->ordinal, bytes, free_bytes, trace_stack(stats_stacks(), stack));
    }
    if (atomic_load(&shown) < SHOWN_OOMS && atomic_fetch_add(&shown, 1) < SHOWN_OOMS) {
        live_refresh(true);
    }
}

static __attribute__((noinline, cold)) CUresult out_of_memory(struct device *device, size_t bytes,
                                                              bool refused_at_limit) {
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t limit = atomic_load(&device->limit);
    /* what is more than the limit is refused before anything is asked */
    device_count_oom(device, refused_at_limit || (limit && bytes > limit));
    driver_pool_look(device);
    REAL(cuMemGetInfo_v2)(&free_bytes, &total_bytes);
    show_oom(device, bytes, free_bytes);
    report_oom(&(struct report_oom){
        .device = device->ordinal,
        .requested = bytes,
        .limit = limit,
        .device_free = free_bytes,
        .device_total = total_bytes,
    });
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Whether the driver would refuse an allocation or free made now. */
static __attribute__((noinline, cold)) CUresult unusual_call(struct pool *pool) {
    return atomic_load(&capture_active) > 0 ? capture_verdict(pool) : CUDA_SUCCESS;
}

/* The driver may have no more pages, or no room to map them, and memory all the same. */
static bool has_no_pages(struct pool *pool, size_t bytes) {
    size_t free_bytes = 0, total_bytes = 0;
    return atomic_load(&device_pool_owner(pool)->in_pages) &&
           REAL(cuMemGetInfo_v2)(&free_bytes, &total_bytes) == CUDA_SUCCESS && bytes <= free_bytes;
}

/* The pool has not served a request. True if that is the answer; else the driver is to be asked. */
static bool refused_alloc(struct pool *pool, int r, CUdeviceptr *dptr, size_t bytes,
                          CUresult *result) {
    if ((r != -ENOMEM && r != -EDQUOT) || (r == -ENOMEM && has_no_pages(pool, bytes))) {
        return false;
    }
    *dptr = 0; /* as the driver does */
    *result = out_of_memory(device_pool_owner(pool), bytes, r == -EDQUOT);
    return true;
}

/* True if the pool has answered; else the driver is to be asked. */
static bool pooled_alloc(struct pool *pool, CUdeviceptr *dptr, size_t bytes, CUresult *result) {
    if (unlikely(!pool)) {
        return false;
    }
    if (capture_is_unusual() && (*result = unusual_call(pool)) != CUDA_SUCCESS) {
        return true;
    }
    uint64_t address;
    int r = pool_alloc(pool, bytes, &address);
    if (unlikely(r != 0)) {
        return refused_alloc(pool, r, dptr, bytes, result);
    }
    uint32_t stack = 0;
    if (block_stacks_on()) {
        int ordinal = device_pool_owner(pool)->ordinal;
        stack = stacks_here(ordinal);
        stacks_take(stack, address, bytes);
    }
    *dptr = address;
    *result = CUDA_SUCCESS;
    if (unlikely(trace_on())) {
        tracing_allocated(address, stack);
    }
    return true;
}

/* An allocation that the pool, if there is one, does not serve. `taking` is to be ended with its answer. */
static bool native_begin(struct pool *pool, struct unpooled_call *taking, size_t bytes) {
    struct device *device = pool              ? device_pool_owner(pool)
                            : process_ready() ? device_current()
                                              : NULL;
    bool allowed = unpooled_begin(taking, UNPOOLED_NATIVE, device, bytes);
    if (!allowed && device) {
        out_of_memory(device, bytes, true);
    }
    return allowed;
}

static CUresult native_end(struct unpooled_call *taking, CUresult answer, const CUdeviceptr *dptr) {
    if (answer == CUDA_ERROR_OUT_OF_MEMORY && taking->device) {
        out_of_memory(taking->device, taking->bytes, false);
    }
    bool remembered = block_stacks_on() && answer == CUDA_SUCCESS && taking->device;
    if (remembered) {
        taking->stack = stacks_here(taking->device->ordinal);
    }
    CUresult r = unpooled_end(taking, answer, dptr && answer == CUDA_SUCCESS ? *dptr : 0, 0);
    if (remembered) {
        stacks_take(taking->stack, *dptr, taking->bytes);
    }
    return r;
}

/* Straight from the driver, counted where the books of this process can be kept. */
static CUresult native_alloc(struct pool *pool, CUdeviceptr *dptr, size_t bytes) {
    struct unpooled_call taking;
    if (!native_begin(pool, &taking, bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult r = RETRY_FOR(bytes, taking.device, REAL(cuMemAlloc_v2)(dptr, bytes));
    return native_end(&taking, r, dptr);
}

static __attribute__((noinline)) CUresult alloc_otherwise(CUdeviceptr *dptr, size_t bytes) {
    if (!dptr || bytes == 0) {
        return REAL(cuMemAlloc_v2)(dptr, bytes);
    }
    CUresult result;
    struct pool *pool = context_pool();
    return pooled_alloc(pool, dptr, bytes, &result) ? result : native_alloc(pool, dptr, bytes);
}

static __attribute__((noinline)) CUresult alloc_after(struct pool *pool, int r, CUdeviceptr *dptr,
                                                      size_t bytes) {
    CUresult result;
    return bytes == 0                                     ? REAL(cuMemAlloc_v2)(dptr, 0)
           : refused_alloc(pool, r, dptr, bytes, &result) ? result
                                                          : native_alloc(pool, dptr, bytes);
}

CUresult hook_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes) {
    struct pool *pool = dptr ? context_pool() : NULL;
    if (unlikely(!pool || capture_is_unusual())) {
        return alloc_otherwise(dptr, bytes);
    }
    uint64_t address;
    int r = pool_alloc(pool, bytes, &address);
    if (unlikely(r != 0)) {
        return alloc_after(pool, r, dptr, bytes);
    }
    *dptr = address;
    return CUDA_SUCCESS;
}

CUresult hook_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
                                 unsigned int element) {
    size_t row = (width + PITCH_UNIT - 1) & ~(PITCH_UNIT - 1), bytes = 0;
    bool regular = dptr && pitch && width > 0 && height > 0 && row >= width &&
                   (element == 4 || element == 8 || element == 16) &&
                   !__builtin_mul_overflow(row, height, &bytes);
    CUresult result;
    struct pool *pool = regular ? context_pool() : NULL;
    if (regular && pooled_alloc(pool, dptr, bytes, &result)) {
        if (result == CUDA_SUCCESS) {
            *pitch = row;
        }
        return result;
    }
    if (!regular) {
        return REAL(cuMemAllocPitch_v2)(dptr, pitch, width, height, element);
    }
    struct unpooled_call taking;
    if (!native_begin(pool, &taking, bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult r = RETRY_FOR(bytes, taking.device,
                           REAL(cuMemAllocPitch_v2)(dptr, pitch, width, height, element));
    return native_end(&taking, r, dptr);
}

/* --- freeing --- */

static __attribute__((noinline, cold)) CUresult refused_free(CUdeviceptr dptr) {
    struct pool *pool = context_pool();
    if (pool) {
        struct device *device = device_pool_owner(pool);
        device_count(device, &device->outside.invalid_frees);
    }
    if (fault_of(pool)) {
        return fault_of(pool);
    }
    log_debug("free of %p: inside a pool, but no live allocation starts there", (void *)dptr);
    return CUDA_ERROR_INVALID_VALUE;
}

/* True if the free has been answered: refused, or made by the driver. */
static __attribute__((noinline, cold)) bool unusual_free(CUdeviceptr dptr, CUresult *answer) {
    if (shutdown_over()) {
        *answer = CUDA_ERROR_DEINITIALIZED;
        return true;
    }
    if (atomic_load(&process_state) == PROCESS_FORKED) {
        *answer = REAL(cuMemFree_v2)(dptr);
        return true;
    }
    struct pool *pool = context_pool();
    *answer = pool ? unusual_call(pool) : CUDA_SUCCESS;
    return *answer != CUDA_SUCCESS;
}

/* The pool has not freed it. */
static __attribute__((noinline)) CUresult free_after(int r, CUdeviceptr dptr) {
    if (r == -ENOENT) {
        struct ledger_row *giving = dptr ? unpooled_leave_begin(UNPOOLED_POINTER, dptr, 0) : NULL;
        CUresult native = REAL(cuMemFree_v2)(dptr);
        unpooled_leave_end(giving, native == CUDA_SUCCESS);
        return native;
    }
    if (r != -EINVAL) {
        return (CUresult)r;
    }
    /* The current context may have ended, in another thread: the driver says so first. */
    CUresult refused = refused_free(dptr), native = REAL(cuMemFree_v2)(UNKNOWN_ADDRESS);
    return native == CUDA_ERROR_INVALID_VALUE ? refused : native;
}

static inline CUresult answer_free(int r, CUdeviceptr dptr) {
    return likely(r == 0) ? CUDA_SUCCESS : free_after(r, dptr);
}

static inline CUresult free_pooled_or_native(CUdeviceptr dptr) {
    return answer_free(pool_free(dptr), dptr);
}

static __attribute__((noinline, cold)) CUresult free_unusually(CUdeviceptr dptr) {
    CUresult answer;
    struct stacks_block block;
    if (unusual_free(dptr, &answer)) {
        return answer;
    }
    bool remembered = block_stacks_free_begin(dptr, &block);
    answer = answer_free(trace_on() ? tracing_free(dptr) : pool_free(dptr), dptr);
    if (remembered) {
        block_stacks_free_end(&block, answer != CUDA_SUCCESS);
    }
    return answer;
}

CUresult hook_cuMemFree_v2(CUdeviceptr dptr) {
    return capture_is_unusual() ? free_unusually(dptr) : free_pooled_or_native(dptr);
}

/* --- freeing in the order of a stream --- */

/* The driver's entries of one kind; what they mean by NULL is the thread's own stream in one of them. */
struct stream_entries {
    CUresult (*free)(CUdeviceptr, CUstream);
    CUresult (*record)(CUevent, CUstream);
    CUresult (*capturing)(CUstream, CUstreamCaptureStatus *);
    bool per_thread;
};

/*
 * What the driver says of a free made now, whatever is freed: of the stream, the context, and of captures,
 * which it then ends. Asked with an address it does not know; if that is all it has to say, the free
 * may go on, but for a stream that is being captured itself: only a graph's memory can be freed there.
 */
static __attribute__((noinline, cold)) CUresult ask_about(CUstream stream,
                                                          const struct stream_entries *driver) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = driver->free(UNKNOWN_ADDRESS, stream);
    if (r != CUDA_ERROR_INVALID_VALUE) {
        return r;
    }
    driver->capturing(stream, &status);
    return status == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult free_pooled_or_native_in_stream(CUdeviceptr dptr, CUstream stream,
                                                const struct stream_entries *driver) {
    if (!pool_has(dptr)) {
        struct ledger_row *giving = unpooled_leave_begin(UNPOOLED_POINTER, dptr, 0);
        CUresult result = driver->free(dptr, stream);
        unpooled_leave_end(giving, result == CUDA_SUCCESS);
        return result;
    }
    CUresult r = CUDA_SUCCESS;
    CUcontext current = context_pool() ? context_last.handle : NULL;
    if (atomic_load(&capture_active) > 0 || !current) {
        r = ask_about(stream, driver);
    }
    if (r == CUDA_SUCCESS) {
        struct tracing_freed freed = {.known = false};
        if (trace_on()) {
            freed = tracing_free_begin(dptr);
        }
        r = deferred_add(dptr, current, stream, driver->per_thread, driver->record);
        if (r == CUDA_SUCCESS) {
            tracing_free_end(&freed, stream);
        }
    }
    return r == CUDA_ERROR_INVALID_VALUE ? refused_free(dptr) : r;
}

static CUresult free_in_stream(CUdeviceptr dptr, CUstream stream,
                               const struct stream_entries *driver) {
    if (shutdown_over()) {
        return CUDA_ERROR_DEINITIALIZED;
    }
    if (atomic_load(&process_state) == PROCESS_FORKED) {
        return driver->free(dptr, stream);
    }
    struct stacks_block block;
    bool remembered = block_stacks_free_begin(dptr, &block);
    CUresult answer = free_pooled_or_native_in_stream(dptr, stream, driver);
    if (remembered) {
        block_stacks_free_end(&block, answer != CUDA_SUCCESS);
    }
    return answer;
}

CUresult hook_cuMemFreeAsync(CUdeviceptr dptr, CUstream stream) {
    const struct stream_entries driver = {REAL(cuMemFreeAsync), REAL(cuEventRecord),
                                          REAL(cuStreamIsCapturing), false};
    return free_in_stream(dptr, stream, &driver);
}

CUresult hook_cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream) {
    const struct stream_entries driver = {REAL(cuMemFreeAsync_ptsz), REAL(cuEventRecord_ptsz),
                                          REAL(cuStreamIsCapturing_ptsz), true};
    return free_in_stream(dptr, stream, &driver);
}
