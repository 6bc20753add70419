/*
 * A snapshot under way: what a trace shows of each device at one moment, and where it is written
 * to.
 *
 * The viewer replays the trace backwards, from what there is in the end. So what is shown has to
 * agree: every block lies, at every moment, in a segment that is there. A block that lies in none
 * that the trace knows is left out.
 */
#ifndef GPUCACHE_TOOL_SNAPSHOT_H
#define GPUCACHE_TOOL_SNAPSHOT_H

#include "tool/pickle.h"
#include "tool/trace_file.h"

/* A device at one moment of the trace, as a snapshot shows it. */
struct view {
    struct trace_live_set
        shown; /* blocks, segments, and pages that are covered by segments or shown themselves */
    struct trace_live_set mapped; /* pages that are shown themselves */
    unsigned device;
    size_t left_out; /* blocks */
    bool silent;     /* before the front: nothing is written */
};

struct snapshot {
    struct pickle pickle;
    const struct trace_file *file;
    struct view views[STATS_MAX_DEVICES];
    struct snapshot_frames *frames;
    unsigned devices;
    uint64_t covered; /* bytes of segments of which a reader knows each page */
};

/** Writes the entries of a device, and leaves its view as of the last one. */
void snapshot_trace(struct snapshot *to, unsigned device);

/** The frames of a stack, or words that say why there are none; and those of what nobody has. */
void snapshot_frames(struct snapshot *to, uint32_t stack);
void snapshot_no_frames(struct snapshot *to);

/* Around all of them. */
void snapshot_frames_begin(struct snapshot *to);
void snapshot_frames_end(struct snapshot *to);

/** Who made the pool grow: whom the thread that took a segment or page has given a block next. */
void snapshot_attribute(struct trace_file *file);

/** Since 1970, of a time in the trace. */
int64_t snapshot_time_us(const struct snapshot *of, uint64_t ns);

#endif
