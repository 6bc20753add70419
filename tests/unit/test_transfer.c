/*
 * Tests transfer caches: magazines of blocks on the way from the freeing thread to the owner.
 * Blocks are handed out when their stamps are safe, not earlier. The waiting bytes are limited,
 * go to the pool when memory is short, and are never lost.
 */
#include "handover.h"

#include "exchange.h"

#include <stdlib.h>

static void begin(void) {
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    keep_large_blocks();
    drop(get(16 * MIB)); /* a large peak, because a small program has smaller quotas */
    finish_all();
    get(100);
    need_owners();
}

/* ---- magazines made by the test ---- */

static struct alloc_request request_of(uint64_t bytes) {
    bool large = bytes > SMALL_MAX_BYTES;
    return (struct alloc_request){.bin = bin_of(bytes), .bytes = bytes, .large = large};
}

/* Raises the quota of a cache, which is that of its transfer cache, to at least `bytes`. */
static void open_transfer(struct cache *cache, uint64_t bytes) {
    lock_acquire(&pool->source.lock);
    slow_path_recompute(pool);
    quota_grow(cache, bytes);
    lock_release(&pool->source.lock);
}

/* Frees new blocks, in one epoch (`same`) or each in its own. Returns their magazine. */
static struct magazine freed(unsigned how_many, uint64_t bytes, bool same) {
    uint64_t at[64];
    struct cache *cache = cache_mine(pool);
    for (unsigned i = 0; i < how_many; i++)
        at[i] = get(bytes);
    cache_enter(cache);
    struct magazine ahead = cache_take(cache, bin_of(bytes), UINT32_MAX);
    cache_leave(cache);
    for (unsigned i = 0; i < how_many; i++) {
        use_and_drop(at[i]);
        if (!same) {
            /* closes the epoch, so the next free has a higher stamp */
            pool_sync_begin(pool);
        }
    }
    cache_enter(cache);
    struct magazine magazine = cache_take(cache, bin_of(bytes), how_many);
    if (ahead.count > 0)
        cache_push_magazine(cache, bin_of(bytes), &ahead);
    cache_leave(cache);
    assert_int_equal(magazine.count, how_many);
    return magazine;
}

static bool put(struct cache *cache, const struct magazine *magazine) {
    struct transfer *transfer = transfer_lock(pool, cache->owner_id);
    assert_ptr_equal(transfer, &cache->transfer);
    bool fits = transfer_would_take(transfer, magazine->bytes);
    if (fits)
        transfer_put(transfer, magazine);
    lock_release(&transfer->lock);
    return fits;
}

static struct block *take(uint64_t bytes, uint64_t safe) {
    struct cache *cache = cache_mine(pool);
    struct alloc_request request = request_of(bytes);
    cache_enter(cache);
    struct block *block = transfer_take(cache, &request, safe);
    cache_leave(cache);
    return block;
}

/* Gives a block that take() returned to the pool. */
static void give(struct block *block) {
    lock_acquire(&pool->source.lock);
    pending_add(&pool->source, block);
    lock_release(&pool->source.lock);
}

static uint64_t stamp_of(uint64_t bytes) {
    struct cache *cache = cache_mine(pool);
    struct alloc_request request = request_of(bytes);
    cache_enter(cache);
    uint64_t stamp = transfer_stamp(cache, &request);
    cache_leave(cache);
    return stamp;
}

/* Returns the highest stamp of the blocks in a cache; 0: no blocks. */
static uint64_t youngest_cached(const struct cache *cache) {
    uint64_t youngest = 0;
    for (unsigned at = 0; at < BINS; at++)
        for (const struct block *b = cache->bins[at].head; b; b = b->next)
            youngest = b->stamp > youngest ? b->stamp : youngest;
    return youngest;
}

static const uint64_t both_sizes[] = {64 * KIB, (MIB + MIB / 2)};

