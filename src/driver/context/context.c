#include "driver/context/context.h"

#include "base/clock.h"
#include "driver/context/active_contexts.h"
#include "driver/context/current.h"
#include "driver/context/device_backend.h"
#include "driver/context/device_pool.h"
#include "driver/context/registry.h"
#include "driver/state/shutdown.h"
#include "heap/page_map.h"
#include "options/options.h"
#include "pool/pool.h"
#include "process/helper.h"
#include "process/process.h"
#include "tuning/tuning.h"

/* The longest wait of wait_for_other_endings(): 10 ms. */
#define OTHER_ENDING_NS 10000000

_Thread_local struct context_last context_last __attribute__((tls_model("initial-exec")));

/* Gives the current context its pool, if the device and the driver allow one. Call with the
 * registry's lock. */
static void open_pool(struct context *context) {
    struct device *device = device_current();
    struct device_pool *entry =
        device ? device_pool_start(context->handle, device, context->peer_devices) : NULL;
    if (device)
        context->ordinal = device->ordinal;
    if (entry) {
        context->entry = entry;
        context->pool = entry->pool;
    }
}

/* Returns the pool of `handle`, the primary context of a view. Creates the pool if there is none:
 * makes the context current temporarily. NULL: no pool. Call with the registry's lock. */
static struct pool *primary_pool(CUcontext handle, bool *is_new) {
    struct context *primary = registry_find_or_enter(handle, is_new);
    if (primary && !primary->pool) {
        if (current_push(primary->handle) != CUDA_SUCCESS)
            return NULL;
        open_pool(primary);
        current_pop();
    }
    return primary ? primary->pool : NULL;
}

/* --- contexts are added --- */

/* Reads the number of activations first: a context that is activated during the drain needs a drain
 * of its own. The caller's context is active already, so the pools of other contexts add no new
 * barrier. */
void context_drain_barriers(void) {
    uint64_t activations = active_contexts_activations();
    for (int i = 0; atomic_load(&context_alive) > 1 && i < STATS_MAX_DEVICES; i++) {
        struct device *device = device_used(i);
        if (device)
            device_pool_drain_barriers(device);
    }
    active_contexts_drained(activations);
}

void context_register(CUcontext handle, enum context_origin origin, CUdevice ordinal) {
    bool is_new = false;
    lock_acquire(&registry_lock);
    struct context *context = registry_find(handle);
    if (context && (origin == CONTEXT_CREATED || context->green))
        registry_remove(context); /* it has ended: a new context has its handle now */
    context = registry_find_or_enter(handle, &is_new);
    if (context) {
        context->primary = origin == CONTEXT_RETAINED;
        context->ordinal = ordinal;
    }
    if (is_new && origin == CONTEXT_RETAINED)
        active_contexts_may_deactivate(handle);
    lock_release(&registry_lock);
    if (active_contexts_is_due(handle))
        context_drain_barriers();
}

void context_register_view(CUcontext handle, CUgreenCtx green, CUcontext behind, CUdevice device) {
    bool is_new = false;
    lock_acquire(&registry_lock);
    /* Before the look-up of the view: this call removes the views too if `behind` has ended. */
    struct context *primary = registry_find_or_enter(behind, &is_new);
    if (primary)
        primary->ordinal = device;
    struct context *view = registry_find(handle);
    bool known = view && view->green == green && view->behind == behind && view->ending == 0;
    if (view && !known)
        registry_remove(view); /* it has ended: the driver gave its handles out again */
    if (!known)
        registry_enter((struct context){.handle = handle, .green = green, .behind = behind});
    bool due = active_contexts_keep_all();
    lock_release(&registry_lock);
    if (is_new || due)
        context_drain_barriers();
}

/* --- contexts end --- */

/* Returns the view of a green context. NULL: there is none. Call with the registry's lock. */
static struct context *find_view(CUgreenCtx green) {
    struct context *context = green ? registry_first() : NULL;
    while (context && (!context->handle || context->green != green))
        context = context->next;
    return context;
}

/* Returns the primary context of a device. NULL: not registered. Call with the registry's lock. */
static struct context *find_primary(CUdevice device) {
    struct context *context = device >= 0 ? registry_first() : NULL;
    while (context && !(context->handle && context->primary && context->ordinal == device))
        context = context->next;
    return context;
}

