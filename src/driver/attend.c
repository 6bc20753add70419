#include "driver/attend.h"

#define GPUCACHE_API __attribute__((visibility("default")))
#include "gpucache.h"

#include "driver/capture.h"
#include "driver/shutdown.h"
#include "process/options.h"
#include "process/process.h"
#include "report/report.h"
#include "trace/trace.h"

#include <errno.h>

static void show(enum flight_kind kind, unsigned device, uint64_t value) {
    flight_event(kind, device, 0, value, 0);
    trace_moment(kind, device, 0, 0, value, 0);
}

static int report(void) {
    if (options()->report == REPORT_TO_NOWHERE) {
        return -EOPNOTSUPP;
    }
    report_write("request");
    return 0;
}

static int carry_out(const struct live_wish *wish) {
    unsigned device = wish->device < 0 ? FLIGHT_NO_DEVICE : (unsigned)wish->device;
    switch (wish->order) {
    case LIVE_REPORT:
        show(FLIGHT_REPORT, device, 0);
        return report();
    case LIVE_EMPTY_CACHE:
        show(FLIGHT_EMPTY_CACHE, device, 0);
        return gpucache_empty_cache(wish->device);
    case LIVE_RESET_PEAK:
        show(FLIGHT_RESET_PEAK, device, 0);
        return gpucache_reset_peak_stats(wish->device);
    case LIVE_LIMIT:
        show(FLIGHT_LIMIT, device, wish->value);
        return gpucache_set_memory_limit(wish->device, wish->value);
    }
    return -EINVAL; /* another version's */
}

/* Nothing is done where the program itself could not: during a capture, and once it ends. Whoever
 * ordered it goes on asking. */
void attend_slowly(void) {
    struct live_wish wish;
    int saved_errno = errno;
    bool can = atomic_load(&process_state) == PROCESS_STARTED &&
               atomic_load(&capture_active) == 0 && !atomic_load(&shutdown_begun);
    bool done = can && live_take_order(&wish);
    int result = done ? carry_out(&wish) : 0;
    live_refresh(false);
    if (done) {
        live_order_done(&wish, result);
    }
    errno = saved_errno;
}
