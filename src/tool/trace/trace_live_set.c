/* Tables of live objects by address, one for each sort (trace_live_set.h). */
#include "tool/trace/trace_live_set.h"

#include "heap/page.h"
#include "tool/common/tool.h"

#include <stdlib.h>

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

static struct trace_event *event_at(const struct table *table, uint64_t address) {
    return (struct trace_event *)(uintptr_t)table_find(table, address);
}

void trace_live_set_free(struct trace_live_set *live_set) {
    for (unsigned i = 0; i < TRACE_SORTS; i++) {
        const struct table *table = &live_set->tables[i];
        for (size_t k = 0; k < table->capacity; k++)
            free((void *)(uintptr_t)table->slots[k].value);
        free(table->slots);
    }
    *live_set = (struct trace_live_set){0};
}

const struct trace_event *trace_live_set_at(const struct trace_live_set *live_set,
                                            enum trace_sort sort, uint64_t address) {
    return event_at(&live_set->tables[sort], address);
}

void trace_live_set_apply(struct trace_live_set *live_set, const struct trace_event *event) {
    enum trace_sort sort = trace_sort_of(event);
    if (sort == TRACE_SORTS)
        return;
    struct table *table = &live_set->tables[sort];
    uint64_t bytes = event->kind == TRACE_UNMAP ? event->bytes : PAGE_BYTES;
    if (event->kind == trace_sorts[sort].begins) {
        struct trace_event *copy = event_at(table, event->address);
        copy = copy ? copy : checked(malloc(sizeof *copy));
        *copy = *event;
        table_set(table, event->address, (uintptr_t)copy);
        return;
    }
    for (uint64_t at = 0; at < bytes; at += PAGE_BYTES) { /* only UNMAP ends several objects */
        uint64_t address = event->address + at;
        free(event_at(table, address));
        table_remove(table, address);
    }
}

static int by_address(const void *a, const void *b) {
    const struct trace_event *first = a, *second = b;
    return (first->address > second->address) - (first->address < second->address);
}

struct trace_event *trace_live_set_list(const struct trace_live_set *live_set, enum trace_sort sort,
                                        const uint64_t *space, size_t *count) {
    const struct table *table = &live_set->tables[sort];
    struct trace_event *list = checked(malloc((table->count + 1) * sizeof *list));
    *count = 0;
    for (size_t i = 0; i < table->capacity; i++) {
        const struct trace_event *event = (void *)(uintptr_t)table->slots[i].value;
        if (event && (!space || event->space == *space))
            list[(*count)++] = *event;
    }
    qsort(list, *count, sizeof *list, by_address);
    return list;
}
