#include "backend/segments.h"

#include "driver/attend.h"
#include "driver/awake.h"
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/deferred.h"
#include "driver/device.h"
#include "driver/entries.h"
#include "driver/fault.h"

#include <errno.h>
#include <string.h>

#define LONG_WAIT_NS 50000        /* a wait worth recording */
#define PIECE ((uint64_t)2 << 20) /* what the driver takes for small blocks at a time */

static struct segments *of(struct backend *backend) {
    return (struct segments *)backend;
}

/* What the pool makes of the driver's answer: only a code that stays is for ever. */
static int answer(CUresult r) {
    return r == CUDA_SUCCESS || fault_is_deadly(r) ? (int)r : -EBUSY;
}

static void show(enum flight_kind kind, const struct segments *segments, uint64_t address,
                 uint64_t bytes, uint64_t since) {
    flight_event(kind, (unsigned)segments->device->ordinal, address, bytes, since);
}

static int reserve(struct backend *backend, uint64_t bytes, uint64_t *address) {
    struct segments *segments = of(backend);
    uint64_t since = flight_begin();
    if (!device_charge(segments->device, bytes)) {
        show(FLIGHT_LIMIT_REFUSED, segments, 0, bytes, since);
        return -EDQUOT;
    }
    CUdeviceptr dptr = 0;
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuMemAlloc_v2)(&dptr, bytes);
    capture_restore(mode);
    if (r != CUDA_SUCCESS) {
        device_refund(segments->device, bytes);
        show(FLIGHT_GROW_REFUSED, segments, 0, bytes, since);
        return r == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : (int)r;
    }
    device_pooled(segments->device, (int64_t)bytes);
    context_address_given(dptr, bytes);
    show(FLIGHT_GROW, segments, dptr, bytes, since);
    attend_growth();
    *address = dptr;
    return 0;
}

static uint64_t room(struct backend *backend, uint64_t *others) {
    struct segments *segments = of(backend);
    *others = device_idle_bytes(segments->device, segments);
    return device_room(segments->device);
}

static bool gather(struct backend *backend, uint64_t bytes, bool wait) {
    return device_gather(of(backend)->device, of(backend), bytes, wait);
}

static void book_return(struct segments *segments, uint64_t bytes) {
    device_pooled(segments->device, -(int64_t)bytes);
    device_refund(segments->device, bytes);
}

/* Its priority keeps it apart from the program's streams: what stands behind one of them in a queue
 * of the hardware waits for it. */
static CUresult open_returns(struct segments *segments) {
    int least = 0, greatest = 0;
    if (segments->returns) {
        return CUDA_SUCCESS;
    }
    REAL(cuCtxGetStreamPriorityRange)(&least, &greatest);
    return REAL(cuStreamCreateWithPriority)(&segments->returns, CU_STREAM_NON_BLOCKING, greatest);
}

/*
 * The driver's cuMemFree waits for all work of the device, and holds up every other thread's launch
 * meanwhile. A free in the order of a stream that has nothing to do waits for nothing
 * (tests/gpu/facts_release.cu).
 */
static int release(struct backend *backend, uint64_t address, uint64_t bytes) {
    struct segments *segments = of(backend);
    CUcontext popped;
    uint64_t since = flight_begin();
    if (backend->quiet) {
        return -EBUSY;
    }
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuCtxPushCurrent_v2)(segments->context);
    if (r == CUDA_SUCCESS) {
        if (backend->release_waits) {
            r = REAL(cuMemFree_v2)(address);
        } else if ((r = open_returns(segments)) == CUDA_SUCCESS) {
            r = REAL(cuMemFreeAsync)(address, segments->returns);
        }
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    capture_restore(mode);
    if (r == CUDA_SUCCESS) {
        show(FLIGHT_GIVE_BACK, segments, address, bytes, since);
    }
    if (r == CUDA_SUCCESS && backend->release_waits) {
        book_return(segments, bytes);
    } else if (r == CUDA_SUCCESS) {
        atomic_fetch_add(&segments->returning, bytes);
    }
    return answer(r);
}

