/*
 * The entries that make, switch and end contexts.
 *
 * A call that may end one is announced before and looked after when it has returned
 * (context_end_begin, context_end_done), whatever it has answered: a context also ends with the code
 * of a fault that its work has made. No lock is held meanwhile, because such a call waits for work.
 */
#include "driver/context/active_contexts.h"
#include "driver/context/context.h"
#include "driver/limit/retry.h"
#include "driver/table/entries.h"
#include "process/process.h"

static bool is_watched(void) {
    return atomic_load(&process_state) == PROCESS_STARTED;
}

static void is_current(CUcontext now) {
    if (is_watched() && active_contexts_switched(now)) {
        context_drain_barriers();
    }
}

/*
 * After a call that may have changed what is current on this thread, whatever it has answered; and after
 * context_end_done(), because a context that wakes up waits for those of which nobody knows whether they end.
 */
static CUresult unsure(CUresult r) {
    CUcontext now = NULL;
    context_unsure();
    REAL(cuCtxGetCurrent)(&now);
    is_current(now);
    return r;
}

/* The same after one that has made `ctx` current, if it has answered so. */
static CUresult switched(CUresult r, CUcontext ctx) {
    context_unsure();
    if (r == CUDA_SUCCESS) {
        is_current(ctx);
    }
    return r;
}

static CUresult created(CUresult r, CUcontext *ctx) {
    context_unsure();
    if (r == CUDA_SUCCESS && process_ready()) {
        context_register(*ctx, CONTEXT_CREATED, -1);
        is_current(*ctx);
    }
    return r;
}

/* Not REAL(symbol): inside these macros cuda.h's would turn it into another version. */
#define CREATES(symbol, parameters, arguments)                                                     \
    CUresult hook_##symbol parameters {                                                            \
        return created(RETRY_ON(device_used(device), real_entries.real_##symbol arguments), ctx);  \
    }
#define SWITCHES(symbol)                                                                           \
    CUresult hook_##symbol(CUcontext ctx) {                                                        \
        return switched(real_entries.real_##symbol(ctx), ctx);                                     \
    }
#define UNCOVERS(symbol, parameters, arguments)                                                    \
    CUresult hook_##symbol parameters {                                                            \
        return unsure(real_entries.real_##symbol arguments);                                       \
    }

CREATES(cuCtxCreate, (CUcontext * ctx, unsigned int flags, CUdevice device), (ctx, flags, device))
CREATES(cuCtxCreate_v2, (CUcontext * ctx, unsigned int flags, CUdevice device),
        (ctx, flags, device))
CREATES(cuCtxCreate_v3,
        (CUcontext * ctx, CUexecAffinityParam *affinity, int count, unsigned int flags,
         CUdevice device),
        (ctx, affinity, count, flags, device))
CREATES(cuCtxCreate_v4,
        (CUcontext * ctx, CUctxCreateParams *params, unsigned int flags, CUdevice device),
        (ctx, params, flags, device))
CREATES(cuGLCtxCreate, (CUcontext * ctx, unsigned int flags, CUdevice device), (ctx, flags, device))
CREATES(cuGLCtxCreate_v2, (CUcontext * ctx, unsigned int flags, CUdevice device),
        (ctx, flags, device))
CREATES(cuVDPAUCtxCreate,
        (CUcontext * ctx, unsigned int flags, CUdevice device, uint32_t vdpau, void *vdpau_get),
        (ctx, flags, device, vdpau, vdpau_get))
CREATES(cuVDPAUCtxCreate_v2,
        (CUcontext * ctx, unsigned int flags, CUdevice device, uint32_t vdpau, void *vdpau_get),
        (ctx, flags, device, vdpau, vdpau_get))

SWITCHES(cuCtxSetCurrent)
SWITCHES(cuCtxPushCurrent)
SWITCHES(cuCtxPushCurrent_v2)
UNCOVERS(cuCtxPopCurrent, (CUcontext * ctx), (ctx))
UNCOVERS(cuCtxPopCurrent_v2, (CUcontext * ctx), (ctx))
UNCOVERS(cuCtxAttach, (CUcontext * ctx, unsigned int flags), (ctx, flags))

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext ctx) {
    struct context_ending ending = {.handle = ctx, .primary_of = -1, .for_certain = true};
    if (!ctx || !is_watched()) {
        return unsure(real(ctx));
    }
    context_end_begin(&ending);
    CUresult r = real(ctx);
    context_end_done(&ending, r == CUDA_SUCCESS);
    return unsure(r);
}

