/*
 * Contexts: primary and made by hand, the stack each thread has of them, peer access.
 *
 * A context owns its streams, its memory and its unfinished work. A destroyed one stays behind as a
 * dead handle, because threads may still have it on their stacks. A device's primary context is one
 * handle for ever; between its last release and the next retain it is dead as well.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct slab context_slab = SLAB(struct context);

struct context *context_current(void) {
    struct thread *thread = thread_self();

    return thread->depth ? thread->stack[thread->depth - 1] : NULL;
}

CUresult context_check(struct context *context) {
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return context->alive ? context->sticky : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void start(struct context *context, unsigned flags) {
    context->alive = true;
    context->users = 1;
    context->flags = flags;
    context->id = ++sim.next_id;
    context->sticky = CUDA_SUCCESS;
    context->heap = (struct heap){.device = context->device, .charged = true};
    context->legacy = stream_new(context, CU_STREAM_DEFAULT, 0);
    context->marks = stream_new(context, CU_STREAM_NON_BLOCKING, 0);
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = MIB;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB;
}

struct context *context_create(struct device *device, unsigned flags, unsigned api_version) {
    struct context *context = slab_get(&context_slab);

    context->device = device;
    context->api_version = api_version;
    start(context, flags);
    return context;
}

static void forget_peer(struct context *context, const struct context *peer) {
    for (unsigned i = 0; i < context->peer_count; i++)
        if (context->peers[i] == peer)
            context->peers[i--] = context->peers[--context->peer_count];
}

static void drop_work(struct context *context) {
    for (struct stream *stream = context->streams, *next; stream; stream = next) {
        next = stream->next;
        stream->doomed = false;
        queue_drop(stream);
    }
    for (struct barrier *barrier; (barrier = context->barriers);) {
        context->barriers = barrier->next;
        marker_unref(barrier->marker);
        free(barrier);
    }
    context->last_barrier = NULL;
    marker_unref(context->latest_mark);
    context->latest_mark = NULL;
    context->barriers_passed = context->barriers_issued;
}

void context_destroy(struct context *context) {
    for (struct stream *stream = context->streams; stream; stream = stream->next)
        capture_forget_stream(stream);
    context_wait(context);
    drop_work(context);
    while (context->ranges)
        memory_release(context->ranges);
    event_forget_context(context);
    while (context->streams)
        stream_free(context->streams);
    for (unsigned i = 0; i < context_slab.count; i++)
        forget_peer((struct context *)context_slab.all[i], context);
    context->peer_count = 0;
    context->alive = false;
}

void context_forget_all(void) {
    for (unsigned i = 0; i < context_slab.count; i++) {
        struct context *context = (struct context *)context_slab.all[i];
        if (!context->object.live)
            continue;
        if (context->alive) {
            drop_work(context);
            context_destroy(context);
        }
        slab_put(&context_slab, context);
    }
}

CUresult context_wait(struct context *context) {
    queue_wait(&(struct waiting){.context = context, .up_to = queue_sequence()});
    pool_trim(context->device);
    return context->sticky;
}

static CUresult synchronize(struct context *context) {
    CUresult result = context_check(context);

    if (result == CUDA_SUCCESS)
        result = capture_context_call(context);
    return result == CUDA_SUCCESS ? context_wait(context) : result;
}

static CUresult as_context(CUcontext handle, struct context **context) {
    *context = (struct context *)handle;
    if (!is_live(*context, &context_slab))
        return CUDA_ERROR_INVALID_CONTEXT;
    return (*context)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult synchronize_one(CUcontext handle) {
    struct context *context = context_current();
    CUresult result = handle ? as_context(handle, &context) : CUDA_SUCCESS;

    return result == CUDA_SUCCESS ? synchronize(context) : result;
}

ENTRY(cuCtxSynchronize, (void), CONTEXT, synchronize(context_current()))
ENTRY(cuCtxSynchronize_v2, (CUcontext context), INITIALISED, synchronize_one(context))

/* ---- the stack ------------------------------------------------------------------------------- */

