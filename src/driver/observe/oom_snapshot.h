/*
 * Writes the memory snapshot of GPUCACHE_OOM_SNAPSHOT, for PyTorch's viewer
 * (pytorch.org/memory_viz). The snapshot shows the process at its first out-of-memory error:
 *
 *      segments         of the pools, and memory that the driver served itself; live blocks in them
 *      one device more  the live pinned host memory
 *      device_traces    the error; with a trace, also the last events before it
 *      frames           with GPUCACHE_STACKS
 *
 * No lock protects the state: an atomic variable names the one thread that writes.
 */
#ifndef GPUCACHE_DRIVER_OBSERVE_OOM_SNAPSHOT_H
#define GPUCACHE_DRIVER_OBSERVE_OOM_SNAPSHOT_H

#include "process/process.h"
#include "report/report.h"

/**
 * Writes the snapshot if this is the first out-of-memory error of the process. While another thread
 * writes it, waits for about 10 s at most: the program may end when this thread returns the error.
 * Logs one line with the name of the file or the reason for its absence. Keeps errno. Makes no CUDA
 * call. Call with no lock held: acquires the locks of pools and of the ledger to copy their lists,
 * and locks of the trace and of the call stacks.
 */
void oom_snapshot_write(const struct report_oom *oom);

/**
 * Waits for about 10 s at most while another thread writes the snapshot: an exit or exec would
 * leave an incomplete file. Keeps errno. Lifecycle hook (`end`).
 */
void oom_snapshot_end(enum process_end how, int signal);

#endif
