#include "driver/context/context.h"

#include "driver/context/active_contexts.h"
#include "driver/context/current.h"
#include "driver/context/device_backend.h"
#include "driver/context/device_pool.h"
#include "driver/state/shutdown.h"
#include "heap/host.h"
#include "heap/page_map.h"
#include "pool/pool.h"
#include "process/helper.h"
#include "process/lock.h"
#include "process/options.h"
#include "process/process.h"

/* All slots, the oldest first; the registry's lock protects them. A slot is never unmapped. Its
 * address means the same context as long as `life` is the same. */
static struct context *contexts;
static struct host_slab slab = {.object_bytes = sizeof(struct context)};
static bool uncounted; /* a context has no slot, for lack of host memory; see count_unknown() */
static struct lock registry = LOCK_INITIALIZER(REGISTRY);
static uint64_t last_life;     /* serial number of the newest context or view; under the lock */
static _Atomic unsigned views; /* views of green contexts in the registry */

_Thread_local struct context_last context_last __attribute__((tls_model("initial-exec")));
_Atomic uint64_t context_generation = 1;
_Atomic unsigned context_alive;

void context_invalidate(void) {
    atomic_fetch_add(&context_generation, 1);
}

/* --- the registry; callers hold its lock --- */

static struct context *find(CUcontext handle) {
    struct context *context = contexts;
    while (context && context->handle != handle) {
        context = context->next;
    }
    return context;
}

static const struct context_callbacks *callbacks;
static unsigned callback_count;

void context_set_callbacks(const struct context_callbacks *table, unsigned count) {
    callbacks = table;
    callback_count = count;
}

static bool is_view_of(const struct context *view, const struct context *context) {
    return view->handle && view->green && view->behind == context->handle;
}

/* Frees the slot of a context that has ended, and those of its views, after all callbacks. */
static void remove_context(struct context *context) {
    if (context->green) {
        atomic_fetch_sub(&views, 1);
    } else {
        for (struct context *view = contexts; view; view = view->next) {
            if (is_view_of(view, context)) {
                remove_context(view);
            }
        }
        atomic_fetch_sub(&context_alive, 1);
    }
    for (unsigned i = 0; i < callback_count; i++) {
        const struct context_callbacks *functions = &callbacks[i];
        if (functions->ended && (functions->of_views || !context->green)) {
            functions->ended(context);
        }
    }
    *context = (struct context){.next = context->next};
    context_invalidate();
}

/* Returns whether the driver has a context of that handle. Sets `id` to its identifier, or to 0 if
 * the driver gives none (before CUDA 12.0, or after a fault). */
static bool read_id(CUcontext handle, unsigned long long *id) {
    unsigned version;
    *id = 0;
    CUresult r =
        HAS(cuCtxGetId) ? REAL(cuCtxGetId)(handle, id) : REAL(cuCtxGetApiVersion)(handle, &version);
    return r != CUDA_ERROR_CONTEXT_IS_DESTROYED && r != CUDA_ERROR_INVALID_CONTEXT;
}

static bool has_ended(const struct context *context) {
    unsigned long long id;
    return !read_id(context->handle, &id) || (id != 0 && context->id != 0 && id != context->id);
}

/* Returns a free slot, or NULL without host memory. */
static struct context *free_slot(void) {
    struct context **at = &contexts;
    while (*at && (*at)->handle) {
        at = &(*at)->next;
    }
    if (!*at) {
        *at = host_slab_get(&slab);
    }
    return *at;
}

/*
 * Counts the first context that cannot be entered as two contexts, permanently, because nothing
 * will notice its end. No context counts as the only one afterwards, so no pool uses a barrier
 * while the unknown context may exist.
 */
static void count_unknown(CUcontext handle) {
    if (!uncounted) {
        uncounted = true;
        atomic_fetch_add(&context_alive, 2);
        active_contexts_add(handle); /* after the count: context_drain_barriers() reads it */
        active_contexts_all_stay();
        context_invalidate();
    }
}

