/*
 * Enters and leaves the driver, and starts and ends it.
 *
 * Makes the checks of every entry, in the order of the real driver: the process is not exiting,
 * cuInit was called, the context is usable, no capture forbids the call. A call that a test lets
 * fail does nothing. On entry a few steps of queued work may run: this overlaps device and CPU. A
 * seeded generator draws the steps, so a program with one thread runs the same every time.
 *
 * A test can make threads lose the CPU on entry, and between the driver's work and the return. The
 * caller's records of the call are then out of date for a long time, as happens rarely on a busy
 * machine.
 */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct driver sim = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
    .generation = 1,
    .options.driver_version = SIM_MAX_VERSION,
};

/* ---- injected faults ------------------------------------------------------------------------- */

struct fault_rule {
    int skip, times; /* times < 0: for ever */
    CUresult error;
};

static struct fault_rule rules[ENTRY_COUNT + 1]; /* last rule: any entry */
static bool any_rule;
static uint64_t exposed; /* calls that could have been made to fail */
static const char *failed;

static bool rule_applies(struct fault_rule *rule) {
    if (rule->times == 0)
        return false;
    if (rule->skip > 0) {
        rule->skip--;
        return false;
    }
    if (rule->times > 0)
        rule->times--;
    return true;
}

static CUresult injected(enum entry at) {
    const struct fault_rule *rule = rule_applies(&rules[at])            ? &rules[at]
                                    : rule_applies(&rules[ENTRY_COUNT]) ? &rules[ENTRY_COUNT]
                                                                        : NULL;
    failed = rule ? entry_table[at].symbol : failed;
    return rule ? rule->error : CUDA_SUCCESS;
}

static int set_rule(const char *symbol, int skip, CUresult error, int times) {
    int at = strcmp(symbol, "*") == 0 ? ENTRY_COUNT : entry_find(symbol);

    if (at < 0)
        return -1;
    rules[at] = (struct fault_rule){.skip = skip, .times = times, .error = error};
    any_rule = true;
    return 0;
}

