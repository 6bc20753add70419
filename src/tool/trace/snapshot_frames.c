/*
 * Writes the call stacks of a snapshot: lists of frames in the viewer's format.
 *
 * Each stack and each frame is written once. Later uses are references in the pickle.
 */
#include "replay/table.h"
#include "tool/common/tool.h"
#include "tool/trace/snapshot.h"

#include <stdlib.h>
#include <string.h>

struct snapshot_frames {
    uint32_t *stacks, *frames; /* indices in the pickle's memo, by number of the stack or frame */
    uint32_t stack_count, frame_count;
    uint32_t nothing, unused; /* indices in the memo of the two texts without a stack */
};

static uint32_t *new_memo(uint32_t count) {
    return checked(calloc((size_t)count + 1, sizeof(uint32_t)));
}

void snapshot_frames_end(struct snapshot *to) {
    free(to->frames->stacks);
    free(to->frames->frames);
    free(to->frames);
}

/**
 * Writes a frame and the functions into which it was inlined. The innermost one becomes a reference
 * if it was written before.
 */
static void write_frame(struct snapshot *to, uint32_t number) {
    struct snapshot_frames *of = to->frames;
    uint32_t other = 0, *memo = number < of->frame_count ? &of->frames[number] : &other;
    struct trace_callers *callers = to->file->callers;
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
    struct snapshot_frames *of = to->frames;
    bool off = strstr(to->file->header->options, "GPUCACHE_STACKS=0\n") != NULL;
    unsigned count = 0;
    const uint32_t *numbers = NULL;
    if (stack < of->stack_count) {
        if (pickle_again(&to->pickle, of->stacks[stack]))
            return;
        numbers = trace_callers_stack(to->file->callers, stack, &count);
    }
    if (count == 0) {
        write_words(
            to, &of->nothing,
            off ? "gpucache: who asked is in a trace that is recorded with GPUCACHE_STACKS=16"
                : "gpucache: no stack is known");
        return;
    }
    pickle_list(&to->pickle);
    for (unsigned i = 0; i < count; i++)
        write_frame(to, numbers[i]);
    pickle_close(&to->pickle);
    of->stacks[stack] = pickle_remember(&to->pickle);
}

static void write_no_stack(void *with) {
    struct snapshot *to = with;
    write_words(to, &to->frames->unused, "gpucache: free");
}

void snapshot_frames_begin(struct snapshot *to) {
    struct trace_callers *callers = to->file->callers;
    struct snapshot_frames *frames = checked(calloc(1, sizeof *frames));
    frames->stack_count = trace_callers_stacks(callers);
    frames->frame_count = trace_callers_frames(callers);
    frames->stacks = new_memo(frames->stack_count);
    frames->frames = new_memo(frames->frame_count);
    to->frames = frames;
    to->format = (struct memory_snapshot){&to->pickle, write_stack, write_no_stack, to};
}

/* ---- stacks that made the pool grow ---- */

void snapshot_attribute(struct trace_file *file) {
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
