/*
 * Numbers the blocks, streams and threads of a history (history.h). One thread builds a history,
 * without a lock.
 */
#include "replay/history.h"

#include "replay/memory.h"

#include <stdlib.h>
#include <string.h>

#define STREAM_MOST 0xffffff

/** Returns the number of a key, in order of appearance. */
static uint32_t number_of(struct table *numbers, uint64_t key) {
    uint64_t number = table_find(numbers, key);
    if (number == 0) {
        number = numbers->count + 1;
        table_set(numbers, key, number);
    }
    return (uint32_t)number - 1;
}

bool history_has(const struct history *history, uint64_t key) {
    return table_find(&history->live, key) != 0;
}

/** Adds an event on the history's current thread. */
static void add_event(struct history *history, uint64_t time_us, struct history_event event) {
    if (history->count == 0)
        history->begin_us = time_us;
    uint64_t before = history->count > 0 ? history->events[history->count - 1].time_us : 0;
    uint64_t since = time_us > history->begin_us ? time_us - history->begin_us : 0;
    event.time_us = since > before ? since : before;
    event.thread = history->thread & ((1u << HISTORY_THREAD_BITS) - 1);
    *APPEND(history->events, history->count) = event;
}

void history_free(struct history *history, uint64_t time_us, uint64_t key) {
    uint64_t event = table_find(&history->live, key);
    if (event == 0) {
        history->unknown_frees++;
        return;
    }
    table_remove(&history->live, key);
    struct history_event end = history->events[event - 1];
    end.frees = true;
    history->requested -= end.bytes;
    add_event(history, time_us, end);
}

void history_allocate(struct history *history, uint64_t time_us, uint64_t key, uint64_t bytes,
                      uint64_t stream) {
    if (history_has(history, key)) {
        history->lost_frees++;
        history_free(history, time_us, key);
    }
    bytes = bytes > 0 ? bytes : 1;
    uint32_t number = number_of(&history->stream_numbers, stream);
    add_event(history, time_us,
              (struct history_event){
                  .bytes = bytes, .block = history->blocks, .stream = number & STREAM_MOST});
    table_set(&history->live, key, history->count);
    history->blocks++;
    history->requested += bytes;
    if (history->requested > history->requested_peak)
        history->requested_peak = history->requested;
}

void history_on_thread(struct history *history, uint64_t thread) {
    history->thread = number_of(&history->thread_numbers, thread) % HISTORY_THREADS_MOST;
    history->threads = (uint32_t)history->thread_numbers.count;
}

void history_period(struct history *history) {
    *APPEND(history->periods, history->period_count) = history->count;
}

void history_cut_into(struct history *history, size_t periods) {
    history->period_count = 0;
    for (size_t i = 0; i < periods; i++)
        *APPEND(history->periods, history->period_count) = history->count * i / periods;
}

struct history *histories_of(struct histories *histories, int device) {
    size_t at = 0;
    while (at < histories->count && histories->list[at].device < device)
        at++;
    if (at < histories->count && histories->list[at].device == device)
        return &histories->list[at];
    size_t behind = histories->count - at;
    *APPEND(histories->list, histories->count) = (struct history){0};
    struct history *made = &histories->list[at];
    memmove(made + 1, made, behind * sizeof *made);
    *made = (struct history){.device = device};
    return made;
}

void history_end(struct history *history) {
    free(history->events);
    free(history->periods);
    free(history->live.slots);
    free(history->stream_numbers.slots);
    free(history->thread_numbers.slots);
}

void histories_free(struct histories *histories) {
    for (size_t i = 0; i < histories->count; i++)
        history_end(&histories->list[i]);
    free(histories->list);
    *histories = (struct histories){0};
}
