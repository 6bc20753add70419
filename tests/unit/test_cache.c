/*
 * A thread's cache: the order of its lists, which block serves a request, and which blocks are
 * flushed to the pool when the cache holds too much.
 */
#include "pool_bench.h"

#include <stdlib.h>

static struct cache cache;
static struct block blocks[64];
static struct range ranges[64];

#define SMALL_BIN 40 /* a size class whose requests may get a somewhat larger block */

static int set_up(void **state) {
    (void)state;
    memset(&cache, 0, sizeof cache);
    cache_enter(&cache);
    memset(blocks, 0, sizeof blocks);
    atomic_store(&cache.quota, 8 * MIB);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    cache_leave(&cache);
    return 0;
}

static void push_small(struct block *block, unsigned at, uint64_t stamp) {
    block->stamp = stamp;
    block->header = (uint64_t)size_class_units(at) << HEADER_UNITS_SHIFT |
                    (uint64_t)at << HEADER_BIN_SHIFT | BLOCK_CACHED;
    cache_push(&cache, &cache.bins[at], block, size_class_bytes(at));
}

static struct block *pop(unsigned at, uint64_t safe) {
    uint64_t header;
    return cache_pop_from(&cache, &cache.bins[at], safe, &header);
}

static void push_large(struct range *range, uint64_t bytes, uint64_t stamp) {
    unsigned at = bin_of_large(bytes);
    *range = (struct range){.bytes = bytes, .block.stamp = stamp};
    range->block.header = (uint64_t)at << HEADER_BIN_SHIFT | BLOCK_CACHED;
    cache_push(&cache, &cache.bins[at], &range->block, bytes);
}

static struct alloc_request small_request(unsigned at) {
    return (struct alloc_request){.bin = at, .bytes = size_class_bytes(at)};
}

static struct alloc_request large_request(uint64_t bytes) {
    return (struct alloc_request){.bin = bin_of_large(bytes), .bytes = bytes, .large = true};
}

static struct block *find_large(uint64_t bytes, uint64_t safe) {
    struct alloc_request request = large_request(bytes);
    return cache_find(&cache, &request, safe);
}

/*
 * Asserts for every bin: the list ends at the tail, and its length is the count. The bytes of all
 * bins are those of the cache.
 */
static void assert_lists_whole(void) {
    uint64_t bytes = 0;
    for (unsigned at = 0; at < BINS; at++) {
        const struct bin *bin = &cache.bins[at];
        uint32_t count = 0;
        for (const struct block *b = bin->head; b; b = b->next, count++) {
            assert_true(b->next || b == bin->tail);
            bytes += block_bytes(b);
        }
        assert_int_equal(count, bin->count);
    }
    assert_int_equal(bytes, cache.bytes);
}

/* ---- the lists ---- */

static void the_oldest_block_is_handed_out_first_and_not_before_its_epoch(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 8; i++)
        push_small(&blocks[i], 0, 10 + i / 2);
    assert_int_equal(cache.bytes, 8 * 512);
    assert_null(pop(0, 9));
    for (uint64_t safe = 10; safe < 14; safe++) {
        assert_ptr_equal(pop(0, safe), &blocks[2 * (safe - 10)]);
        assert_ptr_equal(pop(0, safe), &blocks[2 * (safe - 10) + 1]);
        assert_null(pop(0, safe));
    }
    assert_int_equal(cache.bytes, 0);
    assert_int_equal(cache.bins[0].count, 0);
}

static void push_free(struct block *block) {
    block->stamp = 0;
    block->header = (uint64_t)1 << HEADER_UNITS_SHIFT | BLOCK_CACHED;
    cache_push_free(&cache, block);
}

static void free_blocks_go_in_front(void **state) {
    (void)state;
    push_small(&blocks[0], 0, 5);
    push_free(&blocks[1]);
    assert_ptr_equal(pop(0, 0), &blocks[1]);
    assert_null(pop(0, 4));
    push_free(&blocks[1]);
    assert_ptr_equal(pop(0, 5), &blocks[1]);
    assert_ptr_equal(pop(0, 5), &blocks[0]);
    push_free(&blocks[2]); /* into an empty list, so it becomes the tail */
    push_small(&blocks[3], 0, 6);
    assert_ptr_equal(pop(0, 6), &blocks[2]);
    assert_ptr_equal(pop(0, 6), &blocks[3]);
}

