/*
 * Writes the reports of this process: reads the statistics (walk.c) and chooses the destination.
 *
 * The memory of a report is a static slot, because a report must not allocate and may run on a
 * signal stack of a few kilobytes. A slot is claimed with one atomic exchange, without a wait: a
 * signal handler that interrupts a report takes the next slot. A usual report fits into the slot's
 * buffer and is written with one write(). Processes that share a terminal, a log or a pipe then do
 * not mix their lines: Linux keeps a write to a pipe together if the pipe has space for it.
 */
#include "report/report.h"

#include "base/log.h"
#include "base/program.h"
#include "report/emitter.h"
#include "report/file.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define SLOTS 8        /* reports written at the same time */
#define BUFFER 65536   /* the usual capacity of a pipe; eight devices as JSON take some 30 KB */
#define MAP_PIECES 512 /* of all devices together: some 20 KB */
#define OOM_REPORTS 3  /* per process: a program may allocate until it fails, again and again */

struct slot {
    atomic_flag taken;
    struct stats_device device;
    struct segment_map map;
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

/** Writes a report to a descriptor; `in_time` limits the wait for its reader (base/write.h).
 * `oom` is NULL unless the report explains an OOM. Returns 0 or a negative errno. */
static int compose(struct slot *slot, int fd, bool in_time, enum report_format format,
                   const char *reason, const struct report_oom *oom) {
    struct report_process self = {.pid = getpid(),
                                  .version = GPUCACHE_VERSION,
                                  .program = program(),
                                  .time_ns = program_time_ns(),
                                  .uptime_ns = program_uptime_ns()};
    struct report_head head = {.process = &self,
                               .reason = reason,
                               .driver_version = atomic_load(&driver_version),
                               .host_bytes = stats_host_bytes(),
                               .oom = oom,
                               .stacks = stats_stacks()};
    if (oom) {
        bool known = stats_read(oom->device, &slot->device, &slot->map);
        verdict_write(&slot->verdict, oom, known ? &slot->device : NULL, &slot->map,
                      stats_stacks() != NULL);
        head.verdict = &slot->verdict;
    }
    print_init(&slot->out, fd, slot->buffer, sizeof slot->buffer);
    slot->out.in_time = in_time;
    struct emitter *emitter = &slot->emitter;
    walk_begin(emitter, format, &slot->out, &head);
    int devices = stats_device_count();
    for (int ordinal = 0; ordinal < devices; ordinal++) {
        if (stats_read(ordinal, &slot->device, format == REPORT_JSON ? &slot->map : NULL)) {
            segment_map_limit(&slot->map, MAP_PIECES / (uint32_t)devices);
            walk_device(emitter, &slot->device, &slot->map);
        }
    }
    walk_end(emitter);
    return print_flush(&slot->out);
}

/* ---- destinations ---- */

static void warn_of_file(const char *path, int error) {
    const char *words = file_error(error);
    char shown[FILE_SHOWN];
    path = file_shown(shown, path);
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

static void write_in_slot(const char *reason, const struct report_oom *oom) {
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
        write_in_slot(reason, NULL);
}

/** Logs the lines of the verdict that fit into one message. */
static void log_oom(const struct report_oom *oom, enum log_level level) {
    static const char prefix[] = "gpucache: "; /* skipped: the log adds it */
    char words[LOG_LINE - sizeof prefix] = "";
    size_t used = 0;
    int saved_errno = errno;
    struct slot *slot = claim_slot();
    if (!slot)
        return;
    bool known = stats_read(oom->device, &slot->device, &slot->map);
    verdict_write(&slot->verdict, oom, known ? &slot->device : NULL, &slot->map,
                  stats_stacks() != NULL);
    for (size_t i = 0; i < slot->verdict.count; i++) {
        const char *line = slot->verdict.text[i] + (i == 0 ? strlen(prefix) : 0);
        const char *between = i == 0 ? "" : *line == ' ' ? " " : "; ";
        line += strspn(line, " ");
        if (used + strlen(between) + strlen(line) >= sizeof words)
            break;
        used = (size_t)(stpcpy(stpcpy(words + used, between), line) - words);
    }
    release_slot(slot);
    log_line(level, "%s", words);
    errno = saved_errno;
}

void report_oom(const struct report_oom *oom) {
    bool no_reports = options()->report == REPORT_TO_NOWHERE;
    unsigned before = atomic_load(&oom_reports);
    do { /* counts up to OOM_REPORTS + 1: the last value logs that further OOMs are not reported */
        if (before > OOM_REPORTS)
            return;
    } while (!atomic_compare_exchange_weak(&oom_reports, &before, before + 1));
    if (before == OOM_REPORTS)
        log_line(no_reports ? LOG_LEVEL_INFO : LOG_LEVEL_WARN,
                 "further OOMs are counted, but not reported one by one");
    if (before < OOM_REPORTS && options()->report != REPORT_TO_STDERR)
        log_oom(oom, no_reports ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR);
    if (before < OOM_REPORTS && !no_reports)
        write_in_slot("oom", oom);
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
