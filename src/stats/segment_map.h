/*
 * The map of a device's pool: its memory in the order of addresses, in a bounded number of pieces.
 *
 *      piece     address, bytes, and of these: live, cached (freed, and not merged yet); the rest is free
 *
 * A piece is one block or one hole as long as there are few of them. When there are more than the map
 * holds, neighbours become one piece: first those of one segment that are alike, then the shortest ones,
 * up to `grain` bytes together. So nothing is ever left out of the sums, whatever number of blocks there is,
 * and what is longer than the grain is exact.
 */
#ifndef GPUCACHE_STATS_SEGMENT_MAP_H
#define GPUCACHE_STATS_SEGMENT_MAP_H

#include <stdint.h>

#define SEGMENT_MAP_PIECES 256
#define SEGMENT_MAP_UNIT 512 /* bytes; all of a piece are multiples of it */

struct segment_piece {
    uint64_t address;             /* 0: of what is in no block, wherever it lies */
    uint32_t units, live, cached; /* of SEGMENT_MAP_UNIT */
    uint32_t segments;            /* that begin in it */
};

struct segment_map {
    uint64_t grain; /* 0: every piece is exact */
    uint32_t count;
    struct segment_piece pieces[SEGMENT_MAP_PIECES];
};

/** Adds memory behind what is there; addresses only grow within a segment. `segments`: how many begin in it. */
void segment_map_add(struct segment_map *map, const struct segment_piece *piece);

/** Makes at most so many pieces of it. */
void segment_map_limit(struct segment_map *map, uint32_t most);

static inline uint64_t segment_map_bytes(uint32_t units) {
    return (uint64_t)units * SEGMENT_MAP_UNIT;
}

#endif
