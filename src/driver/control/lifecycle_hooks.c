/*
 * The table of functions that run at the start, fork, report and end of the process. process.c
 * calls each column from the first row to the last. `.forked` runs in the child, where any lock may
 * be held for ever. `.report` and `.end` may run in a signal handler (process/process.h).
 */
#include "backend/vmm.h"
#include "driver/context/context.h"
#include "driver/context/decay.h"
#include "driver/context/device_pool.h"
#include "driver/control/context_callbacks.h"
#include "driver/control/exit_handler.h"
#include "driver/control/page_helper.h"
#include "driver/ipc/ipc_server.h"
#include "driver/observe/block_stacks.h"
#include "driver/observe/oom_snapshot.h"
#include "driver/observe/snapshot.h"
#include "driver/observe/tracing.h"
#include "driver/state/device.h"
#include "driver/state/fast_path.h"
#include "driver/table/entries.h"
#include "live/live.h"
#include "live/peaks.h"
#include "process/process.h"
#include "report/report.h"
#include "tcache/owner.h"
#include "trace/trace.h"

/*
 * Starts the live page, its peaks and its helper thread, when the process first uses a device. Also
 * tells the driver's version to all that show it: a process may never have a pool.
 */
static void begin_to_show(unsigned devices) {
    int version = 0;
    REAL(cuDriverGetVersion)(&version);
    report_set_driver_version(version);
    live_set_driver_version(version);
    trace_set_driver_version(version);
    peaks_start();
    live_start(devices);
    page_helper_start();
}

/* Returns whether cuInit() has run. */
static bool driver_is_initialised(void) {
    int count;
    return REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS;
}

/* Passes functions of higher folders to lower ones, which must not name them. */
static void connect_layers(void) {
    device_first_use = begin_to_show;
    device_pool_set_kinds(&segments_kind, &vmm_kind);
    context_callbacks_start();
    stats_set_provider(&snapshot_provider);
}

static PROCESS_HOOK_TABLE table[] = {
    {.is_used = driver_is_initialised},
    {.start = connect_layers}, /* before any context or device is used */
    {.start = exit_handler_start},
    {.load = stack_recording_start},
    /* after the options are read, before any allocation */
    {.start = tracing_start, .forked = trace_forked},
    {.forked = entries_forked},
    {.forked = context_invalidate}, /* the child is not ready, so it finds no pool any more */
    {.forked = fast_path_block},    /* for ever */
    {.forked = device_forked},
    {.forked = owner_forked},
    {.forked = decay_forked, .end = decay_end},
    {.forked = page_helper_forked, .end = page_helper_end},
    {.forked = ipc_server_forked, .end = ipc_server_end},
    {.report = report_write},
    {.end = oom_snapshot_end},
    {.end = peaks_end},
    {.end = trace_end},
    {.forked = live_forked, .end = live_end},
};
