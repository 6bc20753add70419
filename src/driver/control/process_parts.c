/*
 * What starts, forks, reports and ends with the process.
 */
#include "backend/segments.h"
#include "backend/vmm.h"
#include "driver/context/context.h"
#include "driver/context/decay.h"
#include "driver/context/device_pool.h"
#include "driver/control/context_callbacks.h"
#include "driver/control/exit_handler.h"
#include "driver/control/page_helper.h"
#include "driver/ipc/ipc_server.h"
#include "driver/observe/block_stacks.h"
#include "driver/observe/tracing.h"
#include "driver/state/capture.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "live/live.h"
#include "live/peaks.h"
#include "process/process.h"
#include "report/report.h"
#include "tcache/owner.h"

/* When the process first uses a device, there is something to show. */
static void begin_to_show(unsigned devices) {
    peaks_start();
    live_start(devices);
    page_helper_start();
}

/* Lower layers do not name these functions. They get them here. */
static void connect_layers(void) {
    device_first_use = begin_to_show;
    device_pool_set_kinds(&segments_kind, &vmm_kind);
    context_callbacks_start();
}

const struct process_hooks process_hook_table[] = {
    {.start = connect_layers}, /* before any context or device is used */
    {.start = exit_handler_start},
    {.start = block_stacks_start}, /* after the options, before any allocation; */
    {.start = tracing_start, .forked = trace_forked}, /* so is this */
    {.forked = entries_forked},
    {.forked = context_forked},
    {.forked = capture_forked},
    {.forked = device_forked},
    {.forked = owner_forked},
    {.forked = decay_forked, .end = decay_end},
    {.forked = page_helper_forked, .end = page_helper_end},
    {.forked = ipc_server_forked, .end = ipc_server_end},
    {.report = report_write},
    {.end = peaks_end},
    {.end = trace_end},
    {.forked = live_forked, .end = live_end},
};

const unsigned process_hook_count = sizeof process_hook_table / sizeof *process_hook_table;
