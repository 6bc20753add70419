/*
 * Tests the map of a pool's memory: it contains every byte once, and its size is bounded for any
 * number of blocks.
 */
#include "pool_bench.h"

#include "stats/segment_map.h"

static struct segment_map map;
static struct stats_device stats;

struct sums {
    uint64_t bytes, live, cached, segments;
};

static struct sums sums_of(const struct segment_map *of) {
    struct sums sums = {0};
    for (uint32_t i = 0; i < of->count; i++) {
        const struct segment_piece *piece = &of->pieces[i];
        assert_true(piece->units > 0 && (uint64_t)piece->live + piece->cached <= piece->units);
        sums.bytes += segment_map_bytes(piece->units);
        sums.live += segment_map_bytes(piece->live);
        sums.cached += segment_map_bytes(piece->cached);
        sums.segments += piece->segments;
    }
    return sums;
}

static void survey(void) {
    memset(&stats, 0, sizeof stats);
    map.count = 0;
    map.grain = 0;
    pool_read(pool, &stats);
    pool_survey(pool, &stats, &map);
}

/* Surveys a pool that no thread uses: the map's sums equal the counters. */
static struct sums surveyed(void) {
    survey();
    struct sums sums = sums_of(&map);
    assert_int_equal(sums.bytes, stats.reserved.current);
    assert_int_equal(sums.live, stats.allocated.current);
    return sums;
}

static const struct segment_piece *piece_at(uint64_t address) {
    for (uint32_t i = 0; i < map.count; i++)
        if (map.pieces[i].address == address)
            return &map.pieces[i];
    return NULL;
}

static void large_blocks_and_the_free_memory_between_them_are_exact(void **state) {
    (void)state;
    uint64_t at[8];
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    uint64_t whole = get(200 * MIB);
    drop(whole);
    fake_finish_all(fake);
    assert_int_equal(pool_trim(pool, false), 0);
    assert_int_equal(surveyed().bytes, 0);
    for (unsigned i = 0; i < 8; i++)
        at[i] = get((3 + i) * MIB + 4 * KIB * i);
    struct sums sums = surveyed();
    assert_int_equal(map.grain, 0);
    assert_int_equal(sums.cached, 0);
    assert_int_equal(sums.segments, stats.segments.current);
    for (unsigned i = 0; i < 8; i++) {
        const struct segment_piece *piece = piece_at(at[i]);
        assert_non_null(piece);
        assert_int_equal(piece->live, piece->units);
        assert_int_equal(segment_map_bytes(piece->units), (3 + i) * MIB + 4 * KIB * i);
    }
    /* Freed blocks are in a cache, or free. */
    drop(at[2]);
    drop(at[5]);
    sums = surveyed();
    const struct segment_piece *gone = piece_at(at[2]);
    assert_true(gone && gone->live == 0);
    assert_true(sums.bytes - sums.live >= 13 * MIB);
}

/*
 * Blocks too large for caches, in one segment. A freed block merged with free memory is no piece of
 * its own.
 */
static void free_memory_is_merged_with_a_freed_neighbour(void **state) {
    (void)state;
    uint64_t at[4];
    start(GIB, REUSE_SYNC, RELAXED);
    drop(get(100 * MIB));
    for (unsigned i = 0; i < 4; i++)
        at[i] = get(20 * MIB + 512);
    assert_int_equal(surveyed().segments, 1);
    for (unsigned i = 0; i < 3; i++) {
        /* Blocks are cut from the segment's end: the last one has free memory before it. */
        drop(at[3 - i]);
        pool_stuck_bytes(pool); /* polls for completed events */
        assert_int_equal(surveyed().cached, 0);
    }
    drop(at[0]);
    pool_stuck_bytes(pool);
    assert_int_equal(surveyed().live, 0);
    assert_int_equal(map.count, 1);
    check();
}

static void the_map_agrees_with_the_counters_at_random(void **state) {
    (void)state;
    uint64_t at[4];
    start(GIB, REUSE_SYNC, TIGHT);
    for (unsigned round = 0; round < 50; round++) {
        for (unsigned i = 0; i < 4; i++)
            at[i] = get(MIB + 512 + (round * 7 + i * 3) % 11 * 300 * KIB);
        surveyed();
        for (unsigned i = 0; i < 4; i++)
            drop(at[(i + round) % 4]);
        surveyed();
    }
    check();
}

