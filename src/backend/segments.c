#include "backend/segments.h"

#include "driver/capture.h"
#include "driver/context.h"
#include "driver/device.h"
#include "driver/entries.h"

#include <errno.h>

static struct segments *of(struct backend *backend) {
    return (struct segments *)backend;
}

static int reserve(struct backend *backend, uint64_t bytes, uint64_t *address) {
    struct segments *segments = of(backend);
    if (!device_charge(segments->device, bytes)) {
        device_count(segments->device, &segments->device->outside.limit_refusals);
        return -EDQUOT;
    }
    CUdeviceptr dptr = 0;
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuMemAlloc_v2)(&dptr, bytes);
    capture_restore(mode);
    if (r != CUDA_SUCCESS) {
        device_refund(segments->device, bytes);
        return r == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : (int)r;
    }
    device_pooled(segments->device, (int64_t)bytes);
    *address = dptr;
    return 0;
}

static int release(struct backend *backend, uint64_t address, uint64_t bytes) {
    struct segments *segments = of(backend);
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuMemFree_v2)(address);
    capture_restore(mode);
    device_pooled(segments->device, -(int64_t)bytes);
    device_refund(segments->device, bytes);
    return (int)r;
}

static void lose(struct backend *backend, uint64_t bytes) {
    struct segments *segments = of(backend);
    device_pooled(segments->device, -(int64_t)bytes);
    device_refund(segments->device, bytes);
}

static int record(struct backend *backend, unsigned slot) {
    struct segments *segments = of(backend);
    if (!backend->has_events) {
        return -ENOSYS;
    }
    if (atomic_load(&capture_active) > 0) {
        return -EBUSY;
    }
    return (int)REAL(cuCtxRecordEvent)(segments->context, segments->events[slot]);
}

static int query(struct backend *backend, unsigned slot) {
    struct segments *segments = of(backend);
    CUresult r;
    if (atomic_load(&capture_active) == 0) {
        r = REAL(cuEventQuery)(segments->events[slot]);
    } else {
        CUstreamCaptureMode mode = capture_relax();
        r = REAL(cuEventQuery)(segments->events[slot]);
        capture_restore(mode);
    }
    return r == CUDA_ERROR_NOT_READY ? -EAGAIN : (int)r;
}

static int order(struct backend *backend, unsigned slot) {
    struct segments *segments = of(backend);
    if (atomic_load(&capture_active) > 0 || context_count() > 1) {
        return -EBUSY;
    }
    return (int)REAL(cuCtxWaitEvent)(segments->context, segments->events[slot]);
}

static int wait(struct backend *backend, unsigned slot) {
    struct segments *segments = of(backend);
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuEventSynchronize)(segments->events[slot]);
    capture_restore(mode);
    return (int)r;
}

static int health(struct backend *backend) {
    (void)backend;
    int least, greatest;
    return (int)REAL(cuCtxGetStreamPriorityRange)(
        &least, &greatest); /* the cheapest call that tells: 9 ns */
}

static int synchronize(struct backend *backend) {
    struct segments *segments = of(backend);
    if (!capture_hold_off()) {
        return -EBUSY;
    }
    CUcontext popped;
    CUresult r = REAL(cuCtxPushCurrent_v2)(segments->context);
    if (r == CUDA_SUCCESS) {
        r = REAL(cuCtxSynchronize)();
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    capture_let_go();
    return (int)r;
}

static const struct backend_ops ops = {
    .name = "segments",
    .reserve = reserve,
    .release = release,
    .lose = lose,
    .record = record,
    .query = query,
    .order = order,
    .wait = wait,
    .health = health,
    .synchronize = synchronize,
};

int segments_start(struct segments *segments, CUcontext context, struct device *device) {
    *segments = (struct segments){.context = context, .device = device};
    segments->backend.ops = &ops;
    segments->backend.capacity = device_visible_total(device);
    segments->backend.has_events = HAS(cuCtxRecordEvent) && HAS(cuCtxWaitEvent);
    CUresult r = REAL(cuEventCreate)(&segments->probe, CU_EVENT_DISABLE_TIMING);
    for (unsigned i = 0; i < BACKEND_SLOTS && r == CUDA_SUCCESS && segments->backend.has_events;
         i++) {
        r = REAL(cuEventCreate)(&segments->events[i], CU_EVENT_DISABLE_TIMING);
    }
    return (int)r;
}
