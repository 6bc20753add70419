/*
 * Reads call stacks from reports and live pages. The code that prints reports reads them through
 * `view`, as it reads the library's own stacks (stats/holders.h). Invariant: the number of a stack
 * is its index plus 1; 0 means no stack.
 */
#include "tool/report/stacks.h"

#include "tool/common/tool.h"
#include "tool/report/pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- struct stats_stacks ---- */

static struct stats_recording recording(const void *of) {
    return ((const struct parsed_stacks *)of)->recording;
}

static struct stats_held held(const void *of, int device) {
    const struct parsed_stacks *stacks = of;
    for (size_t i = 0; i < stacks->device_count; i++)
        if (stacks->devices[i].device == device)
            return stacks->devices[i].held;
    return (struct stats_held){0};
}

static bool next(const void *of, int device, uint32_t *at, struct stats_holder *holder) {
    const struct parsed_stacks *stacks = of;
    while (*at < stacks->row_count) {
        const struct stack_row *row = &stacks->rows[(*at)++];
        if (row->device == device) {
            *holder = row->holder;
            return true;
        }
    }
    return false;
}

static bool frame(const void *of, uint32_t number, unsigned index, struct stats_frame *out) {
    const struct parsed_stacks *stacks = of;
    const struct stack_frames *stack =
        number > 0 && number <= stacks->stack_count ? &stacks->stacks[number - 1] : NULL;
    if (!stack || index >= stack->count)
        return false;
    *out = stack->frames[index];
    return true;
}

static bool module(const void *of, uint32_t index, const char **path, const char **build_id) {
    const struct parsed_stacks *stacks = of;
    if (index >= stacks->module_count)
        return false;
    *path = stacks->modules[index].path;
    *build_id = stacks->modules[index].build_id;
    return true;
}

static void set_view(struct parsed_stacks *stacks) {
    stacks->view = (struct stats_stacks){.of = stacks,
                                         .recording = recording,
                                         .held = held,
                                         .next = next,
                                         .frame = frame,
                                         .module = module};
}

/* ---- reading ---- */

char *stack_text(const char *text) {
    return checked(strdup(text));
}

static char *text_or_null(const struct plain_value *value) {
    return value && value->kind == PLAIN_TEXT ? stack_text(value->text) : NULL;
}

static struct stats_frame read_frame(const struct plain_value *from) {
    struct stats_frame frame = {.function = text_or_null(plain_get(from, "function")),
                                .offset = json_u64(plain_get(from, "offset")),
                                .python = json_is_true(plain_get(from, "python")),
                                .inlined = json_is_true(plain_get(from, "inlined"))};
    if (frame.function) {
        frame.module = text_or_null(plain_get(from, "module"));
        frame.file = text_or_null(plain_get(from, "file"));
        frame.line = (uint32_t)json_u64(plain_get(from, "line"));
    } else {
        /* A frame without a function has its module in `file` (struct stats_frame). */
        frame.file = text_or_null(plain_get(from, "module"));
    }
    return frame;
}

uint32_t parsed_stacks_add(struct parsed_stacks *stacks, const struct plain_value *holder) {
    struct stack_frames *stack = APPEND(stacks->stacks, stacks->stack_count);
    const struct plain_value *frames = plain_get(holder, "frames");
    for (size_t i = 0; i < plain_count(frames); i++)
        *APPEND(stack->frames, stack->count) = read_frame(plain_item(frames, i));
    return (uint32_t)stacks->stack_count;
}

static struct stats_share read_share(const struct plain_value *from, const char *bytes,
                                     const char *count) {
    return (struct stats_share){json_u64(plain_get(from, bytes)), json_u64(plain_get(from, count))};
}

static struct stats_held read_held(const struct plain_value *from) {
    return (struct stats_held){read_share(from, "live_bytes", "live_count"),
                               read_share(from, "peak_bytes", "peak_count")};
}

static void read_holder(struct parsed_stacks *stacks, int device, const struct plain_value *from) {
    const struct plain_value *byte_seconds = plain_get(from, "byte_seconds");
    uint64_t whole = json_u64(byte_seconds);
    /* In nanoseconds. Both terms may wrap around, and their difference is right nevertheless. */
    uint64_t rest = json_seconds(byte_seconds) - whole * 1000000000;
    struct stats_holder holder = {.stack = parsed_stacks_add(stacks, from),
                                  .held = read_held(from),
                                  .total = read_share(from, "total_bytes", "total_count"),
                                  .byte_seconds = whole,
                                  .byte_seconds_ns = (uint32_t)(rest % 1000000000)};
    *APPEND(stacks->rows, stacks->row_count) = (struct stack_row){device, holder};
}

