/*
 * The exit handler: waits for the work of freed memory, then stops helper threads and fast paths
 * before the driver shuts down. shutdown.h says why this handler runs before the driver's. From
 * then on, allocations and frees ask the driver first, so they notice when the driver has ended.
 *
 * The handler takes no lock, because a signal handler of the program may call exit() while its
 * thread holds one. A helper thread waits for the work, and the handler waits for that thread, for
 * a limited time.
 */
#include "driver/control/exit_handler.h"

#include "driver/context/context.h"
#include "driver/context/decay.h"
#include "driver/context/device_pool.h"
#include "driver/control/page_helper.h"
#include "driver/ipc/ipc_server.h"
#include "driver/state/capture.h"
#include "driver/state/shutdown.h"
#include "process/ending.h"
#include "process/helper.h"
#include "stats/stats.h"

#include <stdlib.h>

/*
 * The longest wait of wait_in_place_of_frees(). It is short because the program may have submitted
 * work after its last free, for which no native free waits: even a kernel that never ends.
 */
#define LAST_WAIT_MS 2000

static _Atomic int last_wait; /* enum helper_turn: the wait of wait_for_work() */

/* Returns whether the program has freed memory of a device that came from a pool. */
static bool has_freed(int ordinal) {
    static struct stats_device stats;
    return stats_read_counters(ordinal, &stats) && stats.allocations.freed > 0;
}

/* The helper thread of the last wait. Waits for all work of each device with freed memory. */
static void *wait_for_work(void *unused) {
    for (int i = 0; i < STATS_MAX_DEVICES; i++) {
        struct device *device = device_used(i);
        if (device && has_freed(i)) {
            device_pool_wait_for_all(device);
        }
    }
    helper_done(&last_wait);
    return unused;
}

/*
 * Waits for work that was submitted before the program's frees. The driver's free waits for that
 * work, prints what its kernels wrote by printf(), and runs its host functions; the library's free
 * does not wait. If such a free is the last wait of the program, the output would be lost.
 */
static void wait_in_place_of_frees(void) {
    if (ending_is_own_process() && stats_device_count() > 0 && helper_begin(&last_wait)) {
        if (helper_start(wait_for_work) == 0) {
            helper_hold(&last_wait, LAST_WAIT_MS);
        }
    }
}

/* Runs as the exit handler. */
static void begin_shutdown(void) {
    wait_in_place_of_frees();
    atomic_store(&shutdown_begun, true);
    /*
     * A thread that knows its current context does not ask the driver. Without this call, its
     * allocations would succeed after the driver has ended.
     */
    context_invalidate();
    atomic_fetch_add(&capture_unusual, 1);
    ipc_server_finish();
    decay_stop();
    page_helper_stop();
}

void exit_handler_start(void) {
    atexit(begin_shutdown); /* if this fails, frees do not notice the end of the driver */
}
