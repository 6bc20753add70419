#include "driver/context/registry.h"

#include "driver/context/active_contexts.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "stats/stats.h"

/* registry_lock protects these variables. Atomic ones are also used without it. Callers hold it,
 * except those of context_invalidate(), and of context_set_callbacks(), which runs once at the
 * start. */
static struct context *contexts; /* slots in a list; a slot is reused, never removed */
static struct host_freelist freelist = {.object_bytes = sizeof(struct context)};
static bool has_unknown; /* a context has no slot, for lack of host memory; see count_unknown() */
struct lock registry_lock = LOCK_INITIALIZER(REGISTRY);
static uint64_t last_serial; /* serial number of the newest context or view */
static unsigned primary_endings[STATS_MAX_DEVICES]; /* registry_count_primary_ending(), by device */
_Atomic unsigned registry_views;

_Atomic uint64_t context_changes = 1;
_Atomic unsigned context_alive;

void context_invalidate(void) {
    atomic_fetch_add(&context_changes, 1);
}

static const struct context_callbacks *callbacks;
static unsigned callback_count;

void context_set_callbacks(const struct context_callbacks *table, unsigned count) {
    callbacks = table;
    callback_count = count;
}

struct context *registry_first(void) {
    return contexts;
}

struct context *registry_find(CUcontext handle) {
    struct context *context = contexts;
    while (context && context->handle != handle)
        context = context->next;
    return context;
}

static bool is_view_of(const struct context *view, const struct context *context) {
    return view->handle && view->green && view->behind == context->handle;
}

void registry_remove(struct context *context) {
    /* The counts change before the callbacks: driver_pools_invalidate() reads context_count(). */
    if (context->green) {
        atomic_fetch_sub(&registry_views, 1);
    } else {
        for (struct context *view = contexts; view; view = view->next)
            if (is_view_of(view, context))
                registry_remove(view);
        atomic_fetch_sub(&context_alive, 1);
    }
    for (unsigned i = 0; i < callback_count; i++) {
        const struct context_callbacks *functions = &callbacks[i];
        if (functions->ended && (functions->of_views || !context->green))
            functions->ended(context);
    }
    *context = (struct context){.next = context->next};
    context_invalidate();
}

/* Returns whether the driver has a context of that handle. Sets *id to its identifier, or to 0 if
 * the driver returns none (before CUDA 12.0, or after a fault). */
static bool read_id(CUcontext handle, unsigned long long *id) {
    unsigned version;
    *id = 0;
    CUresult r =
        HAS(cuCtxGetId) ? REAL(cuCtxGetId)(handle, id) : REAL(cuCtxGetApiVersion)(handle, &version);
    return r != CUDA_ERROR_CONTEXT_IS_DESTROYED && r != CUDA_ERROR_INVALID_CONTEXT;
}

bool registry_has_ended(const struct context *context) {
    unsigned long long id;
    return !read_id(context->handle, &id) || (id != 0 && context->id != 0 && id != context->id);
}

/* Returns a free slot, or NULL without host memory. */
static struct context *free_slot(void) {
    struct context **at = &contexts;
    while (*at && (*at)->handle)
        at = &(*at)->next;
    if (!*at)
        *at = host_freelist_get(&freelist);
    return *at;
}

/*
 * Counts a context for which there is no slot. No code notices the end of such a context. The first
 * one therefore adds 2 to `context_alive` permanently; later ones add nothing. `context_alive` is
 * never 1 afterwards, and no context is the only active one. No pool then uses a barrier.
 */
static void count_unknown(CUcontext handle) {
    if (!has_unknown) {
        has_unknown = true;
        atomic_fetch_add(&context_alive, 2);
        /* After the count: a drain for this activation must not find `context_alive` at 1. */
        active_contexts_add(handle);
        active_contexts_keep_all();
        context_invalidate();
    }
}

struct context *registry_enter(struct context fresh) {
    struct context *context = free_slot();
    if (!context) {
        count_unknown(fresh.handle);
        return NULL;
    }
    fresh.next = context->next;
    fresh.serial = ++last_serial;
    *context = fresh;
    atomic_fetch_add(fresh.green ? &registry_views : &context_alive, 1);
    if (!fresh.green)
        active_contexts_add(fresh.handle); /* after the count, as in count_unknown() */
    context_invalidate();
    return context;
}

struct context *registry_find_or_enter(CUcontext handle, bool *is_new) {
    struct context *context = registry_find(handle);
    if (context && context->green)
        return context;
    if (context && registry_has_ended(context)) {
        registry_remove(context);
        context = NULL;
    }
    unsigned long long id;
    if (!context && read_id(handle, &id)) {
        context = registry_enter(
            (struct context){.handle = handle, .id = id, .primary = true, .ordinal = -1});
        *is_new = context != NULL;
    }
    return context;
}

bool registry_may_end(const struct context *context) {
    bool counted =
        context->primary && context->ordinal >= 0 && context->ordinal < STATS_MAX_DEVICES;
    return context->ending > 0 || (counted && primary_endings[context->ordinal] > 0);
}

void registry_remove_ended(void) {
    for (struct context *context = contexts; context; context = context->next)
        if (context->handle && !context->green && !registry_may_end(context) &&
            registry_has_ended(context))
            registry_remove(context);
}

/* --- calls that may end a context --- */

static void call_suspended(const struct context *context, bool suspended) {
    for (unsigned i = 0; i < callback_count; i++) {
        const struct context_callbacks *functions = &callbacks[i];
        if (functions->suspended && (functions->of_views || !context->green))
            functions->suspended(context, suspended);
    }
}

/* Suspends or resumes a context and its views, after the number of calls that may end it has
 * changed. Removes the context if it has ended: it is never resumed, because the driver has
 * destroyed its events. */
static void update_suspended(struct context *context) {
    bool suspended = registry_may_end(context);
    if (!suspended && registry_has_ended(context)) {
        registry_remove(context);
        return;
    }
    call_suspended(context, suspended);
    for (struct context *view = contexts; view; view = view->next)
        if (is_view_of(view, context))
            call_suspended(view, suspended);
}

void registry_count_ending(struct context *context, int change) {
    context->ending += (unsigned)change;
    update_suspended(context);
}

void registry_count_primary_ending(CUdevice device, int change) {
    for (CUdevice i = 0; i < STATS_MAX_DEVICES; i++)
        if (device == i || device == -1)
            primary_endings[i] += (unsigned)change;
    for (struct context *context = contexts; context; context = context->next)
        if (context->handle && context->primary && (context->ordinal == device || device == -1))
            update_suspended(context);
}
