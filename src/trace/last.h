/*
 * Reads the last allocations and frees back from the trace that this process records.
 */
#ifndef GPUCACHE_TRACE_LAST_H
#define GPUCACHE_TRACE_LAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** An allocation or a free of a block. */
struct trace_last {
    uint64_t key;            /* used only by last.c */
    uint64_t address, bytes; /* bytes of the block */
    int64_t time_us;         /* since 1970 */
    uint32_t stack;          /* of an allocation; 0: unknown */
    uint16_t device;
    bool is_free;
};

/**
 * Fills `to` with the last allocations and frees of all devices in the order of time, at most
 * `most`. Returns their number; 0 if no trace is recorded. No event between two of them is missing,
 * except those that other threads add during the call. Takes the ring's lock and keeps errno.
 */
size_t trace_read_last(struct trace_last *to, size_t most);

#endif