static void a_magazine_is_taken_when_its_newest_stamp_is_safe(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        begin();
        struct cache *own = cache_mine(pool);
        let_hold(32 * MIB);
        open_transfer(own, 32 * MIB);
        struct magazine magazine = freed(4, both_sizes[i], false);
        uint64_t oldest = magazine.first->stamp, youngest = magazine.last->stamp;
        assert_true(oldest < youngest);
        assert_true(put(own, &magazine));
        assert_int_equal(counter_get(&own->transfer.bytes), magazine.bytes);
        check();
        for (uint64_t safe = oldest - 1; safe < youngest; safe++) {
            assert_null(take(both_sizes[i], safe));
            assert_int_equal(counter_get(&own->transfer.bytes), magazine.bytes);
        }
        assert_int_equal(stamp_of(both_sizes[i]), youngest);
        struct block *block = take(both_sizes[i], youngest);
        assert_ptr_equal(block, magazine.first);
        assert_int_equal(counter_get(&own->transfer.bytes), 0);
        assert_int_equal(stamp_of(both_sizes[i]), 0);
        give(block);
        check();
        assert_int_equal(stop(NULL), 0);
    }
}

static void the_stamp_that_is_waited_for_is_one_that_finds_a_block(void **state) {
    (void)state;
    begin();
    struct cache *own = cache_mine(pool);
    let_hold(32 * MIB);
    open_transfer(own, 32 * MIB);
    struct magazine other = freed(4, 20 * KIB, true), first = freed(4, 64 * KIB, true);
    pool_sync_begin(pool);
    struct magazine second = freed(4, 64 * KIB, true);
    assert_true(put(own, &other) && put(own, &first) && put(own, &second));
    assert_true(first.stamp < second.stamp);
    assert_int_equal(stamp_of(64 * KIB), first.stamp);
    assert_null(take(64 * KIB, first.stamp - 1));
    struct block *block = take(64 * KIB, first.stamp);
    assert_true(block && block->stamp <= first.stamp);
    assert_int_equal(stamp_of(64 * KIB), second.stamp);
    assert_int_equal(stamp_of(MIB + 512), 0);
    give(block);
    check();
}

static void a_take_moves_all_safe_magazines_and_no_others(void **state) {
    (void)state;
    begin();
    struct cache *own = cache_mine(pool);
    let_hold(32 * MIB);
    open_transfer(own, 32 * MIB);
    struct magazine magazines[6];
    uint64_t waiting = 0;
    for (int i = 0; i < 6; i++) {
        magazines[i] = freed(4, i % 2 ? 20 * KIB : 64 * KIB, true);
        pool_sync_begin(pool);
        waiting += magazines[i].bytes;
    }
    for (int i = 0; i < 6; i++)
        assert_true(put(own, &magazines[i]));
    uint64_t safe = magazines[3].stamp, in_cache = own->bytes;
    cache_enter(own);
    bool clean = youngest_cached(own) <= safe;
    cache_leave(own);
    struct block *block = take(64 * KIB, safe);
    assert_true(block && block->stamp <= safe);
    waiting -= own->bytes - in_cache + block_bytes(block);
    assert_int_equal(counter_get(&own->transfer.bytes), waiting);
    assert_true(waiting >= magazines[4].bytes + magazines[5].bytes);
    assert_true(own->bytes > in_cache); /* the next request hits the cache */
    cache_enter(own);
    assert_true(!clean || youngest_cached(own) <= safe);
    cache_leave(own);
    give(block);
    check();
}

static void a_full_cache_takes_only_the_block_it_asks_for(void **state) {
    (void)state;
    begin();
    struct cache *own = cache_mine(pool);
    let_hold(32 * MIB);
    open_transfer(own, 32 * MIB);
    struct magazine other = freed(4, (MIB + MIB / 2), true), magazine = freed(4, 64 * KIB, true);
    assert_true(put(own, &other) && put(own, &magazine));
    for (int i = 0; i < 32; i++)
        blocks[i] = get(2 * MIB);
    for (int i = 0; i < 32 && own->bytes + 2 * MIB <= cache_quota(own); i++)
        drop(blocks[i]);
    assert_true(own->bytes + other.bytes > cache_quota(own));
    finish_all();
    struct block *block = take(64 * KIB, UINT64_MAX);
    assert_non_null(block);
    assert_int_equal(block_bytes(block), 64 * KIB);
    assert_true(own->bytes <= cache_quota(own) + MAGAZINE_BYTES);
    assert_true(counter_get(&own->transfer.bytes) >= other.bytes);
    give(block);
    check();
}

