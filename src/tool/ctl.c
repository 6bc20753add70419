/*
 * gpucache ctl: sends a command to the library in a running process.
 *
 * Writes the command, an order, to the process's live page and wakes the library's helper thread
 * there. The helper thread, or a thread that it starts, executes the order and writes the result.
 * flock() on the page's file admits one gpucache ctl at a time. The kernel releases that lock if
 * this process is killed. Invariant: only one side takes an order out of the page, the process to
 * execute it or this file to withdraw it. gpucache.c calls tool_ctl().
 */
#include "base/print.h"
#include "live/place.h"
#include "options/value.h"
#include "tool/common/arguments.h"
#include "tool/common/tool.h"
#include "tool/report/pages.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

#define NOTICE_MS 1000 /* of waiting; then the reason is printed */
#define POLL_NS 2000000

static const char *last_obstacle;         /* the obstacle when the timeout ended */
static volatile sig_atomic_t interrupted; /* number of the signal; the order is withdrawn first */

struct request {
    int pid;
    const struct order *order;
    uint64_t value, device; /* device UINT64_MAX: all devices */
    uint64_t timeout_ms;
};

static const struct order {
    const char *name, *done;
    enum live_order order;
} orders[] = {
    {"report", "has written a report where its reports go", LIVE_REPORT},
    {"empty-cache", "has given idle memory back", LIVE_EMPTY_CACHE},
    {"reset-peak", "has set its peaks to the current values", LIVE_RESET_PEAK},
    {"limit", "has a new limit", LIVE_LIMIT},
};
#define ORDERS (sizeof orders / sizeof *orders)

static void take_order(struct request *request, char **arguments) {
    size_t i = 0;
    while (i < ORDERS && (!*arguments || strcmp(*arguments, orders[i].name) != 0))
        i++;
    if (i == ORDERS)
        fail(STATUS_OWN_FAILURE, *arguments ? *arguments : "ctl",
             "wanted is report, empty-cache, reset-peak or limit SIZE");
    request->order = &orders[i];
    arguments++;
    if (orders[i].order == LIVE_LIMIT) {
        const char *size = *arguments ? *arguments++ : "";
        if (!value_equal(size, "none") &&
            (!value_take_size(&size, &request->value) || *size != '\0'))
            fail(STATUS_OWN_FAILURE, "limit", "needs a size such as 8G, or none");
    }
    if (*arguments)
        fail(STATUS_OWN_FAILURE, *arguments, "is one argument too many");
}

static struct request parse(char **arguments) {
    struct request request = {.device = UINT64_MAX};
    struct arguments left = {.command = "ctl", .at = arguments};
    enum option_of_command option;
    value_milliseconds(option_rows[ARGUMENT_ctl_timeout].initial, &request.timeout_ms);
    while ((option = arguments_next(&left)) != ARGUMENTS_END)
        if (option == ARGUMENT_ctl_device) {
            if (!value_number(left.value, STATS_MAX_DEVICES - 1, &request.device))
                fail(STATUS_OWN_FAILURE, left.option, "wanted is a number from 0 to 63");
        } else if (!value_milliseconds(left.value, &request.timeout_ms)) {
            fail(STATUS_OWN_FAILURE, left.option, "wanted are seconds above 0, such as 10");
        }
    arguments = left.at;
    request.pid = *arguments ? tool_pid(*arguments) : 0;
    if (request.pid == 0)
        fail(STATUS_OWN_FAILURE, *arguments ? *arguments : "ctl", "wanted is a process number");
    take_order(&request, arguments + 1);
    if (request.device != UINT64_MAX && request.order->order == LIVE_REPORT)
        fail(STATUS_OWN_FAILURE, "--device",
             "a report has all devices; wanted with it is empty-cache, reset-peak or limit");
    return request;
}

static void sleep_until_poll(void) {
    nanosleep(&(struct timespec){0, POLL_NS}, NULL);
}

/** Locks the page's file. Returns false at `end_ms` if another gpucache ctl holds the lock, or
 * after a signal. */
static bool lock(const struct page *page, uint64_t end_ms) {
    while (flock(page->fd, LOCK_EX | LOCK_NB) != 0) {
        if (interrupted || tool_now_ms() >= end_ms)
            return false;
        sleep_until_poll();
    }
    return true;
}

/** Returns whether the process may execute an order. A silent process may be idle, not dead. */
static bool can_act(const struct page *page) {
    return page_is_running(page) || page->state == PAGE_SILENT;
}

/** Withdraws an order. Returns false if the process has started to execute it. */
static bool withdraw(struct live_page *live) {
    bool had = atomic_exchange(&live->order, 0) != 0;
    if (had)
        atomic_store(&live->order_done, atomic_load(&live->order_number));
    return had;
}

/** Returns a text that says why the process has not finished the order. */
static const char *obstacle(const struct page *page) {
    struct live_page *live = page->live;
    if (page->namespace == 0 && place_is_stopped(page->pid))
        return "it is stopped, by SIGSTOP or a debugger";
    if (!page_has_answered(page))
        return "it does not answer";
    if (atomic_load(&live->order) == 0)
        return "a call of the driver waits for the program's work, or for the end of a checkpoint";
    switch (atomic_load(&live->order_held_up)) {
    case LIVE_IN_CAPTURE:
        return "a stream is being captured";
    case LIVE_AT_ITS_END:
        return "it is ending";
    }
    return "an earlier order is under way";
}

static void say_obstacle_once(const struct page *page, uint64_t since_ms) {
    static bool said;
    if (!said && tool_now_ms() - since_ms >= NOTICE_MS) {
        said = true;
        fprintf(stderr, "gpucache: process %d: waiting: %s\n", page->pid, obstacle(page));
    }
}