static void read_device(struct parsed_stacks *stacks, const struct plain_value *from) {
    int device = (int)json_i64(plain_get(from, "device"));
    const struct plain_value *holders = plain_get(from, "holders");
    *APPEND(stacks->devices, stacks->device_count) =
        (struct stack_device){device, read_held(plain_get(from, "held"))};
    for (size_t i = 0; i < plain_count(holders); i++)
        read_holder(stacks, device, plain_item(holders, i));
}

static void add_module(struct parsed_stacks *stacks, const char *path, const char *build_id) {
    *APPEND(stacks->modules, stacks->module_count) =
        (struct stack_module){stack_text(path), stack_text(build_id)};
}

static unsigned read_version(const char *text) {
    char *end;
    unsigned long major = strtoul(text, &end, 10);
    return *end == '.' ? (unsigned)(major << 8 | strtoul(end + 1, NULL, 10)) : 0;
}

struct parsed_stacks *parsed_stacks_read(const struct plain_value *report) {
    const struct plain_value *head = plain_get(report, "stacks"),
                             *devices = plain_get(report, "devices");
    const struct plain_value *modules = plain_get(report, "modules");
    if (!head || head->kind != PLAIN_DICT)
        return NULL;
    struct parsed_stacks *stacks = checked(calloc(1, sizeof *stacks));
    stacks->recording = (struct stats_recording){stack_text(json_text(plain_get(head, "unwinder"))),
                                                 json_u64(plain_get(head, "lost_stacks")),
                                                 json_u64(plain_get(head, "lost_blocks"))};
    set_view(stacks);
    stacks->view.frames = (unsigned)json_u64(plain_get(head, "frames"));
    stacks->view.python = read_version(json_text(plain_get(head, "python")));
    for (size_t i = 0; i < plain_count(devices); i++)
        read_device(stacks, plain_item(devices, i));
    for (size_t i = 0; i < plain_count(modules); i++) {
        const struct plain_value *at = plain_item(modules, i);
        add_module(stacks, json_text(plain_get(at, "path")), json_text(plain_get(at, "build_id")));
    }
    return stacks;
}

/* ---- of a live page ---- */

static char *text_unless_empty(const char *text) {
    return *text ? stack_text(text) : NULL;
}

static void add_live_frame(struct parsed_stacks *stacks, struct stack_frames *stack,
                           const struct live_frame *from) {
    *APPEND(stack->frames, stack->count) =
        (struct stats_frame){.function = text_unless_empty(from->function),
                             .file = text_unless_empty(from->file),
                             .offset = from->offset,
                             .line = from->line,
                             .python = from->python != 0};
    if (*from->build_id)
        add_module(stacks, from->file, from->build_id);
}

static void add_live_device(struct parsed_stacks *stacks, int device,
                            const struct live_holders *holders) {
    stacks->recording.lost_blocks = holders->lost_blocks; /* the same for each device */
    *APPEND(stacks->devices, stacks->device_count) =
        (struct stack_device){device, {.live = {holders->bytes, holders->count}}};
    for (uint32_t i = 0; i < holders->rows; i++) {
        const struct live_holder *from = &holders->row[i];
        struct stack_frames *stack = APPEND(stacks->stacks, stacks->stack_count);
        for (uint32_t k = 0; k < from->frames; k++)
            add_live_frame(stacks, stack, &from->frame[k]);
        *APPEND(stacks->rows, stacks->row_count) = (struct stack_row){
            device,
            {.stack = (uint32_t)stacks->stack_count, .held.live = {from->bytes, from->count}}};
    }
}

struct parsed_stacks *parsed_stacks_of_page(const struct page *page) {
    struct parsed_stacks *stacks = checked(calloc(1, sizeof *stacks));
    struct live_holders holders;
    set_view(stacks);
    for (unsigned i = 0; i < page->devices; i++)
        if (page_holders(page, i, &holders))
            add_live_device(stacks, (int)i, &holders);
    if (stacks->device_count > 0)
        return stacks;
    parsed_stacks_free(stacks);
    return NULL;
}

void stack_frame_free(const struct stats_frame *frame) {
    free((char *)(uintptr_t)frame->function);
    free((char *)(uintptr_t)frame->file);
    free((char *)(uintptr_t)frame->module);
}

void stack_frames_free(struct stack_frames *stack) {
    for (unsigned i = 0; i < stack->count; i++)
        stack_frame_free(&stack->frames[i]);
    free(stack->frames);
}

void parsed_stacks_free(struct parsed_stacks *stacks) {
    if (!stacks)
        return;
    for (size_t i = 0; i < stacks->stack_count; i++)
        stack_frames_free(&stacks->stacks[i]);
    for (size_t i = 0; i < stacks->module_count; i++) {
        free(stacks->modules[i].path);
        free(stacks->modules[i].build_id);
    }
    free(stacks->stacks);
    free(stacks->rows);
    free(stacks->devices);
    free(stacks->modules);
    free((char *)(uintptr_t)stacks->recording.unwinder);
    free(stacks);
}
