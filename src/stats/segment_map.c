/*
 * Fills the map of a device's memory, and joins adjacent pieces when the map is full. Takes no
 * lock: the caller owns the map. segment_map.h has the rules and the invariant.
 */
#include "stats/segment_map.h"

#include <stdbool.h>

#define FIRST_GRAIN ((uint64_t)4 << 20) /* bytes */
/* Pieces that remain when a full map is reduced, so that it is not full again at once. */
#define PIECES_AFTER_LIMIT (SEGMENT_MAP_PIECES * 3 / 4)

/* Returns whether the piece is completely live, completely cached or completely free. */
static bool is_plain(const struct segment_piece *piece) {
    return piece->live == piece->units || piece->cached == piece->units ||
           piece->live + piece->cached == 0;
}

/* Returns whether both pieces are in the same single state. */
static bool are_alike(const struct segment_piece *a, const struct segment_piece *b) {
    return is_plain(a) && is_plain(b) && (a->live != 0) == (b->live != 0) &&
           (a->cached != 0) == (b->cached != 0);
}

/* Returns whether `b` may be joined to `a`, which lies before it. */
static bool may_join(const struct segment_map *map, const struct segment_piece *a,
                     const struct segment_piece *b) {
    uint64_t units = (uint64_t)a->units + b->units;
    if (units > UINT32_MAX)
        return false;
    return (b->segments == 0 && are_alike(a, b)) || units * SEGMENT_MAP_UNIT <= map->grain;
}

/* Joins all adjacent pieces that may_join() allows. */
static void join_all(struct segment_map *map) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < map->count; i++) {
        struct segment_piece *last = count > 0 ? &map->pieces[count - 1] : 0;
        const struct segment_piece *piece = &map->pieces[i];
        if (last && may_join(map, last, piece)) {
            last->units += piece->units;
            last->live += piece->live;
            last->cached += piece->cached;
            last->segments += piece->segments;
        } else {
            map->pieces[count++] = *piece;
        }
    }
    map->count = count;
}

void segment_map_limit(struct segment_map *map, uint32_t most) {
    most = most > 0 ? most : 1;
    /* A larger grain joins nothing more: the 32-bit number of units limits a piece. */
    while (map->count > most && map->grain <= (uint64_t)UINT32_MAX * SEGMENT_MAP_UNIT) {
        join_all(map);
        if (map->count > most)
            map->grain = map->grain ? map->grain * 2 : FIRST_GRAIN;
    }
}

void segment_map_add(struct segment_map *map, const struct segment_piece *piece) {
    if (map->count == SEGMENT_MAP_PIECES)
        segment_map_limit(map, PIECES_AFTER_LIMIT);
    if (piece->units > 0 && map->count < SEGMENT_MAP_PIECES)
        map->pieces[map->count++] = *piece;
}
