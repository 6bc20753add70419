/*
 * Records a fault that a call of the program returned, in each pool whose context has the fault.
 *
 * After a fault the driver returns the fault's code from every call of the context. The pool serves
 * allocations and frees without a driver call, so it must know the fault to return the same code.
 *
 * The hooks of copies, fills, waits, queries, launches, streams, captures and of memory that the
 * driver serves call fault_notice(). The pool stores the fault. This file has no state;
 * fault_record() acquires the lock REGISTRY, and then the pool's.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_FAULT_H
#define GPUCACHE_DRIVER_CONTEXT_FAULT_H

#include "base/likely.h"
#include "process/process.h"

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>

struct pool;

/** Returns whether an error ends its context permanently, so that every later native call returns
 * it. */
bool fault_is_sticky(CUresult code);

/** Returns the fault that ended the context of a pool. 0: there was no fault, or `pool` is NULL. */
CUresult fault_of(struct pool *pool);

/** Records that a call returned the error `code`. If it is a fault's, asks the driver about each
 * context that has a pool. Every later call of a pool whose context has a fault returns that fault.
 * Does not ask about a context that is not current while another thread's call may be ending it.
 * Acquires the registry's lock; call with no lock held. */
void fault_record(CUresult code);

/** Returns the driver's answer `r` to a call of the program, after fault_record() if it is an
 * error. Call with no lock held, unless `r` is CUDA_SUCCESS. */
static inline CUresult fault_notice(CUresult r) {
    if (unlikely(r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY) && process_is_started())
        fault_record(r);
    return r;
}

#endif
