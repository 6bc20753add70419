/* Hash tables of live objects by address: linear probing, at most half full (trace_live_set.h). */
#include "tool/trace/trace_live_set.h"

#include "heap/page.h"
#include "replay/hash.h"
#include "tool/common/tool.h"

#include <stdlib.h>

#define FIRST_CAPACITY 1024

const struct trace_sort_kinds trace_sorts[TRACE_SORTS] = {
    [TRACE_BLOCKS] = {TRACE_ALLOCATE, TRACE_FREE},
    [TRACE_SEGMENTS] = {TRACE_MOMENT_GROW, TRACE_MOMENT_GIVE_BACK},
    [TRACE_PAGES] = {TRACE_MAP, TRACE_UNMAP},
};

enum trace_sort trace_sort_of(const struct trace_event *event) {
    enum trace_sort sort = 0;
    while (sort < TRACE_SORTS && event->kind != trace_sorts[sort].begins &&
           event->kind != trace_sorts[sort].ends)
        sort++;
    return sort == TRACE_SEGMENTS && event->address == 0 ? TRACE_SORTS : sort;
}

static size_t home_of(const struct trace_table *table, uint64_t address) {
    return (size_t)hash_key(address) & (table->capacity - 1);
}

/** Returns the slot that has the address, or the free slot for it. */
static size_t slot_of(const struct trace_table *table, uint64_t address) {
    size_t at = home_of(table, address);
    while (table->slots[at].kind != TRACE_NONE && table->slots[at].address != address)
        at = (at + 1) & (table->capacity - 1);
    return at;
}

static void grow(struct trace_table *table) {
    struct trace_table old = *table;
    table->capacity = old.capacity ? 2 * old.capacity : FIRST_CAPACITY;
    table->slots = checked(calloc(table->capacity, sizeof *table->slots));
    for (size_t i = 0; i < old.capacity; i++)
        if (old.slots[i].kind != TRACE_NONE)
            table->slots[slot_of(table, old.slots[i].address)] = old.slots[i];
    free(old.slots);
}

static void insert_entry(struct trace_table *table, const struct trace_event *event,
                         uint64_t address) {
    if (2 * (table->count + 1) > table->capacity)
        grow(table);
    size_t at = slot_of(table, address);
    table->count += table->slots[at].kind == TRACE_NONE;
    table->slots[at] = *event;
    table->slots[at].address = address;
}

/** Removes the entry of an address, if there is one. */
static void remove_entry(struct trace_table *table, uint64_t address) {
    size_t at = table->capacity ? slot_of(table, address) : 0, next = at;
    if (!table->capacity || table->slots[at].kind == TRACE_NONE)
        return;
    table->count--;
    /* Moves later entries of the probe sequence up, so that no gap hides them. */
    for (;;) {
        next = (next + 1) & (table->capacity - 1);
        if (table->slots[next].kind == TRACE_NONE)
            break;
        size_t home = home_of(table, table->slots[next].address);
        if (((next - home) & (table->capacity - 1)) >= ((next - at) & (table->capacity - 1))) {
            table->slots[at] = table->slots[next];
            at = next;
        }
    }
    table->slots[at].kind = TRACE_NONE;
}

void trace_live_set_free(struct trace_live_set *live_set) {
    for (unsigned i = 0; i < TRACE_SORTS; i++)
        free(live_set->tables[i].slots);
    *live_set = (struct trace_live_set){0};
}

const struct trace_event *trace_live_set_at(const struct trace_live_set *live_set,
                                            enum trace_sort sort, uint64_t address) {
    const struct trace_table *table = &live_set->tables[sort];
    const struct trace_event *slot =
        table->capacity ? &table->slots[slot_of(table, address)] : NULL;
    return slot && slot->kind != TRACE_NONE ? slot : NULL;
}

void trace_live_set_apply(struct trace_live_set *live_set, const struct trace_event *event) {
    enum trace_sort sort = trace_sort_of(event);
    if (sort == TRACE_SORTS)
        return;
    uint64_t bytes = event->kind == TRACE_UNMAP ? event->bytes : PAGE_BYTES;
    if (event->kind == trace_sorts[sort].begins)
        insert_entry(&live_set->tables[sort], event, event->address);
    else /* only UNMAP ends several objects */
        for (uint64_t at = 0; at < bytes; at += PAGE_BYTES)
            remove_entry(&live_set->tables[sort], event->address + at);
}

static int by_address(const void *a, const void *b) {
    const struct trace_event *first = a, *second = b;
    return (first->address > second->address) - (first->address < second->address);
}

struct trace_event *trace_live_set_list(const struct trace_live_set *live_set, enum trace_sort sort,
                                        const uint64_t *space, size_t *count) {
    const struct trace_table *table = &live_set->tables[sort];
    struct trace_event *list = checked(malloc((table->count + 1) * sizeof *list));
    *count = 0;
    for (size_t i = 0; i < table->capacity; i++)
        if (table->slots[i].kind != TRACE_NONE && (!space || table->slots[i].space == *space))
            list[(*count)++] = table->slots[i];
    qsort(list, *count, sizeof *list, by_address);
    return list;
}
