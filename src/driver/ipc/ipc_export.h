/*
 * The blocks in pages of which this process has made IPC handles. hooks/ipc.c and ipc_server.c
 * call these functions. The lock EXPORTS protects the table.
 *
 * A handle contains a token of 128 random bits. The token is the permission to open the block: a
 * request with another token gets nothing. A token belongs to one allocation of a block and is
 * invalid after the free.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_EXPORT_H
#define GPUCACHE_DRIVER_IPC_IPC_EXPORT_H

#include "driver/ipc/ipc_handle.h"

struct pool_exported;

/**
 * Makes the handle of a live block that was marked as externally visible. All calls for one
 * allocation make the same handle. Returns 0, -ENOMEM, or -ENOSYS without random numbers.
 */
int ipc_export(uint64_t exporter, uint64_t address, struct ipc_handle *handle);

/**
 * Exports handles of the block that has this token, from its VMM page `first` on, as pool_export()
 * does. Returns -ENOENT for a wrong token.
 */
int ipc_export_open(const uint64_t token[2], uint64_t address, uint32_t first,
                    struct pool_exported *exported);

/** Fills `number` with random bytes. Returns false if the system has none. */
bool ipc_export_draw(void *number, size_t bytes);

#endif
