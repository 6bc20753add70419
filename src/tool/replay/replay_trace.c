/*
 * Converts a trace to histories. Blocks that are live when the trace begins are allocated first.
 * The trace also has the reserved memory of the pools, which becomes the recorded peak.
 */
#include "tool/replay/replay_trace.h"

#include "tool/trace/trace_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static bool is_period(const char *text) {
    return text && (strncmp(text, "period", 6) == 0 || strncmp(text, "step", 4) == 0);
}

static int mark_period(struct histories *histories, const struct trace_event *event) {
    for (size_t i = 0; i < histories->count; i++) {
        struct history *history = &histories->list[i];
        bool meant = event->device == TRACE_NO_DEVICE || event->device == history->device;
        if (meant && history_period(history) != 0)
            return -ENOMEM;
    }
    return 0;
}

/** Returns the time of an event. A carried event gets the time of the front, because its own time
 * may lie long before the trace. */
static uint64_t time_us(const struct trace_file *file, size_t i) {
    return (i < file->carried ? file->front_ns : file->events[i].time_ns) / 1000;
}

static int read_event(const struct trace_file *file, size_t i, struct histories *histories) {
    const struct trace_event *event = &file->events[i];
    if (event->kind == TRACE_MARK)
        return is_period(event->text) ? mark_period(histories, event) : 0;
    bool grows = event->kind == TRACE_MOMENT_GROW || event->kind == TRACE_MOMENT_GIVE_BACK;
    if ((event->kind != TRACE_ALLOCATE && event->kind != TRACE_FREE && !grows) ||
        event->device >= STATS_MAX_DEVICES)
        return 0;
    struct history *history = histories_of(histories, event->device);
    if (!history)
        return -ENOMEM;
    if (grows) {
        history->recorded_by = "the library";
        history->recorded_peak =
            event->detail > history->recorded_peak ? event->detail : history->recorded_peak;
        return 0;
    }
    int r = history_on_thread(history, event->thread);
    return r != 0 ? r
           : event->kind == TRACE_FREE
               ? history_free(history, time_us(file, i), event->address)
               : history_allocate(history, time_us(file, i), event->address, event->bytes, 0);
}

int replay_trace_read(const char *path, struct histories *histories) {
    struct trace_file file;
    const char *why = NULL;
    int r = trace_file_read(path, &file, &why);
    if (r != 0) {
        snprintf(histories->why, sizeof histories->why, "%s", why ? why : strerror(-r));
        return r;
    }
    for (size_t i = 0; i < file.count && r == 0; i++)
        r = read_event(&file, i, histories);
    trace_file_free(&file);
    if (r != 0)
        snprintf(histories->why, sizeof histories->why, "%s", strerror(-r));
    return r;
}