static CUresult push(struct context *context) {
    struct thread *thread = thread_self();

    if (thread->depth == CONTEXT_STACK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    thread->stack[thread->depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult push_current(CUcontext handle) {
    struct context *context;
    CUresult result = as_context(handle, &context);

    return result == CUDA_SUCCESS ? push(context) : result;
}

static CUresult pop_current(CUcontext *handle) {
    struct thread *thread = thread_self();

    if (!thread->depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct context *context = thread->stack[--thread->depth];
    if (handle)
        *handle = (CUcontext)context;
    return CUDA_SUCCESS;
}

/* A primary context may be made current dead: what needs it says so later. */
static CUresult set_current(CUcontext handle) {
    struct thread *thread = thread_self();
    struct context *context = (struct context *)handle;

    if (context && !(is_live(context, &context_slab) && (context->alive || context->primary)))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (thread->depth)
        thread->depth--;
    return context ? push(context) : CUDA_SUCCESS;
}

static CUresult get_current(CUcontext *handle) {
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (CUcontext)context_current();
    return CUDA_SUCCESS;
}

ENTRY(cuCtxPushCurrent, (CUcontext context), INITIALISED, push_current(context))
ENTRY(cuCtxPushCurrent_v2, (CUcontext context), INITIALISED, push_current(context))
ENTRY(cuCtxPopCurrent, (CUcontext * context), INITIALISED, pop_current(context))
ENTRY(cuCtxPopCurrent_v2, (CUcontext * context), INITIALISED, pop_current(context))
ENTRY(cuCtxSetCurrent, (CUcontext context), INITIALISED, set_current(context))
ENTRY(cuCtxGetCurrent, (CUcontext * context), INITIALISED | QUIET, get_current(context))

static CUresult create(CUcontext *handle, unsigned flags, CUdevice ordinal, unsigned api_version) {
    struct device *device = device_of(ordinal);

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    struct context *context = context_create(device, flags, api_version);
    *handle = (CUcontext)context;
    return push(context);
}

/* A destroyed context leaves the caller's stack if it is on top of it. */
static CUresult destroy(CUcontext handle) {
    struct thread *thread = thread_self();
    struct context *context;
    CUresult result = as_context(handle, &context);

    if (result != CUDA_SUCCESS)
        return result;
    if (context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    context_destroy(context);
    if (context_current() == context)
        thread->depth--;
    return CUDA_SUCCESS;
}

/* By the header's words: of the current context, which must be one that was made by hand. */
static CUresult attach(CUcontext *handle, unsigned flags) {
    struct context *context = context_current();

    if (!handle || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    context->users++;
    *handle = (CUcontext)context;
    return CUDA_SUCCESS;
}

static CUresult detach(CUcontext handle) {
    struct context *context;
    CUresult result = as_context(handle, &context);

    if (result != CUDA_SUCCESS)
        return result;
    if (context->primary || context_current() != context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context->users > 1)
        return context->users--, CUDA_SUCCESS;
    return destroy(handle);
}

ENTRY(cuCtxAttach, (CUcontext * context, unsigned flags), CONTEXT, attach(context, flags))
ENTRY(cuCtxDetach, (CUcontext context), INITIALISED, detach(context))
ENTRY(cuCtxCreate, (CUcontext * context, unsigned flags, CUdevice device), INITIALISED,
      create(context, flags, device, 3010))
ENTRY(cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device), INITIALISED,
      create(context, flags, device, 3020))
ENTRY(cuCtxCreate_v3,
      (CUcontext * context, CUexecAffinityParam *affinity, int count, unsigned flags,
       CUdevice device),
      INITIALISED, ((void)affinity, (void)count, create(context, flags, device, 3021)))
ENTRY(cuCtxCreate_v4,
      (CUcontext * context, CUctxCreateParams *params, unsigned flags, CUdevice device),
      INITIALISED, ((void)params, create(context, flags, device, 3021)))
ENTRY(cuCtxDestroy, (CUcontext context), INITIALISED, destroy(context))
ENTRY(cuCtxDestroy_v2, (CUcontext context), INITIALISED, destroy(context))

/* ---- the primary context --------------------------------------------------------------------- */

static CUresult retain(CUcontext *handle, CUdevice ordinal) {
    struct device *device = device_of(ordinal);

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!device->primary) {
        device->primary = context_create(device, device->primary_flags, 3020);
        device->primary->primary = true;
    } else if (!device->primary->alive) {
        start(device->primary, device->primary_flags);
    }
    device->primary_refs++;
    *handle = (CUcontext)device->primary;
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice ordinal) {
    struct device *device = device_of(ordinal);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (device->primary_refs == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->primary_refs == 0 && device->primary->alive)
        context_destroy(device->primary);
    return CUDA_SUCCESS;
}

static CUresult reset(CUdevice ordinal) {
    struct device *device = device_of(ordinal);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (device->primary && device->primary->alive)
        context_destroy(device->primary);
    return CUDA_SUCCESS;
}

static CUresult get_state(CUdevice ordinal, unsigned *flags, int *active) {
    struct device *device = device_of(ordinal);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags)
        *flags = device->primary_flags;
    if (active)
        *active = device->primary && device->primary->alive;
    return CUDA_SUCCESS;
}

static CUresult set_primary_flags(CUdevice ordinal, unsigned flags) {
    struct device *device = device_of(ordinal);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    device->primary_flags = flags;
    if (device->primary)
        device->primary->flags = flags;
    return CUDA_SUCCESS;
}

ENTRY(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), INITIALISED,
      retain(context, device))
ENTRY(cuDevicePrimaryCtxRelease, (CUdevice device), INITIALISED, release(device))
ENTRY(cuDevicePrimaryCtxRelease_v2, (CUdevice device), INITIALISED, release(device))
ENTRY(cuDevicePrimaryCtxReset, (CUdevice device), INITIALISED, reset(device))
ENTRY(cuDevicePrimaryCtxReset_v2, (CUdevice device), INITIALISED, reset(device))
ENTRY(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active), INITIALISED,
      get_state(device, flags, active))
ENTRY(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned flags), INITIALISED,
      set_primary_flags(device, flags))
