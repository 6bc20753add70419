/*
 * Checks the promises of replay's readers about the histories that they make (replay/history.h).
 */
#ifndef GPUCACHE_FUZZ_HISTORIES_H
#define GPUCACHE_FUZZ_HISTORIES_H

#include "fuzz.h"
#include "replay/input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static inline void fuzz_check_history(const struct history *history) {
    uint8_t *lives = calloc((size_t)history->blocks + 1, 1); /* 1: it does; 2: no more */
    uint64_t time_us = 0;
    FUZZ_CHECK(lives && history->threads <= HISTORY_THREADS_MOST);
    for (size_t i = 0; i < history->count; i++) {
        const struct history_event *event = &history->events[i];
        bool frees = event->frees;
        FUZZ_CHECK(event->time_us >= time_us && event->bytes <= HISTORY_BYTES_MOST);
        FUZZ_CHECK(event->block < history->blocks && lives[event->block] == (frees ? 1 : 0));
        lives[event->block] = frees ? 2 : 1;
        time_us = event->time_us;
    }
    for (size_t i = 0; i < history->period_count; i++)
        FUZZ_CHECK(history->periods[i] <= history->count);
    free(lives);
}

/** Reads an input by its first bytes, as gpucache replay does, and checks the result. */
static inline void fuzz_read_histories(const uint8_t *data, size_t size) {
    struct input input = {.bytes = malloc(size + 1), .count = size, .most = SIZE_MAX};
    struct histories histories;
    FUZZ_CHECK(input.bytes);
    if (size > 0)
        memcpy(input.bytes, data, size);
    input.bytes[size] = '\0';
    int r = input_histories(&input, &histories);
    FUZZ_CHECK(r <= 0 && r != -ENOMEM && (r == 0 || histories.why[0] != '\0'));
    for (size_t i = 0; i < histories.count && r == 0; i++)
        fuzz_check_history(&histories.list[i]);
    histories_free(&histories);
    input_free(&input);
}

#endif