static void a_transfer_cache_holds_its_quota_and_no_more(void **state) {
    (void)state;
    begin();
    struct cache *own = cache_mine(pool);
    let_hold(32 * MIB);
    struct magazine magazine = freed(4, 64 * KIB, true);
    uint64_t quota = cache_quota(own);
    while (put(own, &magazine)) {
        assert_true(counter_get(&own->transfer.bytes) <= quota);
        magazine = freed(4, 64 * KIB, true);
    }
    assert_true(counter_get(&own->transfer.bytes) + magazine.bytes > quota);
    lock_acquire(&pool->source.lock);
    assert_true(transfer_empty(&own->transfer));
    assert_false(transfer_empty(&own->transfer));
    lock_release(&pool->source.lock);
    assert_true(put(own, &magazine));
    check();
}

static void a_transfer_cache_holds_so_many_magazines_and_no_more(void **state) {
    (void)state;
    begin();
    struct cache *own = cache_mine(pool);
    let_hold(32 * MIB);
    open_transfer(own, 32 * MIB);
    struct magazine magazine;
    unsigned in = 0;
    while (magazine = freed(1, 512, true), put(own, &magazine))
        in++;
    assert_int_equal(in, TRANSFER_MAGAZINES);
    give(magazine.first);
    finish_all();
    struct block *block = take(512, UINT64_MAX);
    assert_non_null(block);
    block->next = NULL;
    magazine = (struct magazine){block, block, 1, bin_of(512), 512, block->stamp};
    assert_true(put(own, &magazine));
    check();
}

/* Puts and takes magazines of six sizes in random order; often the ring is full. */
static void each_magazine_comes_out_once(void **state) {
    (void)state;
    static const uint64_t sizes[] = {512, 20 * KIB,        64 * KIB,
                                     MIB, (MIB + MIB / 2), (MIB + MIB / 2) + 512};
    begin();
    struct cache *own = cache_mine(pool);
    let_hold(32 * MIB);
    open_transfer(own, 32 * MIB);
    srand(1);
    unsigned in = 0, out = 0;
    for (int i = 0; i < 6000; i++) {
        uint64_t bytes = sizes[rand() % 6];
        if (rand() % 2) {
            struct magazine magazine = freed(1 + (unsigned)rand() % 3, bytes, rand() % 2);
            if (put(own, &magazine)) {
                in++;
            } else {
                lock_acquire(&pool->source.lock);
                pending_add_list(&pool->source, magazine.first);
                lock_release(&pool->source.lock);
            }
        } else {
            uint64_t safe =
                rand() % 3 ? epochs_stamp(&pool->source.epochs) : (uint64_t)rand() % 4000;
            struct block *block = take(bytes, safe);
            assert_true(!block || (block->stamp <= safe && block_bytes(block) >= bytes));
            if (block) {
                give(block);
                out++;
            }
        }
        if (rand() % 200 == 0) {
            lock_acquire(&pool->source.lock);
            transfer_empty(&own->transfer);
            lock_release(&pool->source.lock);
        }
        if (rand() % 16 == 0)
            finish_all();
        check();
    }
    assert_true(in > TRANSFER_MAGAZINES && out > TRANSFER_MAGAZINES);
}

static void only_a_block_that_fits_is_taken(void **state) {
    (void)state;
    begin();
    struct cache *own = cache_mine(pool);
    let_hold(32 * MIB);
    open_transfer(own, 32 * MIB);
    struct magazine magazine = freed(3, (MIB + MIB / 2), true);
    assert_true(put(own, &magazine));
    static const uint64_t others[] = {MIB + MIB / 4, 2 * MIB, 9 * MIB, MIB, 64 * KIB};
    for (int i = 0; i < 5; i++)
        assert_int_equal(stamp_of(others[i]), 0);
    struct block *block = take((MIB + MIB / 2) - 512, UINT64_MAX);
    assert_non_null(block);
    assert_true(block_bytes(block) >= (MIB + MIB / 2) - 512);
    give(block);
    assert_null(take(2 * MIB, UINT64_MAX));
    block = take((MIB + MIB / 2) + 512, UINT64_MAX);
    assert_true(!block || block_bytes(block) >= (MIB + MIB / 2) + 512);
    if (block)
        give(block);
    check();
}

