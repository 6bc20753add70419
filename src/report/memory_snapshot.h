/*
 * Writes the parts of a memory snapshot in the format of PyTorch, which its viewer opens
 * (pytorch.org/memory_viz). The library writes one at an out-of-memory error, and
 * `gpucache snapshot` writes one of a trace.
 *
 * Allocates nothing and takes no lock. The viewer needs each block to lie in a segment.
 * memory_snapshot_segments() leaves out a block outside all segments.
 */
#ifndef GPUCACHE_REPORT_MEMORY_SNAPSHOT_H
#define GPUCACHE_REPORT_MEMORY_SNAPSHOT_H

#include "report/pickle.h"
#include "stats/holders.h"
#include "stats/memory_list.h"

/** The output, and how the caller writes call stacks. */
struct memory_snapshot {
    struct pickle_writer *pickle;
    /* Writes the list of a stack's frames, or a text that says why there are none. */
    void (*frames)(void *with, uint32_t stack);
    /* Writes the list for memory that is not in use. */
    void (*no_frames)(void *with);
    void *with;
};

/**
 * Sorts the blocks and the segments of a complete list by address. Joins adjacent segments of VMM
 * pages.
 */
void memory_snapshot_sort(struct memory_list *list);

/**
 * Writes the segments of a device with their blocks, as elements of the list `segments`. The list
 * is sorted by memory_snapshot_sort().
 */
void memory_snapshot_segments(const struct memory_snapshot *to, unsigned device,
                              const struct memory_list *list);

/** An entry of a device's trace. */
struct memory_entry {
    const char *action;      /* as PyTorch calls it, such as "alloc" */
    const char *address_key; /* "addr", or "device_free" for "oom" */
    uint64_t address, bytes; /* address: the value of address_key */
    int64_t time_us;         /* since 1970 */
    uint32_t stack;
};

/** Writes an entry, as an element of the list of a device's trace. */
void memory_snapshot_entry(const struct memory_snapshot *to, const struct memory_entry *entry);

/** Writes a frame. A frame without a function is named by module and offset. */
void memory_snapshot_frame(struct pickle_writer *to, const struct stats_frame *frame);

/** Writes a list of one frame with a text, because the viewer does not explain an empty list. */
void memory_snapshot_words(struct pickle_writer *to, const char *words);

/** Begins the settings: a dictionary, to which the caller adds keys and which the caller closes. */
void memory_snapshot_settings(struct pickle_writer *to, const char *version);

#endif
