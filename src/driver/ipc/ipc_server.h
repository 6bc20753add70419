/*
 * The server: a helper thread that sends exported pages to other processes of the same user.
 *
 * The thread starts with the first handle of a block in pages and gets none of the program's
 * signals. It needs no thread of the program to serve an importer. It disconnects a peer that
 * breaks the protocol of ipc_wire.h or is silent for too long. hooks/ipc.c, ipc_pages.c,
 * exit_handler.c and lifecycle_hooks.c call these functions. The lock IPC_SERVER guards the start.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_SERVER_H
#define GPUCACHE_DRIVER_IPC_IPC_SERVER_H

#include "process/process.h"

#include <stdbool.h>
#include <stdint.h>

/**
 * Starts the server if needed, and returns its socket number in *name. Returns false, after a
 * warning in the log, if it cannot start. Keeps errno.
 */
bool ipc_server_name(uint64_t *name);

/** Returns whether `name` is the socket number of this process. */
bool ipc_server_is_own(uint64_t name);

/**
 * Waits, within limits, for exports that the thread has begun. Call before the driver ends, with
 * shutdown_begun set so that the thread begins no more of them. A driver call during the driver's
 * end may crash.
 */
void ipc_server_finish(void);

/** Lifecycle hooks of the process (process.h). */
void ipc_server_forked(void);
void ipc_server_end(enum process_end how, int signal);

#endif
