/*
 * Blocks of other processes' pools, opened here by IPC handles.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_H
#define GPUCACHE_DRIVER_IPC_IPC_H

#include <cuda.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>

struct context;

struct ipc_block {
    CUdeviceptr address;
    uint64_t bytes;
    uint64_t id;         /* tells this opening of a block from every other one in the process */
    CUcontext mapped_in; /* in pages: the context that opened it; else NULL */
};

extern _Atomic unsigned ipc_blocks; /* how many are open */
extern _Atomic uint64_t ipc_last_id;

int ipc_look(CUdeviceptr dptr, struct ipc_block *block);

/** The imported block that covers `dptr`: 0. -EINVAL: in a segment that was opened for the sake of
 * its blocks, but in none of those. -ENOENT: the driver is to be asked. */
static inline int ipc_find(CUdeviceptr dptr, struct ipc_block *block) {
    return __builtin_expect(atomic_load_explicit(&ipc_blocks, memory_order_relaxed) > 0, 0)
               ? ipc_look(dptr, block)
               : -ENOENT;
}

/** A context has ended, and what was opened in it is closed. */
void ipc_forget(const struct context *context);

#endif
