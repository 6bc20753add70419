/*
 * A report: one walk over the statistics, to one emitter, to one place.
 *
 * Everything a report needs lies in one of a few static slots, because it may be written on a
 * signal stack of a few kilobytes and must not allocate. A slot is claimed with one atomic
 * exchange, never waited for: a signal handler that interrupts a report being written takes the
 * next slot. The slot's buffer holds a usual report whole, so that it leaves in one write and
 * processes that share a terminal, a log or a pipe do not mix their lines: Linux keeps together what
 * a pipe has room for when it is written.
 */
#include "report/report.h"

#include "process/log.h"
#include "report/emitter.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define SLOTS 8      /* reports written at the same time */
#define BUFFER 65536 /* as much as a pipe usually holds; eight devices as JSON take some 30 KB */
#define OOM_REPORTS                                                                                \
    3 /* per process; a program that probes by failing would write them for ever                   \
       */

struct slot {
    atomic_flag taken;
    struct stats_device device;
    struct report_derived derived;
    struct lines verdict;
    struct emitter emitter;
    struct print out;
    char path[OPTIONS_PATH + 32];
    char buffer[BUFFER];
};

_Static_assert(STATS_MAX_DEVICES <= OPTIONS_MAX_DEVICES, "every device can have a limit");

static struct slot slots[SLOTS];
static _Atomic int driver_version;
static _Atomic unsigned oom_reports;

void report_set_driver_version(int version) {
    atomic_store(&driver_version, version);
}

static struct slot *claim_slot(void) {
    for (size_t i = 0; i < SLOTS; i++)
        if (!atomic_flag_test_and_set_explicit(&slots[i].taken, memory_order_acquire))
            return &slots[i];
    return NULL;
}

static void release_slot(struct slot *slot) {
    atomic_flag_clear_explicit(&slot->taken, memory_order_release);
}

/* ---- what follows from the figures ---- */

/** Host memory, and memory that another process took from the device, are not this process's device
 * memory. */
static bool takes_device_memory(const char *kind) {
    return strcmp(kind, "pinned_host") != 0 && strcmp(kind, "ipc_imported") != 0;
}

static void add_outside(struct report_derived *derived, const char *kind,
                        const struct stats_metric *metric) {
    if (!takes_device_memory(kind))
        return;
    struct stats_metric *sum = &derived->outside;
    derived->outside_peak_exact &= sum->peak == 0 || metric->peak == 0;
    sum->current += metric->current;
    sum->peak += metric->peak;
    sum->total += metric->total;
    sum->freed += metric->freed;
}

void report_derive(const struct stats_device *device, struct report_derived *derived) {
    memset(derived, 0, sizeof *derived);
    derived->outside_peak_exact = true;
#define METRIC(field, json, label)
#define OUTSIDE(field, json) add_outside(derived, json, &device->field);
#define GAUGE(field)
#define COUNTER(field)
#include "stats/fields.def"
    derived->idle = device->pending_bytes + device->ready_bytes;
    derived->largest_free = device->largest_free_bytes;
    derived->calls_avoided = less(device->allocations.total + device->allocations.freed,
                                  device->driver_allocs + device->driver_frees);
    if (device->allocated.current != 0)
        derived->internal_fragmentation =
            (double)less(device->allocated.current, device->requested.current) /
            (double)device->allocated.current;
    if (derived->idle != 0)
        derived->external_fragmentation =
            (double)less(derived->idle, derived->largest_free) / (double)derived->idle;
    derived->peak_ratio = device->requested.peak == 0
                              ? 1.0
                              : (double)device->reserved.peak / (double)device->requested.peak;
}

/* ---- the walk ---- */

static bool counts_bytes(const char *name) {
    size_t length = strlen(name), suffix = strlen("_bytes");
    return length > suffix && strcmp(name + length - suffix, "_bytes") == 0;
}

/** How good the peak is of a metric that thread caches change without the pool's lock. */
static enum peak peak_of(const struct stats_device *device, const struct stats_metric *metric) {
    bool cached = metric == &device->requested || metric == &device->allocated;
    return cached && !device->peaks_exact ? PEAK_AT_LEAST : PEAK_EXACT;
}

/** The rows of metrics in bytes, or those that count things. */
static void walk_metrics(struct emitter *emitter, bool bytes) {
    const struct stats_device *device = emitter->device;
#define METRIC(field, json, label)                                                                 \
    if (counts_bytes(json) == bytes)                                                               \
        emitter->kind->metric(emitter, json, label, bytes, &device->field,                         \
                              peak_of(device, &device->field));
#define OUTSIDE(field, json)
#define GAUGE(field)
#define COUNTER(field)
#include "stats/fields.def"
}

static void walk_outside(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    emitter->kind->outside_begin(emitter);
#define METRIC(field, json, label)
#define OUTSIDE(field, json)                                                                       \
    emitter->kind->metric(emitter, json, NULL, true, &device->field, PEAK_EXACT);
#define GAUGE(field)
#define COUNTER(field)
#include "stats/fields.def"
    emitter->kind->outside_end(emitter);
}

static void walk_gauges(struct emitter *emitter) {
#define METRIC(field, json, label)
#define OUTSIDE(field, json)
#define GAUGE(field) emitter->kind->gauge(emitter, #field, emitter->device->field);
#define COUNTER(field)
#include "stats/fields.def"
}

static void walk_counters(struct emitter *emitter) {
#define METRIC(field, json, label)
#define OUTSIDE(field, json)
#define GAUGE(field)
#define COUNTER(field) emitter->kind->counter(emitter, #field, emitter->device->field);
#include "stats/fields.def"
}

