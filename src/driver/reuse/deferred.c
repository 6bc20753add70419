#include "driver/reuse/deferred.h"

#include "driver/context/context.h"
#include "driver/reuse/deferred_lines.h"
#include "driver/table/entries.h"

static _Atomic(struct deferred_lines *) all_lines;
static struct lock making = LOCK_INITIALIZER(DEFERRED_CONTEXTS);

/* --- the contexts --- */

static struct deferred_lines *find_lines(CUcontext context) {
    struct deferred_lines *lines = atomic_load(&all_lines);
    while (lines && atomic_load(&lines->context) != context) {
        lines = lines->next;
    }
    return lines;
}

static struct deferred_lines *make_lines(CUcontext context) {
    lock_acquire(&making);
    struct deferred_lines *lines = find_lines(context);
    if (!lines && (lines = find_lines(NULL)) != NULL) {
        atomic_store(&lines->context, context);
    } else if (!lines && (lines = host_map(sizeof *lines, 4096)) != NULL) {
        lock_start(&lines->lock, LOCK_DEFERRED);
        lines->line_slab.object_bytes = sizeof(struct deferred_line);
        lines->held_slab.object_bytes = sizeof(struct deferred_free);
        lines->next = atomic_load(&all_lines);
        atomic_store(&lines->context, context);
        atomic_store(&all_lines, lines);
    }
    lock_release(&making);
    return lines;
}

/* Returns the lines of a context with their lock held, or NULL without host memory. */
static struct deferred_lines *lock_lines(CUcontext context) {
    for (;;) {
        struct deferred_lines *lines = find_lines(context);
        if (!lines && !(lines = make_lines(context))) {
            return NULL;
        }
        lock_acquire(&lines->lock);
        if (atomic_load(&lines->context) == context) {
            return lines;
        }
        lock_release(&lines->lock); /* the context with that handle has ended */
    }
}

/* --- freeing --- */

/*
 * Defers the free of `dptr` in a context, in the line of stream `which`. Takes the lock. Returns as
 * deferred_add().
 */
static CUresult add_in(CUcontext context, struct deferred_stream which, CUdeviceptr dptr,
                       CUstream stream, CUresult (*record)(CUevent, CUstream)) {
    struct deferred_lines *lines = lock_lines(context);
    if (!lines) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct deferred_free *held = host_slab_get(&lines->held_slab);
    struct deferred_line *line = held ? deferred_line_of(lines, which) : NULL;
    CUresult r =
        line ? deferred_line_record(context, line, stream, record) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && pool_defer_free(dptr, &held->block) != 0) {
        r = CUDA_ERROR_INVALID_VALUE;
    }
    if (r == CUDA_SUCCESS) {
        deferred_line_add(line, held);
    } else if (held) {
        host_slab_put(&lines->held_slab, held);
    }
    lock_release(&lines->lock);
    return r;
}

/*
 * Determines the identity of a stream. If the driver does not number its streams, every free gets
 * its own line and event. Returns CUDA_SUCCESS or the driver's error code.
 */
static CUresult identify(CUstream stream, bool per_thread, struct deferred_stream *which) {
    static _Atomic uint64_t threads, frees;
    static _Thread_local uint64_t thread __attribute__((tls_model("initial-exec")));
    *which = (struct deferred_stream){.kind = NULL};
    if (stream == CU_STREAM_PER_THREAD || (!stream && per_thread)) {
        thread = thread ? thread : atomic_fetch_add(&threads, 1) + 1;
        *which = (struct deferred_stream){CU_STREAM_PER_THREAD, thread};
    } else if (!stream || stream == CU_STREAM_LEGACY) {
        which->kind = CU_STREAM_LEGACY;
    } else if (HAS(cuStreamGetId)) {
        unsigned long long number = 0;
        CUresult r = REAL(cuStreamGetId)(stream, &number);
        which->number = number;
        return r;
    } else {
        which->number = atomic_fetch_add(&frees, 1);
    }
    return CUDA_SUCCESS;
}

/*
 * Returns the current context, or NULL. If cuCtxGetCurrent fails, the context of the thread's own
 * stream is the current one (NVIDIA's documentation of cuStreamGetCtx). The same query for the
 * legacy stream invalidates captures of blocking streams (tests/sim/test_captures.c).
 */
static CUcontext current_context(void) {
    CUcontext current = NULL;
    if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS) {
        REAL(cuStreamGetCtx)(CU_STREAM_PER_THREAD, &current);
    }
    return current;
}

CUresult deferred_add(CUdeviceptr dptr, CUcontext current, CUstream stream, bool per_thread,
                      CUresult (*record)(CUevent, CUstream)) {
    struct deferred_stream which;
    CUcontext own = NULL;
    CUresult r = identify(stream, per_thread, &which);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    current = current ? current : current_context();
    r = current ? add_in(current, which, dptr, stream, record) : CUDA_ERROR_INVALID_HANDLE;
    bool of_other_context = r == CUDA_ERROR_INVALID_HANDLE && !which.kind &&
                            REAL(cuStreamGetCtx)(stream, &own) == CUDA_SUCCESS && own != current;
    return of_other_context ? add_in(own, which, dptr, stream, record) : r;
}

/* --- reclaiming --- */

/*
 * Waits only for the lock of the caller's own context. The lock may be held by a record that waits,
 * in the driver, for a free of the same context. The free delays all work in the same context
 * anyway, but must not delay other contexts.
 */
bool deferred_reclaim(CUcontext context, bool all) {
    bool any = false;
    for (struct deferred_lines *lines = atomic_load(&all_lines); lines; lines = lines->next) {
        if (all && atomic_load(&lines->context) == context) {
            lock_acquire(&lines->lock);
        } else if (!lock_try(&lines->lock)) {
            continue;
        }
        any |= !lines->suspended && deferred_lines_reclaim(lines, all);
        lock_release(&lines->lock);
    }
    return any;
}

void deferred_reclaim_now(void) {
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current); /* if the call fails, all locks are only tried */
    deferred_reclaim(current, true);
}

void deferred_suspend(const struct context *context, bool suspended) {
    struct deferred_lines *lines = find_lines(context->handle);
    if (lines) {
        lock_acquire(&lines->lock);
        lines->suspended = suspended;
        lock_release(&lines->lock);
    }
}

void deferred_capture_announced(void) {
    for (struct deferred_lines *lines = atomic_load(&all_lines); lines; lines = lines->next) {
        lock_acquire(&lines->lock);
        lock_release(&lines->lock);
    }
}

/* --- ends --- */

static void forget_blocks(const struct pool *pool) {
    for (struct deferred_lines *lines = atomic_load(&all_lines); lines; lines = lines->next) {
        lock_acquire(&lines->lock);
        deferred_lines_forget(lines, pool);
        lock_release(&lines->lock);
    }
}

void deferred_forget(const struct context *context) {
    if (context->pool) {
        forget_blocks(context->pool);
    }
    struct deferred_lines *lines = find_lines(context->handle);
    if (!lines) {
        return;
    }
    lock_acquire(&lines->lock);
    deferred_lines_end(lines);
    lines->suspended = false;
    atomic_store(&lines->context, NULL);
    lock_release(&lines->lock);
}