static void a_larger_block_is_taken_where_memory_is_short(void **state) {
    (void)state;
    begin();
    struct cache *own = cache_mine(pool);
    open_transfer(own, 32 * MIB);
    let_hold(32 * MIB);
    struct magazine magazine = freed(4, 96 * KIB, true);
    assert_true(put(own, &magazine));
    assert_int_equal(stamp_of(56 * KIB), 0);
    struct alloc_request request = request_of(56 * KIB);
    request.over_budget = true;
    cache_enter(own);
    assert_int_equal(transfer_stamp(own, &request), magazine.stamp);
    cache_leave(own);
}

/* ---- owners ---- */

static void blocks_without_an_owner_wait_in_the_common_transfer_cache(void **state) {
    (void)state;
    begin();
    struct cache *own = cache_mine(pool);
    open_transfer(own, MIB);
    struct transfer *transfer = transfer_lock(pool, own->owner_id);
    lock_release(&transfer->lock);
    assert_ptr_equal(transfer, &own->transfer);
    transfer = transfer_lock(pool, 0);
    lock_release(&transfer->lock);
    assert_ptr_equal(transfer, &pool->common->transfer);
    lock_acquire(&pool->source.lock);
    cache_enter(own);
    quota_deactivate(own);
    cache_leave(own);
    lock_release(&pool->source.lock);
    assert_int_equal(cache_quota(own), 0);
    transfer = transfer_lock(pool, own->owner_id); /* no thread takes blocks of an inactive cache */
    lock_release(&transfer->lock);
    assert_ptr_equal(transfer, &pool->common->transfer);
}

static void *ask_for_some(void *unused) {
    uint64_t address;
    for (int i = 0; i < 100; i++) {
        pool_alloc(pool, 60 * KIB, &address);
        assert_false(was_freed(address));
    }
    return unused;
}

static void a_magazine_waits_for_the_thread_that_allocated(void **state) {
    (void)state;
    begin();
    struct cache *own = cache_mine(pool);
    let_hold(8 * MIB);
    open_transfer(own, 8 * MIB);
    struct magazine magazine = freed(8, 60 * KIB, true);
    count = 0;
    for (struct block *b = magazine.first; b; b = b->next)
        blocks[count++] = b->address;
    first_of = 0;
    assert_true(put(own, &magazine));
    finish_all();
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, ask_for_some, NULL), 0);
    pthread_join(other, NULL);
    assert_int_equal(counter_get(&own->transfer.bytes), magazine.bytes);
    assert_true(come_back(100, 60 * KIB) > 0);
    check();
}

static void all_threads_take_from_the_common_transfer_cache(void **state) {
    (void)state;
    begin();
    let_hold(8 * MIB);
    open_transfer(pool->common, 8 * MIB);
    struct magazine magazine = freed(8, 60 * KIB, true);
    count = 0;
    for (struct block *b = magazine.first; b; b = b->next)
        blocks[count++] = b->address;
    first_of = 0;
    assert_true(put(pool->common, &magazine));
    assert_int_equal(stamp_of(60 * KIB), magazine.stamp);
    assert_false(was_freed(get(60 * KIB)));
    finish_all();
    assert_true(come_back(100, 60 * KIB) > 0);
    assert_true(counter_get(&pool->common->transfer.bytes) < magazine.bytes);
    check();
}

static void *take_a_cache(void *unused) {
    return cache_of_thread(pool) ? unused : (void *)1;
}

/* Blocks of an ended thread do not wait for the next thread of its cache, or in an unowned one. */
static void blocks_of_an_ended_thread_wait_for_no_owner(void **state) {
    (void)state;
    for (int with_another = 0; with_another < 2; with_another++) {
        begin();
        pthread_t asking = let_another_ask(400, 60 * KIB), other;
        if (with_another) { /* the next thread gets this thread's cache */
            assert_int_equal(pthread_create(&other, NULL, take_a_cache, NULL), 0);
            pthread_join(other, NULL);
        }
        let_it_end(asking);
        let_another_free(0, 400);
        for (struct cache *c = atomic_load(&pool->caches); c; c = c->next_in_pool)
            assert_true(c == pool->common || counter_get(&c->transfer.bytes) == 0);
        for (struct cache *c = pool->unowned; c; c = c->next_in_pool)
            assert_int_equal(counter_get(&c->transfer.bytes) + c->bytes, 0);
        uint64_t reserved = fake->reserved;
        finish_all();
        come_back(350, 60 * KIB);
        assert_int_equal(fake->reserved, reserved);
        check();
        assert_int_equal(stop(NULL), 0);
    }
}

