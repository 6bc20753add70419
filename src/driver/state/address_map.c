#include "driver/state/address_map.h"

#include "heap/host.h"

#include <string.h>

#define ROWS_FIRST 256

size_t address_map_from(const struct address_map *map, uint64_t start) {
    size_t low = 0, high = map->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (map->rows[middle].start < start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void *address_map_before(const struct address_map *map, uint64_t address) {
    size_t after = address == UINT64_MAX ? map->count : address_map_from(map, address + 1);
    return after > 0 ? map->rows[after - 1].what : NULL;
}

void *address_map_before_end(const struct address_map *map, uint64_t address, uint64_t bytes) {
    bool overflows = bytes - 1 > UINT64_MAX - address;
    return address_map_before(map, overflows ? UINT64_MAX : address + bytes - 1);
}

/* Makes space for one more row. Returns false without host memory. */
static bool grow(struct address_map *map) {
    if (map->count < map->capacity)
        return true;
    size_t capacity = map->capacity ? map->capacity * 2 : ROWS_FIRST;
    struct address_map_row *fresh = host_grow(map->rows, map->capacity * sizeof *fresh,
                                              map->count * sizeof *fresh, capacity * sizeof *fresh);
    if (!fresh)
        return false;
    map->rows = fresh;
    map->capacity = capacity;
    return true;
}

bool address_map_add(struct address_map *map, uint64_t start, void *what) {
    if (!grow(map))
        return false;
    size_t at = address_map_from(map, start);
    memmove(&map->rows[at + 1], &map->rows[at], (map->count - at) * sizeof *map->rows);
    map->rows[at] = (struct address_map_row){start, what};
    map->count++;
    return true;
}

void address_map_remove(struct address_map *map, size_t at) {
    map->count--;
    memmove(&map->rows[at], &map->rows[at + 1], (map->count - at) * sizeof *map->rows);
}

size_t address_map_find(const struct address_map *map, uint64_t start, const void *what) {
    size_t at = address_map_from(map, start);
    while (map->rows[at].what != what)
        at++;
    return at;
}
