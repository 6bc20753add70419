/*
 * Blocks in pages that this process has made IPC handles of.
 *
 * A handle leads to the block by a token, 128 bits by chance, which is as much as a permission to open it: whoever
 * asks with another one gets nothing. A token belongs to one life of a block; that is over when the program frees it.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_EXPORT_H
#define GPUCACHE_DRIVER_IPC_IPC_EXPORT_H

#include "driver/ipc/ipc_handle.h"

struct pool_exported;

/** The handle of a live block, which was marked as reached from outside. Equal for equal blocks. 0, or a negative
 * errno. */
int ipc_export(uint64_t exporter, uint64_t address, struct ipc_handle *handle);

/** As pool_export(), of the block that has this token. */
int ipc_export_lend(const uint64_t token[2], uint64_t address, uint32_t first,
                    struct pool_exported *loan);

/** A number that nobody can guess. False: the system has none to give. */
bool ipc_export_draw(void *number, size_t bytes);

#endif
