/*
 * The state of the conversion of a trace to a snapshot: the output, and the view of each device.
 *
 * Invariant: each block that is written lies in a segment that exists at that moment. PyTorch's
 * viewer needs that, because it replays the trace backwards from the state at the end. A block in
 * no known segment is left out.
 */
#ifndef GPUCACHE_TOOL_TRACE_SNAPSHOT_H
#define GPUCACHE_TOOL_TRACE_SNAPSHOT_H

#include "report/memory_snapshot.h"
#include "tool/trace/trace_file.h"

/* A device at one moment of the trace, as a snapshot shows it. */
struct view {
    /* Blocks, segments, and pages: those in segments and those of `mapped`. */
    struct trace_live_set shown;
    struct trace_live_set mapped; /* VMM pages in no segment, which have entries of their own */
    size_t left_out;              /* blocks that are not written */
};

struct snapshot {
    struct pickle_writer pickle;
    struct memory_snapshot format; /* writes to `pickle` */
    const struct trace_file *file;
    struct view views[STATS_MAX_DEVICES];
    uint32_t *stacks, *frames; /* indices in the pickle's memo, by number of the stack or frame */
    uint32_t nothing, unused;  /* indices in the memo of the two texts without a stack */
    unsigned devices;
    uint64_t covered; /* bytes of segments whose pages are all in `shown` */
};

/** Writes the entries of a device. Afterwards its view shows the state after the last entry. */
void snapshot_trace(struct snapshot *to, unsigned device);

/* Begin and end the writing of frames. `format` can be used between them. */
void snapshot_frames_begin(struct snapshot *to);
void snapshot_frames_end(struct snapshot *to);

/** Gives each growth of a pool the stack of the thread's next allocation after the growth. */
void snapshot_attribute(struct trace_file *file);

/** Converts a time of the trace to microseconds since 1970. */
int64_t snapshot_time_us(const struct snapshot *of, uint64_t ns);

#endif
