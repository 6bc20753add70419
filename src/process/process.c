#include "process/process.h"

#include "base/clock.h"
#include "base/libraries.h"
#include "base/log.h"
#include "options/options.h"
#include "process/ending.h"
#include "process/interval.h"
#include "process/signals.h"

#include <errno.h>
#include <pthread.h>

#define LOAD_SLEEPS 1000 /* of LOAD_SLEEP_NS each, one second together */
#define LOAD_SLEEP_NS 1000000

_Atomic int process_state;

static pthread_once_t once = PTHREAD_ONCE_INIT;
/* This thread is inside process_start(): driver calls of a constructor or a hook pass through. */
static _Thread_local bool starting __attribute__((tls_model("initial-exec")));

/*
 * Switches the library off in the child of a fork: the child has no CUDA context, and none of the
 * library's threads. Another thread may have held any lock at the fork, so later calls in the child
 * must take none.
 */
static void in_child(void) {
    libraries_forked();
    if (atomic_load(&process_state) == PROCESS_IDLE)
        return;
    atomic_store(&process_state, PROCESS_FORKED);
    for (const struct process_hooks *row = process_hook_table; row < process_hook_table_end; row++)
        if (row->forked)
            row->forked();
    log_forked();
}

static void start(void) {
    int saved = errno;
    pthread_atfork(libraries_before_fork, libraries_after_fork, in_child);
    atomic_store(&process_state, PROCESS_STARTING);
    options_load();
    log_info("version " GPUCACHE_VERSION);
    options_log();
    for (const struct process_hooks *row = process_hook_table; row < process_hook_table_end; row++)
        if (row->start)
            row->start();
    ending_start();
    signals_start();
    if (options()->report != REPORT_TO_NOWHERE)
        interval_start();
    errno = saved;
}

/*
 * Runs the hooks that load libraries or look up functions in them. The dynamic loader lets no other
 * thread do so while the constructors of an opened library run. If such a constructor calls the
 * driver, it must not wait for the thread here, which waits for the constructor. Only the first
 * thread therefore runs the hooks; all others wait for it one second at most, and go on.
 */
static void load(void) {
    static atomic_flag begun = ATOMIC_FLAG_INIT;
    static atomic_bool is_loaded;
    int saved = errno;
    if (atomic_flag_test_and_set(&begun)) {
        for (int i = 0; i < LOAD_SLEEPS && !atomic_load(&is_loaded); i++)
            sleep_ns(LOAD_SLEEP_NS);
        errno = saved;
        return;
    }
    for (const struct process_hooks *row = process_hook_table; row < process_hook_table_end; row++)
        if (row->load)
            row->load();
    atomic_store(&is_loaded, true);
    errno = saved;
}

void process_report(const char *reason) {
    for (const struct process_hooks *row = process_hook_table; row < process_hook_table_end; row++)
        if (row->report)
            row->report(reason);
}

void process_end(enum process_end how, int signal) {
    for (const struct process_hooks *row = process_hook_table; row < process_hook_table_end; row++)
        if (row->end)
            row->end(how, signal);
}

bool process_start(void) {
    if (starting || process_is_forked())
        return false;
    starting = true;
    pthread_once(&once, start);
    load();
    int begun = PROCESS_STARTING;
    atomic_compare_exchange_strong(&process_state, &begun, PROCESS_STARTED);
    starting = false;
    return process_is_started();
}

bool process_start_if_used(void) {
    if (starting || process_is_forked())
        return false;
    for (const struct process_hooks *row = process_hook_table; row < process_hook_table_end; row++)
        if (row->is_used && !row->is_used())
            return false;
    return process_start();
}
