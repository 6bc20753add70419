#include "driver/context/context.h"

#include "driver/context/active_contexts.h"
#include "driver/context/device_backend.h"
#include "driver/context/device_pool.h"
#include "driver/state/shutdown.h"
#include "heap/host.h"
#include "pool/pool.h"
#include "process/helper.h"
#include "process/lock.h"
#include "process/options.h"
#include "process/process.h"

/* All slots, the oldest first; under the registry's lock. A slot is never unmapped. Its address
 * means the same context as long as `life` is the same. */
static struct context *contexts;
static struct host_slab slab = {.object_bytes = sizeof(struct context)};
static bool uncounted; /* a context was met for which there was no host memory */
static struct lock registry = LOCK_INITIALIZER(REGISTRY);
static uint64_t lives;         /* contexts there ever were; under the registry's lock */
static _Atomic unsigned views; /* green contexts */

_Thread_local struct context_last context_last __attribute__((tls_model("initial-exec")));
_Atomic uint64_t context_generation = 1;
_Atomic unsigned context_alive;

void context_invalidate(void) {
    atomic_fetch_add(&context_generation, 1);
}

/* --- the registry; its lock is held --- */

static struct context *find(CUcontext handle) {
    struct context *context = contexts;
    while (context && context->handle != handle) {
        context = context->next;
    }
    return context;
}

static const struct context_callbacks *callbacks;
static unsigned callback_count;

void context_set_callbacks(const struct context_callbacks *listeners, unsigned count) {
    callbacks = listeners;
    callback_count = count;
}

static bool is_view_of(const struct context *view, const struct context *context) {
    return view->handle && view->green && view->behind == context->handle;
}

static void forget(struct context *context) {
    if (context->green) {
        atomic_fetch_sub(&views, 1);
    } else {
        /* Its views end with it. */
        for (struct context *view = contexts; view; view = view->next) {
            if (is_view_of(view, context)) {
                forget(view);
            }
        }
        atomic_fetch_sub(&context_alive, 1);
    }
    for (unsigned i = 0; i < callback_count; i++) {
        const struct context_callbacks *listener = &callbacks[i];
        if (listener->ended && (listener->of_views || !context->green)) {
            listener->ended(context);
        }
    }
    *context = (struct context){.next = context->next};
    context_invalidate();
}

/* Whether the driver has a context of that handle; and the number of its life, 0 if it tells none
 * (before CUDA 12.0, or after a fault). */
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
 * Counts the first context that cannot be entered as two, for good, because its end will not be
 * noticed. From then on no context counts as the only one, so no pool uses a barrier beside the
 * unknown one.
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

/* Enters a context into the registry; NULL without host memory. */
static struct context *enter(struct context fresh) {
    struct context *context = free_slot();
    if (!context) {
        count_unknown(fresh.handle);
        return NULL;
    }
    fresh.next = context->next;
    fresh.life = ++lives;
    *context = fresh;
    atomic_fetch_add(fresh.green ? &views : &context_alive, 1);
    if (!fresh.green) {
        active_contexts_add(
            fresh.handle); /* who sees that sees the count as well (context_drain_barriers) */
    }
    context_invalidate();
    return context;
}

/* The living context of a handle, entered if it is new; NULL: there is none, or no room for it. Where
 * nobody saw it come, it may well be a primary one. */
static struct context *meet(CUcontext handle, bool *is_new) {
    struct context *context = find(handle);
    if (context && context->green) {
        return context;
    }
    if (context && has_ended(context)) {
        forget(context);
        context = NULL;
    }
    unsigned long long id;
    if (!context && read_id(handle, &id)) {
        context = enter((struct context){.handle = handle, .id = id, .primary = true});
        *is_new = context != NULL;
    }
    return context;
}

/* Gives the current context its pool. */
static void open_pool(struct context *context) {
    struct device *device = device_current();
    struct device_pool *entry =
        device ? device_pool_start(context->handle, device, context->reached_by) : NULL;
    if (entry) {
        context->ordinal = device->ordinal;
        context->entry = entry;
        context->pool = entry->pool;
    }
}

/* A green context's memory is its device's primary context's, which has to be current to get a
 * pool. */
