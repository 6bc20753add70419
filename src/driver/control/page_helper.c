#include "driver/control/page_helper.h"

#define GPUCACHE_API __attribute__((visibility("default")))
#include "gpucache.h"

#include "driver/state/capture.h"
#include "driver/state/shutdown.h"
#include "live/live.h"
#include "options/options.h"
#include "process/ending.h"
#include "process/helper.h"
#include "process/process.h"
#include "report/report.h"
#include "trace/trace.h"

#include <errno.h>

#define REFRESH_NS 500000000 /* between two updates of the page, if no reader asks */
#define RECHECK_NS 10000000  /* between two checks whether a delayed order may begin */

static atomic_bool orders_thread_exists;
static _Atomic int turn; /* of the order in progress (enum helper_turn) */

static void record_order(enum flight_kind kind, unsigned device, uint64_t value) {
    flight_event(kind, device, 0, value, 0);
    trace_moment(kind, device, 0, 0, value, 0);
}

/* Writes a report. Returns -EOPNOTSUPP if reports are switched off. */
static int report(void) {
    if (options()->report == REPORT_TO_NOWHERE)
        return -EOPNOTSUPP;
    report_write("request");
    return 0;
}

/* Executes an order. Returns 0, or a negative errno value for the sender. */
static int execute(const struct live_request *request) {
    unsigned device = request->device < 0 ? FLIGHT_NO_DEVICE : (unsigned)request->device;
    switch (request->order) {
    case LIVE_REPORT:
        record_order(FLIGHT_REPORT, device, 0);
        return report();
    case LIVE_EMPTY_CACHE:
        record_order(FLIGHT_EMPTY_CACHE, device, 0);
        return gpucache_empty_cache(request->device);
    case LIVE_RESET_PEAK:
        record_order(FLIGHT_RESET_PEAK, device, 0);
        return gpucache_reset_peak_stats(request->device);
    case LIVE_LIMIT:
        record_order(FLIGHT_LIMIT, device, request->value);
        return gpucache_set_memory_limit(request->device, request->value);
    }
    return -EINVAL; /* an order of another version of the tool */
}

/*
 * Returns whether there is an order that may begin now. Tells the sender of another order why it
 * waits. An order to release idle memory waits for the end of all captures: the release needs waits
 * for the device, which are not allowed during a capture.
 */
static bool order_may_begin(void) {
    enum live_order order = live_next_order();
    enum live_hold why = LIVE_NOT_HELD_UP;
    if (!process_is_started() || atomic_load(&shutdown_begun))
        why = LIVE_AT_ITS_END;
    else if (order == LIVE_EMPTY_CACHE && atomic_load(&capture_active) > 0)
        why = LIVE_IN_CAPTURE;
    if (order)
        live_hold_up(why);
    return order && why == LIVE_NOT_HELD_UP;
}

/*
 * Executes orders until there is none that may begin. Sets relaxed capture mode until the calling
 * thread ends, so its driver calls do not invalidate captures of other threads. Runs in a thread
 * for orders, or in the helper thread if no such thread can be created.
 */
static void *execute_orders(void *unused) {
    struct live_request request;
    bool taken = true;
    capture_relax();
    while (taken && helper_begin(&turn)) {
        taken = order_may_begin() && live_take_order(&request);
        if (taken) {
            int result = execute(&request);
            live_refresh(false);
            live_order_done(&request, result);
        }
        helper_done(&turn);
    }
    atomic_store(&orders_thread_exists, false);
    return unused;
}

/* Starts a thread for orders, if an order may begin and no such thread exists. */
static void start_orders(void) {
    bool idle = false;
    if (order_may_begin() && atomic_compare_exchange_strong(&orders_thread_exists, &idle, true) &&
        helper_start(execute_orders) != 0)
        execute_orders(NULL); /* without a thread, orders delay the updates of the page */
}

/* The helper thread: updates the live page and starts orders, for ever. */
static void *update_page(void *unused) {
    for (;;) {
        live_wait(live_next_order() ? RECHECK_NS : REFRESH_NS);
        helper_admit_sigbus();
        live_refresh(false);
        start_orders();
    }
    return unused;
}

static struct helper thread = {
    .run = update_page,
    .level = LOG_LEVEL_INFO, /* a live page that cannot be created is no warning either */
    .lacking = "the metrics on the live page are old",
};

void page_helper_start(void) {
    if (options()->live)
        helper_request(&thread);
}

/* --- forks and ends --- */

void page_helper_stop(void) {
    ending_stop_helper(&thread, &turn);
}

void page_helper_forked(void) {
    atomic_store(&thread.started, false);
}

void page_helper_end(enum process_end how, int signal) {
    (void)signal;
    ending_of_helper(&thread, &turn, how);
}
