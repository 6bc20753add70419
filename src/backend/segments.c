/*
 * Implements the segments backend: reserves a segment with cuMemAlloc and frees it in a stream. It
 * works with every driver. A segment is an allocation of the driver, so legacy IPC handles, pointer
 * attributes, registration for RDMA and tools see ordinary memory.
 *
 * source/backend.h says which lock a caller holds. The pool's lock protects `free_stream`.
 * Invariant: a segment is charged to the device from before cuMemAlloc until the driver has its
 * memory back (`returning`).
 */
#include "backend/common.h"

#include "driver/context/context.h"
#include "driver/context/current.h"
#include "driver/context/device_pool.h"
#include "driver/limit/charge.h"
#include "driver/state/capture.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"

#include <errno.h>

struct segments_backend {
    struct device_backend common; /* first */
    CUstream free_stream; /* stream that segments are freed in; NULL before the first free */
};

static int reserve(struct backend *backend, uint64_t bytes, uint64_t *address) {
    struct segments_backend *segments = (struct segments_backend *)backend;
    uint64_t since = device_backend_begin();
    if (!device_charge_or_trim(segments->common.device, bytes)) {
        device_backend_show(&segments->common, FLIGHT_LIMIT_REFUSED, 0, bytes, since);
        return -EDQUOT;
    }
    CUdeviceptr dptr = 0;
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuMemAlloc_v2)(&dptr, bytes);
    capture_restore(mode);
    if (r != CUDA_SUCCESS) {
        device_uncharge(segments->common.device, bytes);
        device_backend_show(&segments->common, FLIGHT_GROW_REFUSED, 0, bytes, since);
        return r == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : (int)r;
    }
    device_change_pooled(segments->common.device, (int64_t)bytes);
    context_address_given(dptr, bytes);
    device_backend_show(&segments->common, FLIGHT_GROW, dptr, bytes, since);
    *address = dptr;
    return 0;
}

/* Creates the stream that segments are freed in, unless it exists. A priority of its own keeps the
 * stream out of the program's hardware queues, where a free would wait for kernels. */
static CUresult create_free_stream(struct segments_backend *segments) {
    int least = 0, greatest = 0;
    if (segments->free_stream)
        return CUDA_SUCCESS;
    REAL(cuCtxGetStreamPriorityRange)(&least, &greatest);
    return REAL(cuStreamCreateWithPriority)(&segments->free_stream, CU_STREAM_NON_BLOCKING,
                                            greatest);
}

/*
 * Frees a segment with cuMemFreeAsync, in a stream that has no other work: the call waits for
 * nothing (tests/gpu/facts_release.cu). cuMemFree would wait for all work of the device, and delay
 * the launches of every other thread: it is used only if `release_waits` is set. Call with the
 * pool's lock, or without it if `release_waits` is set.
 */
static int release(struct backend *backend, uint64_t address, uint64_t bytes) {
    struct segments_backend *segments = (struct segments_backend *)backend;
    uint64_t since = device_backend_begin();
    bool unsupported = false;
    if (backend->suspended)
        return -EBUSY;
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = current_push(segments->common.context);
    if (r == CUDA_SUCCESS) {
        if (backend->release_waits)
            r = REAL(cuMemFree_v2)(address);
        else if ((r = create_free_stream(segments)) == CUDA_SUCCESS)
            r = REAL(cuMemFreeAsync)(address, segments->free_stream);
        unsupported = r == CUDA_ERROR_NOT_SUPPORTED;
        current_pop();
    }
    capture_restore(mode);
    if (r == CUDA_SUCCESS)
        device_backend_show(&segments->common, FLIGHT_GIVE_BACK, address, bytes, since);
    if (r == CUDA_SUCCESS && backend->release_waits)
        device_backend_count_return(&segments->common, bytes);
    else if (r == CUDA_SUCCESS)
        atomic_fetch_add(&segments->common.returning, bytes);
    backend->release_waits |= unsupported; /* the next release uses cuMemFree */
    return device_backend_answer(r);
}

static int returned(struct backend *backend) {
    struct segments_backend *segments = (struct segments_backend *)backend;
    if (atomic_load(&segments->common.returning) == 0)
        return 0;
    if (backend->suspended)
        return -EBUSY;
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = current_push(segments->common.context);
    if (r == CUDA_SUCCESS) {
        r = REAL(cuStreamQuery)(segments->free_stream);
        if (r == CUDA_SUCCESS) {
            /* The stream is empty, so this call does not wait. It makes the driver take the memory
             * back; a query alone does not. */
            r = REAL(cuStreamSynchronize)(segments->free_stream);
        }
        current_pop();
    }
    capture_restore(mode);
    if (r == CUDA_SUCCESS) {
        device_backend_count_return(&segments->common,
                                    atomic_exchange(&segments->common.returning, 0));
    }
    return r == CUDA_ERROR_NOT_READY ? -EAGAIN : device_backend_answer(r);
}

static void forget_reserve(struct backend *backend, uint64_t bytes) {
    device_backend_count_return(&((struct segments_backend *)backend)->common, bytes);
}

static const struct backend_ops ops = {
    .name = "segments",
    .reserve = reserve,
    .release = release,
    .returned = returned,
    .forget_reserve = forget_reserve,
    DEVICE_BACKEND_OPS,
};

/* Returns whether segments can be freed without a wait: by cuMemFreeAsync, which needs a device
 * with stream-ordered memory. */
static bool frees_in_order(const struct device *device) {
    int supported = 0;
    return HAS(cuMemFreeAsync) &&
           REAL(cuDeviceGetAttribute)(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
                                      device->ordinal) == CUDA_SUCCESS &&
           supported;
}

static int start(struct device_backend *own, CUcontext context, struct device *device,
                 uint64_t peer_devices) {
    struct segments_backend *segments = (struct segments_backend *)own;
    (void)peer_devices; /* the driver itself gives other devices access to memory of cuMemAlloc */
    int r = device_backend_start(&segments->common, &ops, context, device);
    segments->free_stream = NULL;
    segments->common.backend.release_waits = !frees_in_order(device);
    return r;
}

const struct backend_kind segments_kind = {.bytes = sizeof(struct segments_backend),
                                           .start = start};