static int returned(struct backend *backend) {
    struct segments *segments = of(backend);
    if (atomic_load(&segments->returning) == 0) {
        return 0;
    }
    if (segments->backend.quiet) {
        return -EBUSY;
    }
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuStreamQuery)(segments->returns);
    if (r == CUDA_SUCCESS) {
        r = REAL(cuStreamSynchronize)(segments->returns); /* nothing is left to wait for; but only
                                                             this makes the driver take it back */
    }
    capture_restore(mode);
    if (r == CUDA_SUCCESS) {
        book_return(segments, atomic_exchange(&segments->returning, 0));
    }
    return r == CUDA_ERROR_NOT_READY ? -EAGAIN : answer(r);
}

/* Answers to a call made from a host callback, or beside a capture that nobody told us of. */
static bool is_wrong_moment(CUresult r) {
    return r == CUDA_ERROR_NOT_PERMITTED || (r >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                                             r <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
}

static void lose(struct backend *backend, uint64_t bytes) {
    book_return(of(backend), bytes);
}

static int record(struct backend *backend, unsigned slot) {
    struct segments *segments = of(backend);
    if (!backend->has_events) {
        return -ENOSYS;
    }
    if (segments->backend.quiet || atomic_load(&capture_active) > 0) {
        return -EBUSY;
    }
    CUresult r = REAL(cuCtxRecordEvent)(segments->context, segments->events[slot]);
    return r == CUDA_SUCCESS || fault_is_deadly(r) ? (int)r : is_wrong_moment(r) ? -EBUSY : -EIO;
}

static int query(struct backend *backend, unsigned slot) {
    struct segments *segments = of(backend);
    CUresult r;
    if (segments->backend.quiet) {
        return -EBUSY;
    }
    if (atomic_load(&capture_active) == 0) {
        r = REAL(cuEventQuery)(segments->events[slot]);
    } else {
        CUstreamCaptureMode mode = capture_relax();
        r = REAL(cuEventQuery)(segments->events[slot]);
        capture_restore(mode);
    }
    return r == CUDA_ERROR_NOT_READY ? -EAGAIN : answer(r);
}

static int order(struct backend *backend, unsigned slot) {
    struct segments *segments = of(backend);
    bool alone = context_count() == 1 || awake_only(segments->context);
    if (segments->backend.quiet || atomic_load(&capture_active) > 0 || !alone) {
        return -EBUSY;
    }
    return answer(REAL(cuCtxWaitEvent)(segments->context, segments->events[slot]));
}

/* Only what took long: where every free waits, the others would push the rest out of the ring. */
static void show_wait(const struct segments *segments, uint64_t since) {
    if (since != 0 && flight_clock(CLOCK_MONOTONIC) - since >= LONG_WAIT_NS) {
        show(FLIGHT_WAIT, segments, 0, 0, since);
    }
}

static int wait(struct backend *backend, unsigned slot) {
    struct segments *segments = of(backend);
    uint64_t since = flight_begin();
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuEventSynchronize)(segments->events[slot]);
    capture_restore(mode);
    show_wait(segments, since);
    return answer(r);
}

static int health(struct backend *backend) {
    (void)backend;
    int least, greatest;
    return (int)REAL(cuCtxGetStreamPriorityRange)(
        &least, &greatest); /* the cheapest call that tells: 9 ns */
}

static bool is_deadly(int code) {
    return code > 0 && fault_is_deadly((CUresult)code);
}

static bool captured(struct backend *backend) {
    (void)backend;
    return atomic_load(&capture_active) > 0;
}

/*
 * While a stream is being captured nobody may wait for a context. But a free waits as ever for all work of
 * the device, and where the program's own was allowed so is this one: of memory that nobody uses.
 */
