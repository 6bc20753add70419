/*
 * Converts a trace to histories. Blocks that are live when the trace begins are allocated first.
 * The trace also has the reserved memory of the pools, which becomes the recorded peak.
 */
#include "tool/replay/comparison.h"

#include "tool/trace/trace_file.h"

#include <stdio.h>
#include <string.h>

static bool is_period(const char *text) {
    return text && (strncmp(text, "period", 6) == 0 || strncmp(text, "step", 4) == 0);
}

static void mark_period(struct histories *histories, const struct trace_event *event) {
    for (size_t i = 0; i < histories->count; i++) {
        struct history *history = &histories->list[i];
        bool meant = event->device == TRACE_NO_DEVICE || event->device == history->device;
        if (meant)
            history_period(history);
    }
}

/** Returns the time of an event. A carried event gets the time of the front, because its own time
 * may lie long before the trace. */
static uint64_t time_us(const struct trace_file *file, size_t i) {
    return (i < file->carried ? file->front_ns : file->events[i].time_ns) / 1000;
}

static void read_event(const struct trace_file *file, size_t i, struct histories *histories) {
    const struct trace_event *event = &file->events[i];
    bool grows = event->kind == TRACE_MOMENT_GROW || event->kind == TRACE_MOMENT_GIVE_BACK;
    if (event->kind == TRACE_MARK && is_period(event->text))
        mark_period(histories, event);
    if ((event->kind != TRACE_ALLOCATE && event->kind != TRACE_FREE && !grows) ||
        event->device >= STATS_MAX_DEVICES)
        return;
    struct history *history = histories_of(histories, event->device);
    if (grows) {
        history->recorded_by = "the library";
        history->recorded_peak =
            event->detail > history->recorded_peak ? event->detail : history->recorded_peak;
        return;
    }
    history_on_thread(history, event->thread);
    if (event->kind == TRACE_FREE)
        history_free(history, time_us(file, i), event->address);
    else
        history_allocate(history, time_us(file, i), event->address, event->bytes, 0);
}

int replay_trace_read(const char *path, struct histories *histories) {
    struct trace_file file;
    const char *why = NULL;
    int r = trace_file_read(path, &file, &why);
    if (r != 0) {
        snprintf(histories->why, sizeof histories->why, "%s", why ? why : strerror(-r));
        return r;
    }
    for (size_t i = 0; i < file.count; i++)
        read_event(&file, i, histories);
    trace_file_free(&file);
    return 0;
}