/* Parses symbol:skip:error:times,... */
static void read_rules(char *text) {
    char *rest = text;

    for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        char symbol[128];
        int skip = 0, error = 0, times = 1;
        int fields = sscanf(one, "%127[^:]:%d:%d:%d", symbol, &skip, &error, &times);
        if (fields < 3 || set_rule(symbol, skip, (CUresult)error, times) != 0)
            fprintf(stderr, "sim: GPUCACHE_SIM_FAIL: cannot read \"%s\"\n", one);
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

static _Thread_local struct thread self;
static pthread_key_t thread_key; /* only for its destructor */

struct thread *thread_self(void) {
    if (self.generation != sim.generation) {
        self = (struct thread){.generation = sim.generation, .id = ++sim.next_id};
        self.capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    }
    return &self;
}

/* ---- switching threads ----------------------------------------------------------------------- */

/* Pauses the thread in `switching` per cent of the calls, without the lock. Half of the pauses
 * are a yield, the others take up to switch_us, mostly less. */
static void maybe_switch(void) {
    if (sim.options.switching == 0 || self.id == 0)
        return;
    if (self.switches == 0)
        self.switches = (sim.options.seed + self.id) * 0x9E3779B97F4A7C15u;
    self.switches ^= self.switches << 13;
    self.switches ^= self.switches >> 7;
    self.switches ^= self.switches << 17;
    uint64_t draw = self.switches >> 8;
    if (draw % 100 >= sim.options.switching)
        return;
    int error = errno;
    uint64_t us = sim.options.switch_us >> (draw >> 8) % 8;
    if ((draw >> 16) % 2 || us == 0)
        sched_yield();
    else
        nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
    errno = error;
}

void thread_watch_end(void) {
    pthread_setspecific(thread_key, &self);
}

/* Releases the contexts of an ending thread in the last round of destructors, because
 * destructors of the program may still make calls. */
static void thread_ends(void *thread) {
    if (self.ends++ < PTHREAD_DESTRUCTOR_ITERATIONS - 2) {
        pthread_setspecific(thread_key, thread);
        return;
    }
    pthread_mutex_lock(&sim.lock);
    context_thread_ends();
    pthread_mutex_unlock(&sim.lock);
}

/* ---- entering -------------------------------------------------------------------------------- */

static CUresult check(enum entry at, unsigned gate) {
    if (sim.down)
        return CUDA_ERROR_DEINITIALIZED;
    if (sim.forked || ((gate & INITIALISED) && !sim.initialised))
        return CUDA_ERROR_NOT_INITIALIZED;
    exposed += !self.exempt;
    if (any_rule && !self.exempt) {
        CUresult error = injected(at);
        if (error != CUDA_SUCCESS)
            return error;
    }
    if (gate == ANYTIME)
        return CUDA_SUCCESS;
    struct thread *thread = thread_self();
    if (thread->in_callback && (gate & INITIALISED))
        return CUDA_ERROR_NOT_PERMITTED;
    struct context *context = context_current();
    if ((gate & HELD_UP) && context && context_owner(context)->frees_waiting)
        queue_hold_up(context_owner(context));
    if (sim.pending && !(gate & QUIET) && !thread->in_callback)
        queue_stroll();
    if (gate & CURRENT) {
        CUresult error = context_check(context);
        if (error != CUDA_SUCCESS)
            return error;
    }
    if ((gate & UNSAFE) && capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return CUDA_SUCCESS;
}

CUresult sim_enter(enum entry at, unsigned gate) {
    maybe_switch();
    pthread_mutex_lock(&sim.lock);
    sim.calls++;
    sim.call_counts[at]++;
    sim.call = entry_table[at].symbol;
    CUresult result = check(at, gate);
    if (result != CUDA_SUCCESS)
        sim_leave(result);
    return result;
}

CUresult sim_leave(CUresult result) {
    if (sim.waiters)
        pthread_cond_broadcast(&sim.changed);
    pthread_mutex_unlock(&sim.lock);
    maybe_switch();
    return result;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void at_exit(void) {
    pthread_mutex_lock(&sim.lock);
    sim.down = true;
    pthread_mutex_unlock(&sim.lock);
}

/* Marks the driver of a forked child as unusable. Its lock may have been held at the fork. */
static void in_child(void) {
    pthread_mutex_init(&sim.lock, NULL);
    pthread_cond_init(&sim.changed, NULL);
    if (sim.initialised)
        sim.forked = true;
}

/* Reads the version before cuInit, because the runtime resolves its entries before that call. */
__attribute__((constructor)) static void read_early(void) {
    options_read(&sim.options);
}

static CUresult initialise(unsigned flags) {
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim.initialised)
        return CUDA_SUCCESS;
    options_read(&sim.options);
    sim.random = sim.options.seed;
    read_rules(sim.options.fail);
    if (sim.options.devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    for (int i = 0; i < sim.options.devices; i++) {
        sim.devices[i].ordinal = i;
        sim.devices[i].total = sim.options.memory;
    }
    if (!sim.registered) {
        sim.registered = true;
        atexit(at_exit);
        pthread_key_create(&thread_key, thread_ends);
        pthread_atfork(NULL, NULL, in_child);
    }
    sim.initialised = true;
    return CUDA_SUCCESS;
}

ENTRY(cuInit, (unsigned flags), ANYTIME, initialise(flags))

static CUresult driver_version(int *version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = sim.options.driver_version;
    return CUDA_SUCCESS;
}

ENTRY(cuDriverGetVersion, (int *version), ANYTIME, driver_version(version))

void gate_reset(void) {
    memset(rules, 0, sizeof(rules));
    any_rule = false;
    exposed = 0;
    failed = NULL;
    memset(sim.call_counts, 0, sizeof(sim.call_counts));
    sim.calls = 0;
    sim.initialised = false;
    sim.generation++;
    sim.next_id = 0;
    sim.clock = 0;
    sim.shared = false;
    sim.fault = CUDA_SUCCESS;
}

/* Runs after all exit handlers, so that their calls are counted too. */
__attribute__((destructor)) static void write_counts(void) {
    if (!sim.options.counts[0] || sim.forked)
        return;
    int fd = open(sim.options.counts, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    for (int i = 0; i < ENTRY_COUNT; i++)
        if (sim.call_counts[i])
            dprintf(fd, "%s %llu\n", entry_table[i].symbol, (unsigned long long)sim.call_counts[i]);
    close(fd);
}

/* ---- control --------------------------------------------------------------------------------- */

SIM_EXPORT int sim_fail(const char *symbol, int skip, CUresult error, int times) {
    pthread_mutex_lock(&sim.lock);
    int result = set_rule(symbol, skip, error, times);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT int sim_exempt(int on) {
    pthread_mutex_lock(&sim.lock);
    struct thread *thread = thread_self();
    int before = thread->exempt;
    thread->exempt = on != 0;
    pthread_mutex_unlock(&sim.lock);
    return before;
}

SIM_EXPORT uint64_t sim_exposed(void) {
    pthread_mutex_lock(&sim.lock);
    uint64_t calls = exposed;
    pthread_mutex_unlock(&sim.lock);
    return calls;
}

SIM_EXPORT const char *sim_failed(void) {
    pthread_mutex_lock(&sim.lock);
    const char *symbol = failed;
    pthread_mutex_unlock(&sim.lock);
    return symbol;
}

SIM_EXPORT uint64_t sim_calls(const char *symbol) {
    int at = strcmp(symbol, "*") == 0 ? ENTRY_COUNT : entry_find(symbol);

    pthread_mutex_lock(&sim.lock);
    uint64_t calls = at < 0 ? 0 : at == ENTRY_COUNT ? sim.calls : sim.call_counts[at];
    pthread_mutex_unlock(&sim.lock);
    return calls;
}

SIM_EXPORT void sim_reset(void) {
    pthread_mutex_lock(&sim.lock);
    capture_reset();
    queue_reset();
    green_forget_all();
    context_forget_all();
    graph_forget_all();
    kernel_forget_all();
    array_forget_all();
    vmm_forget_all();
    pool_forget_all();
    for (int i = 0; i < MAX_DEVICES; i++)
        sim.devices[i] = (struct device){0};
    arena_release();
    gate_reset();
    pthread_mutex_unlock(&sim.lock);
}
