/*
 * Reads PyTorch's memory snapshot, of torch.cuda.memory._record_memory_history() and later
 * _dump_snapshot(FILE), as a pickle or as JSON. gpucache snapshot writes both too.
 *
 * A snapshot has the newest entries of each device, and the allocator's segments at the end. A
 * block was live before the first entry if the entries do not allocate it, and it is either active
 * at the end or freed by an entry. The history allocates such blocks first. The memory reserved
 * before the first entry is the memory at the end minus the changes of all entries.
 */
#include "replay/input.h"
#include "replay/memory.h"
#include "replay/plain.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES_MOST 64
#define ADDRESS_MOST INT64_MAX
#define TOTAL_MOST (INT64_C(1) << 60)
#define TIME_MOST (UINT64_C(1) << 53)

enum action { ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_MORE, SEGMENT_LESS, OOM, OTHER };

struct entry {
    enum action action;
    uint64_t address, bytes, stream, time_us;
};

struct reader {
    struct plain *values;
    struct histories *histories;
    const struct plain_value *segments, *trace;
    int device;
    struct history scratch; /* only the entries, to find blocks without an allocation */
    struct first_block {
        uint64_t address, bytes, stream;
    } * first; /* blocks that were live before the first entry */
    size_t first_count;
    int64_t reserved, reserved_most; /* change since the first entry, and its maximum */
    bool expandable;
    bool by_library; /* written by gpucache snapshot */
};

static const struct {
    const char *name;
    enum action action;
} actions[] = {
    {"alloc", ALLOC},
    {"free_requested", FREE_REQUESTED},
    {"free_completed", FREE_COMPLETED},
    {"segment_alloc", SEGMENT_MORE},
    {"segment_map", SEGMENT_MORE},
    {"segment_free", SEGMENT_LESS},
    {"segment_unmap", SEGMENT_LESS},
    {"oom", OOM},
};

static int complain(struct reader *reader, const char *text) {
    snprintf(reader->histories->why, HISTORY_WHY, "%s", text);
    return -EINVAL;
}

static int refuse_repetition(struct reader *reader) {
    return complain(reader, "shows the same entries again and again: no snapshot of PyTorch's");
}

static int read_entry(struct reader *reader, size_t at, struct entry *entry) {
    const struct plain_value *from = &reader->trace->list->items[at];
    const struct plain_value *action = plain_get(from, "action");
    *entry = (struct entry){.action = OTHER};
    if (!plain_count_read(reader->values))
        return refuse_repetition(reader);
    if (!plain_u64(plain_get(from, "time_us"), TIME_MOST, &entry->time_us))
        entry->time_us = at; /* PyTorch 2.0 and older have no times: one microsecond per entry */
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        entry->action = plain_is(action, actions[i].name) ? actions[i].action : entry->action;
    if (entry->action == OTHER) {
        return action && action->kind == PLAIN_TEXT
                   ? 0
                   : complain(reader, "has an entry of device_traces without an action");
    }
    const struct plain_value *stream = plain_get(from, "stream");
    entry->stream = stream && stream->kind == PLAIN_INT ? (uint64_t)stream->integer : 0;
    if (entry->action == OOM)
        return 0;
    if (!plain_u64(plain_get(from, "addr"), ADDRESS_MOST, &entry->address) ||
        !plain_u64(plain_get(from, "size"), HISTORY_BYTES_MOST, &entry->bytes)) {
        snprintf(reader->histories->why, HISTORY_WHY,
                 "has an entry of device_traces (device %d, number %zu) whose addr or size is no "
                 "address or size",
                 reader->device, at);
        return -EINVAL;
    }
    return 0;
}

static int count_segment(struct reader *reader, const struct entry *entry) {
    int64_t bytes = (int64_t)entry->bytes;
    if (__builtin_add_overflow(reader->reserved, entry->action == SEGMENT_MORE ? bytes : -bytes,
                               &reader->reserved) ||
        reader->reserved > TOTAL_MOST || reader->reserved < -TOTAL_MOST)
        return complain(reader, "has segments that no device has room for");
    if (reader->reserved > reader->reserved_most)
        reader->reserved_most = reader->reserved;
    return 0;
}

/**
 * First pass: collects blocks that were live before the first entry, and counts reserved memory.
 */
static int first_pass(struct reader *reader, const struct entry *entry) {
    struct history *scratch = &reader->scratch;
    switch (entry->action) {
    case ALLOC:
        history_allocate(scratch, entry->time_us, entry->address, entry->bytes, 0);
        return 0;
    case FREE_REQUESTED:
    case FREE_COMPLETED: /* usually follows a FREE_REQUESTED of the same block */
        if (history_has(scratch, entry->address))
            history_free(scratch, entry->time_us, entry->address);
        else if (entry->action == FREE_REQUESTED)
            *APPEND(reader->first, reader->first_count) =
                (struct first_block){entry->address, entry->bytes, entry->stream};
        return 0;
    case SEGMENT_MORE:
    case SEGMENT_LESS:
        return count_segment(reader, entry);
    default:
        return 0;
    }
}

/** Reads a block of a segment at the end. */
static int read_block(struct reader *reader, const struct plain_value *block, uint64_t *address,
                      uint64_t stream) {
    uint64_t size, bytes, own = *address;
    if (!plain_count_read(reader->values))
        return refuse_repetition(reader);
    if (!plain_u64(plain_get(block, "size"), HISTORY_BYTES_MOST, &size))
        return complain(reader, "has a block without a size");
    plain_u64(plain_get(block, "address"), ADDRESS_MOST, &own);
    *address = own + size;
    if (!plain_is(plain_get(block, "state"), "active_allocated") ||
        history_has(&reader->scratch, own))
        return 0;
    if (!plain_u64(plain_get(block, "requested_size"), size, &bytes))
        bytes = size;
    *APPEND(reader->first, reader->first_count) = (struct first_block){own, bytes, stream};
    return 0;
}

