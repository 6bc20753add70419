/*
 * Legacy IPC: the segments of other processes that are open here, and the blocks in them.
 * hooks/ipc.c opens and closes them. Hooks that check addresses call ipc_find(). The lock IPC
 * protects the tables; blocks in pages have their own lock (ipc_pages.h).
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_H
#define GPUCACHE_DRIVER_IPC_IPC_H

#include "base/likely.h"

#include <cuda.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>

struct context;

struct ipc_block {
    CUdeviceptr address;
    uint64_t bytes;
    uint64_t id;         /* unique; the same for all openings of a block until its last close */
    CUcontext mapped_in; /* for blocks in pages: the context that opened the block; else NULL */
};

extern _Atomic unsigned ipc_blocks;  /* open blocks */
extern _Atomic uint64_t ipc_last_id; /* the newest ipc_block.id */

/** Works as ipc_find(), without the quick test for open blocks. */
int ipc_find_open(CUdeviceptr dptr, struct ipc_block *block);

/**
 * Finds the imported block that covers `dptr`. Returns 0 and fills *block. Returns -EINVAL if
 * `dptr` lies in a segment opened only for its blocks, but in none of the open blocks. Returns
 * -ENOENT if the driver must be asked. Takes a lock only if a block is open.
 */
static inline int ipc_find(CUdeviceptr dptr, struct ipc_block *block) {
    return unlikely(atomic_load_explicit(&ipc_blocks, memory_order_relaxed) > 0)
               ? ipc_find_open(dptr, block)
               : -ENOENT;
}

/*
 * Bracket an opening: the driver call, and ipc_opened_whole() or ipc_opened_block(). The lock
 * IPC_CALLS is held in between, also while the driver waits for work. No other opening or closing
 * runs meanwhile.
 */
void ipc_open_begin(void);
void ipc_open_end(void);

/** Counts an opening of the whole segment at `base`, which the driver has just opened in `context`.
 * Does nothing without host memory. */
void ipc_opened_whole(CUcontext context, CUdeviceptr base);

/**
 * Counts an opening of the block at `offset`, in bytes, of the segment at `base`, which the driver
 * has just opened in `context`. Returns CUDA_SUCCESS and the block's address in *dptr. Returns
 * CUDA_ERROR_INVALID_VALUE if the block does not fit in the segment, and CUDA_ERROR_OUT_OF_MEMORY
 * without host memory. After an error the caller closes the driver's opening.
 */
CUresult ipc_opened_block(CUcontext context, CUdeviceptr base, uint64_t offset, uint64_t bytes,
                          CUdeviceptr *dptr);

/* A closing in progress. */
struct ipc_closing {
    CUcontext context;
    CUdeviceptr address; /* for the driver: the segment, or an address that it does not know */
    CUdeviceptr block;   /* the block to close, and its ipc_block.id */
    uint64_t id;         /* 0: the whole segment */
};

/**
 * Looks up the object that a close of `dptr` closes: a block opened in `context`, else a block
 * opened in another context, else a segment. The caller passes `address` of the result to the
 * driver, and the driver's answer to ipc_close_end(). The lock IPC_CALLS is held until then.
 */
struct ipc_closing ipc_close_begin(CUcontext context, CUdeviceptr dptr);

/** Subtracts the opening if the driver has closed it. Returns `answer`. */
CUresult ipc_close_end(const struct ipc_closing *closing, CUresult answer);

/** Removes the imports of a context: its end has closed them. */
void ipc_forget(const struct context *context);

#endif
