#include "driver/reuse/deferred.h"

#include "driver/context/context.h"
#include "driver/reuse/stream_queues.h"
#include "driver/table/entries.h"

static _Atomic(struct stream_queues *) all_queues;
static struct lock all_queues_lock =
    LOCK_INITIALIZER(DEFERRED_CONTEXTS); /* held while a context gets its queues */

/* --- the contexts --- */

static struct stream_queues *find_queues(CUcontext context) {
    struct stream_queues *queues = atomic_load(&all_queues);
    while (queues && atomic_load(&queues->context) != context)
        queues = queues->next;
    return queues;
}

/* Returns the queues of a context. Reuses those of an ended context, or creates new ones. NULL
 * without host memory. The queues are not suspended, even if another thread's call may be ending
 * the context: the caller's program uses the context, so that call is not the one that ends it. */
static struct stream_queues *make_queues(CUcontext context) {
    lock_acquire(&all_queues_lock);
    struct stream_queues *queues = find_queues(context);
    if (!queues && (queues = find_queues(NULL)) != NULL) {
        atomic_store(&queues->context, context);
    } else if (!queues && (queues = host_map(sizeof *queues, 4096)) != NULL) {
        lock_start(&queues->lock, LOCK_DEFERRED);
        queues->queue_freelist.object_bytes = sizeof(struct stream_queue);
        queues->deferred_freelist.object_bytes = sizeof(struct deferred_free);
        queues->next = atomic_load(&all_queues);
        atomic_store(&queues->context, context);
        atomic_store(&all_queues, queues);
    }
    lock_release(&all_queues_lock);
    return queues;
}

/* Acquires the lock of a context's queues, and returns them. NULL without host memory. */
static struct stream_queues *lock_queues(CUcontext context) {
    for (;;) {
        struct stream_queues *queues = find_queues(context);
        if (!queues && !(queues = make_queues(context)))
            return NULL;
        lock_acquire(&queues->lock);
        if (atomic_load(&queues->context) == context)
            return queues;
        lock_release(&queues->lock); /* the context ended in between */
    }
}

/* --- freeing --- */

/*
 * Defers the free of `dptr` in the queues of `context`. Acquires their lock, and holds it while
 * `record` runs. Returns the same codes as deferred_add() (deferred.h).
 */
static CUresult add_in(CUcontext context, struct stream_identity identity, CUdeviceptr dptr,
                       CUstream stream, CUresult (*record)(CUevent, CUstream)) {
    struct stream_queues *queues = lock_queues(context);
    if (!queues)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct deferred_free *deferred = host_freelist_get(&queues->deferred_freelist);
    struct stream_queue *queue = deferred ? stream_queue_of(queues, identity) : NULL;
    CUresult r =
        queue ? stream_queue_record(context, queue, stream, record) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && pool_defer_free(dptr, &deferred->block) != 0)
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        stream_queue_add(queue, deferred);
    else if (deferred)
        host_freelist_put(&queues->deferred_freelist, deferred);
    lock_release(&queues->lock);
    return r;
}

/*
 * Sets *identity to the identity of a stream. If the driver does not number streams, every free
 * gets its own queue and event. Returns CUDA_SUCCESS or the driver's error code.
 */
static CUresult identify(CUstream stream, bool per_thread, struct stream_identity *identity) {
    static _Atomic uint64_t threads, frees;
    static _Thread_local uint64_t thread __attribute__((tls_model("initial-exec")));
    *identity = (struct stream_identity){.kind = NULL};
    if (stream == CU_STREAM_PER_THREAD || (!stream && per_thread)) {
        thread = thread ? thread : atomic_fetch_add(&threads, 1) + 1;
        *identity = (struct stream_identity){CU_STREAM_PER_THREAD, thread};
    } else if (!stream || stream == CU_STREAM_LEGACY) {
        identity->kind = CU_STREAM_LEGACY;
    } else if (HAS(cuStreamGetId)) {
        unsigned long long number = 0;
        CUresult r = REAL(cuStreamGetId)(stream, &number);
        identity->number = number;
        return r;
    } else {
        identity->number = atomic_fetch_add(&frees, 1);
    }
    return CUDA_SUCCESS;
}

