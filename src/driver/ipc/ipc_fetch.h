/*
 * Pages of another process's block, mapped here: asked for a few at a time, in the order of their addresses.
 *
 * What is reserved is the block's span of addresses and no more. The mappings keep the memory, whatever becomes
 * of the exporter.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_FETCH_H
#define GPUCACHE_DRIVER_IPC_IPC_FETCH_H

#include "driver/ipc/ipc_handle.h"

struct ipc_fetched {
    CUdeviceptr base;
    uint64_t span;          /* of addresses, in whole pages; */
    uint64_t offset, bytes; /* the block in it */
};

/**
 * Maps the block for the current context's device, and for those of `reached_by`, a bit for each. Waits for the exporter within limits. 0; a
 * negative errno: it is not there or does not hand it over; positive: the driver's code.
 */
int ipc_fetch(const struct ipc_ticket *ticket, uint64_t reached_by, struct ipc_fetched *fetched);

/** It is mapped nowhere any more. All work on it has finished. */
void ipc_fetch_undo(const struct ipc_fetched *fetched);

/** Gives one more device access. */
CUresult ipc_fetch_grant_access(const struct ipc_fetched *fetched, CUdevice device);

#endif
