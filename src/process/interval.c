/* Uses a thread instead of a timer: the signal of a timer would interrupt the program's calls. */
#include "process/interval.h"

#include "base/clock.h"
#include "base/log.h"
#include "options/options.h"
#include "process/helper.h"
#include "process/process.h"

#define CURRENT_REPORT_MS 2000 /* wait for a report in progress: 1 s for its reader, 1 s to write */

static _Atomic int turn;

void interval_hold(void) {
    helper_hold(&turn, CURRENT_REPORT_MS);
}

void interval_release(void) {
    helper_release(&turn);
}

static void *report_every(void *unused) {
    for (;;) {
        sleep_despite_signals(options()->report_interval_ms * 1000000);
        if (helper_begin(&turn)) {
            process_report("interval");
            helper_done(&turn);
        }
    }
    return unused;
}

void interval_start(void) {
    int error = options()->report_interval_ms > 0 ? helper_start(report_every) : 0;
    if (error != 0)
        log_warn("no reports at an interval: a thread cannot be made: error %d", error);
}