ENTRY(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags), INITIALISED,
      set_primary_flags(device, flags))

/* ---- questions ------------------------------------------------------------------------------- */

static CUresult get_device(CUcontext handle, CUdevice *device) {
    struct context *context = context_current();
    CUresult result = handle ? as_context(handle, &context) : context_check(context);

    if (result != CUDA_SUCCESS)
        return result;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = context->device->ordinal;
    return CUDA_SUCCESS;
}

static CUresult get_id(CUcontext handle, unsigned long long *id) {
    struct context *context = context_current();
    CUresult result = handle ? as_context(handle, &context) : context_check(context);

    if (result != CUDA_SUCCESS)
        return result;
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}

static CUresult get_api_version(CUcontext handle, unsigned *version) {
    struct context *context = context_current();
    CUresult result = handle ? as_context(handle, &context) : context_check(context);

    if (result != CUDA_SUCCESS)
        return result;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = context->api_version;
    return CUDA_SUCCESS;
}

static CUresult get_unsigned(unsigned *out, unsigned value) {
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = value;
    return CUDA_SUCCESS;
}

static CUresult limit(CUlimit name, size_t *get, size_t set) {
    if ((unsigned)name >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (get)
        *get = context_current()->limits[name];
    else
        context_current()->limits[name] = set;
    return CUDA_SUCCESS;
}

static CUresult priorities(int *least, int *greatest) {
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

static CUresult shared_config(CUsharedconfig *get) {
    if (!get)
        return CUDA_ERROR_INVALID_VALUE;
    *get = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}

static CUresult cache_config(CUfunc_cache *get) {
    if (!get)
        return CUDA_ERROR_INVALID_VALUE;
    *get = context_current()->cache_config;
    return CUDA_SUCCESS;
}

ENTRY(cuCtxGetDevice, (CUdevice * device), INITIALISED, get_device(NULL, device))
ENTRY(cuCtxGetDevice_v2, (CUdevice * device, CUcontext context), INITIALISED,
      get_device(context, device))
ENTRY(cuCtxGetId, (CUcontext context, unsigned long long *id), INITIALISED, get_id(context, id))
ENTRY(cuCtxGetApiVersion, (CUcontext context, unsigned *version), INITIALISED,
      get_api_version(context, version))
ENTRY(cuCtxGetFlags, (unsigned *flags), CONTEXT, get_unsigned(flags, context_current()->flags))
ENTRY(cuCtxSetFlags, (unsigned flags), CONTEXT, (context_current()->flags = flags, CUDA_SUCCESS))
ENTRY(cuCtxGetLimit, (size_t * value, CUlimit name), CONTEXT, limit(name, value, 0))
ENTRY(cuCtxSetLimit, (CUlimit name, size_t value), CONTEXT, limit(name, NULL, value))
ENTRY(cuCtxGetStreamPriorityRange, (int *least, int *greatest), CONTEXT,
      priorities(least, greatest))
ENTRY(cuCtxGetCacheConfig, (CUfunc_cache * config), CONTEXT, cache_config(config))
ENTRY(cuCtxSetCacheConfig, (CUfunc_cache config), CONTEXT,
      (context_current()->cache_config = config, CUDA_SUCCESS))
ENTRY(cuCtxGetSharedMemConfig, (CUsharedconfig * config), CONTEXT, shared_config(config))
ENTRY(cuCtxSetSharedMemConfig, (CUsharedconfig config), CONTEXT, ((void)config, CUDA_SUCCESS))
ENTRY(cuCtxResetPersistingL2Cache, (void), CONTEXT, CUDA_SUCCESS)

/* ---- peers ----------------------------------------------------------------------------------- */

bool context_peer(struct context *context, struct context *other) {
    if (context == other || context->device == other->device)
        return true;
    for (unsigned i = 0; i < context->peer_count; i++)
        if (context->peers[i] == other)
            return true;
    return false;
}

static CUresult enable_peer(CUcontext handle, unsigned flags) {
    struct context *context = context_current(), *peer;
    CUresult result = as_context(handle, &peer);

    if (result != CUDA_SUCCESS)
        return result;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (peer->device == context->device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!sim.options.peer)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (context_peer(context, peer))
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if (context->peer_count == MAX_PEERS)
        return CUDA_ERROR_TOO_MANY_PEERS;
    context->peers[context->peer_count++] = peer;
    return CUDA_SUCCESS;
}

static CUresult disable_peer(CUcontext handle) {
    struct context *context = context_current(), *peer;
    CUresult result = as_context(handle, &peer);

    if (result != CUDA_SUCCESS)
        return result;
    if (peer->device == context->device || !context_peer(context, peer))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    forget_peer(context, peer);
    return CUDA_SUCCESS;
}

ENTRY(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags), CONTEXT, enable_peer(peer, flags))
ENTRY(cuCtxDisablePeerAccess, (CUcontext peer), CONTEXT, disable_peer(peer))
