/*
 * The memory snapshot of GPUCACHE_OOM_SNAPSHOT, which PyTorch's viewer opens
 * (pytorch.org/memory_viz). It shows the process at its first out-of-memory error:
 *
 *      segments         of the pools, and memory that the driver served itself; live blocks in them
 *      one device more  the live pinned host memory
 *      device_traces    the error; with a trace, also the last events before it
 *      frames           with GPUCACHE_STACKS
 */
#ifndef GPUCACHE_DRIVER_OBSERVE_OOM_SNAPSHOT_H
#define GPUCACHE_DRIVER_OBSERVE_OOM_SNAPSHOT_H

#include "process/process.h"
#include "report/report.h"

/**
 * Writes the snapshot if this is the first out-of-memory error of the process. Waits, at most 10 s,
 * while another thread writes it: the program may end when this thread returns the error. Logs one
 * line with the name of the file, or with the reason why there is none. Keeps errno, makes no CUDA
 * call. Called with no lock held: takes the locks of pools and of unpooled memory while it copies
 * their lists, but not while it writes.
 */
void oom_snapshot_write(const struct report_oom *oom);

/**
 * Waits, at most 10 s, while another thread writes the snapshot: an exit or exec would leave half a
 * file. Keeps errno.
 */
void oom_snapshot_end(enum process_end how, int signal);

#endif