static void
a_small_request_gets_a_block_a_quarter_larger_and_at_most_one_twice_as_large(void **state) {
    (void)state;
    for (unsigned at = 0; at < SMALL_CLASSES; at++) {
        struct alloc_request request = small_request(at);
        assert_true(size_class_bytes(request_last_bin(&request, false)) <=
                    request.bytes + request.bytes / 4);
        assert_true(size_class_bytes(request_last_bin(&request, true)) <= 2 * request.bytes);
    }
}

static void assert_list(const struct block *first, int from, int to) {
    for (int i = from; i < to; i++, first = first->next)
        assert_ptr_equal(first, &blocks[i]);
    assert_null(first);
}

static void the_oldest_blocks_are_taken_and_the_list_stays_whole(void **state) {
    (void)state;
    assert_null(cache_take(&cache, SMALL_BIN, 3).first);
    for (int i = 0; i < 8; i++)
        push_small(&blocks[i], SMALL_BIN, 20 + (uint64_t)i);
    assert_null(cache_take(&cache, SMALL_BIN, 0).first);
    struct magazine taken = cache_take(&cache, SMALL_BIN, 3);
    assert_list(taken.first, 0, 3);
    assert_ptr_equal(taken.last, &blocks[2]);
    assert_int_equal(taken.count, 3);
    assert_int_equal(taken.bytes, 3 * size_class_bytes(SMALL_BIN));
    assert_lists_whole();
    push_small(&blocks[8], SMALL_BIN, 28);
    taken = cache_take(&cache, SMALL_BIN, 100);
    assert_list(taken.first, 3, 9);
    assert_ptr_equal(taken.last, &blocks[8]);
    assert_int_equal(taken.count, 6);
    assert_int_equal(taken.bytes, 6 * size_class_bytes(SMALL_BIN));
    assert_lists_whole();
    assert_null(pop(SMALL_BIN, 100));
    push_small(&blocks[0], SMALL_BIN, 1); /* the bin can be used again */
    assert_ptr_equal(pop(SMALL_BIN, 100), &blocks[0]);
}

static void a_magazine_is_as_young_as_its_youngest_block(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        push_small(&blocks[i], SMALL_BIN, 20 + (uint64_t)i);
        push_large(&ranges[i], (MIB + MIB / 2) + 512 * (uint64_t)i, 30 + (uint64_t)i);
    }
    unsigned large = bin_of_large((MIB + MIB / 2));
    assert_int_equal(cache_take(&cache, SMALL_BIN, 3).stamp, 22);
    assert_int_equal(cache_take(&cache, SMALL_BIN, 100).stamp, 23);
    struct magazine taken = cache_take(&cache, large, 2);
    assert_int_equal(taken.stamp, 31);
    assert_int_equal(taken.bytes, (3 * MIB) + 512);
    assert_lists_whole();
    taken = cache_take(&cache, large, 100);
    assert_int_equal(taken.stamp, 33);
    assert_int_equal(taken.bytes, (3 * MIB) + 5 * 512);
    assert_lists_whole();
}

static void a_magazine_goes_in_front_in_its_order(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++)
        push_small(&blocks[i], SMALL_BIN, 20 + (uint64_t)i);
    struct magazine taken = cache_take(&cache, SMALL_BIN, 4);
    push_small(&blocks[4], SMALL_BIN, 24);
    cache_push_magazine(&cache, SMALL_BIN, &taken);
    assert_lists_whole();
    assert_list(cache_take(&cache, SMALL_BIN, 5).first, 0, 5);
    assert_lists_whole();
}

/* ---- what serves a request ---- */

static void a_small_request_gets_a_somewhat_larger_block(void **state) {
    (void)state;
    struct alloc_request request = small_request(SMALL_BIN), tiny = small_request(3);
    push_small(&blocks[0], SMALL_BIN + 1, 1);
    push_small(&blocks[1], SMALL_BIN + 16, 1); /* twice as large */
    push_small(&blocks[2], SMALL_BIN - 1, 1);
    push_small(&blocks[3], 7, 1);
    assert_null(cache_find(&cache, &request, 0));
    assert_ptr_equal(cache_find(&cache, &request, 1), &blocks[0]);
    assert_null(cache_find(&cache, &request, 1));
    assert_null(cache_find(&cache, &tiny, 1));
    request.over_budget = true;
    assert_ptr_equal(cache_find(&cache, &request, 1), &blocks[1]);
    push_small(&blocks[1], SMALL_BIN + 17, 1);
    assert_null(cache_find(&cache, &request, 1));
    assert_lists_whole();
}

