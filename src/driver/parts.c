/*
 * What starts, forks, reports and ends with the process.
 */
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/decay.h"
#include "driver/device.h"
#include "driver/entries.h"
#include "driver/ipc_server.h"
#include "driver/page_helper.h"
#include "driver/remember.h"
#include "driver/shutdown.h"
#include "driver/tracing.h"
#include "live/live.h"
#include "live/peaks.h"
#include "tcache/owner.h"
#include "process/process.h"
#include "report/report.h"

const struct process_part process_parts[] = {
    {.start = shutdown_watch},
    {.start = remember_start}, /* after the options, before any allocation; */
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

const unsigned process_part_count = sizeof process_parts / sizeof *process_parts;
