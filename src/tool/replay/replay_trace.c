/*
 * Converts a trace to histories. Blocks that are live when the trace begins are allocated first.
 * The trace also has the reserved memory of the pools, at its front and after each change. The
 * largest value becomes the recorded peak.
 */
#include "tool/replay/comparison.h"

#include "tool/trace/trace_file.h"

#include <stdio.h>
#include <string.h>

static bool is_period(const char *text) {
    return text && (strncmp(text, "period", 6) == 0 || strncmp(text, "step", 4) == 0);
}

struct reader {
    const struct trace_file *file;
    struct histories *histories;
    size_t marks[STATS_MAX_DEVICES]; /* marked periods so far, of devices without a history too */
};

/** Returns the history of a device. A new one has all periods that were marked before. */
static struct history *history_of(struct reader *reader, unsigned device) {
    size_t count = reader->histories->count;
    struct history *history = histories_of(reader->histories, (int)device);
    for (size_t i = 0; reader->histories->count > count && i < reader->marks[device]; i++)
        history_period(history);
    return history;
}

/** Begins a period of the device of a mark, or of all devices. */
static void mark_period(struct reader *reader, const struct trace_event *event) {
    for (size_t i = 0; i < reader->histories->count; i++) {
        struct history *history = &reader->histories->list[i];
        bool meant = event->device == TRACE_NO_DEVICE || event->device == history->device;
        if (meant)
            history_period(history);
    }
    for (unsigned device = 0; device < STATS_MAX_DEVICES; device++)
        reader->marks[device] += event->device == TRACE_NO_DEVICE || event->device == device;
}

/** Returns the time of an event. A carried event gets the time of the front, because its own time
 * may lie long before the trace. */
static uint64_t time_us(const struct trace_file *file, size_t i) {
    return (i < file->carried ? file->front_ns : file->events[i].time_ns) / 1000;
}

static void note_reserved(struct history *history, uint64_t bytes) {
    history->recorded_by = "the library";
    if (bytes > history->recorded_peak)
        history->recorded_peak = bytes;
}

static void read_event(struct reader *reader, size_t i) {
    const struct trace_file *file = reader->file;
    const struct trace_event *event = &file->events[i];
    bool grows = event->kind == TRACE_MOMENT_GROW || event->kind == TRACE_MOMENT_GIVE_BACK;
    if (event->kind == TRACE_MARK && is_period(event->text))
        mark_period(reader, event);
    if ((event->kind != TRACE_ALLOCATE && event->kind != TRACE_FREE && !grows) ||
        event->device >= STATS_MAX_DEVICES)
        return;
    struct history *history = history_of(reader, event->device);
    if (grows) {
        if (i >= file->carried) /* a carried event has the value of its own, older time */
            note_reserved(history, event->detail);
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
    struct reader reader = {.file = &file, .histories = histories};
    for (size_t i = 0; i < file.count; i++)
        read_event(&reader, i);
    for (size_t i = 0; i < histories->count; i++) {
        struct history *history = &histories->list[i];
        if (file.before[history->device][0] > 0) /* metric 0: reserved memory (trace_metric()) */
            note_reserved(history, file.before[history->device][0]);
    }
    trace_file_free(&file);
    return 0;
}
