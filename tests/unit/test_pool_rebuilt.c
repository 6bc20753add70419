/* Tests cached blocks of inactive caches, and contexts that end during an allocation. */
#include "pool_bench.h"

#include <pthread.h>
#include <stdatomic.h>

#define BLOCK (16 * KIB)
#define BLOCKS 512

static uint64_t blocks[BLOCKS];

static void *ask(void *unused) {
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = get(BLOCK);
    return unused;
}

static void in_a_thread(void *(*body)(void *)) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, body, NULL), 0);
    pthread_join(thread, NULL);
}

/* Leaves blocks of an ended thread in the common transfer cache. Their stamps are safe. */
static void leave_blocks_in_common_transfer(void) {
    in_a_thread(ask);
    for (int i = 0; i < BLOCKS; i++)
        drop(blocks[i]);
    fake_finish_all(fake);
    pool_sync_end(pool, pool_sync_begin(pool));
    if (counter_get(&pool->common->transfer.bytes) == 0)
        skip(); /* blocks have no owner in this build */
}

static uint64_t held, allowed;

static void *ask_for_one(void *unused) {
    blocks[0] = get(BLOCK);
    held = cache_mine(pool)->bytes;
    allowed = cache_quota(cache_mine(pool));
    return unused;
}

/* An inactive cache takes one block from the common transfer cache, and leaves the others there. */
static void an_inactive_cache_holds_nothing(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, RELAXED);
    leave_blocks_in_common_transfer();
    in_a_thread(ask_for_one);
    check();
    assert_int_equal(allowed, 0);
    assert_int_equal(held, 0);
    drop(blocks[0]);
}

/* Puts blocks of the calling thread in its transfer cache, as a free of another thread does. */
static void put_in_transfer(struct cache *cache, uint64_t bytes, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        blocks[i] = get(bytes);
    for (uint32_t i = 0; i < count; i++)
        drop(blocks[i]);
    unsigned at = bytes > SMALL_MAX_BYTES ? bin_of_large(bytes) : size_class_of(bytes);
    cache_enter(cache);
    struct magazine magazine = cache_take(cache, at, count);
    bool fits = magazine.count > 0 && transfer_would_take(&cache->transfer, magazine.bytes);
    if (fits)
        transfer_put(&cache->transfer, &magazine);
    else
        cache_push_magazine(cache, at, &magazine);
    cache_leave(cache);
    assert_true(fits);
}

/* A magazine that is not requested and does not fit in the cache does not block others. */
static void a_magazine_that_stays_does_not_block_others(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, RELAXED);
    keep_large_blocks();
    drop(get(BLOCK));
    struct cache *cache = cache_mine(pool);
    pool_lock(pool);
    quota_grow(cache, 8 * MIB);
    pool_unlock(pool);
    put_in_transfer(cache, 15 * MIB / 8, 4);
    drop(get(MIB));
    for (int i = 0; i < 2 * TRANSFER_MAGAZINES; i++) {
        put_in_transfer(cache, BLOCK, 2);
        fake_finish_all(fake);
        pool_sync_end(pool, pool_sync_begin(pool));
        cache_enter(cache);
        struct alloc_request request = {.bin = size_class_of(BLOCK), .bytes = BLOCK};
        struct block *block = transfer_take(cache, &request, pool->source.epochs.safe);
        if (block)
            cache_push_free(cache, block);
        cache_leave(cache);
        assert_non_null(block);
    }
    assert_int_equal(cache->transfer.count, 1);
    check();
}

/*
 * A magazine that another thread delivers after a transfer cache was unlocked `unlocks_until_late`
 * times.
 */
static struct magazine late;
static int unlocks_until_late;
static struct transfer *late_for;
static bool ends_in_growth; /* end the context when a growth has begun without a lock */
int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock) {
    int r = __real_pthread_mutex_unlock(lock);
    if (ends_in_growth && lock == &pool->source.lock.mutex && pool->source.growing.threads > 0) {
        ends_in_growth = false;
        pool_forget(pool);
        fake_new_context(fake);
    }
    if (late_for && lock == &late_for->lock.mutex && --unlocks_until_late == 0) {
        struct magazine magazine = late;
        late.count = 0;
        pthread_mutex_lock(lock);
        bool fits = transfer_would_take(late_for, magazine.bytes);
        if (fits)
            transfer_put(late_for, &magazine);
        __real_pthread_mutex_unlock(lock);
        if (!fits)
            pending_add_list(&pool->source, magazine.first);
    }
    return r;
}

static void blocks_that_arrive_at_an_inactive_cache_are_not_lost(void **state) {
    (void)state;
    for (int turn = 1; turn <= 2; turn++) { /* the unlock after which the magazine arrives */
        start(64 * GIB, REUSE_BARRIER, RELAXED);
        struct transfer *common = &pool->common->transfer;
        drop(get(BLOCK));
        struct cache *cache = cache_mine(pool);
        cache_enter(cache);
        struct magazine magazine = cache_take(cache, size_class_of(BLOCK), 1);
        cache_leave(cache);
        pool_lock(pool);
        quota_grow(pool->common, 2 * cache_quota(pool->common));
        late = magazine;
        late_for = common;
        unlocks_until_late = turn;
        quota_deactivate_all(pool);
        late_for = NULL;
        assert_int_equal(late.count, 0);
        pool_unlock(pool);
        check();
        assert_int_equal(counter_get(&common->bytes), 0);
        assert_int_equal(stop(NULL), 0);
    }
}

static struct backend_ops ops;
static const struct backend_ops *fake_ops;
static int reserves_until_end;

static int reserve_at_the_end(struct backend *backend, uint64_t bytes, uint64_t *address) {
    int r = fake_ops->reserve(backend, bytes, address);
    if (--reserves_until_end == 0) {
        pool_forget(pool);
        fake_new_context(fake);
    }
    return r;
}

/* The pool reserves memory for several blocks, and the context ends during that. */
static void a_block_is_not_handed_out_after_the_end(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, RELAXED);
    keep_large_blocks();
    fake_ops = fake->backend.ops;
    ops = *fake_ops;
    ops.reserve = reserve_at_the_end;
    fake->backend.ops = &ops;
    use_and_drop(get(2 * MIB));
    reserves_until_end = 2;
    uint64_t address = get(2 * MIB);
    assert_true(reserves_until_end <= 0);
    check();
    assert_int_equal(pool_free(address), -ENOENT);
}

/*
 * The context ends before the growth has remap.lock. The growth continues in the next context, and
 * the request is not refused.
 */
static void a_growth_in_pages_goes_on_in_the_next_context(void **state) {
    (void)state;
    maps_pages = true;
    start(GIB, REUSE_BARRIER, RELAXED);
    get(20 * MIB);
    ends_in_growth = true;
    uint64_t address = get(20 * MIB);
    assert_false(ends_in_growth);
    assert_int_equal(counter_get(&pool->source.counters.oom_retries), 0);
    assert_int_equal(fake->reserved, 20 * MIB);
    check();
    drop(address);
    assert_int_equal(stop(NULL), 0);
    maps_pages = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(an_inactive_cache_holds_nothing),
        TEST(a_magazine_that_stays_does_not_block_others),
        TEST(blocks_that_arrive_at_an_inactive_cache_are_not_lost),
        TEST(a_block_is_not_handed_out_after_the_end),
        TEST(a_growth_in_pages_goes_on_in_the_next_context),
    };
    return cmocka_run_group_tests_name("pool rebuilt", tests, NULL, NULL);
}