/** Reads a segment at the end, if it is on the device, and adds its size to *total. */
static int read_segment(struct reader *reader, const struct plain_value *segment, uint64_t *total) {
    const struct plain_value *blocks = plain_get(segment, "blocks");
    const struct plain_value *of = plain_get(segment, "stream");
    uint64_t device = 0, address = 0, size;
    int r = 0;
    if (!plain_count_read(reader->values))
        return refuse_repetition(reader);
    plain_u64(plain_get(segment, "device"), DEVICES_MOST, &device);
    if ((int)device != reader->device)
        return 0;
    if (!plain_u64(plain_get(segment, "total_size"), HISTORY_BYTES_MOST, &size))
        return complain(reader, "has a segment without a total_size");
    *total = *total + size < TOTAL_MOST ? *total + size : TOTAL_MOST;
    reader->expandable |= json_is_true(plain_get(segment, "is_expandable"));
    plain_u64(plain_get(segment, "address"), ADDRESS_MOST, &address);
    uint64_t stream = of && of->kind == PLAIN_INT ? (uint64_t)of->integer : 0;
    for (size_t i = 0; i < plain_count(blocks) && r == 0; i++)
        r = read_block(reader, &blocks->list->items[i], &address, stream);
    return r;
}

/** Second pass: adds an entry to the history. Ignores frees of blocks that are not live. */
static void second_pass(struct history *history, const struct entry *entry) {
    bool frees = entry->action == FREE_REQUESTED || entry->action == FREE_COMPLETED;
    if (entry->action == ALLOC)
        history_allocate(history, entry->time_us, entry->address, entry->bytes, entry->stream);
    else if (frees && history_has(history, entry->address))
        history_free(history, entry->time_us, entry->address);
    history->failures += entry->action == OOM;
}

/** Fills the history: first the blocks that were live before, then all entries. */
static int fill(struct reader *reader, struct history *history) {
    struct entry entry = {0};
    int r = plain_count(reader->trace) > 0 ? read_entry(reader, 0, &entry) : 0;
    for (size_t i = 0; i < reader->first_count && r == 0; i++)
        history_allocate(history, entry.time_us, reader->first[i].address, reader->first[i].bytes,
                         reader->first[i].stream);
    for (size_t i = 0; i < plain_count(reader->trace) && r == 0; i++) {
        r = read_entry(reader, i, &entry);
        if (r == 0)
            second_pass(history, &entry);
    }
    return r;
}

/** Runs the first pass over all entries and segments of the device. *total: bytes of segments. */
static int run_first_pass(struct reader *reader, uint64_t *total) {
    struct entry entry;
    int r = 0;
    for (size_t i = 0; i < plain_count(reader->trace) && r == 0; i++) {
        r = read_entry(reader, i, &entry);
        r = r == 0 ? first_pass(reader, &entry) : r;
    }
    for (size_t i = 0; i < plain_count(reader->segments) && r == 0; i++)
        r = read_segment(reader, &reader->segments->list->items[i], total);
    return r;
}

/** Reads one device in two passes. Makes no history for a device without blocks. */
static int read_device(struct reader *reader) {
    uint64_t total = 0;
    int r = run_first_pass(reader, &total);
    if (r == 0 && (reader->scratch.count > 0 || reader->first_count > 0)) {
        struct history *history = histories_of(reader->histories, reader->device);
        r = fill(reader, history);
        int64_t before = (int64_t)total - reader->reserved;
        before = before > 0 ? before : 0;
        history->recorded_by = reader->by_library   ? "the library"
                               : reader->expandable ? "PyTorch, expandable segments"
                                                    : "PyTorch";
        history->recorded_peak = (uint64_t)(before + reader->reserved_most);
    }
    return r;
}

int snapshot_read(const struct input *input, struct histories *histories) {
    struct plain values;
    int r = *input->bytes == '{' ? json_read(input->bytes, input->count, input->most, &values,
                                             histories->why, HISTORY_WHY)
                                 : pickle_read(input->bytes, input->count, input->most, &values,
                                               histories->why, HISTORY_WHY);
    const struct plain_value *traces = plain_get(&values.root, "device_traces");
    const struct plain_value *segments = plain_get(&values.root, "segments");
    if (r == 0 && (!traces || traces->kind != PLAIN_LIST || !segments ||
                   segments->kind != PLAIN_LIST || plain_count(traces) > DEVICES_MOST)) {
        snprintf(histories->why, HISTORY_WHY,
                 "is no memory snapshot: it has no segments and device_traces");
        r = -EINVAL;
    }
    const struct plain_value *settings = plain_get(&values.root, "allocator_settings");
    bool by_library = plain_is(plain_get(settings, "allocator"), "libgpucache");
    values.reads_left =
        4 * values.reads_left; /* each entry is read twice, and each segment once per device */
    for (size_t i = 0; r == 0 && i < plain_count(traces); i++) {
        struct reader reader = {.values = &values,
                                .histories = histories,
                                .segments = segments,
                                .trace = &traces->list->items[i],
                                .device = (int)i,
                                .by_library = by_library};
        r = read_device(&reader);
        history_end(&reader.scratch);
        free(reader.first);
    }
    plain_free(&values);
    return r;
}