/* Enters a context into the registry. Returns NULL without host memory. */
static struct context *enter(struct context fresh) {
    struct context *context = free_slot();
    if (!context) {
        count_unknown(fresh.handle);
        return NULL;
    }
    fresh.next = context->next;
    fresh.life = ++last_life;
    *context = fresh;
    atomic_fetch_add(fresh.green ? &views : &context_alive, 1);
    if (!fresh.green) {
        active_contexts_add(fresh.handle); /* after the count, as in count_unknown() */
    }
    context_invalidate();
    return context;
}

/* Returns the context or view of a handle, and enters a context that is new. Replaces one that has
 * ended. NULL: the driver has no such context, or there is no host memory. A context whose creation
 * no hook saw may be a primary one, so it counts as primary. The caller sets the device of a new
 * context. */
static struct context *find_or_enter(CUcontext handle, bool *is_new) {
    struct context *context = find(handle);
    if (context && context->green) {
        return context;
    }
    if (context && has_ended(context)) {
        remove_context(context);
        context = NULL;
    }
    unsigned long long id;
    if (!context && read_id(handle, &id)) {
        context =
            enter((struct context){.handle = handle, .id = id, .primary = true, .ordinal = -1});
        *is_new = context != NULL;
    }
    return context;
}

/* Gives the current context its pool, if the device and the driver allow one. */
static void open_pool(struct context *context) {
    struct device *device = device_current();
    struct device_pool *entry =
        device ? device_pool_start(context->handle, device, context->reached_by) : NULL;
    if (device) {
        context->ordinal = device->ordinal;
    }
    if (entry) {
        context->entry = entry;
        context->pool = entry->pool;
    }
}

/* Returns the pool of a view's primary context. Makes that context current for a moment if it has
 * no pool yet. NULL: it gets none. */
static struct pool *pool_behind(CUcontext handle, bool *is_new) {
    struct context *primary = find_or_enter(handle, is_new);
    if (primary && !primary->pool) {
        if (current_push(primary->handle) != CUDA_SUCCESS) {
            return NULL;
        }
        open_pool(primary);
        current_pop();
    }
    return primary ? primary->pool : NULL;
}

/* --- contexts are added --- */

/* A barrier orders the work of its own context only. Pools of other contexts add no new barrier
 * from here on, because the context that the caller activated counts as active already. */
void context_drain_barriers(void) {
    uint64_t activations = active_contexts_activations();
    for (int i = 0; atomic_load(&context_alive) > 1 && i < STATS_MAX_DEVICES; i++) {
        struct device *device = device_used(i);
        if (device) {
            device_pool_drain_barriers(device);
        }
    }
    active_contexts_drained(activations);
}

void context_register(CUcontext handle, enum context_origin origin, CUdevice ordinal) {
    bool is_new = false;
    lock_acquire(&registry);
    struct context *context = find(handle);
    if (context && (origin == CONTEXT_CREATED || context->green)) {
        remove_context(context); /* it has ended: the driver makes no context that exists */
    }
    context = find_or_enter(handle, &is_new);
    if (context) {
        context->primary = origin == CONTEXT_RETAINED;
        context->ordinal = ordinal;
    }
    if (is_new && origin == CONTEXT_RETAINED) {
        active_contexts_seen(handle);
    }
    lock_release(&registry);
    if (active_contexts_is_due(handle)) {
        context_drain_barriers();
    }
}

void context_register_view(CUcontext handle, CUgreenCtx green, CUcontext behind, CUdevice device) {
    bool is_new = false;
    lock_acquire(&registry);
    struct context *view = find(handle);
    if (view) {
        remove_context(view);
    }
    struct context *primary =
        find_or_enter(behind, &is_new); /* first: removing an ended one removes its views */
    if (primary) {
        primary->ordinal = device;
    }
    enter((struct context){.handle = handle, .green = green, .behind = behind});
    bool due = active_contexts_all_stay();
    lock_release(&registry);
    if (is_new || due) {
        context_drain_barriers();
    }
}

/* --- contexts end --- */