/** Waits until the last order is done. Returns 0, -ESRCH or -ETIMEDOUT. */
static int wait_until_done(struct page *page, uint64_t end_ms) {
    struct live_page *live = page->live;
    uint64_t number = atomic_load(&live->order_number), since_ms = tool_now_ms();
    page_ask(page);
    while (atomic_load_explicit(&live->order_done, memory_order_acquire) != number) {
        page_update_state(page);
        if (!can_act(page)) /* the process may have finished the order and then ended */
            return atomic_load(&live->order_done) == number ? 0 : -ESRCH;
        if (interrupted || tool_now_ms() >= end_ms) {
            last_obstacle = obstacle(page);
            return -ETIMEDOUT;
        }
        say_obstacle_once(page, since_ms);
        sleep_until_poll();
    }
    return 0;
}

/**
 * Sends an order and waits for it. Returns 0 and *result when it was executed, or
 *
 *      -ESRCH         the process has ended
 *      -EINPROGRESS   the process still executed an earlier order at `end_ms`: nothing was sent
 *      -ETIMEDOUT     the process had not begun the order by `end_ms`, and the order was withdrawn
 *      -EALREADY      the process was executing the order at `end_ms`, and goes on
 */
static int place_order(struct page *page, const struct request *request, uint64_t end_ms,
                       int64_t *result) {
    struct live_page *live = page->live;
    withdraw(live); /* an order of a gpucache that was killed */
    int placed = wait_until_done(page, end_ms);
    if (placed != 0)
        return placed == -ETIMEDOUT ? -EINPROGRESS : placed;
    atomic_store(&live->order_value, request->value);
    atomic_store(&live->order_device, request->device);
    atomic_fetch_add(&live->order_number, 1);
    atomic_store(&live->order, request->order->order);
    placed = wait_until_done(page, end_ms);
    *result = atomic_load(&live->order_result);
    return placed == -ETIMEDOUT && !withdraw(live) ? -EALREADY : placed;
}

static const char *why_not(int64_t result) {
    switch (-result) {
    case EBUSY:
        return "not all of it could be done now: the device is busy";
    case ENODEV:
        return "the process has not used that device";
    case EOPNOTSUPP:
        return "its reports are switched off";
    default:
        return strerror((int)-result);
    }
}

/** Returns what became of an order that was not executed in time. */
static const char *fate_of_order(int placed) {
    switch (-placed) {
    case EINPROGRESS:
        return "an earlier order is still under way; nothing was done";
    case EALREADY:
        return "it is still at the order";
    default:
        return "nothing was done";
    }
}

static void interrupt(int number) {
    interrupted = number;
}

static void catch_signals(void) {
    const struct sigaction action = {.sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

/**
 * Prints the devices on which the process already holds more than the new limit: a limit takes
 * nothing away. Counts live blocks and unpooled memory, because idle memory goes back on demand.
 */
static void print_held_beyond_limit(const struct page *page, const char *who) {
    for (unsigned i = 0; i < page->devices; i++) {
        struct stats_device stats;
        struct report_derived derived;
        if (!page_device(page, i, &stats, NULL, NULL) || stats.limit_bytes == 0)
            continue;
        report_derive(&stats, &derived);
        uint64_t held = stats.allocated.current + derived.unpooled.current;
        if (held <= stats.limit_bytes)
            continue;
        struct print out = PRINT_TEXT(256);
        print_format(&out, "%s holds ", who);
        print_size(&out, held);
        print_format(&out,
                     " on GPU %u, more than the limit: the driver gives it no more "
                     "until it holds less\n",
                     i);
        fputs(print_end(&out), stdout);
    }
}

static int print_outcome(const struct request *request, const struct page *page, int placed,
                         int64_t result) {
    char who[32], why[256];
    snprintf(who, sizeof who, "process %d", request->pid);
    if (placed == -ESRCH)
        fail(EXIT_FAILURE, who, "it has ended");
    if (placed == -EBUSY)
        fail(STATUS_NO_ANSWER, who, "another gpucache ctl waits for it, so nothing was done");
    if (placed != 0) {
        snprintf(why, sizeof why, "%s; %s; --timeout waits longer", last_obstacle,
                 fate_of_order(placed));
        fail(STATUS_NO_ANSWER, who, why);
    }
    if (result != 0)
        fail(EXIT_FAILURE, who, why_not(result));
    printf("%s %s\n", who, request->order->done);
    if (request->order->order == LIVE_LIMIT)
        print_held_beyond_limit(page, who);
    return 0;
}

int tool_ctl(char **arguments) {
    struct request request = parse(arguments);
    static struct pages pages; /* static: not freed, because the process ends */
    int64_t result = 0;
    pages_open(&pages, request.pid);
    struct page *page = pages_of(&pages, request.pid);
    if (!page)
        pages_print_refused();
    if (!page || !can_act(page))
        fail(EXIT_FAILURE, "ctl",
             page ? "that process has ended"
             : pages_have_other(&pages, request.pid)
                 ? "it runs under another version of the library"
                 : "no process of yours with that number uses CUDA under the library, or it has "
                   "GPUCACHE_LIVE=off");
    if (pages_are_ambiguous(&pages, page))
        fail(EXIT_FAILURE, "ctl", "several containers have a process of that number");
    catch_signals();
    uint64_t end_ms = tool_now_ms() + request.timeout_ms;
    int placed = lock(page, end_ms) ? place_order(page, &request, end_ms, &result) : -EBUSY;
    if (interrupted) {
        signal(interrupted, SIG_DFL);
        raise(interrupted);
    }
    return print_outcome(&request, page, placed, result);
}
