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

static uint32_t *new_memo(uint32_t count) {
    return checked(calloc((size_t)count + 1, sizeof(uint32_t)));
}

void snapshot_frames_end(struct snapshot *to) {
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

void snapshot_frames_begin(struct snapshot *to) {
    struct trace_callers *callers = to->file->callers;
    to->stacks = new_memo(trace_callers_stacks(callers));
    to->frames = new_memo(trace_callers_frames(callers));
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
