/*
 * Tests the reported peak of live memory when several threads allocate and free. The pool updates
 * the peak only when it sums all caches, which is rare. The tests count the true peak themselves.
 */
#include "pool_bench.h"

#include <pthread.h>

#define BLOCKS 4096

static struct block_of { uint64_t address, bytes; } held[BLOCKS];
static unsigned held_count;
static uint64_t live, live_peak, seed;
static pthread_barrier_t turn;

static uint64_t draw(uint64_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

static void take(uint64_t bytes) {
    assert_true(held_count < BLOCKS);
    held[held_count++] = (struct block_of){get(bytes), bytes};
    live += bytes;
    live_peak = live > live_peak ? live : live_peak;
}

static void give(unsigned i) {
    live -= held[i].bytes;
    use_and_drop(held[i].address);
    held[i] = held[--held_count];
}

/* A simulated program: its threads alternate, and every period has the same requests. */
struct program {
    unsigned threads, periods, blocks;
    uint64_t least, most;
    bool pages;
};

static const struct program *program;
static uint64_t first_seed;

static uint64_t size(void) {
    uint64_t least = program->least, most = program->most;
    return least + draw(most - least + 1) / 512 * 512;
}

/* Forward pass: keeps all blocks except short-lived ones. */
static void forward(void) {
    for (unsigned i = 0; i < program->blocks; i++) {
        take(size());
        if (i % 3 == 0) {
            take(size());
            give(held_count - 1);
        }
    }
}

/* Backward pass: frees blocks from the last to the first, with two other operations for each. */
static void backward(void) {
    while (held_count > 0) {
        take(size() / 2);
        give(held_count - 1);
        give(held_count - 1);
        if (held_count > 0 && draw(2))
            give((unsigned)draw(held_count));
    }
}

/* Middle pass: replaces some blocks of other threads. */
static void change(void) {
    for (unsigned i = 0; i < program->blocks / program->threads && held_count > 0; i++) {
        give((unsigned)draw(held_count));
        take(size());
    }
}

static void begin_period(unsigned period) {
    seed = first_seed;
    if (period == program->periods / 2) { /* caches are warm by then */
        pool_reset_peaks(pool);
        live_peak = live;
    }
}

static void *work(void *number) {
    for (unsigned turns = 0; turns < program->periods * program->threads; turns++) {
        unsigned who = turns % program->threads;
        pthread_barrier_wait(&turn);
        if (who != (uintptr_t)number)
            continue;
        if (who == 0) {
            begin_period(turns / program->threads);
            forward();
        } else if (who + 1 < program->threads) {
            change();
        } else {
            backward();
        }
        finish_all();
    }
    return NULL;
}

/* Returns the reported peak divided by the true peak. Both restart in the middle of the run. */
static double run(const struct program *what, uint64_t with_seed) {
    pthread_t threads[16];
    program = what;
    first_seed = with_seed;
    live = live_peak = held_count = 0;
    maps_pages = what->pages;
    start((uint64_t)7 * GIB, REUSE_BARRIER, RELAXED);
    pool->quota_most = 96 * MIB; /* as on a large device */
    pthread_barrier_init(&turn, NULL, what->threads);
    for (uintptr_t i = 0; i < what->threads; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, (void *)i), 0);
    for (unsigned i = 0; i < what->threads; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&turn);
    struct stats_device counters = fake_books(pool);
    double share = (double)counters.requested.peak / (double)live_peak;
    assert_true(counters.requested.peak <= live_peak);
    assert_int_equal(stop(NULL), 0);
    return share;
}

static void assert_seen(struct program what, double least) {
    for (uint64_t i = 0; i < 20; i++) {
        double share = run(&what, i * 77 + 1);
        if (share < least) {
            fail_msg("%u threads, %lu to %lu KiB, %s, seed %lu: %.4f of the peak was seen",
                     what.threads, what.least >> 10, what.most >> 10,
                     what.pages ? "pages" : "segments", i * 77 + 1, share);
        }
    }
}

static void the_peak_of_large_blocks_is_nearly_exact(void **state) {
    (void)state;
    for (unsigned threads = 2; threads <= 16; threads *= 2)
        for (int pages = 0; pages < 2; pages++)
            assert_seen((struct program){threads, 8, 150, 512 * KIB, 30 * MIB, pages}, 0.99);
}

static _Atomic bool enough;

static void *go_round(void *argument) {
    drop(get(256 * KIB));
    pthread_barrier_wait(&turn);
    while (!atomic_load(&enough))
        drop(get(256 * KIB));
    return argument;
}

/* The sum counts the live bytes of one thread while another thread allocates and frees. */
static void live_memory_does_not_count_as_idle(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, 0);
    pthread_t threads[3];
    pthread_barrier_init(&turn, NULL, 4);
    get(64 * MIB);
    atomic_store(&enough, false);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, go_round, NULL), 0);
    pthread_barrier_wait(&turn);
    uint64_t most = 0;
    for (unsigned i = 0; i < 200000; i++) {
        uint64_t idle = pool_unused_bytes(pool);
        most = idle > most ? idle : most;
    }
    atomic_store(&enough, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&turn);
    assert_in_range(most, 0, fake->reserved - 64 * MIB);
}

/* A signal handler that reads the peaks may have interrupted the thread that adds the cache. */
static void reading_peaks_does_not_wait_for_ever_for_a_new_cache(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, 0);
    get(64 * MIB);
    atomic_fetch_add(&pool->moves, 1);
    uint64_t seen = peaks_sums(pool, false).of[WATERMARK_ALLOCATED].live;
    uint64_t most = peaks_sums(pool, true).of[WATERMARK_ALLOCATED].live;
    atomic_fetch_add(&pool->moves, 1);
    assert_int_equal(seen, 64 * MIB);
    assert_int_equal(most, 64 * MIB);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_peak_of_large_blocks_is_nearly_exact),
        TEST(live_memory_does_not_count_as_idle),
        TEST(reading_peaks_does_not_wait_for_ever_for_a_new_cache),
    };
    return cmocka_run_group_tests_name("peaks", tests, NULL, NULL);
}
