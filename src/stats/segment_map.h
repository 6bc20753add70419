/*
 * The map of a device's memory for reports: pieces, by segment, in a table of fixed size.
 *
 * A piece has an address, its length, and how much of it is live or cached (freed, and not merged
 * yet). The rest is free. While there are few blocks, a piece is one block or the free memory
 * between two. When the table is full, neighbours are joined from left to right: first equal ones
 * of one segment, then also others, of different segments too, if they have at most `grain` bytes
 * together. `grain` is doubled until enough are joined. Invariant: the sums are exact for any
 * number of blocks, and pieces longer than `grain` are exact. The caller owns the map, so there is
 * no lock. pool_survey() fills it; report/ and tool/ print it.
 */
#ifndef GPUCACHE_STATS_SEGMENT_MAP_H
#define GPUCACHE_STATS_SEGMENT_MAP_H

#include <stdint.h>

#define SEGMENT_MAP_PIECES 256
#define SEGMENT_MAP_UNIT 512 /* bytes; lengths are multiples of it */

struct segment_piece {
    /* 0: memory in no block, at any address. */
    uint64_t address;
    uint32_t units, live, cached; /* in units of SEGMENT_MAP_UNIT */
    uint32_t segments;            /* number of segments that begin in the piece */
};

struct segment_map {
    uint64_t grain; /* bytes; 0: every piece is exact */
    uint32_t count;
    struct segment_piece pieces[SEGMENT_MAP_PIECES];
};

/**
 * Appends a piece; in a full map, first joins pieces. Within a segment, each piece has a higher
 * address than the one before.
 */
void segment_map_add(struct segment_map *map, const struct segment_piece *piece);

/** Joins pieces, from left to right, until at most `most` are left, or until no more can be joined:
 * a piece has at most UINT32_MAX units. */
void segment_map_limit(struct segment_map *map, uint32_t most);

static inline uint64_t segment_map_bytes(uint32_t units) {
    return (uint64_t)units * SEGMENT_MAP_UNIT;
}

#endif
