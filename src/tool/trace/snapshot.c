/*
 * gpucache snapshot: converts a trace to a memory snapshot in the format of PyTorch, for PyTorch's
 * memory_viz and its viewer in the browser.
 *
 * Invariant: each block that is written lies in a segment that exists at that moment. PyTorch's
 * viewer needs that, because it replays the trace backwards from the state at the end. A block in
 * no known segment is left out. Each stack and each frame is written once. Later uses are
 * references in the pickle.
 */
#include "heap/page.h"
#include "options/value.h"
#include "report/lines.h"
#include "report/memory_snapshot.h"
#include "tool/common/arguments.h"
#include "tool/common/tool.h"
#include "tool/trace/trace_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bound of snapshot.covered: a damaged file may list the same segments many times. */
#define COVERED_MOST ((uint64_t)8 << 40)

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

/* ---- call stacks ---- */

static uint32_t *new_memo(uint32_t count) {
    return checked(calloc((size_t)count + 1, sizeof(uint32_t)));
}

static void memo_free(struct snapshot *to) {
    free(to->stacks);
    free(to->frames);
}

/**
 * Writes a frame and the functions into which it was inlined. The innermost one becomes a reference
 * if it was written before.
 */
static void write_frame(struct snapshot *to, uint32_t number) {
    struct trace_callers *callers = to->file->callers;
    uint32_t other = 0;
    uint32_t *memo = number < trace_callers_frames(callers) ? &to->frames[number] : &other;
    const struct stats_frame *frame = trace_callers_frame(callers, number, 0);
    if (!pickle_again(&to->pickle, *memo)) {
        memory_snapshot_frame(&to->pickle, frame);
        *memo = pickle_remember(&to->pickle);
    }
    for (unsigned i = 1; (frame = trace_callers_frame(callers, number, i)) != NULL; i++)
        memory_snapshot_frame(&to->pickle, frame);
}

static void write_words(struct snapshot *to, uint32_t *memo, const char *words) {
    if (pickle_again(&to->pickle, *memo))
        return;
    memory_snapshot_words(&to->pickle, words);
    *memo = pickle_remember(&to->pickle);
}

static void write_stack(void *with, uint32_t stack) {
    struct snapshot *to = with;
    struct trace_callers *callers = to->file->callers;
    bool off = strstr(to->file->header->options, "GPUCACHE_STACKS=0\n") != NULL;
    unsigned count = 0;
    const uint32_t *numbers = NULL;
    if (stack < trace_callers_stacks(callers)) {
        if (pickle_again(&to->pickle, to->stacks[stack]))
            return;
        numbers = trace_callers_stack(callers, stack, &count);
    }
    if (count == 0) {
        write_words(
            to, &to->nothing,
            off ? "gpucache: who asked is in a trace that is recorded with GPUCACHE_STACKS=16"
                : "gpucache: no stack is known");
        return;
    }
    pickle_list(&to->pickle);
    for (unsigned i = 0; i < count; i++)
        write_frame(to, numbers[i]);
    pickle_close(&to->pickle);
    to->stacks[stack] = pickle_remember(&to->pickle);
}

static void write_no_stack(void *with) {
    struct snapshot *to = with;
    write_words(to, &to->unused, "gpucache: free");
}

static void memo_start(struct snapshot *to) {
    struct trace_callers *callers = to->file->callers;
    to->stacks = new_memo(trace_callers_stacks(callers));
    to->frames = new_memo(trace_callers_frames(callers));
    to->format = (struct memory_snapshot){&to->pickle, write_stack, write_no_stack, to};
}

/* ---- stacks that made the pool grow ---- */

/** Gives each growth of a pool the stack of the thread's next allocation after the growth. */
static void attribute_growth(struct trace_file *file) {
    struct table next = {0}; /* thread -> stack of its next allocation, plus 1 */
    for (size_t i = file->count; i > file->carried; i--) {
        struct trace_event *event = &file->events[i - 1];
        uint64_t stack = table_find(&next, event->thread);
        if (event->kind == TRACE_ALLOCATE)
            table_set(&next, event->thread, (uint64_t)event->stack + 1);
        else if (event->kind == TRACE_FREE)
            table_remove(&next, event->thread);
        else if (event->kind == TRACE_MOMENT_GROW || event->kind == TRACE_MAP)
            event->stack = stack != 0 ? (uint32_t)(stack - 1) : 0;
    }
    free(next.slots);
}

/* ---- entries of the trace ---- */

/** Converts a time of the trace to microseconds since 1970. */
static int64_t time_us_of(const struct snapshot *of, uint64_t ns) {
    return (int64_t)((ns + of->file->header->real_ns) / 1000);
}

/** Writes an entry for an event. A carried event only updates the view. */
static void write_entry(struct snapshot *to, const char *action, const struct trace_event *event,
                        uint64_t bytes, uint32_t stack) {
    bool oom = event->kind == TRACE_MOMENT_OOM;
    if (event >= to->file->events + to->file->carried)
        memory_snapshot_entry(&to->format,
                              &(struct memory_entry){action, oom ? "device_free" : "addr",
                                                     oom ? event->detail : event->address, bytes,
                                                     time_us_of(to, event->time_ns), stack});
}

