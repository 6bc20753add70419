/*
 * Contexts that a program creates: their ends, the stack of contexts of each thread, peer access.
 *
 * A context owns its streams, its memory and its unfinished work. A destroyed context stays a dead
 * handle while threads have it on their stacks. After that, mostly at once, the next context of any
 * device has its handle. A context is destroyed for other calls as soon as a thread destroys it,
 * even while that thread still waits for its work.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct slab context_slab = SLAB(struct context);

struct context *context_current(void) {
    struct thread *thread = thread_self();

    return thread->depth ? thread->stack[thread->depth - 1] : NULL;
}

struct context *context_owner(struct context *context) {
    return context && context->behind ? context->behind : context;
}

CUresult context_check(struct context *context) {
    const struct context *owner = context_owner(context);

    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return context->alive && !context->ending && !owner->ending ? sim.fault
                                                                : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* ---- life ------------------------------------------------------------------------------------ */

CUresult context_start(struct context *context, unsigned flags) {
    context->heap = (struct heap){.device = context->device, .charged = true};
    context->local_taken = false;
    CUresult result = CUDA_SUCCESS;
    if (!context->behind)
        result = sim.fault ? sim.fault : own_take(context, sim.options.context_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    context->alive = true;
    context->users = 1;
    context->flags = flags;
    context->id = ++sim.next_id;
    context->legacy = stream_new(context, CU_STREAM_DEFAULT, 0);
    context->marks = stream_new(context, CU_STREAM_NON_BLOCKING, 0);
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = MIB;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB;
    return CUDA_SUCCESS;
}

CUresult context_create(struct context **out, struct device *device, struct context *behind,
                        unsigned api_version) {
    struct context *context = slab_get(&context_slab);

    context->device = device;
    context->behind = behind;
    context->api_version = api_version;
    CUresult result = context_start(context, 0);
    if (result != CUDA_SUCCESS)
        slab_put(&context_slab, context);
    *out = result == CUDA_SUCCESS ? context : NULL;
    return result;
}

void context_settle(struct context *context) {
    if (context->object.live && !context->alive && !context->primary && !context->stacked &&
        !context->pins)
        slab_put(&context_slab, context);
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

/* Ends the objects of a context whose work has finished. */
static void end(struct context *context) {
    for (unsigned i = 0; !context->behind && i < context_slab.count; i++) {
        struct context *view = (struct context *)context_slab.all[i];
        if (view->object.live && view->alive && view->behind == context)
            end(view);
    }
    drop_work(context);
    while (context->ranges)
        memory_release(context->ranges);
    event_forget_context(context);
    kernel_forget_context(context);
    while (context->streams)
        stream_free(context->streams);
    for (unsigned i = 0; i < context_slab.count; i++)
        forget_peer((struct context *)context_slab.all[i], context);
    context->peer_count = 0;
    own_give(context, context->own_bytes);
    context->alive = false;
}

void context_destroy(struct context *context) {
    for (unsigned i = 0; i < context_slab.count; i++) {
        const struct context *its = (struct context *)context_slab.all[i];
        bool ends = its == context || (its->behind == context && its->alive);
        for (struct stream *stream = ends ? its->streams : NULL; stream; stream = stream->next)
            capture_forget_stream(stream);
    }
    context->ending = true;
    context->pins++;
    context_wait(context);
    end(context);
    context->pins--;
    context->ending = false;
    context_settle(context);
}

void context_forget_all(void) {
    for (unsigned i = 0; i < context_slab.count; i++) {
        struct context *context = (struct context *)context_slab.all[i];
        if (context->object.live && context->alive) {
            drop_work(context);
            end(context);
        }
    }
    for (unsigned i = 0; i < context_slab.count; i++)
        if (context_slab.all[i]->live)
            slab_put(&context_slab, context_slab.all[i]);
}

CUresult context_wait(struct context *context) {
    queue_wait(&(struct waiting){.context = context, .up_to = queue_sequence()});
    pool_trim(context->device);
    memory_take_back(context->device);
    return context_check(context);
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
    return (*context)->alive && !(*context)->ending ? CUDA_SUCCESS
                                                    : CUDA_ERROR_CONTEXT_IS_DESTROYED;
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
    thread_watch_end();
    context->stacked++;
    return CUDA_SUCCESS;
}

static void pop(struct thread *thread) {
    struct context *context = thread->stack[--thread->depth];

    context->stacked--;
    context_settle(context);
}

void context_thread_ends(void) {
    struct thread *thread = thread_self();

    while (thread->depth)
        pop(thread);
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
    if (handle)
        *handle = (CUcontext)context_current();
    pop(thread);
    return CUDA_SUCCESS;
}

/* Makes a context current. A primary context may be dead: later calls that need it return the
 * error. */
static CUresult set_current(CUcontext handle) {
    struct thread *thread = thread_self();
    struct context *context = (struct context *)handle;

    if (context && !(is_live(context, &context_slab) && (context->alive || context->primary)))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context)
        context->pins++; /* the popped context may be this one */
    if (thread->depth)
        pop(thread);
    if (!context)
        return CUDA_SUCCESS;
    context->pins--;
    return push(context);
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
    struct context *context;
    CUresult result = context_create(&context, device, NULL, api_version);
    if (result != CUDA_SUCCESS)
        return result;
    context->flags = flags;
    *handle = (CUcontext)context;
    return push(context);
}

/* Destroys a context. If it is on top of the caller's stack, it is popped. */
static CUresult destroy(CUcontext handle) {
    struct thread *thread = thread_self();
    struct context *context;
    CUresult result = as_context(handle, &context);

    if (result != CUDA_SUCCESS)
        return result;
    if (context->primary || context->behind)
        return CUDA_ERROR_INVALID_CONTEXT;
    context->pins++;
    context_destroy(context);
    context->pins--;
    if (context_current() == context)
        pop(thread);
    else
        context_settle(context);
    return CUDA_SUCCESS;
}

/* Attaches to the current context, which must be one of cuCtxCreate (cuda.h, cuCtxAttach). */
static CUresult attach(CUcontext *handle, unsigned flags) {
    struct context *context = context_current();

    if (!handle || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (context->primary || context->behind)
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

/* ---- questions ------------------------------------------------------------------------------- */

/* Returns the context that a query is about: the named one, or else the current one. */
static CUresult asked_about(CUcontext handle, const void *answer, struct context **context) {
    *context = context_current();
    CUresult result = handle ? as_context(handle, context) : context_check(*context);
    return result == CUDA_SUCCESS && !answer ? CUDA_ERROR_INVALID_VALUE : result;
}

/* The same for queries that a driver answers after a kernel's fault too (probe-h200.txt). */
static CUresult asked_despite_a_fault(CUcontext handle, const void *answer,
                                      struct context **context) {
    CUresult result = asked_about(handle, answer, context);

    if (!handle && *context && result != CUDA_SUCCESS && result == sim.fault)
        result = answer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return result;
}

static CUresult get_device(CUcontext handle, CUdevice *device) {
    struct context *context;
    CUresult result = asked_despite_a_fault(handle, device, &context);

    if (result == CUDA_SUCCESS)
        *device = context->device->ordinal;
    return result;
}

static CUresult get_flags(unsigned *flags) {
    struct context *context;
    CUresult result = asked_despite_a_fault(NULL, flags, &context);

    if (result == CUDA_SUCCESS)
        *flags = context->flags;
    return result;
}

static CUresult get_id(CUcontext handle, unsigned long long *id) {
    struct context *context;
    CUresult result = asked_about(handle, id, &context);

    if (result == CUDA_SUCCESS)
        *id = context->id;
    return result;
}

static CUresult get_api_version(CUcontext handle, unsigned *version) {
    struct context *context;
    CUresult result = asked_about(handle, version, &context);

    if (result == CUDA_SUCCESS)
        *version = context->api_version;
    return result;
}

static CUresult get_limit(CUlimit name, size_t *value) {
    if ((unsigned)name >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    *value = context_current()->limits[name];
    return CUDA_SUCCESS;
}

/* Sets a limit of the context. The heap and the printf buffer of kernels take device memory when
 * they grow. */
static CUresult set_limit(CUlimit name, size_t value) {
    struct context *context = context_current();
    bool memory = name == CU_LIMIT_MALLOC_HEAP_SIZE || name == CU_LIMIT_PRINTF_FIFO_SIZE;

    if ((unsigned)name >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (memory && sim.options.context_bytes && value > context->limits[name]) {
        CUresult result = own_take(context_owner(context), value - context->limits[name]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    context->limits[name] = value;
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
ENTRY(cuCtxGetFlags, (unsigned *flags), INITIALISED, get_flags(flags))
ENTRY(cuCtxSetFlags, (unsigned flags), CONTEXT, (context_current()->flags = flags, CUDA_SUCCESS))
ENTRY(cuCtxGetLimit, (size_t * value, CUlimit name), CONTEXT, get_limit(name, value))
ENTRY(cuCtxSetLimit, (CUlimit name, size_t value), CONTEXT, set_limit(name, value))
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
    context = context_owner(context);
    if (context == other || context->device == other->device)
        return true;
    for (unsigned i = 0; i < context->peer_count; i++)
        if (context->peers[i] == other)
            return true;
    return false;
}

static CUresult enable_peer(CUcontext handle, unsigned flags) {
    struct context *context = context_owner(context_current()), *peer;
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
    struct context *context = context_owner(context_current()), *peer;
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