static void small_blocks_fill_their_slabs(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t at[3000];
    for (unsigned i = 0; i < 3000; i++)
        at[i] = get(1000 + i % 7 * 3000);
    struct sums sums = surveyed();
    assert_int_equal(sums.segments, stats.segments.current);
    for (unsigned i = 0; i < 3000; i += 3)
        drop(at[i]);
    sums = surveyed();
    assert_true(sums.cached > 0); /* in the thread's cache */
    unsigned mixed = 0;
    for (uint32_t i = 0; i < map.count; i++)
        mixed += map.pieces[i].live > 0 && map.pieces[i].live < map.pieces[i].units;
    assert_true(mixed > 2);
}

static void idle_vmm_memory_is_one_piece(void **state) {
    (void)state;
    maps_pages = true;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    uint64_t at[9];
    for (unsigned i = 0; i < 9; i++)
        at[i] = get((5 + i) * MIB);
    get(700);
    surveyed();
    for (unsigned i = 0; i < 9; i += 2)
        drop(at[i]);
    fake_finish_all(fake);
    at[0] = get(30 * MIB);
    struct sums sums = surveyed();
    const struct segment_piece *idle = piece_at(0);
    /* Free memory of the vmm backend is only in the piece without an address. */
    for (uint32_t i = 0; i < map.count; i++)
        assert_true(map.pieces[i].address == 0 || map.pieces[i].live + map.pieces[i].cached > 0);
    assert_non_null(idle);
    assert_int_equal(idle->live, 0);
    assert_ptr_equal(idle, &map.pieces[map.count - 1]);
    assert_true(piece_at(at[1]) && piece_at(at[1])->live == piece_at(at[1])->units);
    assert_true(sums.bytes > sums.live);
    check();
}

static void many_blocks_make_no_more_pieces(void **state) {
    (void)state;
    static uint64_t at[4000];
    start(64 * GIB, REUSE_BARRIER, RELAXED);
    for (unsigned i = 0; i < 4000; i++)
        at[i] = get(i % 4 == 0 ? 500 * KIB : MIB + 512 + i % 13 * MIB);
    uint64_t giant = get(2 * GIB);
    for (unsigned i = 0; i < 4000; i += 2)
        drop(at[i]);
    struct sums sums = surveyed();
    assert_true(map.count > SEGMENT_MAP_PIECES / 4 && map.count <= SEGMENT_MAP_PIECES);
    assert_true(map.grain > 0);
    assert_non_null(piece_at(giant)); /* longer than the grain, so it has its exact size */
    assert_int_equal(piece_at(giant)->units, 2 * GIB / SEGMENT_MAP_UNIT);
    segment_map_limit(&map, 32);
    struct sums less = sums_of(&map);
    assert_true(map.count <= 32);
    assert_memory_equal(&sums, &less, sizeof sums);
    segment_map_limit(&map, 1);
    less = sums_of(&map);
    assert_int_equal(map.count, 1);
    assert_memory_equal(&sums, &less, sizeof sums);
}

static void equal_neighbours_are_joined_first(void **state) {
    (void)state;
    map.count = 0;
    map.grain = 0;
    /* Two of three pieces are live, in segments of six. */
    for (uint32_t i = 0; i < 90; i++)
        segment_map_add(&map, &(struct segment_piece){.address = i * 512 + 512,
                                                      .units = 1 + i % 6,
                                                      .live = i % 3 ? 1 + i % 6 : 0,
                                                      .segments = i % 6 == 0});
    assert_int_equal(map.count, 90);
    segment_map_limit(&map, 60);
    assert_int_equal(map.count, 60);
    assert_int_equal(map.grain, 0);
    for (uint32_t i = 0; i < map.count; i++)
        assert_true(map.pieces[i].live == 0 || map.pieces[i].live == map.pieces[i].units);
    assert_int_equal(sums_of(&map).segments, 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(large_blocks_and_the_free_memory_between_them_are_exact),
        TEST(free_memory_is_merged_with_a_freed_neighbour),
        TEST(the_map_agrees_with_the_counters_at_random),
        TEST(small_blocks_fill_their_slabs),
        cmocka_unit_test_teardown(idle_vmm_memory_is_one_piece, stop_vmm),
        TEST(many_blocks_make_no_more_pieces),
        cmocka_unit_test(equal_neighbours_are_joined_first),
    };
    return cmocka_run_group_tests_name("segment map", tests, NULL, NULL);
}