void context_end_begin(struct context_ending *ending) {
    lock_acquire(&registry_lock);
    struct context *view = find_view(ending->green);
    struct context *own = view             ? registry_find(view->behind)
                          : ending->handle ? registry_find(ending->handle)
                                           : find_primary(ending->primary_of);
    if (view) {
        ending->view = view;
        ending->view_serial = view->serial;
        view->ending++;
    }
    if (own && !own->green) {
        ending->context = own;
        ending->serial = own->serial;
    }
    if (!ending->handle)
        registry_count_primary_ending(ending->primary_of, 1);
    else if (ending->context)
        registry_count_ending(own, 1);
    struct pool *pool = own ? own->pool : NULL;
    context_invalidate();
    lock_release(&registry_lock);
    if (pool && ending->for_certain)
        pool_wait_for_waiters(pool); /* no extra delay: the call waits for all work anyway */
}

/* Waits, with the lock released, while another call may end the primary context `own` of serial
 * number `serial`. Mostly that call has returned from the driver, and its context_end_done() is
 * about to remove the context. Until then the memory of the context counts, and the limit may
 * refuse the next request of this thread. The other call may also be the one that ends the context,
 * after the work there. The wait has a limit, because a release that is not the last one must not
 * wait for work. */
static void wait_for_other_endings(const struct context *own, uint64_t serial) {
    for (uint64_t slept = 0;
         own->serial == serial && registry_may_end(own) && slept < OTHER_ENDING_NS;
         slept += POLL_NS) {
        lock_release(&registry_lock);
        sleep_ns(POLL_NS);
        lock_acquire(&registry_lock);
    }
}

void context_end_done(struct context_ending *ending, bool over) {
    lock_acquire(&registry_lock);
    struct context *own = ending->context, *view = ending->view;
    bool known = own && own->serial == ending->serial;
    if (view && view->serial == ending->view_serial) {
        view->ending--;
        if (over)
            registry_remove(view); /* before its context, and so the view, is resumed */
    }
    /* `own` may be another context of the device, whose creation no hook saw. The identifier tells
     * which context has ended (registry_count_primary_ending()). Without one, `over` does. */
    if (known && over && !ending->green && (ending->handle || own->id == 0))
        registry_remove(own);
    else if (known && ending->handle)
        registry_count_ending(own, -1);
    if (!ending->handle) {
        registry_count_primary_ending(ending->primary_of, -1);
        if (known)
            wait_for_other_endings(own, ending->serial);
    }
    registry_remove_ended();
    lock_release(&registry_lock);
}

/* If another thread starts the pool later, open_pool() passes `peer_devices` on. */
CUresult context_grant_access(CUcontext handle, CUdevice by) {
    bool is_new = false;
    lock_acquire(&registry_lock);
    struct context *context = registry_find_or_enter(handle, &is_new);
    context =
        context && context->green ? registry_find_or_enter(context->behind, &is_new) : context;
    struct device_pool *entry = context ? context->entry : NULL;
    if (context && is_new)
        context->ordinal = current_device_of(context->handle);
    if (context)
        context->peer_devices |= device_bit(by);
    lock_release(&registry_lock);
    if (is_new)
        context_drain_barriers();
    return entry ? device_pool_grant_access(entry, by) : CUDA_SUCCESS;
}

CUcontext context_resolved(CUcontext handle) {
    if (handle && atomic_load(&registry_views) > 0) {
        lock_acquire(&registry_lock);
        const struct context *context = registry_find(handle);
        handle = context && context->green ? context->behind : handle;
        lock_release(&registry_lock);
    }
    return handle;
}

CUcontext context_current_resolved(void) {
    CUcontext handle = NULL;
    REAL(cuCtxGetCurrent)(&handle);
    return context_resolved(handle);
}

uint64_t context_peer_devices(CUcontext handle) {
    lock_acquire(&registry_lock);
    const struct context *context = registry_find(handle);
    uint64_t peer_devices = context ? context->peer_devices : 0;
    lock_release(&registry_lock);
    return peer_devices;
}

/* Advances *context to the next slot, or from NULL to the first one. Returns its pool's entry, and
 * sets the bit of `by` in peer_devices before the caller asks for access. NULL: no pool. */