static void a_request_gets_its_own_size_first(void **state) {
    (void)state;
    struct alloc_request request = small_request(SMALL_BIN);
    push_small(&blocks[0], SMALL_BIN + 1, 1);
    push_small(&blocks[1], SMALL_BIN, 1);
    assert_ptr_equal(cache_find(&cache, &request, 1), &blocks[1]);
}

static void a_large_request_gets_a_somewhat_larger_block(void **state) {
    (void)state;
    push_large(&ranges[0], MIB + MIB / 16, 1);
    push_large(&ranges[1], MIB + 3 * (MIB / 16), 1);
    assert_null(find_large(MIB + MIB / 16 + 512, 1));
    assert_null(find_large(MIB + 512, 0));
    assert_ptr_equal(find_large(MIB + 512, 1), &ranges[0]);
    assert_null(find_large(MIB + 512, 1));
    assert_ptr_equal(find_large(MIB + 2 * (MIB / 16), 1), &ranges[1]);
    assert_int_equal(cache.bytes, 0);
}

static void a_large_request_gets_a_larger_block_where_much_is_cached(void **state) {
    (void)state;
    push_large(&ranges[0], MIB + 3 * (MIB / 16), 1);
    push_large(&ranges[2], 2 * MIB, 1);
    assert_null(find_large(MIB + 512, 1));
    push_large(&ranges[3], 2 * MIB, 1); /* more than half of the quota */
    assert_null(find_large(MIB + 512, 0));
    assert_ptr_equal(find_large(MIB + 512, 1), &ranges[0]);
    push_large(&ranges[0], 2 * MIB, 1);
    assert_null(find_large(MIB + 512, 1)); /* but not twice as large */
    assert_lists_whole();
}

/* With a higher or lower stamp a thread would wait in vain. */
static void the_stamp_to_wait_for_is_the_first_that_finds_a_block(void **state) {
    (void)state;
    struct alloc_request none = large_request(MIB + 512), small = small_request(SMALL_BIN);
    assert_int_equal(cache_stamp(&cache, &none), 0);
    assert_int_equal(cache_stamp(&cache, &small), 0);
    push_small(&blocks[0], SMALL_BIN, 7);
    assert_int_equal(cache_stamp(&cache, &small), 7);
    srand(1);
    for (int round = 0; round < 2000; round++) {
        tear_down(NULL);
        set_up(NULL);
        uint64_t stamp = 1, least = MIB + 512 * (1 + (uint64_t)rand() % 512);
        for (int i = rand() % 12; i > 0; i--) {
            stamp += (uint64_t)rand() % 3;
            push_large(&ranges[i], MIB + 512 * (1 + (uint64_t)rand() % 1024), stamp);
        }
        struct alloc_request request = large_request(least);
        stamp = cache_stamp(&cache, &request);
        assert_null(find_large(least, stamp > 0 ? stamp - 1 : 100));
        struct block *found = stamp > 0 ? find_large(least, stamp) : NULL;
        assert_true(stamp == 0 || (found && found->stamp == stamp));
        assert_true(!found || range_of(found)->bytes >= least);
        assert_lists_whole();
    }
}

/* ---- flushing ---- */

enum { EACH = 8, SIZES = 4 };
static const uint64_t sizes[SIZES] = {16 * KIB, 64 * KIB, 100 * KIB, (MIB + MIB / 2)};
static uint64_t in_cache[SIZES][EACH];

static struct cache *mine(void) {
    return cache_mine(pool);
}

/*
 * Caches EACH blocks of each size in this thread's cache. Afterwards all bins are idle since the
 * last cache_bin_check_idle(), except the bin of size `asked`.
 */
static void cache_some(unsigned asked) {
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    keep_large_blocks();
    drop(get(32 * MIB));
    let_hold(48 * MIB);
    for (unsigned s = 0; s < SIZES; s++)
        for (unsigned i = 0; i < EACH; i++)
            in_cache[s][i] = get(sizes[s]);
    for (unsigned s = 0; s < SIZES; s++)
        for (unsigned i = 0; i < EACH; i++)
            use_and_drop(in_cache[s][i]);
    for (unsigned at = 0; at < BINS; at++)
        mine()->bins[at].allocs_seen = counter_get(&mine()->bins[at].allocs);
    mine()->bins[bin_of(sizes[asked])].allocs_seen--;
}

