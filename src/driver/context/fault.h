/*
 * Records a fault of the current context that a call of the program returned.
 *
 * After a fault the driver answers every call of the context with it. The pool serves allocations
 * and frees without a driver call, so it must know the fault to answer likewise.
 *
 * The hooks of NOTICED rows of the table (copies, fills, waits, queries) call fault_notice(), and
 * so do those of RETRIED rows, launches among them (hooks/launches.c). The pool keeps the fault;
 * this file has no state.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_FAULT_H
#define GPUCACHE_DRIVER_CONTEXT_FAULT_H

#include "process/process.h"

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>

struct pool;

/** Returns whether an error ends its context permanently, so that every later native call returns
 * it. */
bool fault_is_deadly(CUresult code);

/** Returns the fault that ended the context of a pool. 0: the context has none, or `pool` is
 * NULL. */
CUresult fault_of(struct pool *pool);

/** Makes the current context's pool answer with the error `code` of a call from now on, if it is a
 * fault that ended the current context. */
void fault_look(CUresult code);

/** Returns the driver's answer `r` to a call of the program, after fault_look() if it is an
 * error. */
static inline CUresult fault_notice(CUresult r) {
    if (__builtin_expect(r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY, 0) &&
        atomic_load(&process_state) == PROCESS_STARTED) {
        fault_look(r);
    }
    return r;
}

#endif