static int synchronize_by_free(struct segments *segments) {
    CUdeviceptr unused;
    CUcontext popped;
    if (segments->backend.quiet || !device_take(segments->device, PIECE)) {
        return -EBUSY;
    }
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuCtxPushCurrent_v2)(segments->context);
    if (r == CUDA_SUCCESS) {
        r = REAL(cuMemAlloc_v2)(&unused, 1);
        r = r == CUDA_SUCCESS ? REAL(cuMemFree_v2)(unused) : r;
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    capture_restore(mode);
    device_refund(segments->device, PIECE);
    return answer(r);
}

static int synchronize(struct backend *backend) {
    struct segments *segments = of(backend);
    uint64_t since = flight_begin();
    if (!capture_hold_off()) {
        int result = synchronize_by_free(segments);
        show_wait(segments, since);
        return result;
    }
    CUcontext popped;
    CUresult r = REAL(cuCtxPushCurrent_v2)(segments->context);
    if (r == CUDA_SUCCESS) {
        r = REAL(cuCtxSynchronize)();
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    capture_let_go();
    show_wait(segments, since);
    return answer(r);
}

static bool settle(struct backend *backend, bool all) {
    return deferred_settle(of(backend)->context, all);
}

static void allocated(struct backend *backend, uint64_t address, uint64_t bytes) {
    unsigned device = (unsigned)of(backend)->device->ordinal;
    attend_block(flight_block(FLIGHT_ALLOCATE, device, address, bytes));
}

static void freed(struct backend *backend, uint64_t address, uint64_t bytes) {
    flight_block(FLIGHT_FREE, (unsigned)of(backend)->device->ordinal, address, bytes);
}

static const struct backend_ops ops = {
    .name = "segments",
    .reserve = reserve,
    .release = release,
    .returned = returned,
    .room = room,
    .gather = gather,
    .lose = lose,
    .record = record,
    .query = query,
    .order = order,
    .wait = wait,
    .health = health,
    .is_deadly = is_deadly,
    .allocated = allocated,
    .freed = freed,
    .captured = captured,
    .synchronize = synchronize,
    .settle = settle,
};

/* Whether the device has stream-ordered memory, whose way a free that does not wait goes. */
static bool frees_in_order(const struct device *device) {
    int supported = 0;
    return HAS(cuMemFreeAsync) &&
           REAL(cuDeviceGetAttribute)(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
                                      device->ordinal) == CUDA_SUCCESS &&
           supported;
}

int segments_start(struct segments *segments, CUcontext context, struct device *device) {
    /* The first two are read without the lock, and stay what they are when a pool is used again. */
    if (segments->backend.ops != &ops || segments->device != device) {
        segments->backend.ops = &ops;
        segments->device = device;
    }
    segments->context = context;
    memset(segments->events, 0, sizeof segments->events);
    segments->probe = NULL;
    segments->returns = NULL;
    atomic_store(&segments->returning, 0);
    atomic_store(&segments->backend.quiet, false);
    segments->backend.capacity = device_visible_total(device);
    segments->backend.has_events = HAS(cuCtxRecordEvent) && HAS(cuCtxWaitEvent);
    segments->backend.release_waits = !frees_in_order(device);
    segments->backend.refused = 1; /* as good as: the first free shows whether it records */
    CUresult r = REAL(cuEventCreate)(&segments->probe, CU_EVENT_DISABLE_TIMING);
    for (unsigned i = 0; i < BACKEND_SLOTS && r == CUDA_SUCCESS && segments->backend.has_events;
         i++) {
        r = REAL(cuEventCreate)(&segments->events[i], CU_EVENT_DISABLE_TIMING);
    }
    if (r != CUDA_SUCCESS) {
        segments_stop(segments);
    }
    return (int)r;
}

void segments_stop(struct segments *segments) {
    segments->backend.quiet = true;
    if (segments->probe) {
        REAL(cuEventDestroy_v2)(segments->probe);
    }
    for (unsigned i = 0; i < BACKEND_SLOTS; i++) {
        if (segments->events[i]) {
            REAL(cuEventDestroy_v2)(segments->events[i]);
        }
    }
}

void segments_end(struct segments *segments) {
    segments->backend.quiet = true;
    book_return(segments, atomic_exchange(&segments->returning, 0));
}
