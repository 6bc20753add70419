/*
 * The helper thread that hands exported pages over to other processes.
 *
 * It is made with the first handle of a block in pages, and takes none of the program's signals. So importers are
 * served whatever the program's own threads do. Whoever says something else than ipc_wire.h, or nothing for too
 * long, is not served any longer; nor is anybody but this user's processes.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_SERVER_H
#define GPUCACHE_DRIVER_IPC_IPC_SERVER_H

#include "process/process.h"

#include <stdbool.h>
#include <stdint.h>

/** Its name for importers; starts it if need be. False: it cannot be had, and that has been said. */
bool ipc_server_name(uint64_t *name);

/** Whether that is this process's. */
bool ipc_server_is_own(uint64_t name);

/** The driver is about to end, and may not survive that under a call of it: waits for those that the helper has begun,
 * within limits. It begins no others. */
void ipc_server_finish(void);

/** As parts of the process (process.h). */
void ipc_server_forked(void);
void ipc_server_end(enum process_end how, int signal);

#endif
