/*
 * Frees in the order of a stream: cuMemFreeAsync of a block of the pool.
 *
 * Such a block is still in use by everything the stream was told to wait for, also by work that is
 * submitted only later (a stream may wait for a value in memory). So no event of the context will
 * do: the block stays live until an event of that very stream has finished, and is freed then.
 */
#ifndef GPUCACHE_DRIVER_DEFERRED_H
#define GPUCACHE_DRIVER_DEFERRED_H

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>

struct pool;

extern _Atomic unsigned deferred_count;

/** Frees `dptr` once `stream` gets to this point. Answers as cuMemFreeAsync does. */
CUresult deferred_add(const struct pool *pool, CUdeviceptr dptr, CUstream stream,
                      CUresult (*record)(CUevent, CUstream));

/** Returns when no event of a context is being asked for that was announced to end before. */
void deferred_pass_by(void);

/** The pool's context has ended, and its events and memory with it. */
void deferred_forget(const struct pool *pool);

/** Whether `dptr` was freed that way and its stream is not there yet. */
bool deferred_look(CUdeviceptr dptr);
static inline bool deferred_has(CUdeviceptr dptr) {
    return __builtin_expect(atomic_load_explicit(&deferred_count, memory_order_relaxed) > 0, 0) &&
           deferred_look(dptr);
}

/** Frees what is due. */
void deferred_poll(void);
static inline void deferred_settle(void) {
    if (__builtin_expect(atomic_load_explicit(&deferred_count, memory_order_relaxed) > 0, 0)) {
        deferred_poll();
    }
}

#endif
