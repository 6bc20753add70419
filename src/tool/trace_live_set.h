/*
 * What lives at one moment of a trace: blocks, segments, mapped pages, each by its address. A
 * reader that goes through a trace keeps one, and asks it for the state between two events.
 */
#ifndef GPUCACHE_TOOL_TRACE_LIVE_SET_H
#define GPUCACHE_TOOL_TRACE_LIVE_SET_H

#include "trace/format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_PAGE_BYTES ((uint64_t)2 << 20)

/** A record as a reader knows it; words as in trace/format.h. */
struct trace_event {
    uint64_t time_ns, address, bytes, value, detail, space;
    uint32_t thread, stack;
    uint32_t life; /* of ALLOCATE and FREE: which belong together; 0: not known */
    uint16_t device;
    uint8_t kind, flags;
    const char *text; /* of a mark, in the file's memory; else NULL */
    size_t place;     /* in the file */
};

enum trace_sort { TRACE_BLOCKS, TRACE_SEGMENTS, TRACE_PAGES, TRACE_SORTS };

struct trace_live_set {
    struct trace_table {
        struct trace_event *slots; /* kind 0: free */
        size_t capacity, count;
    } tables[TRACE_SORTS];
};

void trace_live_set_free(struct trace_live_set *live_set);

/** The event that brought what is at the address: ALLOCATE, MOMENT_GROW, MAP. NULL: nothing is.
 * Good until the next change. */
const struct trace_event *trace_live_set_at(const struct trace_live_set *live_set,
                                            enum trace_sort sort, uint64_t address);

/** What it is after the event. One of a trace_file: what goes is there, and a CONTEXT_END takes
 * nothing. */
void trace_live_set_apply(struct trace_live_set *live_set, const struct trace_event *event);

/** All of a sort, by address; the caller frees it. */
struct trace_event *trace_live_set_list(const struct trace_live_set *live_set, enum trace_sort sort,
                                        size_t *count);

#endif
