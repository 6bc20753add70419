/*
 * Owners: gives a thread its cache of a pool, and takes the cache back when the thread ends.
 *
 * pool->unowned keeps the caches of ended threads for new threads. The pool's lock protects the
 * lists; readers without the lock follow next_in_pool (peaks_sums()).
 * Invariant: the watermarks of exactly one cache count each allocation and each free. Sums over all
 * caches therefore stay right when threads start and end.
 */
#include "tcache/internal.h"

#include "heap/host.h"
#include "tcache/owner_id.h"

/* Caches of this thread, one per pool it has used; CACHES_GONE once the thread is ending. */
static _Thread_local struct cache *my_caches __attribute__((tls_model("initial-exec")));
#define CACHES_GONE ((struct cache *)1)

static pthread_key_t thread_end_key;
static pthread_once_t thread_end_once = PTHREAD_ONCE_INIT;
static bool thread_end_works;

void cache_start_common(struct cache *cache, struct pool *pool) {
    cache->pool = pool;
    biased_init(&cache->lock, false);
    owner_id_take(cache); /* ID 0: no bias. Needs no lock: no other thread has the pool yet */
    transfer_start(&cache->transfer, cache);
}

/*
 * Moves the peaks and the counts of allocations and frees of one cache to another: at the end of a
 * thread to the common cache, from there to the next new thread. The sum of peaks then reads one
 * cache for all ended threads. The common cache is entered, and the other one is the calling
 * thread's: no other thread writes it. The pool's lock is held.
 */
static void move_watermarks(struct cache *to, struct cache *from) {
    for (unsigned i = 0; i < WATERMARKS; i++)
        watermark_join(&to->watermarks[i], &from->watermarks[i]);
}

/* Adds `from` to `to` and clears `from`. */
static void move_count(stat_counter *to, stat_counter *from) {
    uint64_t count = counter_get(from);
    if (count > 0) {
        counter_add(to, count);
        counter_set(from, 0);
    }
}

/*
 * Moves the counts per size class of an ended thread to the common cache, where they stay: readers
 * only see the caches in pool->caches. Locks as for move_watermarks().
 */
static void move_counts(struct cache *to, struct cache *from) {
    for (unsigned at = 0; at < BINS; at++) {
        move_count(&to->bins[at].allocs, &from->bins[at].allocs);
        move_count(&to->bins[at].frees, &from->bins[at].frees);
        from->bins[at].target = 0;
        from->bins[at].allocs_seen = 0;
        from->bins[at].own_at_miss = 0;
        from->bins[at].all_at_miss = 0;
    }
    move_count(&to->large_live_bytes, &from->large_live_bytes);
    for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++) {
        move_count(&to->large_allocs[i], &from->large_allocs[i]);
        move_count(&to->large_frees[i], &from->large_frees[i]);
    }
}

/*
 * Marks the begin of a move with an odd pool->moves and enters the common cache. A reader without
 * the lock that is at the moved cache continues in another list. It sees pool->moves change and
 * starts again (peaks_sums()). The pool's lock is held.
 */
static void begin_move(struct pool *pool) {
    atomic_fetch_add(&pool->moves, 1);
    cache_enter(pool->common);
}

/* Leaves the common cache and makes pool->moves even again. */
static void end_move(struct pool *pool) {
    cache_leave(pool->common);
    atomic_fetch_add(&pool->moves, 1);
}

/* Adds a cache to the front of pool->caches, which is never empty. */
static void link_in_pool(struct pool *pool, struct cache *cache) {
    struct cache *next = atomic_load(&pool->caches);
    atomic_store(&cache->next_in_pool, next);
    cache->previous_in_pool = NULL;
    next->previous_in_pool = cache;
    atomic_store(&pool->caches, cache);
}

/*
 * Moves a cache from pool->caches to pool->unowned. The common cache is always last, so `next`
 * exists.
 */
static void unlink_in_pool(struct pool *pool, struct cache *cache) {
    struct cache *next = atomic_load(&cache->next_in_pool), *previous = cache->previous_in_pool;
    next->previous_in_pool = previous;
    atomic_store(previous ? &previous->next_in_pool : &pool->caches, next);
    atomic_store(&cache->next_in_pool, pool->unowned);
    pool->unowned = cache;
}

/*
 * Gives the blocks of the calling, ending thread's cache to the pool, and the cache to
 * pool->unowned. Called with no lock.
 */
static void release_cache(struct cache *cache) {
    struct pool *pool = cache->pool;
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    cache_enter(cache);
    quota_deactivate(cache);
    cache_leave(cache);
    peaks_aggregate_if_due(pool);
    if (!owner_id_is_exclusive(cache))
        owner_id_mark_shared(cache);
    begin_move(pool);
    move_watermarks(pool->common, cache);
    move_counts(pool->common, cache);
    unlink_in_pool(pool, cache);
    end_move(pool);
    cache->thread = NULL;
    pool->caches_owned--;
    slow_path_end(pool);
    lock_release(&source->lock);
}

/* Releases the caches of the ending thread (destructor of thread_end_key). */
static void thread_end(void *unused) {
    (void)unused;
    struct cache *cache = my_caches;
    my_caches = CACHES_GONE; /* later destructors of this thread use the common cache */
    cache_last = &no_cache;
    while (cache && cache != CACHES_GONE) {
        struct cache *next = cache->next_in_thread;
        release_cache(cache);
        cache = next;
    }
}

void owner_forked(void) {
    if (thread_end_works)
        pthread_setspecific(thread_end_key, NULL);
}

static void make_key(void) {
    thread_end_works = pthread_key_create(&thread_end_key, thread_end) == 0;
}

/*
 * Returns a cache for the calling thread, new or of an ended thread; NULL without host memory. The
 * cache gets a new owner ID unless its old one is exclusive, because live blocks of the last owner
 * may have the old one. Called with no lock.
 */
static struct cache *adopt(struct pool *pool) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    struct cache *cache = pool->unowned;
    if (cache) {
        pool->unowned = atomic_load(&cache->next_in_pool);
    } else if ((cache = host_map(sizeof *cache, 4096)) != NULL) {
        cache->pool = pool;
        transfer_start(&cache->transfer, cache);
    }
    if (cache) {
        biased_init(&cache->lock, true);
        if (cache->owner_id == 0 || owner_id_is_shared(cache->owner_id))
            owner_id_take(cache);
        begin_move(pool);
        link_in_pool(pool, cache);
        move_watermarks(cache, pool->common);
        end_move(pool);
        cache->live_at_start = watermark_live(&cache->watermarks[WATERMARK_BLOCKS]);
        cache->freed_others = false;
        cache->thread = &cache_last;
        pool->caches_owned++;
        peaks_aggregate_if_due(pool);
    }
    lock_release(&source->lock);
    return cache;
}

struct cache *cache_of_thread(struct pool *pool) {
    if (my_caches == CACHES_GONE)
        return pool->common;
    for (struct cache *cache = my_caches; cache; cache = cache->next_in_thread)
        if (cache->pool == pool)
            return cache_last = cache;
    pthread_once(&thread_end_once, make_key);
    if (!thread_end_works || pthread_setspecific(thread_end_key, pool) != 0)
        return pool->common;
    struct cache *cache = adopt(pool);
    if (!cache)
        return pool->common;
    cache->next_in_thread = my_caches;
    my_caches = cache;
    return cache_last = cache;
}