static struct context *view_for(CUgreenCtx green) {
    struct context *context = green ? contexts : NULL;
    while (context && (!context->handle || context->green != green)) {
        context = context->next;
    }
    return context;
}

static struct context *primary_of(CUdevice device) {
    struct context *context = device >= 0 ? contexts : NULL;
    while (context && !(context->handle && context->primary && context->ordinal == device)) {
        context = context->next;
    }
    return context;
}

/* Calls the `suspended` callbacks of one context or view. */
static void call_suspended(const struct context *context, bool suspended) {
    for (unsigned i = 0; i < callback_count; i++) {
        const struct context_callbacks *functions = &callbacks[i];
        if (functions->suspended && (functions->of_views || !context->green)) {
            functions->suspended(context, suspended);
        }
    }
}

/* Adds `change` to the calls that may end a context. Suspends or resumes it and its views. */
static void count_ending(struct context *context, int change) {
    context->ending += (unsigned)change;
    bool suspended = context->ending > 0;
    call_suspended(context, suspended);
    for (struct context *view = contexts; view; view = view->next) {
        if (is_view_of(view, context)) {
            call_suspended(view, suspended);
        }
    }
}

void context_end_begin(struct context_ending *ending) {
    lock_acquire(&registry);
    struct context *view = view_for(ending->green);
    struct context *own = view             ? find(view->behind)
                          : ending->handle ? find(ending->handle)
                                           : primary_of(ending->primary_of);
    if (view) {
        ending->view = view;
        ending->view_life = view->life;
    }
    if (own && !own->green) {
        ending->context = own;
        ending->life = own->life;
        count_ending(own, 1);
    }
    struct pool *pool = own ? own->pool : NULL;
    context_invalidate();
    lock_release(&registry);
    if (pool && ending->for_certain) {
        pool_wait_for_waiters(pool); /* their waits end before the call's own wait does */
    }
}

/* Removes all contexts that have ended, also those whose end no hook saw. Skips a context that
 * another thread's call may be ending: the driver would block the question until that call
 * returns. */
static void remove_ended(void) {
    for (struct context *context = contexts; context; context = context->next) {
        if (context->handle && !context->green && context->ending == 0 && has_ended(context)) {
            remove_context(context);
        }
    }
}

void context_end_done(struct context_ending *ending, bool over) {
    lock_acquire(&registry);
    struct context *own = ending->context, *view = ending->view;
    if (own && own->life == ending->life) {
        if ((over && !ending->green) || has_ended(own)) {
            remove_context(own); /* still suspended: the driver has destroyed its events */
        } else {
            count_ending(own, -1);
        }
    }
    if (over && view && view->life == ending->view_life) {
        remove_context(view);
    }
    remove_ended();
    lock_release(&registry);
}

/* A pool that another thread starts later reads `reached_by` in open_pool(). */
CUresult context_grant_access(CUcontext handle, CUdevice by) {
    bool is_new = false;
    lock_acquire(&registry);
    struct context *context = find_or_enter(handle, &is_new);
    context = context && context->green ? find_or_enter(context->behind, &is_new) : context;
    struct device_pool *entry = context ? context->entry : NULL;
    if (is_new) {
        context->ordinal = current_device_of(context->handle);
    }
    if (context) {
        context->reached_by |= device_bit(by);
    }
    lock_release(&registry);
    if (is_new) {
        context_drain_barriers();
    }
    return entry ? device_pool_grant_access(entry, by) : CUDA_SUCCESS;
}

uint64_t context_reached_by(CUcontext handle) {
    lock_acquire(&registry);
    const struct context *context = find(handle);
    uint64_t reached_by = context ? context->reached_by : 0;
    lock_release(&registry);
    return reached_by;
}

/* Advances *context to the next slot, or from NULL to the first one. Returns its pool's entry, and
 * records that `by` has access to the pool's memory. NULL: the slot has no pool. */
static struct device_pool *reach_next(struct context **context, CUdevice by) {
    struct device_pool *entry = NULL;
    lock_acquire(&registry);
    struct context *next = *context = *context ? (*context)->next : contexts;
    if (next && next->handle && next->entry) {
        entry = next->entry;
        next->reached_by |= device_bit(by);
    }
    lock_release(&registry);
    return entry;
}