static void walk_device(struct emitter *emitter) {
    emitter->kind->device_begin(emitter);
    walk_metrics(emitter, true);
    walk_gauges(emitter);
    walk_outside(emitter);
    walk_metrics(emitter, false);
    walk_counters(emitter);
    emitter->kind->device_end(emitter);
    emitter->devices++;
}

/** Writes the report to a descriptor. Returns 0 or a negative errno. */
static int compose(struct slot *slot, int fd, bool in_time, enum report_format format,
                   const char *reason, const struct report_oom *oom) {
    struct report_head head = {
        .reason = reason, .driver_version = atomic_load(&driver_version), .oom = oom};
    if (oom) {
        bool known = stats_read(oom->device, &slot->device);
        verdict_write(&slot->verdict, oom, known ? &slot->device : NULL);
        head.verdict = &slot->verdict;
    }
    print_init(&slot->out, fd, slot->buffer, sizeof slot->buffer);
    slot->out.in_time = in_time;
    struct emitter *emitter = &slot->emitter;
    memset(emitter, 0, sizeof *emitter);
    emitter->kind = format == REPORT_JSON ? &json_emitter : &text_emitter;
    emitter->out = &slot->out;
    emitter->head = &head;
    emitter->device = &slot->device;
    emitter->derived = &slot->derived;
    emitter->first = true;

    emitter->kind->begin(emitter);
    int devices = stats_device_count();
    for (int ordinal = 0; ordinal < devices; ordinal++) {
        if (!stats_read(ordinal, &slot->device))
            continue;
        report_derive(&slot->device, &slot->derived);
        walk_device(emitter);
    }
    emitter->kind->end(emitter);
    return print_flush(&slot->out);
}

/* ---- where to ---- */

static void warn_of_file(const char *path, int error) {
    const char *words = file_error(error);
    if (words)
        log_once(LOG_LEVEL_WARN, "cannot write report file %s: %s; writing to stderr", path, words);
    else
        log_once(LOG_LEVEL_WARN, "cannot write report file %s: error %d; writing to stderr", path,
                 -error);
}

static int compose_to_file(struct slot *slot, const char *reason, const struct report_oom *oom) {
    const struct options *wanted = options();
    int fd = file_open(wanted->report_pattern, slot->path, sizeof slot->path);
    if (fd < 0)
        return fd;
    int result = compose(slot, fd, true, wanted->report_format, reason, oom);
    bool written = file_close(fd, slot->path, result == 0);
    if (written && strcmp(reason, "interval") == 0)
        log_once(LOG_LEVEL_WARN, "reports are written to files such as %s", slot->path);
    else if (written)
        log_warn("report written to %s", slot->path);
    return result;
}

static void compose_to_destination(struct slot *slot, const char *reason,
                                   const struct report_oom *oom) {
    if (options()->report == REPORT_TO_FILE) {
        int result = compose_to_file(slot, reason, oom);
        if (result == 0)
            return;
        warn_of_file(slot->path, result);
    }
    int fd = log_fd();
    if (fd >= 0)
        compose(slot, fd, true, options()->report_format, reason, oom);
}

static void deliver(const char *reason, const struct report_oom *oom) {
    int saved_errno = errno;
    struct slot *slot = claim_slot();
    if (slot) {
        compose_to_destination(slot, reason, oom);
        release_slot(slot);
    } else {
        log_warn("report (%s) left out: %d others are being written", reason, SLOTS);
    }
    errno = saved_errno;
}

void report_write(const char *reason) {
    if (options()->report != REPORT_TO_NOWHERE && stats_device_count() > 0)
        deliver(reason, NULL);
}

/** What there is room for of the verdict in a message, for who gets no report on stderr. */
static void say_oom(const struct report_oom *oom) {
    static const char prefix[] = "gpucache: "; /* the message has its own */
    char words[LOG_LINE - sizeof prefix] = "";
    size_t used = 0;
    int saved_errno = errno;
    struct slot *slot = claim_slot();
    if (!slot)
        return;
    bool known = stats_read_books(oom->device, &slot->device);
    verdict_write(&slot->verdict, oom, known ? &slot->device : NULL);
    for (size_t i = 0; i < slot->verdict.count; i++) {
        const char *line = slot->verdict.text[i] + (i == 0 ? strlen(prefix) : 0);
        const char *between = i == 0 ? "" : *line == ' ' ? " " : "; ";
        line += strspn(line, " ");
        if (used + strlen(between) + strlen(line) >= sizeof words)
            break;
        used = (size_t)(stpcpy(stpcpy(words + used, between), line) - words);
    }
    release_slot(slot);
    log_error("%s", words);
    errno = saved_errno;
}

void report_oom(const struct report_oom *oom) {
    unsigned before = atomic_load(&oom_reports);
    do {
        if (before > OOM_REPORTS)
            return;
    } while (!atomic_compare_exchange_weak(&oom_reports, &before, before + 1));
    if (before == OOM_REPORTS)
        log_warn("further OOMs are counted, but not reported one by one");
    if (before < OOM_REPORTS && options()->report != REPORT_TO_STDERR)
        say_oom(oom);
    if (before < OOM_REPORTS && options()->report != REPORT_TO_NOWHERE)
        deliver("oom", oom);
}

int report_write_fd(int fd, int format, const char *reason) {
    if (format != REPORT_TEXT && format != REPORT_JSON)
        return -EINVAL;
    if (fd < 0)
        return -EBADF;
    int saved_errno = errno;
    struct slot *slot = claim_slot();
    int result = -EBUSY;
    if (slot) {
        result = compose(slot, fd, false, (enum report_format)format, reason, NULL);
        release_slot(slot);
    }
    errno = saved_errno;
    return result;
}
