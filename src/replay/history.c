/*
 * Numbers the blocks, streams and threads of a history (history.h). Maps are hash tables with
 * linear probing. One thread builds a history, without a lock.
 */
#include "replay/history.h"

#include "replay/hash.h"
#include "replay/memory.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX /* no live block has the key */
#define STREAM_MOST 0xffffff

static size_t place_of(const struct history_map *map, uint64_t key) {
    size_t at = (size_t)hash_key(key) & (map->capacity - 1);
    while (map->entries[at].used && map->entries[at].key != key)
        at = (at + 1) & (map->capacity - 1);
    return at;
}

/** Doubles the map when it is half full. */
static void enlarge_if_half_full(struct history_map *map) {
    struct history_map larger = {.capacity = map->capacity ? 2 * map->capacity : 64,
                                 .count = map->count};
    if (2 * map->count < map->capacity)
        return;
    larger.entries = checked(calloc(larger.capacity, sizeof *larger.entries));
    for (size_t i = 0; i < map->capacity; i++)
        if (map->entries[i].used)
            larger.entries[place_of(&larger, map->entries[i].key)] = map->entries[i];
    free(map->entries);
    *map = larger;
}

/** Returns the value of a key, which is NONE for a new key. */
static uint32_t *value_of(struct history_map *map, uint64_t key) {
    enlarge_if_half_full(map);
    struct history_entry *entry = &map->entries[place_of(map, key)];
    if (!entry->used) {
        *entry = (struct history_entry){key, NONE, true};
        map->count++;
    }
    return &entry->value;
}

static bool find(const struct history_map *map, uint64_t key, uint32_t *value) {
    const struct history_entry *entry = map->capacity ? &map->entries[place_of(map, key)] : NULL;
    *value = entry && entry->used ? entry->value : NONE;
    return *value != NONE;
}

bool history_has(const struct history *history, uint64_t key) {
    uint32_t event;
    return find(&history->live, key, &event);
}

static void add_event(struct history *history, uint64_t time_us, uint64_t bytes, uint32_t block,
                      uint32_t stream) {
    struct history_event *events =
        grown_for_one(history->events, history->count, &history->capacity, sizeof *events);
    history->events = events;
    if (!history->begun) {
        history->begin_us = time_us;
        history->begun = true;
    }
    uint64_t before = history->count > 0 ? events[history->count - 1].time_us : 0;
    uint64_t since = time_us > history->begin_us ? time_us - history->begin_us : 0;
    events[history->count++] =
        (struct history_event){since > before ? since : before, bytes, block, stream & STREAM_MOST,
                               (uint8_t)history->thread};
}

void history_free(struct history *history, uint64_t time_us, uint64_t key) {
    uint32_t event;
    if (!find(&history->live, key, &event)) {
        history->unknown_frees++;
        return;
    }
    *value_of(&history->live, key) = NONE;
    const struct history_event *allocation = &history->events[event];
    history->requested -= allocation->bytes;
    add_event(history, time_us, 0, allocation->block, allocation->stream);
}

void history_allocate(struct history *history, uint64_t time_us, uint64_t key, uint64_t bytes,
                      uint64_t stream) {
    if (history_has(history, key)) {
        history->lost_frees++;
        history_free(history, time_us, key);
    }
    uint32_t *event = value_of(&history->live, key);
    uint32_t *number = value_of(&history->stream_numbers, stream);
    *number = *number == NONE ? history->streams++ : *number;
    bytes = bytes > 0 ? bytes : 1;
    add_event(history, time_us, bytes, history->blocks, *number);
    *event = (uint32_t)(history->count - 1);
    history->blocks++;
    history->requested += bytes;
    if (history->requested > history->requested_peak)
        history->requested_peak = history->requested;
}

void history_on_thread(struct history *history, uint64_t thread) {
    uint32_t *number = value_of(&history->thread_numbers, thread);
    *number = *number == NONE ? history->threads++ : *number;
    history->thread = *number % HISTORY_THREADS_MOST;
}

void history_period(struct history *history) {
    history->periods = grown_for_one(history->periods, history->period_count,
                                     &history->period_capacity, sizeof *history->periods);
    history->periods[history->period_count++] = history->count;
}

void history_cut_into(struct history *history, size_t periods) {
    size_t *list = checked(malloc((periods + 1) * sizeof *list));
    for (size_t i = 0; i < periods; i++)
        list[i] = history->count * i / periods;
    free(history->periods);
    history->periods = list;
    history->period_count = periods;
    history->period_capacity = periods + 1;
}

struct history *histories_of(struct histories *histories, int device) {
    size_t at = 0;
    while (at < histories->count && histories->list[at].device < device)
        at++;
    if (at < histories->count && histories->list[at].device == device)
        return &histories->list[at];
    struct history *list =
        grown(histories->list, histories->count, histories->count + 1, sizeof *list);
    memmove(&list[at + 1], &list[at], (histories->count - at) * sizeof *list);
    list[at] = (struct history){.device = device};
    histories->list = list;
    histories->count++;
    return &list[at];
}

void history_end(struct history *history) {
    free(history->events);
    free(history->periods);
    free(history->live.entries);
    free(history->stream_numbers.entries);
    free(history->thread_numbers.entries);
}

void histories_free(struct histories *histories) {
    for (size_t i = 0; i < histories->count; i++)
        history_end(&histories->list[i]);
    free(histories->list);
    *histories = (struct histories){0};
}
