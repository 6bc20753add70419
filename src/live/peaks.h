/*
 * The peaks that gpucache run --max-peak judges: a file that the tool has made, and that every process which
 * it started maps, directly or not. Each raises what stands there, so nothing is lost with a process, however
 * it ends; and the tool need not know which processes there were.
 */
#ifndef GPUCACHE_LIVE_PEAKS_H
#define GPUCACHE_LIVE_PEAKS_H

#include "process/process.h"
#include "stats/stats.h"

#include <stdatomic.h>
#include <stdint.h>

#define PEAKS_MAGIC UINT64_C(0x31736b6165707067) /* "gppeaks1" */

struct peaks {
    uint64_t magic;
    _Atomic uint64_t processes;                /* that have used a device */
    _Atomic uint64_t bytes[STATS_MAX_DEVICES]; /* by the process's own number of the device */
};

/** What counts: the peak of what was requested, and that of memory outside the pool. */
uint64_t peaks_of(const struct stats_device *stats);

/** Maps the file that GPUCACHE_PEAKS names, if it does. Once, when a device is first used. */
void peaks_start(void);

/** The figures of a device have been read. */
void peaks_note(int ordinal, const struct stats_device *stats);

/** The process ends, or becomes another program. Safe in a signal handler. Nothing in a child. */
void peaks_end(enum process_end how, int signal);

#endif
