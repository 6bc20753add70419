#include "driver/state/address_map.h"

#include "heap/host.h"

#include <string.h>

#define ROOM_LEAST 256

size_t spans_from(const struct spans *spans, uint64_t start) {
    size_t low = 0, high = spans->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (spans->rows[middle].start < start) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void *spans_before(const struct spans *spans, uint64_t address) {
    size_t behind = address == UINT64_MAX ? spans->count : spans_from(spans, address + 1);
    return behind > 0 ? spans->rows[behind - 1].what : NULL;
}

static bool make_room(struct spans *spans) {
    if (spans->count < spans->room) {
        return true;
    }
    size_t room = spans->room ? spans->room * 2 : ROOM_LEAST;
    struct span *wider = host_map(room * sizeof *wider, 4096);
    if (!wider) {
        return false;
    }
    if (spans->rows) {
        memcpy(wider, spans->rows, spans->count * sizeof *wider);
        host_unmap(spans->rows, spans->room * sizeof *wider);
    }
    spans->rows = wider;
    spans->room = room;
    return true;
}

bool spans_add(struct spans *spans, uint64_t start, void *what) {
    if (!make_room(spans)) {
        return false;
    }
    size_t at = spans_from(spans, start);
    memmove(&spans->rows[at + 1], &spans->rows[at], (spans->count - at) * sizeof *spans->rows);
    spans->rows[at] = (struct span){start, what};
    spans->count++;
    return true;
}

void spans_remove(struct spans *spans, size_t at) {
    spans->count--;
    memmove(&spans->rows[at], &spans->rows[at + 1], (spans->count - at) * sizeof *spans->rows);
}

size_t spans_find(const struct spans *spans, uint64_t start, const void *what) {
    size_t at = spans_from(spans, start);
    while (spans->rows[at].what != what) {
        at++;
    }
    return at;
}
