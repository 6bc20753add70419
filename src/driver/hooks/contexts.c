/*
 * Hooks that create, switch and end contexts.
 *
 * context_end_begin() and context_end_done() bracket each call that may end a context.
 * context_end_done() runs whatever the driver answered: a call that ends a context may return the
 * error of a fault. Hooks are called with no lock held, and hold none during the driver call, which
 * waits for work.
 *
 * Invariant: after each call that may change the current context, the thread asks the driver which
 * one is current (context_unsure). A context that became active can reach memory that was handed
 * out behind a barrier, so the hook then waits for that work (context_drain_barriers).
 */
#include "driver/context/active_contexts.h"
#include "driver/context/context.h"
#include "driver/hooks/hook.h"
#include "driver/state/partition.h"

static void note_current(CUcontext now) {
    if (process_is_started() && active_contexts_switched(now))
        context_drain_barriers();
}

/*
 * Asks the driver for the current context after a call that may have changed it, whatever the call
 * returned. Call it after context_end_done(): note_current() may drain barriers, which waits while
 * a context may be ending. Returns `answer`.
 */
static CUresult account_current(CUresult answer) {
    CUcontext now = NULL;
    context_unsure();
    REAL(cuCtxGetCurrent)(&now);
    note_current(now);
    return answer;
}

/* Notes that `ctx` is current, if the call that selects it succeeded. Returns `answer`. */
static CUresult account_switched(CUresult answer, CUcontext ctx) {
    context_unsure();
    if (answer == CUDA_SUCCESS)
        note_current(ctx);
    return answer;
}

/* Registers a new context, which is also current. Returns `answer`. */
static CUresult account_created(CUresult answer, CUcontext *ctx) {
    context_unsure();
    if (answer == CUDA_SUCCESS && process_ready()) {
        context_register(*ctx, CONTEXT_CREATED, -1);
        note_current(*ctx);
    }
    return answer;
}

/* Defines the hook of an entry that creates a context `ctx` on `device`. */
#define CREATES(symbol, parameters, arguments)                                                     \
    HOOK(hook_##symbol, parameters, partition_read(),                                              \
         RETRY_ON(device_used(device), real_entries.real_##symbol arguments),                      \
         account_created(answer, ctx))

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

CUresult hook_cuCtxSetCurrent(CUcontext ctx) {
    CUresult answer = REAL(cuCtxSetCurrent)(ctx);
    return account_switched(answer, ctx);
}

CUresult hook_cuCtxPushCurrent(CUcontext ctx) {
    CUresult answer = REAL(cuCtxPushCurrent)(ctx);
    return account_switched(answer, ctx);
}

CUresult hook_cuCtxPushCurrent_v2(CUcontext ctx) {
    CUresult answer = REAL(cuCtxPushCurrent_v2)(ctx);
    return account_switched(answer, ctx);
}

CUresult hook_cuCtxPopCurrent(CUcontext *ctx) {
    CUresult answer = REAL(cuCtxPopCurrent)(ctx);
    return account_current(answer);
}

CUresult hook_cuCtxPopCurrent_v2(CUcontext *ctx) {
    CUresult answer = REAL(cuCtxPopCurrent_v2)(ctx);
    return account_current(answer);
}

CUresult hook_cuCtxAttach(CUcontext *ctx, unsigned int flags) {
    CUresult answer = REAL(cuCtxAttach)(ctx, flags);
    return account_current(answer);
}

static CUresult end_context(CUresult (*real)(CUcontext), CUcontext ctx) {
    struct context_ending ending = {.handle = ctx, .primary_of = -1, .for_certain = true};
    if (!ctx || !process_is_started())
        return account_current(real(ctx));
    context_end_begin(&ending);
    CUresult answer = real(ctx);
    context_end_done(&ending, answer == CUDA_SUCCESS);
    return account_current(answer);
}

CUresult hook_cuCtxDestroy(CUcontext ctx) {
    return end_context(REAL(cuCtxDestroy), ctx);
}

CUresult hook_cuCtxDestroy_v2(CUcontext ctx) {
    return end_context(REAL(cuCtxDestroy_v2), ctx);
}

/* Ends the context with its last reference. cuCtxGetApiVersion() fails for a context that has
 * ended. */
CUresult hook_cuCtxDetach(CUcontext ctx) {
    unsigned version;
    struct context_ending ending = {.handle = ctx, .primary_of = -1};
    if (!ctx || !process_is_started())
        return account_current(REAL(cuCtxDetach)(ctx));
    context_end_begin(&ending);
    CUresult answer = REAL(cuCtxDetach)(ctx);
    bool ended = answer == CUDA_SUCCESS && REAL(cuCtxGetApiVersion)(ctx, &version) != CUDA_SUCCESS;
    context_end_done(&ending, ended);
    return account_current(answer);
}

CUresult hook_cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device) {
    partition_read();
    CUresult answer = RETRY_ON(device_used(device), REAL(cuDevicePrimaryCtxRetain)(ctx, device));
    if (answer == CUDA_SUCCESS && process_ready())
        context_register(*ctx, CONTEXT_RETAINED, device);
    return answer;
}

/*
 * Releases or resets a primary context, which ends with its last reference or with a reset.
 * context_end_done() compares the identifier of the context (cuCtxGetId) before and after the call.
 * A new identifier means that the context ended, even if another thread has retained a new one.
 * Before CUDA 12.0 there is no identifier: the driver's "active" flag decides, and misses that
 * case.
 */
static CUresult end_primary(CUresult (*real)(CUdevice), CUdevice device, bool reset) {
    struct context_ending ending = {.primary_of = device, .for_certain = reset};
    if (!process_is_started())
        return real(device);
    context_end_begin(&ending);
    CUresult answer = real(device);
    unsigned flags;
    int active = 1;
    if (answer == CUDA_SUCCESS && !reset && !HAS(cuCtxGetId))
        REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active);
    context_end_done(&ending, answer == CUDA_SUCCESS && (reset || !active));
    return answer;
}

CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxRelease), device, false);
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxRelease_v2), device, false);
}

CUresult hook_cuDevicePrimaryCtxReset(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxReset), device, true);
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxReset_v2), device, true);
}

CUresult hook_cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green) {
    CUresult answer = REAL(cuCtxFromGreenCtx)(ctx, green);
    CUdevice device = answer == CUDA_SUCCESS && process_ready() ? current_device_of(*ctx) : -1;
    CUcontext primary;
    /* The primary context is retained to get its handle, and released at once: the green context
     * keeps it alive. */
    if (device >= 0 && REAL(cuDevicePrimaryCtxRetain)(&primary, device) == CUDA_SUCCESS) {
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
        context_register_view(*ctx, green, primary, device);
    }
    return answer;
}

/* Destroys a green context, which may hold the last reference to the primary context. The device is
 * found even if the program never made a view of the green context. */
CUresult hook_cuGreenCtxDestroy(CUgreenCtx green) {
    struct context_ending ending = {.primary_of = -1, .green = green};
    CUcontext view;
    if (!green || !process_is_started())
        return REAL(cuGreenCtxDestroy)(green);
    if (REAL(cuCtxFromGreenCtx)(&view, green) == CUDA_SUCCESS)
        ending.primary_of = current_device_of(view);
    context_end_begin(&ending);
    CUresult answer = REAL(cuGreenCtxDestroy)(green);
    context_end_done(&ending, answer == CUDA_SUCCESS);
    return account_current(answer);
}
