/*
 * Device memory by call stack, for reports. Filled if GPUCACHE_STACKS is set.
 *
 * Reading takes no lock and makes no CUDA call and no allocation. A report names a stack by number.
 * The process that captured the stack, or the tool that read the report, resolves its frames.
 */
#ifndef GPUCACHE_STATS_HOLDERS_H
#define GPUCACHE_STATS_HOLDERS_H

#include "stats/stats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stats_share {
    uint64_t bytes, count;
};

/** Held memory: now, and when the sum of all stacks of the device was highest. */
struct stats_held {
    struct stats_share live, peak;
};

struct stats_holder {
    uint32_t stack; /* number of the call stack, for stats_stacks.frame() */
    struct stats_held held;
    struct stats_share total; /* all allocations of the stack, freed ones included */
    uint64_t byte_seconds;    /* bytes x seconds that they were held, until now */
    uint32_t byte_seconds_ns; /* remainder, in bytes x nanoseconds */
};

/**
 * A frame of a call stack. Python frames, and frames that the tool has resolved, have function,
 * file and line (0: unknown). Other frames have the module's path in `file` and the offset in it.
 * If `file` is NULL, `offset` is the bare address.
 */
struct stats_frame {
    const char *function; /* NULL: unknown */
    const char *file;
    uint64_t offset;
    uint32_t line;
    bool python;
    bool inlined;       /* inlined into the next frame, which lies at the same offset */
    const char *module; /* of a frame that the tool has resolved: path of its module, else NULL */
};

/** How stacks are recorded now. */
struct stats_recording {
    const char *unwinder; /* in use: "libunwind" or "backtrace" */
    uint64_t lost_stacks; /* allocations under a shared stack, because the table was full */
    uint64_t lost_blocks; /* allocations not counted: table full, or no memory */
};

struct stats_stacks {
    const void *of;  /* first argument of the functions below */
    unsigned frames; /* frames recorded per stack, at most */
    unsigned python; /* 0x30b: stacks have lines of Python 3.11; 0: no Python lines */
    struct stats_recording (*recording)(const void *of);
    /* Returns the sums over all stacks of a device. */
    struct stats_held (*held)(const void *of, int device);
    /* Finds the next holder on a device after *at, which starts at 0. Returns false at the end. */
    bool (*next)(const void *of, int device, uint32_t *at, struct stats_holder *holder);
    /* Reads a frame, innermost first. Returns false after the last. */
    bool (*frame)(const void *of, uint32_t stack, unsigned index, struct stats_frame *frame);
    /* Reads a module of the frames: path and build id. Returns false after the last. */
    bool (*module)(const void *of, uint32_t index, const char **path, const char **build_id);
};

/** Returns the stacks of the process, or NULL if stacks are not recorded. */
const struct stats_stacks *stats_stacks(void);

#endif