static struct pool *pool_behind(CUcontext handle, bool *is_new) {
    struct context *primary = meet(handle, is_new);
    if (primary && !primary->pool) {
        CUcontext popped;
        if (REAL(cuCtxPushCurrent_v2)(primary->handle) != CUDA_SUCCESS) {
            return NULL;
        }
        open_pool(primary);
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    return primary ? primary->pool : NULL;
}

/* --- contexts come --- */

/*
 * One more context can reach what the others' pools have handed out behind barriers, which order
 * nothing but the work of their own context. No new ones are put up from here on.
 */
void context_drain_barriers(void) {
    uint64_t woken = active_contexts_activations();
    for (int i = 0; atomic_load(&context_alive) > 1 && i < STATS_MAX_DEVICES; i++) {
        struct device *device = device_used(i);
        if (device) {
            device_pool_drain_barriers(device);
        }
    }
    active_contexts_drained(woken);
}

void context_register(CUcontext handle, enum context_origin origin, CUdevice ordinal) {
    bool is_new = false;
    lock_acquire(&registry);
    struct context *context = find(handle);
    if (context && (origin == CONTEXT_CREATED || context->green)) {
        forget(context); /* the driver does not make what is there */
    }
    context = meet(handle, &is_new);
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
        forget(view);
    }
    struct context *primary =
        meet(behind, &is_new); /* first: one that ended takes its views along */
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

static void tell_quiet(const struct context *context, bool suspended) {
    for (unsigned i = 0; i < callback_count; i++) {
        const struct context_callbacks *listener = &callbacks[i];
        if (listener->suspended && (listener->of_views || !context->green)) {
            listener->suspended(context, suspended);
        }
    }
}

static void count_ending(struct context *context, int change) {
    context->ending += (unsigned)change;
    bool suspended = context->ending > 0;
    tell_quiet(context, suspended);
    for (struct context *view = contexts; view; view = view->next) {
        if (is_view_of(view, context)) {
            tell_quiet(view, suspended);
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
        pool_wait_for_waiters(pool); /* they wait for less than the call will */
    }
}

/* A call that may end one context tells of others too that ended unseen. The one that is being ended
 * by another thread is left to that: the driver would hold up the question. */
static void forget_ended(void) {
    for (struct context *context = contexts; context; context = context->next) {
        if (context->handle && !context->green && context->ending == 0 && has_ended(context)) {
            forget(context);
        }
    }
}

void context_end_done(struct context_ending *ending, bool over) {
    lock_acquire(&registry);
    struct context *own = ending->context, *view = ending->view;
    if (own && own->life == ending->life) {
        if ((over && !ending->green) || has_ended(own)) {
            forget(own); /* still quiet: its events have gone */
        } else {
            count_ending(own, -1);
        }
    }
    if (over && view && view->life == ending->view_life) {
        forget(view);
    }
    forget_ended();
    lock_release(&registry);
}

/* A pool that begins meanwhile is told by open_pool(). */
CUresult context_grant_access(CUcontext handle, CUdevice by) {
    bool is_new = false;
    lock_acquire(&registry);
    struct context *context = meet(handle, &is_new);
    context = context && context->green ? meet(context->behind, &is_new) : context;
    struct device_pool *entry = context ? context->entry : NULL;
    if (context) {
        context->reached_by |= device_bit(by);
    }
    lock_release(&registry);
    return entry ? device_pool_grant_access(entry, by) : CUDA_SUCCESS;
}

uint64_t context_reached_by(CUcontext handle) {
    lock_acquire(&registry);
    const struct context *context = find(handle);
    uint64_t reached_by = context ? context->reached_by : 0;
    lock_release(&registry);
    return reached_by;
}

/* Moves *context on, from NULL to the first one. Returns its pool, or NULL, and notes that `by` can
 * reach the pool's memory. */
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
    if (!pool_touches(address, bytes)) {
        return;
    }
    lock_acquire(&registry); /* which is held by whoever is forgetting it */
    for (struct context *context = contexts; context; context = context->next) {
        if (context->pool && pool_covers(context->pool, address, bytes) &&
            (context->ending > 0 || has_ended(context))) {
            forget(context);
        }
    }
    lock_release(&registry);
}

/* --- asked by the other files of this room --- */

/* Whether a thread may go by what it knows: it could switch to no other context unseen, and the
 * driver, whose end nobody announces, is not about to end. */
static bool only_one(void) {
    return atomic_load(&context_alive) == 1 && atomic_load(&views) == 0 &&
           !atomic_load(&shutdown_begun);
}

/* The driver has just said that `handle` is current. `generation` was read before only_one() is
 * asked: whatever makes that untrue moves it afterwards. */
static struct pool *remember(CUcontext handle, struct pool *pool, uint64_t generation) {
    context_last = (struct context_last){only_one() ? generation : 0, pool, handle, generation};
    return pool;
}

__attribute__((noinline)) struct pool *context_find_pool(void) {
    CUcontext handle = NULL;
    uint64_t generation = atomic_load(&context_generation);
    bool current = REAL(cuCtxGetCurrent)(&handle) == CUDA_SUCCESS && handle;
    if (current && handle == context_last.handle && generation == context_last.generation) {
        return remember(handle, context_last.pool, generation);
    }
    if (!process_ready() || options()->disable || !current) {
        return NULL;
    }
    bool is_new = false;
    lock_acquire(&registry);
    struct context *context = meet(handle, &is_new);
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
    return pool ? remember(handle, pool, generation) : NULL;
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

void context_each(void (*visit)(struct context *context, void *with), void *with) {
    lock_acquire(&registry);
    for (struct context *context = contexts; context; context = context->next) {
        if (context->handle && context->pool) {
            visit(context, with);
        }
    }
    lock_release(&registry);
}