/* Takes the pool's lock and enters the cache, as free_slow() does before a flush. */
static void hold(struct cache *mine) {
    lock_acquire(&pool->source.lock);
    cache_enter(mine);
}

static void let_go(struct cache *mine) {
    cache_leave(mine);
    lock_release(&pool->source.lock);
}

static unsigned count_of(unsigned size) {
    return mine()->bins[bin_of(sizes[size])].count;
}

static void idle_bins_are_flushed_and_requested_bins_stay(void **state) {
    (void)state;
    cache_some(1);
    unsigned asked = count_of(1), kept = count_of(2);
    hold(mine());
    cache_flush_idle(mine(), bin_of(sizes[2]), 0);
    let_go(mine());
    assert_int_equal(count_of(0), 0);
    assert_int_equal(count_of(1), asked);
    assert_int_equal(count_of(2), kept);
    assert_int_equal(count_of(3), 0);
    assert_int_equal(fake_books(pool).requested.current, 0);
    hold(mine());
    cache_flush_idle(mine(), bin_of(sizes[2]), 0); /* now the requested bin is idle too */
    let_go(mine());
    assert_int_equal(count_of(1), 0);
    assert_int_equal(count_of(2), kept);
}

static void no_more_is_flushed_than_needed(void **state) {
    (void)state;
    cache_some(1);
    uint64_t before = mine()->bytes;
    hold(mine());
    cache_flush_idle(mine(), BINS, before);
    assert_int_equal(mine()->bytes, before);
    cache_flush_half(mine(), BINS, before);
    assert_int_equal(mine()->bytes, before);
    cache_flush_half(mine(), BINS, before - 1);
    let_go(mine());
    assert_true(mine()->bytes < before);
    /* half of the largest bin was flushed */
    assert_int_equal(count_of(0) + count_of(1) + count_of(2), 3 * EACH);
    assert_true(count_of(3) > 0 && count_of(3) < EACH);
}

static void half_of_each_bin_is_flushed_the_kept_bin_last(void **state) {
    (void)state;
    cache_some(1);
    hold(mine());
    cache_flush_half(mine(), bin_of(sizes[3]), EACH * sizes[3]);
    assert_int_equal(count_of(3), EACH);
    assert_int_equal(mine()->bytes, EACH * sizes[3]);
    cache_flush_half(mine(), bin_of(sizes[3]), 0);
    let_go(mine());
    assert_int_equal(mine()->bytes, 0);
}

static void flushed_blocks_are_not_handed_out_before_their_work_is_done(void **state) {
    (void)state;
    cache_some(1);
    check();
    hold(mine());
    cache_flush(mine(), SMALL_CLASSES);
    assert_int_equal(count_of(3), 0);
    assert_true(count_of(0) > 0);
    cache_flush(mine(), 0);
    let_go(mine());
    assert_int_equal(mine()->bytes, 0);
    check();
    assert_true(pool->source.pending_bytes >= EACH * (sizes[0] + sizes[1] + sizes[2] + sizes[3]));
    for (unsigned i = 0; i < EACH; i++) {
        uint64_t at = get(sizes[3]);
        for (unsigned j = 0; j < EACH; j++)
            assert_false(overlap(at, sizes[3], in_cache[3][j], sizes[3]));
    }
}

int main(void) {
#define LIST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        LIST(the_oldest_block_is_handed_out_first_and_not_before_its_epoch),
        LIST(free_blocks_go_in_front),
        LIST(the_oldest_blocks_are_taken_and_the_list_stays_whole),
        LIST(a_magazine_is_as_young_as_its_youngest_block),
        LIST(a_magazine_goes_in_front_in_its_order),
        LIST(a_small_request_gets_a_somewhat_larger_block),
        LIST(a_small_request_gets_a_block_a_quarter_larger_and_at_most_one_twice_as_large),
        LIST(a_request_gets_its_own_size_first),
        LIST(a_large_request_gets_a_somewhat_larger_block),
        LIST(a_large_request_gets_a_larger_block_where_much_is_cached),
        LIST(the_stamp_to_wait_for_is_the_first_that_finds_a_block),
        TEST(idle_bins_are_flushed_and_requested_bins_stay),
        TEST(no_more_is_flushed_than_needed),
        TEST(half_of_each_bin_is_flushed_the_kept_bin_last),
        TEST(flushed_blocks_are_not_handed_out_before_their_work_is_done),
    };
    return cmocka_run_group_tests_name("thread cache", tests, NULL, NULL);
}