static void magazines_for_an_ended_thread_go_to_the_pool(void **state) {
    (void)state;
    static const uint64_t sizes[] = {60 * KIB, (MIB + MIB / 2)};
    for (int i = 0; i < 2; i++) {
        begin();
        pthread_t other = let_another_ask(200, sizes[i]);
        let_another_free(0, 200);
        uint64_t common = counter_get(&pool->common->transfer.bytes);
        assert_int_equal(common, 0);
        let_it_end(other);
        assert_int_equal(bytes_waiting(), 0);
        check();
        assert_int_equal(stop(NULL), 0);
    }
}

/* ---- from a free to an allocation by the owner ---- */

static void a_block_freed_by_one_thread_goes_back_to_its_owner(void **state) {
    (void)state;
    static const uint64_t sizes[] = {60 * KIB, (MIB + MIB / 2), 1000};
    for (int i = 0; i < 3; i++) {
        begin();
        hand_over(i == 2 ? 4000 : 200, sizes[i]);
        assert_true(own_waiting() > 0);
        assert_true(own_waiting() <= cache_quota(own_transfer()->cache));
        uint64_t reserved = fake->reserved;
        finish_all();
        assert_true(come_back(i == 2 ? 3000 : 150, sizes[i]) > 0);
        assert_int_equal(fake->reserved, reserved);
        check();
        assert_int_equal(stop(NULL), 0);
    }
}

static void an_owner_gets_no_block_before_its_work_is_done(void **state) {
    (void)state;
    static const uint64_t sizes[] = {60 * KIB, (MIB + MIB / 2), 1000};
    for (int i = 0; i < 3; i++) {
        begin();
        hand_over(i == 2 ? 4000 : 200, sizes[i]);
        assert_int_equal(come_back(100, sizes[i]), 0);
        check();
        assert_int_equal(stop(NULL), 0);
    }
}

static void a_thread_alone_needs_no_transfer_cache(void **state) {
    (void)state;
    begin();
    for (unsigned i = 0; i < 200; i++)
        blocks[i] = get(i % 4 ? 60 * KIB : (MIB + MIB / 2));
    for (unsigned i = 0; i < 200; i++) {
        use_and_drop(blocks[i]);
        assert_int_equal(bytes_waiting(), 0);
    }
    check();
}

static void waiting_bytes_are_limited(void **state) {
    (void)state;
    begin();
    for (int round = 0; round < 12; round++) {
        hand_over(round % 2 ? 200 : 4000, round % 2 ? 2 * MIB - (uint64_t)round * 64 * KIB : 3000);
        assert_true(own_waiting() <= cache_quota(own_transfer()->cache));
        assert_true(cache_quota(own_transfer()->cache) <= pool->quota_most);
    }
    assert_true(bytes_waiting() <= 2 * pool->quota_most);
}

static void a_full_device_flushes_the_transfer_caches(void **state) {
    (void)state;
    static const uint64_t sizes[] = {60 * KIB, 2 * MIB};
    for (int i = 0; i < 2; i++) {
        start(64 * MIB, REUSE_BARRIER, RELAXED);
        keep_large_blocks();
        need_owners();
        hand_over(i ? 12 : 400, sizes[i]);
        assert_true(own_waiting() > 0);
        fake_finish_all(fake);
        if (i)
            for (int j = 0; j < 60; j++)
                get(MIB); /* small blocks, which have their own arena */
        else
            get(63 * MIB);
        assert_int_equal(bytes_waiting(), 0);
        check();
        assert_int_equal(stop(NULL), 0);
    }
}

static void transfer_caches_are_flushed_before_growth_past_the_budget(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, TIGHT);
    keep_large_blocks();
    need_owners();
    hand_over(40, (MIB + MIB / 2));
    assert_true(own_waiting() > 0);
    fake_finish_all(fake);
    uint64_t reserved = fake->reserved;
    for (int i = 0; i < 10; i++)
        get(3 * MIB); /* needs two waiting blocks; no single one fits */
    assert_int_equal(fake->reserved, reserved);
    assert_int_equal(bytes_waiting(), 0);
    check();
}

