/* Copies the newest events from all chunks, through a heap of the newest ones (trace.h). */
#include "trace/trace.h"

#include "base/sort.h"
#include "trace/ring.h"

struct reading {
    const struct trace_header *header;
    struct trace_last *to; /* during the read a heap; the oldest event has the highest key */
    size_t count, most;
};

/* Copies the words of a record. Returns false if the slot is empty, or a thread is writing it. */
static bool read_record(const struct trace_record *record, uint64_t words[7], uint64_t head) {
    trace_get(record, words);
    return head >> 32 ==
           trace_seal(words, (uint16_t)(head >> 16), (uint8_t)(head >> 8), (uint8_t)head);
}

/* Adds an event. In a full list, a newer event replaces the oldest one. */
static void add(struct reading *reading, const struct trace_last *event) {
    struct trace_last *to = reading->to;
    if (reading->count < reading->most) {
        to[reading->count++] = *event;
        if (reading->count == reading->most)
            for (size_t i = reading->count; i > 0; i--)
                sort_sift(to, reading->count, sizeof *to, i - 1);
    } else if (event->key < to[0].key) {
        to[0] = *event;
        sort_sift(to, reading->count, sizeof *to, 0);
    }
}

static void see(const struct trace_record *record, void *with) {
    struct reading *reading = with;
    const struct trace_header *header = reading->header;
    uint64_t words[7], head = atomic_load_explicit(&record->head, memory_order_acquire);
    unsigned kind = (uint8_t)head;
    /* Carried records are not newer than `dropped_until` either. */
    if ((kind != TRACE_ALLOCATE && kind != TRACE_FREE) || !read_record(record, words, head) ||
        words[0] <= atomic_load(&header->dropped_until))
        return;
    struct trace_last event = {
        .key = ~words[0],
        .address = words[1],
        .bytes = words[3],
        .time_us = (int64_t)((trace_ns(header, words[0]) + header->real_ns) / 1000),
        .stack = kind == TRACE_ALLOCATE ? (uint32_t)words[6] : 0,
        .device = (uint16_t)(head >> 16),
        .is_free = kind == TRACE_FREE,
    };
    add(reading, &event);
}

size_t trace_read_last(struct trace_last *to, size_t most) {
    if (!trace_on() || most == 0)
        return 0;
    struct reading reading = {.header = ring_header(), .to = to, .most = most};
    ring_each(see, &reading);
    for (size_t i = 0; i < reading.count; i++)
        to[i].key = ~to[i].key; /* ticks again: the newest event comes last */
    sort_by_key(to, reading.count, sizeof *to);
    return reading.count;
}