/* ---- pages ---- */

/** Adds the pages of an address range to `shown`, or removes them. */
static void cover(struct view *of, uint64_t address, uint64_t bytes, bool covered) {
    struct trace_event page = {.kind = covered ? TRACE_MAP : TRACE_UNMAP, .bytes = PAGE_BYTES};
    for (uint64_t at = 0; at < bytes; at += PAGE_BYTES) {
        page.address = address + at;
        trace_live_set_apply(&of->shown, &page);
    }
}

static void change_page(struct snapshot *to, struct view *of, const struct trace_event *event) {
    bool comes = event->kind == TRACE_MAP;
    if (!comes && !trace_live_set_at(&of->mapped, TRACE_PAGES, event->address))
        return;
    trace_live_set_apply(&of->mapped, event);
    cover(of, event->address, PAGE_BYTES, comes);
    write_entry(to, comes ? "segment_map" : "segment_unmap", event, PAGE_BYTES,
                comes ? event->stack : 0);
}

/* ---- blocks and segments ---- */

/** Returns whether a block lies in segments and pages that are shown. A block without a pool must
 * begin at a segment of its own. */
static bool is_covered(const struct view *of, const struct trace_event *block) {
    uint64_t bytes = block->value > 0 ? block->value : 1;
    if (block->space == 0)
        return trace_live_set_at(&of->shown, TRACE_SEGMENTS, block->address) != NULL;
    for (uint64_t at = block->address & ~(PAGE_BYTES - 1); at < block->address + bytes;
         at += PAGE_BYTES)
        if (!trace_live_set_at(&of->shown, TRACE_PAGES, at))
            return false;
    return true;
}

static void allocate(struct snapshot *to, struct view *of, const struct trace_event *event) {
    if (!is_covered(of, event)) {
        of->left_out++;
        return;
    }
    trace_live_set_apply(&of->shown, event);
    write_entry(to, "alloc", event, event->value, event->stack);
}

static void free_block(struct snapshot *to, struct view *of, const struct trace_event *event) {
    const struct trace_event *block = trace_live_set_at(&of->shown, TRACE_BLOCKS, event->address);
    if (!block)
        return;
    uint32_t stack = block->stack; /* a free has the stack of the allocation, as in PyTorch */
    trace_live_set_apply(&of->shown, event);
    write_entry(to, "free_requested", event, event->value, stack);
    write_entry(to, "free_completed", event, event->value, stack);
}

/**
 * Adds or removes a segment. Ignores growth by pages (address 0) and segments beyond COVERED_MOST.
 */
static void change_segment(struct snapshot *to, struct view *of, const struct trace_event *event) {
    bool comes = event->kind == TRACE_MOMENT_GROW;
    const struct trace_event *there = trace_live_set_at(&of->shown, TRACE_SEGMENTS, event->address);
    const struct trace_event *meant = comes ? event : there;
    if (event->address == 0 || !meant)
        return;
    uint64_t covers = meant->space != 0 ? meant->bytes : 0;
    if (comes && covers > COVERED_MOST - to->covered)
        return;
    to->covered += comes ? covers : -covers;
    trace_live_set_apply(&of->shown, event);
    cover(of, event->address, covers, comes);
    write_entry(to, comes ? "segment_alloc" : "segment_free", event, event->bytes, event->stack);
}

static void show(struct snapshot *to, struct view *of, const struct trace_event *event) {
    switch (event->kind) {
    case TRACE_ALLOCATE:
        allocate(to, of, event);
        break;
    case TRACE_FREE:
        free_block(to, of, event);
        break;
    case TRACE_MAP:
    case TRACE_UNMAP:
        change_page(to, of, event);
        break;
    case TRACE_MOMENT_GROW:
    case TRACE_MOMENT_GIVE_BACK:
        change_segment(to, of, event);
        break;
    case TRACE_MOMENT_OOM:
        write_entry(to, "oom", event, event->bytes, event->stack);
        break;
    default:
        break;
    }
}

/** Writes the entries of a device. Afterwards its view shows the state after the last entry. */
static void write_entries(struct snapshot *to, unsigned device) {
    pickle_list(&to->pickle);
    for (size_t i = 0; i < to->file->count; i++)
        if (to->file->events[i].device == device)
            show(to, &to->views[device], &to->file->events[i]);
    pickle_close(&to->pickle);
}

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
        pickle_int(pickle, time_us_of(to, event->time_ns));
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
        write_entries(to, i);
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
    uint64_t last = 0;
    bool json = false;
    struct arguments left = {.command = "snapshot", .at = arguments};
    value_number(option_rows[ARGUMENT_snapshot_last].initial, UINT64_MAX, &last);
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
    attribute_growth(&file);
    memo_start(&to);
    pickle_begin(&to.pickle, &out, json);
    write_all(&to);
    pickle_end(&to.pickle);
    memo_free(&to);
    finish(&to, *arguments);
    trace_file_free(&file);
    return tool_flush(&out) ? 0 : STATUS_OWN_FAILURE;
}
