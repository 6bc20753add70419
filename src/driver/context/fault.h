/*
 * Faults that the program learns of from a copy, a fill, a wait or a query.
 *
 * From then on the driver answers every call with that fault. A free or an allocation that the pool
 * answers does not ask the driver, so what the driver said here is remembered. Each replacement is
 * the call, one comparison of its result, and a look whether a reader of the live page waits for fresh
 * figures; all are made from the NOTICED rows of the table.
 * Those of RETRIED rows, launches among them, are made so too (retry.c).
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_FAULT_H
#define GPUCACHE_DRIVER_CONTEXT_FAULT_H

#include "process/process.h"

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>

struct pool;

/** Whether an error ends its context for good: natively every later call answers with it. */
bool fault_is_deadly(CUresult code);

/** The code that killed the context of a pool, 0 while it lives or for no pool. */
CUresult fault_of(struct pool *pool);

/** A call has answered with an error: if it is a fault that ended the current context, its pool
 * answers with it from now on. */
void fault_look(CUresult code);

/** Looks at the driver's answer to a call of the program, and returns it. */
static inline CUresult fault_notice(CUresult r) {
    if (__builtin_expect(r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY, 0) &&
        atomic_load(&process_state) == PROCESS_STARTED) {
        fault_look(r);
    }
    return r;
}

#endif
