/*
 * Opens blocks of other processes' vmm backends ("blocks in pages"). hooks/ipc.c opens and closes
 * them; ipc.c and other hooks ask about addresses. The lock IPC_PAGES protects the table.
 *
 * The pages are mapped once per context, however often the block is opened there, and unmapped at
 * the last close. The native close waits for the work of its context. ipc_pages_close() waits too,
 * because cuMemUnmap does not wait.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_PAGES_H
#define GPUCACHE_DRIVER_IPC_IPC_PAGES_H

#include "driver/ipc/ipc.h"
#include "driver/ipc/ipc_handle.h"

/**
 * Opens a block, or adds an opening. `native` is the driver's answer for the handle, which the
 * driver does not know. Returns CUDA_SUCCESS or an error. Returns `native` if it reports another
 * error of the call, or if the block is not available. Call with no lock held.
 */
CUresult ipc_pages_open(CUcontext context, CUdeviceptr *dptr, const struct ipc_ticket *ticket,
                        unsigned flags, CUresult native);

/** Returns whether an open block begins at `dptr`. */
bool ipc_pages_has(CUdeviceptr dptr);

/**
 * Closes one opening of the block at `dptr`. The last close waits for the work of the block's
 * context. `native` is the driver's answer for an address that was not opened. Returns `native` if
 * it reports another error, or if no block begins at `dptr`. Call with no lock held.
 */
CUresult ipc_pages_close(CUcontext context, CUdeviceptr dptr, CUresult native);

/** Finds the block that covers `dptr`, as ipc_find() does. */
int ipc_pages_find(CUdeviceptr dptr, struct ipc_block *block);

/** Returns whether the range overlaps the pages of an open block. */
bool ipc_pages_touch(CUdeviceptr dptr, uint64_t bytes);

/**
 * Gives a device access to the blocks that are open in a context. Later openings give access
 * themselves (context_peer_devices). Returns the driver's first error.
 */
CUresult ipc_pages_grant_access(CUcontext context, CUdevice device);

/** Gives the current device access to all open blocks. Returns whether it got access to any. */
bool ipc_pages_access_all(void);

/** Unmaps and removes the blocks of a context that has ended. Called under the lock REGISTRY.
 * unpooled_forget() then removes the blocks from the ledger (control/context_callbacks.c). */
void ipc_pages_forget(const struct context *context);

#endif
