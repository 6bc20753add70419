/*
 * Who holds device memory, by call stack: what reports read where GPUCACHE_STACKS is set.
 *
 * Like a snapshot it is read without a lock, a CUDA call or an allocation. A report names stacks by number; whoever
 * has them says what their frames are: the process that captured them, or the tool that has read its report.
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

/** Now, and at the peak of the device; which is the highest sum of all stacks. */
struct stats_held {
    struct stats_share live, peak;
};

struct stats_holder {
    uint32_t stack;
    struct stats_held held;
    struct stats_share total; /* all that it has ever been given */
    uint64_t byte_seconds;    /* bytes x the time for which they were held, up to now, */
    uint32_t byte_seconds_ns; /* and the rest, in bytes x nanoseconds */
};

/** A frame. Of Python and where the tool has found it: function, file and line (0: not known). Else the module's path
 * and the offset there; without a path the bare address. */
struct stats_frame {
    const char *function; /* NULL: not known */
    const char *file;
    uint64_t offset;
    uint32_t line;
    bool python;
};

struct stats_stacks {
    const void *of;                          /* handed to all below */
    unsigned frames;                         /* as many of a stack are remembered */
    const char *(*unwinder)(const void *of); /* "libunwind" or "backtrace", as of now */
    unsigned python; /* 0x30b: lines of Python 3.11 are in the stacks; 0: none */
    uint64_t (*lost_stacks)(const void *of); /* allocations whose stack is not told from others, */
    uint64_t (*lost_blocks)(
        const void *of); /* and those that are in no figure: the tables are full */
    struct stats_held (*held)(const void *of, int device);
    /* The next holder of a device behind *at, which begins at 0. False: there is none. */
    bool (*next)(const void *of, int device, uint32_t *at, struct stats_holder *holder);
    /* A frame of a stack, innermost first; false beyond the last one. */
    bool (*frame)(const void *of, uint32_t stack, unsigned index, struct stats_frame *frame);
    /* A file that frames lie in, and its build id; false beyond the last one. */
    bool (*module)(const void *of, uint32_t index, const char **path, const char **build_id);
};

/** NULL: stacks are not remembered. */
const struct stats_stacks *stats_stacks(void);

#endif
