/*
 * Maps the pages of another process's block here. Requests a few pages at a time, in the order of
 * their addresses. ipc_pages.c calls ipc_fetch() with no lock held, and the other functions also
 * with its lock held.
 *
 * The address range has only the pages of the block, not its whole segment. The mappings keep the
 * memory alive, also after the exporter has ended.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_FETCH_H
#define GPUCACHE_DRIVER_IPC_IPC_FETCH_H

#include "driver/ipc/ipc_handle.h"

struct ipc_fetched {
    CUdeviceptr base;
    uint64_t span;          /* bytes of address range, in whole pages */
    uint64_t offset, bytes; /* of the block in that range */
};

/**
 * Maps the block for the current context's device, and for the devices of `peer_devices`, one bit
 * each. Waits for the exporter within limits. Returns 0; a negative errno if the exporter is gone
 * or does not export the block; or the driver's positive error code.
 */
int ipc_fetch(const struct ipc_ticket *ticket, uint64_t peer_devices, struct ipc_fetched *fetched);

/** Unmaps the block and frees its addresses. All work on the block must have completed. */
void ipc_fetch_undo(const struct ipc_fetched *fetched);

/** Gives one more device access to the block. Returns the driver's answer. */
CUresult ipc_fetch_grant_access(const struct ipc_fetched *fetched, CUdevice device);

#endif