/*
 * Returns the current context, or NULL. If cuCtxGetCurrent fails, asks for the context of
 * CU_STREAM_PER_THREAD: that is the current context (NVIDIA's documentation of cuStreamGetCtx). The
 * same question about the legacy stream would invalidate captures of blocking streams
 * (tests/sim/test_captures.c).
 */
static CUcontext current_context(void) {
    CUcontext current = NULL;
    if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
        REAL(cuStreamGetCtx)(CU_STREAM_PER_THREAD, &current);
    return current;
}

/*
 * Returns the context whose queues get a free in `stream`, a stream that the program created. The
 * queues must not end before the stream does. If `current`, the current context, is the view of a
 * green context, returns the stream's own context: a stream of the primary context outlives the
 * view.
 */
static CUcontext context_of_queue(CUcontext current, CUstream stream) {
    CUcontext own = NULL;
    bool is_view = current && context_resolved(current) != current;
    return is_view && REAL(cuStreamGetCtx)(stream, &own) == CUDA_SUCCESS && own ? own : current;
}

CUresult deferred_add(CUdeviceptr dptr, CUcontext current, CUstream stream, bool per_thread,
                      CUresult (*record)(CUevent, CUstream)) {
    struct stream_identity identity;
    CUcontext own = NULL;
    CUresult r = identify(stream, per_thread, &identity);
    if (r != CUDA_SUCCESS)
        return r;
    current = current ? current : current_context();
    current = identity.kind ? current : context_of_queue(current, stream);
    r = current ? add_in(current, identity, dptr, stream, record) : CUDA_ERROR_INVALID_HANDLE;
    bool of_other_context = r == CUDA_ERROR_INVALID_HANDLE && !identity.kind &&
                            REAL(cuStreamGetCtx)(stream, &own) == CUDA_SUCCESS && own != current;
    return of_other_context ? add_in(own, identity, dptr, stream, record) : r;
}

/* --- reclaiming --- */

/*
 * With `all`, waits for the lock of the caller's own context only. The holder of a lock may be
 * recording an event. The driver may make the record wait until another thread's native free in
 * that context ends. Such a free must not delay callers of other contexts.
 */
bool deferred_reclaim(CUcontext context, bool all) {
    bool any = false;
    for (struct stream_queues *queues = atomic_load(&all_queues); queues; queues = queues->next) {
        if (all && atomic_load(&queues->context) == context)
            lock_acquire(&queues->lock);
        else if (!lock_try(&queues->lock))
            continue;
        any |= !queues->suspended && stream_queues_reclaim(queues, all);
        lock_release(&queues->lock);
    }
    return any;
}

bool deferred_reclaim_now(void) {
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current); /* NULL if it fails: locks of contexts are then only tried */
    return deferred_reclaim(current, true);
}

void deferred_suspend(const struct context *context, bool suspended) {
    struct stream_queues *queues = find_queues(context->handle);
    if (queues) {
        lock_acquire(&queues->lock);
        queues->suspended = suspended;
        lock_release(&queues->lock);
    }
}

void deferred_capture_announced(void) {
    for (struct stream_queues *queues = atomic_load(&all_queues); queues; queues = queues->next) {
        lock_acquire(&queues->lock);
        lock_release(&queues->lock);
    }
}

/* --- ends --- */

/* Drops the deferred frees of a pool's blocks from all queues. */
static void forget_blocks(const struct pool *pool) {
    for (struct stream_queues *queues = atomic_load(&all_queues); queues; queues = queues->next) {
        lock_acquire(&queues->lock);
        stream_queues_forget(queues, pool);
        lock_release(&queues->lock);
    }
}

void deferred_forget(const struct context *context) {
    if (context->pool)
        forget_blocks(context->pool);
    struct stream_queues *queues = find_queues(context->handle);
    if (!queues)
        return;
    lock_acquire(&queues->lock);
    stream_queues_end(queues);
    queues->suspended = false;
    atomic_store(&queues->context, NULL);
    lock_release(&queues->lock);
}
