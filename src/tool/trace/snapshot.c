/*
 * gpucache snapshot: converts a trace to a memory snapshot in the format of PyTorch, for PyTorch's
 * memory_viz and its viewer in the browser.
 */
#include "tool/trace/snapshot.h"
#include "tool/common/arguments.h"

#include "heap/page.h"
#include "options/value.h"
#include "report/lines.h"
#include "tool/common/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAST 200000 /* default number of events; browsers fail beyond some 600 000 */

/* ---- segments at the end of the trace ---- */

static void add_segments(struct memory_list *to, const struct trace_live_set *from,
                         enum trace_sort sort) {
    size_t count;
    struct trace_event *events = trace_live_set_list(from, sort, NULL, &count);
    bool pages = sort == TRACE_PAGES;
    for (size_t i = 0; i < count; i++)
        memory_list_add_segment(to, (struct memory_segment){events[i].address,
                                                            pages ? PAGE_BYTES : events[i].bytes,
                                                            pages ? 0 : events[i].stack, pages});
    free(events);
}

static void add_blocks(struct memory_list *to, const struct trace_live_set *from) {
    size_t count;
    struct trace_event *events = trace_live_set_list(from, TRACE_BLOCKS, NULL, &count);
    for (size_t i = 0; i < count; i++)
        memory_list_add_block(to, (struct memory_block){events[i].address, events[i].value,
                                                        events[i].bytes, events[i].stack});
    free(events);
}

static void write_segments(struct snapshot *to, unsigned device) {
    const struct view *of = &to->views[device];
    struct memory_list list = {0};
    list.block_capacity = of->shown.tables[TRACE_BLOCKS].count;
    list.segment_capacity =
        of->shown.tables[TRACE_SEGMENTS].count + of->mapped.tables[TRACE_PAGES].count;
    list.blocks = checked(calloc(list.block_capacity + 1, sizeof *list.blocks));
    list.segments = checked(calloc(list.segment_capacity + 1, sizeof *list.segments));
    add_blocks(&list, &of->shown);
    add_segments(&list, &of->shown, TRACE_SEGMENTS);
    add_segments(&list, &of->mapped, TRACE_PAGES);
    memory_snapshot_sort(&list);
    memory_snapshot_segments(&to->format, device, &list);
    free(list.blocks);
    free(list.segments);
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
    memory_snapshot_settings(pickle, header->version);
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
    static struct snapshot to;
    struct trace_file file;
    struct print out = tool_stdout();
    uint64_t last = LAST;
    bool json = false;
    struct arguments left = {.command = "snapshot", .at = arguments};
    for (enum option_of_command option; (option = arguments_next(&left)) != ARGUMENTS_END;) {
        json |= option == ARGUMENT_snapshot_json;
        if (option == ARGUMENT_snapshot_last &&
            (!value_number(left.value, UINT64_MAX, &last) || last == 0))
            fail(STATUS_OWN_FAILURE, left.option, "wanted is a number of events, 1 or more");
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
    to.file = &file;
    snapshot_attribute(&file);
    snapshot_frames_begin(&to);
    pickle_begin(&to.pickle, &out, json);
    write_all(&to);
    pickle_end(&to.pickle);
    snapshot_frames_end(&to);
    finish(&to, *arguments);
    trace_file_free(&file);
    return tool_flush(&out) ? 0 : STATUS_OWN_FAILURE;
}