CUresult hook_cuCtxDestroy(CUcontext ctx) {
    return destroy(REAL(cuCtxDestroy), ctx);
}

CUresult hook_cuCtxDestroy_v2(CUcontext ctx) {
    return destroy(REAL(cuCtxDestroy_v2), ctx);
}

/* Ends it if nobody else is attached: the driver's answer to a question tells. */
CUresult hook_cuCtxDetach(CUcontext ctx) {
    unsigned version;
    struct context_ending ending = {.handle = ctx, .primary_of = -1};
    if (!ctx || !is_watched()) {
        return unsure(REAL(cuCtxDetach)(ctx));
    }
    context_end_begin(&ending);
    CUresult r = REAL(cuCtxDetach)(ctx);
    bool over = r == CUDA_SUCCESS && REAL(cuCtxGetApiVersion)(ctx, &version) != CUDA_SUCCESS;
    context_end_done(&ending, over);
    return unsure(r);
}

CUresult hook_cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device) {
    CUresult r = RETRY_ON(device_used(device), REAL(cuDevicePrimaryCtxRetain)(ctx, device));
    if (r == CUDA_SUCCESS && process_ready()) {
        context_register(*ctx, CONTEXT_RETAINED, device);
    }
    return r;
}

/*
 * The primary context ends with its last reference, or with a reset. Which reference was the last one
 * its number tells: if it is another one afterwards, another thread has retained it meanwhile. Before
 * CUDA 12.0 that went unnoticed.
 */
static CUresult let_go(CUresult (*real)(CUdevice), CUdevice device, bool reset) {
    struct context_ending ending = {.primary_of = device, .for_certain = reset};
    if (!is_watched()) {
        return real(device);
    }
    context_end_begin(&ending);
    CUresult r = real(device);
    unsigned flags;
    int active = 1;
    if (r == CUDA_SUCCESS && !reset && !HAS(cuCtxGetId)) {
        REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active);
    }
    context_end_done(&ending, r == CUDA_SUCCESS && (reset || !active));
    return r;
}

CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device) {
    return let_go(REAL(cuDevicePrimaryCtxRelease), device, false);
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return let_go(REAL(cuDevicePrimaryCtxRelease_v2), device, false);
}

CUresult hook_cuDevicePrimaryCtxReset(CUdevice device) {
    return let_go(REAL(cuDevicePrimaryCtxReset), device, true);
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return let_go(REAL(cuDevicePrimaryCtxReset_v2), device, true);
}

/* Of a green context by its view; -1: there is none. */
static CUdevice device_of(CUcontext view) {
    CUdevice device = -1;
    CUcontext popped;
    if (REAL(cuCtxPushCurrent_v2)(view) == CUDA_SUCCESS) {
        if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) {
            device = -1;
        }
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    return device;
}

CUresult hook_cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green) {
    CUresult r = REAL(cuCtxFromGreenCtx)(ctx, green);
    CUdevice device = r == CUDA_SUCCESS && process_ready() ? device_of(*ctx) : -1;
    CUcontext primary;
    /* A green context keeps the primary one alive, so the retain below is given back at once. */
    if (device >= 0 && REAL(cuDevicePrimaryCtxRetain)(&primary, device) == CUDA_SUCCESS) {
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
        context_register_view(*ctx, green, primary, device);
    }
    return r;
}

/* A green context may be the last that holds the primary one, also if the program never made a view of it. */
CUresult hook_cuGreenCtxDestroy(CUgreenCtx green) {
    struct context_ending ending = {.primary_of = -1, .green = green};
    CUcontext view;
    if (!green || !is_watched()) {
        return REAL(cuGreenCtxDestroy)(green);
    }
    if (REAL(cuCtxFromGreenCtx)(&view, green) == CUDA_SUCCESS) {
        ending.primary_of = device_of(view);
    }
    context_end_begin(&ending);
    CUresult r = REAL(cuGreenCtxDestroy)(green);
    context_end_done(&ending, r == CUDA_SUCCESS);
    return unsure(r);
}
