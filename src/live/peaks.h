/*
 * The peaks that gpucache run --max-peak compares with its bound.
 *
 * The tool makes a file, and every process under it that uses a device maps the file. Each process
 * raises the values in the file to its own peaks by compare and exchange, without a lock.
 * Invariant: a value never falls. A process may therefore end in any way, and the tool need not
 * know the processes.
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
    _Atomic uint64_t processes;                /* processes that have used a device */
    _Atomic uint64_t bytes[STATS_MAX_DEVICES]; /* by the device's ordinal in its process */
};

/**
 * Maps the file that GPUCACHE_PEAKS names, if it is set. Called once, when a device is first used.
 */
void peaks_start(void);

/**
 * Raises the peak of a device in the file. Called after the statistics of the device have been
 * read.
 */
void peaks_note(int ordinal, const struct stats_device *stats);

/**
 * Raises the peaks of all devices when the process ends or becomes another program. Safe in a
 * signal handler. Does nothing in a child.
 */
void peaks_end(enum process_end how, int signal);

#endif
