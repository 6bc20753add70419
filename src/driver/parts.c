/*
 * What starts, forks, reports and ends with the process.
 */
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/device.h"
#include "driver/entries.h"
#include "driver/shutdown.h"
#include "live/live.h"
#include "live/peaks.h"
#include "pool/pool.h"
#include "process/process.h"
#include "report/report.h"

const struct process_part process_parts[] = {
    {.start = shutdown_watch},
    {.forked = entries_forked},
    {.forked = context_forked},
    {.forked = capture_forked},
    {.forked = device_forked},
    {.forked = pool_forked},
    {.report = report_write},
    {.end = peaks_end},
    {.forked = live_forked, .end = live_end},
};

const unsigned process_part_count = sizeof process_parts / sizeof *process_parts;