static void transfer_caches_are_forgotten_with_the_context(void **state) {
    (void)state;
    static const uint64_t sizes[] = {60 * KIB, (MIB + MIB / 2)};
    for (int i = 0; i < 2; i++) {
        begin();
        hand_over(200, sizes[i]);
        assert_true(own_waiting() > 0);
        uint64_t fresh = (pool_forget(pool), fake_new_context(fake));
        check();
        assert_int_equal(bytes_waiting(), 0);
        finish_all();
        for (int j = 0; j < 100; j++)
            assert_true(get(sizes[i]) >= fresh);
        check();
        assert_int_equal(stop(NULL), 0);
    }
}

/*
 * A request that is short of memory does not search inactive caches. Blocks in an inactive cache
 * would be lost.
 */
static void an_inactive_cache_takes_nothing_along(void **state) {
    (void)state;
    begin();
    struct cache *own = cache_mine(pool);
    let_hold(8 * MIB);
    open_transfer(pool->common, 8 * MIB);
    struct magazine magazine = freed(8, 60 * KIB, true);
    assert_true(put(pool->common, &magazine));
    lock_acquire(&pool->source.lock);
    cache_enter(own);
    quota_deactivate(own);
    cache_leave(own);
    lock_release(&pool->source.lock);
    finish_all();
    get(60 * KIB);
    assert_true(quota_is_inactive(own));
    assert_int_equal(own->bytes, 0);
    check();
    assert_int_equal(pool_trim(pool, false), 0);
    assert_int_equal(own->bytes, 0);
    assert_int_equal(bytes_waiting(), 0);
}

static uint64_t now_and_then_large(unsigned turn) {
    return turn % 16 == 0 ? 2 * MIB : (1 + turn % 100) * KIB;
}

/* Two threads allocate, two free, and one trims the pool repeatedly. */
static void nothing_is_lost_between_threads_while_another_trims(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    keep_large_blocks();
    get(100);
    struct exchange pairs[2] = {{.places = EXCHANGE_MOST, .bytes = now_and_then_large},
                                {.places = EXCHANGE_MOST, .bytes = now_and_then_large}};
    for (int i = 0; i < 2; i++) {
        exchange_start_asking(&pairs[i]);
        exchange_start_freeing(&pairs[i]);
    }
    for (int i = 0; i < 400; i++) {
        pool_trim(pool, false);
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    assert_true(exchange_end(&pairs[0]));
    assert_true(exchange_end(&pairs[1]));
    check();
    assert_int_equal(fake_books(pool).requested.current, 100); /* the block that the test holds */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_magazine_is_taken_when_its_newest_stamp_is_safe),
        TEST(the_stamp_that_is_waited_for_is_one_that_finds_a_block),
        TEST(a_take_moves_all_safe_magazines_and_no_others),
        TEST(a_full_cache_takes_only_the_block_it_asks_for),
        TEST(a_transfer_cache_holds_its_quota_and_no_more),
        TEST(a_transfer_cache_holds_so_many_magazines_and_no_more),
        TEST(each_magazine_comes_out_once),
        TEST(only_a_block_that_fits_is_taken),
        TEST(a_larger_block_is_taken_where_memory_is_short),
        TEST(blocks_without_an_owner_wait_in_the_common_transfer_cache),
        TEST(a_magazine_waits_for_the_thread_that_allocated),
        TEST(all_threads_take_from_the_common_transfer_cache),
        TEST(blocks_of_an_ended_thread_wait_for_no_owner),
        TEST(magazines_for_an_ended_thread_go_to_the_pool),
        TEST(a_block_freed_by_one_thread_goes_back_to_its_owner),
        TEST(an_owner_gets_no_block_before_its_work_is_done),
        TEST(a_thread_alone_needs_no_transfer_cache),
        TEST(waiting_bytes_are_limited),
        TEST(a_full_device_flushes_the_transfer_caches),
        TEST(transfer_caches_are_flushed_before_growth_past_the_budget),
        TEST(transfer_caches_are_forgotten_with_the_context),
        TEST(an_inactive_cache_takes_nothing_along),
        TEST(nothing_is_lost_between_threads_while_another_trims),
    };
    return cmocka_run_group_tests_name("transfer caches", tests, NULL, NULL);
}
