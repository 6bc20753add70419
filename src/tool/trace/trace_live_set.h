/*
 * The set of blocks, segments and mapped pages that live at one moment of a trace, by address. A
 * reader of a trace applies each event to the set, which then has the state between two events.
 */
#ifndef GPUCACHE_TOOL_TRACE_TRACE_LIVE_SET_H
#define GPUCACHE_TOOL_TRACE_TRACE_LIVE_SET_H

#include "replay/table.h"
#include "trace/format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** An event of a trace. The words are those of trace/format.h. */
struct trace_event {
    uint64_t time_ns, address, bytes, value, detail, space;
    uint32_t thread, stack;
    uint32_t life; /* equal in the ALLOCATE and the FREE of a block; 0: unknown */
    uint16_t device;
    uint8_t kind, flags;
    const char *text; /* the text of a mark, in the file's memory; otherwise NULL */
    size_t place;     /* slot in the file */
};

enum trace_sort { TRACE_BLOCKS, TRACE_SEGMENTS, TRACE_PAGES, TRACE_SORTS };

/** The kinds of events that begin and end an object of each sort. */
extern const struct trace_sort_kinds {
    uint8_t begins, ends; /* enum trace_kind */
} trace_sorts[TRACE_SORTS];

/** Returns the sort of the object that an event begins or ends, or TRACE_SORTS if there is none, as
 * for growth by pages, whose address is 0. */
enum trace_sort trace_sort_of(const struct trace_event *event);

struct trace_live_set {
    struct table tables[TRACE_SORTS]; /* address -> struct trace_event in memory of its own */
};

void trace_live_set_free(struct trace_live_set *live_set);

/** Returns the event that began the live object at an address: ALLOCATE, MOMENT_GROW or MAP. NULL:
 * no object. Valid until the next change. */
const struct trace_event *trace_live_set_at(const struct trace_live_set *live_set,
                                            enum trace_sort sort, uint64_t address);

/** Applies an event of a struct trace_file, in which the object that an event ends is live.
 * CONTEXT_END changes nothing: events that end the context's objects come before it. */
void trace_live_set_apply(struct trace_live_set *live_set, const struct trace_event *event);

/** Returns the objects of a sort, ordered by address: all, or only those of *space if it is not
 * NULL. The caller frees the list. */
struct trace_event *trace_live_set_list(const struct trace_live_set *live_set, enum trace_sort sort,
                                        const uint64_t *space, size_t *count);

#endif