bool context_access_all(void) {
    CUdevice here;
    struct context *context = NULL;
    bool any = false;
    if (REAL(cuCtxGetDevice)(&here) != CUDA_SUCCESS) {
        return false;
    }
    do {
        struct device_pool *entry = reach_next(&context, here);
        bool other = entry && entry->backend->device->ordinal != here;
        any |= other && device_pool_grant_access(entry, here) == CUDA_SUCCESS;
    } while (context);
    return any;
}

void context_address_given(CUdeviceptr address, uint64_t bytes) {
    if (!page_map_any(address, bytes)) {
        return;
    }
    lock_acquire(&registry); /* waits for a thread that is just removing the context */
    for (struct context *context = contexts; context; context = context->next) {
        if (context->pool && pool_covers(context->pool, address, bytes) &&
            (context->ending > 0 || has_ended(context))) {
            remove_context(context);
        }
    }
    lock_release(&registry);
}

/* --- pools are looked up --- */

/* Returns whether a thread may use its cached pool without a question to the driver. The process
 * must have no second context, to which the thread could switch without a hook. The driver must not
 * be about to shut down, because nothing announces its end. */
static bool only_one(void) {
    return atomic_load(&context_alive) == 1 && atomic_load(&views) == 0 &&
           !atomic_load(&shutdown_begun);
}

/* Caches the pool of `handle`, which the driver has just named as current. The caller read
 * `generation` before the call of only_one() here: a change that makes only_one() false moves the
 * generation after it, so the cached pool becomes stale. */
static struct pool *keep_last(CUcontext handle, struct pool *pool, uint64_t generation) {
    context_last = (struct context_last){only_one() ? generation : 0, pool, handle, generation};
    return pool;
}

__attribute__((noinline)) struct pool *context_find_pool(void) {
    CUcontext handle = NULL;
    uint64_t generation = atomic_load(&context_generation);
    bool current = REAL(cuCtxGetCurrent)(&handle) == CUDA_SUCCESS && handle;
    if (current && handle == context_last.handle && generation == context_last.generation) {
        return keep_last(handle, context_last.pool, generation);
    }
    if (!process_ready() || options()->disable || !current) {
        return NULL;
    }
    bool is_new = false;
    lock_acquire(&registry);
    struct context *context = find_or_enter(handle, &is_new);
    struct pool *pool = NULL;
    if (context && context->green) {
        pool = pool_behind(context->behind, &is_new);
    } else if (context) {
        if (!context->pool) {
            open_pool(context);
        }
        pool = context->pool;
    }
    generation = atomic_load(&context_generation);
    lock_release(&registry);
    helper_start_wanted();
    if (active_contexts_switched(handle) || is_new) {
        context_drain_barriers();
    }
    return pool ? keep_last(handle, pool, generation) : NULL;
}

struct pool *context_whole_pool(void) {
    return atomic_load(&context_alive) == 1 && atomic_load(&views) == 0 ? context_pool() : NULL;
}

void context_forked(void) {
    context_invalidate();
}

struct pool *context_primary_pool(CUdevice device) {
    struct pool *pool = NULL;
    lock_acquire(&registry);
    for (struct context *context = contexts; context && !pool; context = context->next) {
        bool meant = context->handle && context->primary && context->ordinal == device;
        pool = meant ? context->pool : NULL;
    }
    lock_release(&registry);
    return pool;
}

struct pool *context_pool_of(CUcontext handle) {
    lock_acquire(&registry);
    const struct context *context = handle ? find(handle) : NULL;
    if (context && context->green) {
        context = find(context->behind);
    }
    struct pool *pool = context ? context->pool : NULL;
    lock_release(&registry);
    return pool;
}

void context_each(void (*function)(struct context *context, void *with), void *with) {
    lock_acquire(&registry);
    for (struct context *context = contexts; context; context = context->next) {
        if (context->handle && context->pool) {
            function(context, with);
        }
    }
    lock_release(&registry);
}
