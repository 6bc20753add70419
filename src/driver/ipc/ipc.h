/*
 * Legacy IPC of blocks: the hooks of cuIpc*, and the blocks of other processes that are open here.
 * Hooks that check addresses call ipc_find(). The table takes the lock IPC; blocks in pages have
 * their own (ipc_pages.h).
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
    uint64_t id;         /* unique in the process for each opening of a block */
    CUcontext mapped_in; /* for blocks in pages: the context that opened the block; else NULL */
};

extern _Atomic unsigned ipc_blocks; /* open blocks */
extern _Atomic uint64_t ipc_last_id;

/** Works as ipc_find(), without the quick test for open blocks. */
int ipc_look(CUdeviceptr dptr, struct ipc_block *block);

/**
 * Finds the imported block that covers `dptr`. Returns 0 and fills *block. Returns -EINVAL if
 * `dptr` lies in a segment opened only for its blocks, but in none of the open blocks. Returns
 * -ENOENT if the driver must be asked. Takes a lock only if a block is open.
 */
static inline int ipc_find(CUdeviceptr dptr, struct ipc_block *block) {
    return __builtin_expect(atomic_load_explicit(&ipc_blocks, memory_order_relaxed) > 0, 0)
               ? ipc_look(dptr, block)
               : -ENOENT;
}

/** Forgets the imports of a context that has ended, which closed them. */
void ipc_forget(const struct context *context);

#endif
