/*
 * gpucache snapshot: converts a trace to a memory snapshot in the format of PyTorch, for PyTorch's
 * memory_viz and its viewer in the browser.
 */
#include "tool/snapshot.h"
#include "tool/arguments.h"

#include "heap/page.h"
#include "process/value.h"
#include "report/lines.h"
#include "tool/tool.h"
#include "tool/trace_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAST 200000 /* default number of events; browsers fail beyond some 600 000 */

/* ---- segments at the end of the trace ---- */

struct segment {
    uint64_t address, bytes;
    uint32_t stack; /* whose allocation made the pool grow; none for pages */
    bool pages;
};

static int by_address(const void *a, const void *b) {
    const struct segment *first = a, *second = b;
    return (first->address > second->address) - (first->address < second->address);
}

/** Joins adjacent pages to one segment. Returns the new count. */
static size_t join_pages(struct segment *list, size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        struct segment *last = kept > 0 ? &list[kept - 1] : NULL;
        if (last && last->pages && list[i].pages && last->address + last->bytes == list[i].address)
            last->bytes += list[i].bytes;
        else
            list[kept++] = list[i];
    }
    return kept;
}

/**
 * Returns the segments and joined pages of a device, sorted by address. The caller frees the list.
 */
static struct segment *list_segments(const struct view *of, size_t *count) {
    size_t whole, pages;
    struct trace_event *segments = trace_live_set_list(&of->shown, TRACE_SEGMENTS, &whole);
    struct trace_event *mapped = trace_live_set_list(&of->mapped, TRACE_PAGES, &pages);
    struct segment *list = checked(calloc(whole + pages + 1, sizeof *list));
    for (size_t i = 0; i < whole; i++)
        list[i] =
            (struct segment){segments[i].address, segments[i].bytes, segments[i].stack, false};
    for (size_t i = 0; i < pages; i++)
        list[whole + i] = (struct segment){mapped[i].address, PAGE_BYTES, 0, true};
    free(segments);
    free(mapped);
    qsort(list, whole + pages, sizeof *list, by_address);
    *count = join_pages(list, whole + pages);
    return list;
}

/** Writes a block, or free memory if `block` is NULL. */
static void write_block(struct snapshot *snapshot, uint64_t address, uint64_t bytes,
                        const struct trace_event *block) {
    struct pickle_writer *to = &snapshot->pickle;
    pickle_dict(to);
    pickle_key(to, "address");
    pickle_int(to, (int64_t)address);
    pickle_key(to, "size");
    pickle_int(to, (int64_t)bytes);
    pickle_key(to, "requested_size");
    pickle_int(to, (int64_t)(block ? block->bytes : 0));
    pickle_key(to, "state");
    pickle_word(to, block ? "active_allocated" : "inactive");
    pickle_key(to, "frames");
    if (block)
        snapshot_frames(snapshot, block->stack);
    else
        snapshot_no_frames(snapshot);
    pickle_close(to);
}

/**
 * Writes the memory of a segment without gaps: the `count` blocks in it, and free memory between.
 */
static void write_blocks(struct snapshot *to, const struct segment *segment,
                         const struct trace_event *blocks, size_t count) {
    uint64_t at = segment->address, end = at + segment->bytes;
    pickle_list(&to->pickle);
    for (size_t i = 0; i < count; i++) {
        if (blocks[i].address > at)
            write_block(to, at, blocks[i].address - at, NULL);
        write_block(to, blocks[i].address, blocks[i].value, &blocks[i]);
        at = blocks[i].address + blocks[i].value;
    }
    if (at < end)
        write_block(to, at, end - at, NULL);
    pickle_close(&to->pickle);
}

static void write_segment(struct snapshot *snapshot, unsigned device, const struct segment *segment,
                          const struct trace_event *blocks, size_t count) {
    struct pickle_writer *to = &snapshot->pickle;
    uint64_t allocated = 0, requested = 0;
    for (size_t i = 0; i < count; i++) {
        allocated += blocks[i].value;
        requested += blocks[i].bytes;
    }
    pickle_dict(to);
#define FIGURE(name, value) pickle_key(to, name), pickle_int(to, (int64_t)(value))
    FIGURE("device", device);
    FIGURE("address", segment->address);
    FIGURE("total_size", segment->bytes);
    FIGURE("allocated_size", allocated);
    FIGURE("active_size", allocated);
    FIGURE("requested_size", requested);
    FIGURE("stream", 0);
#undef FIGURE
    pickle_key(to, "segment_type");
    pickle_word(to, "large");
    pickle_key(to, "segment_pool_id");
    pickle_pair(to, 0, 0);
    pickle_key(to, "is_expandable");
    pickle_bool(to, segment->pages);
    pickle_key(to, "frames");
    snapshot_frames(snapshot, segment->stack);
    pickle_key(to, "blocks");
    write_blocks(snapshot, segment, blocks, count);
    pickle_close(to);
}

static void write_segments(struct snapshot *to, unsigned device) {
    const struct view *of = &to->views[device];
    size_t segments, blocks, at = 0;
    struct segment *list = list_segments(of, &segments);
    struct trace_event *live = trace_live_set_list(&of->shown, TRACE_BLOCKS, &blocks);
    for (size_t i = 0; i < segments; i++) {
        size_t first = at;
        while (at < blocks && live[at].address < list[i].address + list[i].bytes)
            at++;
        write_segment(to, device, &list[i], live + first, at - first);
    }
    free(list);
    free(live);
}

