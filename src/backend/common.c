/*
 * Implements the operations that both backends share (common.h), for the context and the device in
 * struct device_backend. The file has no lock of its own: source/backend.h says which lock the
 * caller of an operation holds. record(), query() and barrier() make no driver call while the
 * backend is suspended.
 */
#include "backend/common.h"

#include "base/clock.h"
#include "driver/context/active_contexts.h"
#include "driver/context/context.h"
#include "driver/context/current.h"
#include "driver/context/decay.h"
#include "driver/context/device_pool.h"
#include "driver/context/fault.h"
#include "driver/limit/charge.h"
#include "driver/limit/wait_by_free.h"
#include "driver/reuse/deferred.h"
#include "driver/state/capture.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#define LONG_WAIT_NS 50000 /* shorter waits are not recorded */

int device_backend_answer(CUresult r) {
    return r == CUDA_SUCCESS || fault_is_sticky(r) ? (int)r : -EBUSY;
}

uint64_t device_backend_begin(void) {
    return trace_on() ? clock_ns(CLOCK_MONOTONIC) : flight_begin();
}

void device_backend_show(const struct device_backend *own, enum flight_kind kind, uint64_t address,
                         uint64_t bytes, uint64_t since) {
    unsigned device = (unsigned)own->device->ordinal;
    flight_event(kind, device, address, bytes, since);
    trace_moment(kind, device, (uintptr_t)own, address, bytes, since);
}

void device_backend_allocated(struct backend *backend, uint64_t address, uint64_t bytes) {
    const struct device_backend *own = (struct device_backend *)backend;
    flight_block(FLIGHT_ALLOCATE, (unsigned)own->device->ordinal, address, bytes);
}

void device_backend_freed(struct backend *backend, uint64_t address, uint64_t bytes) {
    const struct device_backend *own = (struct device_backend *)backend;
    flight_block(FLIGHT_FREE, (unsigned)own->device->ordinal, address, bytes);
}

uint64_t device_backend_available(struct backend *backend, uint64_t *others) {
    struct device_backend *own = (struct device_backend *)backend;
    *others = device_idle_bytes(own->device, own);
    return device_available(own->device);
}

void device_backend_begin_growth(struct backend *backend) {
    in_flight_enter(&((struct device_backend *)backend)->device->in_flight);
}

void device_backend_end_growth(struct backend *backend, bool gave_back) {
    struct in_flight *in_flight = &((struct device_backend *)backend)->device->in_flight;
    if (gave_back)
        in_flight_give_back(in_flight);
    in_flight_leave(in_flight);
}

uint64_t device_backend_wait_for_in_flight(struct backend *backend) {
    return device_wait_for_in_flight(((struct device_backend *)backend)->device);
}

bool device_backend_release_others(struct backend *backend, uint64_t bytes, bool wait) {
    struct device_backend *own = (struct device_backend *)backend;
    return device_release_others(own->device, own, bytes, wait);
}

/* Returns whether `r` is the driver's code for a call in a host callback, or during a capture whose
 * begin the library did not see. */
static bool is_temporary(CUresult r) {
    return r == CUDA_ERROR_NOT_PERMITTED || (r >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                                             r <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
}

int device_backend_record(struct backend *backend, unsigned slot) {
    struct device_backend *own = (struct device_backend *)backend;
    if (!backend->has_events)
        return -ENOSYS;
    if (backend->suspended || atomic_load(&capture_active) > 0)
        return -EBUSY;
    CUresult r = REAL(cuCtxRecordEvent)(own->context, own->events[slot]);
    return r == CUDA_SUCCESS || fault_is_sticky(r) ? (int)r : is_temporary(r) ? -EBUSY : -EIO;
}

int device_backend_query(struct backend *backend, unsigned slot) {
    struct device_backend *own = (struct device_backend *)backend;
    CUresult r;
    if (backend->suspended)
        return -EBUSY;
    if (atomic_load(&capture_active) == 0) {
        r = REAL(cuEventQuery)(own->events[slot]);
    } else {
        CUstreamCaptureMode mode = capture_relax();
        r = REAL(cuEventQuery)(own->events[slot]);
        capture_restore(mode);
    }
    return r == CUDA_ERROR_NOT_READY ? -EAGAIN : device_backend_answer(r);
}

int device_backend_barrier(struct backend *backend, unsigned slot) {
    struct device_backend *own = (struct device_backend *)backend;
    bool only_context = context_count() == 1 || active_contexts_is_only(own->context);
    if (backend->suspended || atomic_load(&capture_active) > 0 || !only_context)
        return -EBUSY;
    return device_backend_answer(REAL(cuCtxWaitEvent)(own->context, own->events[slot]));
}

/* Records a wait of at least LONG_WAIT_NS. If every free waits, short waits would push all other
 * events out of the flight recorder. */
static void show_wait(const struct device_backend *own, uint64_t since) {
    if (since != 0 && clock_ns(CLOCK_MONOTONIC) - since >= LONG_WAIT_NS)
        device_backend_show(own, FLIGHT_WAIT, 0, 0, since);
}

/*
 * Waits with cancellation disabled: the driver may wait at a cancellation point (base/clock.h). A
 * thread that ended there would never return from the backend's wait(), and the end of the context
 * waits for that return. Without the library an allocation does not wait.
 */
int device_backend_wait(struct backend *backend, unsigned slot) {
    struct device_backend *own = (struct device_backend *)backend;
    uint64_t since = device_backend_begin();
    int before, unused;
    CUstreamCaptureMode mode = capture_relax();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    CUresult r = REAL(cuEventSynchronize)(own->events[slot]);
    pthread_setcancelstate(before, &unused);
    capture_restore(mode);
    show_wait(own, since);
    return device_backend_answer(r);
}

int device_backend_health(struct backend *backend) {
    (void)backend;
    return (int)current_health();
}

int device_backend_thread_refused(struct backend *backend) {
    (void)backend;
    return current_health() == CUDA_ERROR_NOT_PERMITTED ? CUDA_ERROR_NOT_PERMITTED : 0;
}

bool device_backend_is_sticky(int code) {
    return code > 0 && fault_is_sticky((CUresult)code);
}

bool device_backend_captured(struct backend *backend) {
    (void)backend;
    return atomic_load(&capture_active) > 0;
}

/* Waits by a free (limit/wait_by_free.h) if a capture is active: a capture forbids waits for the
 * context. */
int device_backend_synchronize(struct backend *backend) {
    struct device_backend *own = (struct device_backend *)backend;
    uint64_t since = device_backend_begin();
    if (!capture_hold_off()) {
        int result =
            backend->suspended ? -EBUSY : device_backend_answer(wait_by_free(own->context));
        show_wait(own, since);
        return result;
    }
    CUresult r = current_synchronize(own->context);
    capture_let_go();
    show_wait(own, since);
    return device_backend_answer(r);
}

void device_backend_watch_idle(struct backend *backend) {
    (void)backend;
    decay_wake();
}

bool device_backend_reclaim(struct backend *backend, bool all) {
    return deferred_reclaim(((struct device_backend *)backend)->context, all);
}

bool device_backend_pass_barriers(struct backend *backend) {
    struct device *device = ((struct device_backend *)backend)->device;
    bool any = device_deferred_bytes(device) > 0;
    if (any)
        device_pool_wait_for_events_in_free(device);
    return any;
}