static struct device_pool *reach_next(struct context **context, CUdevice by) {
    struct device_pool *entry = NULL;
    lock_acquire(&registry_lock);
    struct context *next = *context = *context ? (*context)->next : registry_first();
    if (next && next->handle && next->entry) {
        entry = next->entry;
        next->peer_devices |= device_bit(by);
    }
    lock_release(&registry_lock);
    return entry;
}

bool context_access_all(void) {
    CUdevice here;
    struct context *context = NULL;
    bool any = false;
    if (REAL(cuCtxGetDevice)(&here) != CUDA_SUCCESS)
        return false;
    do {
        struct device_pool *entry = reach_next(&context, here);
        bool other = entry && entry->backend->device->ordinal != here;
        any |= other && device_pool_grant_access(entry, here) == CUDA_SUCCESS;
    } while (context);
    return any;
}

void context_address_given(CUdeviceptr address, uint64_t bytes) {
    if (!page_map_any(address, bytes))
        return;
    lock_acquire(&registry_lock); /* waits for a thread that is just removing the context */
    for (struct context *context = registry_first(); context; context = context->next)
        if (context->pool && pool_covers(context->pool, address, bytes) &&
            (registry_may_end(context) || registry_has_ended(context)))
            registry_remove(context);
    lock_release(&registry_lock);
}

/* --- pools are looked up --- */

/* Returns whether a thread may use its cached pool without asking the driver. With a second
 * context, the thread could switch to it without a hook. While exit handlers run, the driver may
 * shut down without a hook. */
static bool may_skip_driver(void) {
    return atomic_load(&context_alive) == 1 && atomic_load(&registry_views) == 0 &&
           !atomic_load(&shutdown_begun);
}

/* Caches the pool of `handle`, the current context, and returns it. The caller read `changes` from
 * context_changes before this call. Each change that makes may_skip_driver() false raises
 * context_changes afterwards. A change that this call does not see therefore invalidates the cached
 * pool. */
static struct pool *cache_pool(CUcontext handle, struct pool *pool, uint64_t changes) {
    context_last = (struct context_last){may_skip_driver() ? changes : 0, pool, handle, changes};
    return pool;
}

__attribute__((noinline)) struct pool *context_find_pool(void) {
    CUcontext handle = NULL;
    uint64_t changes = atomic_load(&context_changes);
    bool current = REAL(cuCtxGetCurrent)(&handle) == CUDA_SUCCESS && handle;
    if (current && handle == context_last.handle && changes == context_last.changes)
        return cache_pool(handle, context_last.pool, changes);
    if (!current || !process_ready() || options()->disable)
        return NULL;
    bool is_new = false;
    lock_acquire(&registry_lock);
    struct context *context = registry_find_or_enter(handle, &is_new);
    struct pool *pool = NULL;
    if (context && context->green) {
        pool = primary_pool(context->behind, &is_new);
    } else if (context) {
        if (!context->pool)
            open_pool(context);
        pool = context->pool;
    }
    changes = atomic_load(&context_changes);
    lock_release(&registry_lock);
    helper_start_requested();
    if (active_contexts_switched(handle) || is_new)
        context_drain_barriers();
    return pool ? cache_pool(handle, pool, changes) : NULL;
}

struct pool *context_whole_pool(void) {
    return atomic_load(&context_alive) == 1 && atomic_load(&registry_views) == 0 ? context_pool()
                                                                                 : NULL;
}

struct pool *context_primary_pool(CUdevice device) {
    struct pool *pool = NULL;
    lock_acquire(&registry_lock);
    for (struct context *context = registry_first(); context && !pool; context = context->next) {
        bool matches = context->handle && context->primary && context->ordinal == device;
        pool = matches ? context->pool : NULL;
    }
    lock_release(&registry_lock);
    return pool;
}

struct pool *context_pool_of(CUcontext handle) {
    lock_acquire(&registry_lock);
    const struct context *context = handle ? registry_find(handle) : NULL;
    if (context && context->green)
        context = registry_find(context->behind);
    struct pool *pool = context ? context->pool : NULL;
    lock_release(&registry_lock);
    return pool;
}

void context_each(void (*function)(struct context *context, void *with), void *with) {
    lock_acquire(&registry_lock);
    for (struct context *context = registry_first(); context; context = context->next)
        if (context->handle && context->pool)
            function(context, with);
    lock_release(&registry_lock);
}