/* ---- the file ---- */

/** Writes one text for each option: the viewer shows each text of a list on its own line. */
static void write_options(struct pickle_writer *to, const char *lines) {
    char line[sizeof((struct trace_header *)NULL)->options];
    pickle_list(to);
    for (size_t length; *lines; lines += length + (lines[length] != '\0')) {
        length = strcspn(lines, "\n");
        memcpy(line, lines, length);
        line[length] = '\0';
        pickle_text(to, line);
    }
    pickle_close(to);
}

static void write_settings(struct snapshot *to) {
    const struct trace_header *header = to->file->header;
    struct pickle_writer *pickle = &to->pickle;
    pickle_dict(pickle);
    pickle_key(pickle, "allocator");
    pickle_text(pickle, "libgpucache");
    pickle_key(pickle, "version");
    pickle_text(pickle, header->version);
    for (unsigned i = 0; i < to->devices; i++) {
        static char names[STATS_MAX_DEVICES][24];
        snprintf(names[i], sizeof names[i], "device %u", i);
        pickle_key(pickle, names[i]);
        pickle_text(pickle, header->devices[i].backend);
    }
    pickle_key(pickle, "options");
    write_options(pickle, header->options);
    pickle_close(pickle);
}

static void write_marks(struct snapshot *to) {
    struct pickle_writer *pickle = &to->pickle;
    pickle_list(pickle);
    for (size_t i = to->file->carried; i < to->file->count; i++) {
        const struct trace_event *event = &to->file->events[i];
        if (event->kind != TRACE_MARK)
            continue;
        pickle_dict(pickle);
        pickle_key(pickle, "name");
        pickle_text(pickle, event->text);
        pickle_key(pickle, "stage");
        pickle_word(pickle, "START");
        pickle_key(pickle, "device");
        pickle_int(pickle, 0);
        pickle_key(pickle, "time_us");
        pickle_int(pickle, snapshot_time_us(to, event->time_ns));
        pickle_close(pickle);
    }
    pickle_close(pickle);
}

static void write_all(struct snapshot *to) {
    struct pickle_writer *pickle = &to->pickle;
    to->devices = 1;
    for (unsigned i = 0; i < STATS_MAX_DEVICES; i++)
        if (to->file->header->devices[i].total_bytes != 0)
            to->devices = i + 1;
    pickle_dict(pickle);
    pickle_key(pickle, "device_traces");
    pickle_list(pickle);
    for (unsigned i = 0; i < to->devices; i++)
        snapshot_trace(to, i);
    pickle_close(pickle);
    pickle_key(pickle, "segments");
    pickle_list(pickle);
    for (unsigned i = 0; i < to->devices; i++)
        write_segments(to, i);
    pickle_close(pickle);
    pickle_key(pickle, "allocator_settings");
    write_settings(to);
    pickle_key(pickle, "external_annotations");
    write_marks(to);
    pickle_close(pickle);
}

static void finish(struct snapshot *to, const char *source) {
    size_t left_out = 0;
    for (unsigned i = 0; i < to->devices; i++) {
        left_out += to->views[i].left_out;
        trace_live_set_free(&to->views[i].shown);
        trace_live_set_free(&to->views[i].mapped);
    }
    if (left_out > 0)
        tool_say("%s: left out: %zu block%s in no segment of the trace", source, left_out,
                 PLURAL(left_out));
}

int tool_snapshot(char **arguments) {
    static char buffer[65536];
    static struct snapshot to;
    struct trace_file file;
    struct print out;
    uint64_t last = LAST;
    bool json = false;
    struct arguments left = {.command = "snapshot", .at = arguments};
    for (enum option_of_command option; (option = arguments_next(&left)) != ARGUMENTS_END;) {
        json |= option == ARGUMENT_snapshot_json;
        if (option == ARGUMENT_snapshot_last &&
            (!value_number(left.value, UINT64_MAX, &last) || last == 0))
            arguments_refuse(&left);
    }
    arguments = left.at;
    if (!*arguments || arguments[1])
        fail(STATUS_OWN_FAILURE, "snapshot",
             "wanted is one trace, or the number of a process that records one");
    if (!json && isatty(STDOUT_FILENO))
        fail(STATUS_OWN_FAILURE, "snapshot",
             "is no text: write it to a file, with > snapshot.pickle");
    if (!trace_source_read(*arguments, last, &file))
        return EXIT_FAILURE;
    print_init(&out, STDOUT_FILENO, buffer, sizeof buffer);
    to.file = &file;
    snapshot_attribute(&file);
    snapshot_frames_begin(&to);
    pickle_begin(&to.pickle, &out, json);
    write_all(&to);
    pickle_end(&to.pickle);
    snapshot_frames_end(&to);
    finish(&to, *arguments);
    trace_file_free(&file);
    if (print_flush(&out) == 0)
        return 0;
    tool_say("snapshot: could not be written");
    return EXIT_FAILURE;
}
