/*
 * Blocks in pages of other processes, opened here.
 *
 * The pages are mapped once for each context, however often the block is opened there, and unmapped with the last
 * close: natively a close waits for the work of its context, and so does this one, since the driver unmaps at once.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_PAGES_H
#define GPUCACHE_DRIVER_IPC_IPC_PAGES_H

#include "driver/ipc/ipc.h"
#include "driver/ipc/ipc_handle.h"

/** `native`: what the driver says of the handle, which to it is none. That is the answer where anything else is wrong,
 * or the block cannot be had. */
CUresult ipc_pages_open(CUcontext context, CUdeviceptr *dptr, const struct ipc_ticket *ticket,
                        unsigned flags, CUresult native);

/** Whether one that is open begins there. */
bool ipc_pages_has(CUdeviceptr dptr);

/** `native`: what the driver says of an address that was not opened. */
CUresult ipc_pages_close(CUcontext context, CUdeviceptr dptr, CUresult native);

/** As ipc_find(). */
int ipc_pages_look(CUdeviceptr dptr, struct ipc_block *block);

/** Whether some address of the range belongs to one. */
bool ipc_pages_touch(CUdeviceptr dptr, uint64_t bytes);

/** Gives a device access to what was opened in a context; later ones have it anyway (context_reached_by). */
CUresult ipc_pages_grant_access(CUcontext context, CUdevice device);

/** Gives the current device access to all of them. True if there are any. */
bool ipc_pages_access_all(void);

/** A context has ended, and what was opened in it is closed. */
void ipc_pages_forget(const struct context *context);

#endif
