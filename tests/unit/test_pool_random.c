/*
 * The pool under random threads, checked against a map of every 512 bytes of the device.
 *
 *  1. No two live blocks overlap.
 *  2. No block is handed out while earlier work can still use its memory (law 2).
 *  3. No externally visible memory is mapped at another address.
 *
 * Threads pass their blocks on, so any thread frees the blocks of any other. With `roles`, half
 * of the threads only allocate and half only free, so blocks go back through transfer caches. The
 * fake device completes work at random times, and counts breaches of law 3. It sometimes refuses
 * records and barriers, as during a capture, and sometimes unmappings. A run has POOL_TEST_OPS / 24
 * steps, or four times as many with `roles`. POOL_TEST_SEED is the first seed.
 */
#include "pool_bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define THREADS 4
#define SLOTS 96
#define CHECK_EVERY 250
#define MEMORY (64 * MIB)
#define REGION_PAGES 32768

/* ---- the map ---- */

struct unit {
    uint32_t last[FAKE_STREAMS]; /* last work per stream that used the unit before its free */
    uint8_t live, outside;
};

static struct unit *map[REGION_PAGES]; /* by 2 MiB of physical memory */
static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint failures;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition) && atomic_fetch_add(&failures, 1) < 5)                                    \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
    } while (0)

static struct unit *unit_of(uint64_t address) {
    uint64_t page = (address - fake->base) / (2 * MIB);
    if (page >= REGION_PAGES)
        abort();
    if (!map[page])
        map[page] = calloc(4096, sizeof(struct unit));
    return &map[page][address % (2 * MIB) / 512];
}

/* Returns the unit of the physical memory that is mapped at an address. */
static struct unit *unit_at(uint64_t address) {
    return unit_of(fake_physical(fake, address));
}

static void clear_map(void) {
    for (int i = 0; i < REGION_PAGES; i++) {
        free(map[i]);
        map[i] = NULL;
    }
}

struct past {
    uint64_t completed[FAKE_STREAMS], ordered[FAKE_STREAMS];
};

static struct past look_at_past(void) {
    struct past past;
    pthread_mutex_lock(&fake->lock);
    memcpy(past.completed, fake->completed, sizeof past.completed);
    memcpy(past.ordered, fake->ordered, sizeof past.ordered);
    pthread_mutex_unlock(&fake->lock);
    return past;
}

static bool is_past(const struct past *past, const struct unit *unit, bool outside) {
    for (unsigned s = 0; s < FAKE_STREAMS; s++)
        if (unit->last[s] > past->completed[s] && (outside || unit->last[s] > past->ordered[s]))
            return false;
    return true;
}

/* ---- blocks ---- */

struct block_in_use {
    uint64_t address, bytes;
    uint32_t last[FAKE_STREAMS];
    bool outside;
};

static struct block_in_use slots[SLOTS];
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;

static void enter(const struct block_in_use *block) {
    pthread_mutex_lock(&map_lock);
    struct past past = look_at_past();
    for (uint64_t a = block->address; a < block->address + block->bytes; a += 512) {
        struct unit *unit = unit_at(a);
        EXPECT(!unit->live);
        EXPECT(is_past(&past, unit, unit->outside));
        *unit = (struct unit){.live = 1};
    }
    pthread_mutex_unlock(&map_lock);
}

static void leave(const struct block_in_use *block) {
    pthread_mutex_lock(&map_lock);
    for (uint64_t a = block->address; a < block->address + block->bytes; a += 512) {
        struct unit *unit = unit_at(a);
        EXPECT(unit->live);
        unit->live = 0;
        unit->outside = block->outside;
        memcpy(unit->last, block->last, sizeof unit->last);
    }
    pthread_mutex_unlock(&map_lock);
}

/*
 * The backend's operations with checks. The native free waits for the device; with context events
 * the pool must not need that wait.
 */
static struct backend_ops ops;
static const struct backend_ops *fake_ops;

static void expect_past(uint64_t address, uint64_t bytes) {
    pthread_mutex_lock(&map_lock);
    struct past past = look_at_past();
    for (uint64_t a = address; a < address + bytes; a += 512) {
        const struct unit *unit = unit_of(a);
        EXPECT(!unit->live);
        EXPECT(is_past(&past, unit, true));
    }
    pthread_mutex_unlock(&map_lock);
}

static int release(struct backend *backend, uint64_t address, uint64_t bytes) {
    if (!backend->has_events)
        fake_finish_all(fake);
    expect_past(address, bytes);
    return fake_ops->release(backend, address, bytes);
}

/* The driver has the memory back: it is no longer externally visible memory of the pool. */
static void let_go_of(uint64_t address, uint64_t bytes) {
    pthread_mutex_lock(&map_lock);
    for (uint64_t a = address; a < address + bytes; a += 512)
        unit_of(a)->outside = 0;
    pthread_mutex_unlock(&map_lock);
}

static void release_handles(struct backend *backend, unsigned count, unsigned length,
                            const uint64_t *pages) {
    for (unsigned i = 0; i < count; i++) {
        expect_past(fake->base + pages[i] * 2 * MIB, length * 2 * MIB);
        let_go_of(fake->base + pages[i] * 2 * MIB, length * 2 * MIB);
    }
    fake_ops->release_handles(backend, count, length, pages);
}

static int map_pages(struct backend *backend, uint64_t address, unsigned count, unsigned length,
                     const uint64_t *pages) {
    pthread_mutex_lock(&map_lock);
    for (unsigned i = 0; i < count; i++) {
        uint64_t first = fake->base + pages[i] * 2 * MIB;
        for (uint64_t a = first; a < first + length * 2 * MIB; a += 512)
            EXPECT(!unit_of(a)->outside && !unit_of(a)->live);
    }
    pthread_mutex_unlock(&map_lock);
    return fake_ops->map(backend, address, count, length, pages);
}

/* ---- threads ---- */

static unsigned long steps_in_all, steps_each;
static pthread_barrier_t together;

enum role { ASKS_AND_FREES, ASKS, FREES };

static uint64_t random_size(unsigned *seed, enum role role) {
    unsigned kind = (unsigned)rand_r(seed) % 16;
    if (role == ASKS && kind >= 13) /* sizes that threads cache */
        return MIB + (uint64_t)rand_r(seed) % MIB;
    uint64_t most = kind < 8 ? 8 * KIB : kind < 13 ? 96 * KIB : kind < 15 ? MIB : 6 * MIB;
    return 1 + (uint64_t)rand_r(seed) % most;
}

static void use(struct block_in_use *block, unsigned *seed) {
    unsigned stream = (unsigned)rand_r(seed) % FAKE_STREAMS;
    block->last[stream] = (uint32_t)fake_submit(fake, stream);
    if (maps_pages)
        fake_reach(fake, block->address, block->bytes, stream, block->last[stream]);
}

static void free_it(struct block_in_use *block, unsigned *seed) {
    use(block, seed);
    leave(block);
    EXPECT(fake_pool_free(block->address) == 0);
}

static unsigned lasts; /* factor by which work takes longer than usual */

static void disturb(unsigned *seed) {
    pthread_mutex_lock(&fake->lock);
    unsigned what = (unsigned)rand_r(seed) % 8;
    fake->record_code = what == 0 ? -EBUSY : 0;
    fake->order_code = what < 2 ? -EBUSY : 0;
    fake->unmap_code = what == 2 ? -EBUSY : 0;
    fake->done_every = lasts * (20 + (unsigned)rand_r(seed) % 200);
    pthread_mutex_unlock(&fake->lock);
}

static void step_once(unsigned *seed, enum role role) {
    unsigned at = (unsigned)rand_r(seed) % SLOTS;
    pthread_mutex_lock(&slots_lock);
    struct block_in_use block = slots[at];
    slots[at].address = 0;
    pthread_mutex_unlock(&slots_lock);
    if (!block.address) {
        if (role == FREES)
            return;
        block = (struct block_in_use){.bytes = random_size(seed, role)};
        int r = pool_alloc(pool, block.bytes, &block.address);
        EXPECT(r == 0 || r == -ENOMEM);
        if (r != 0)
            return;
        enter(&block);
        use(&block, seed);
    } else if (role == FREES || (role == ASKS_AND_FREES && rand_r(seed) % 4 != 0)) {
        free_it(&block, seed);
        return;
    } else {
        struct pool_block found;
        uint64_t inside = block.address + (uint64_t)rand_r(seed) % block.bytes;
        EXPECT(pool_find(inside, &found) == 0 && found.address == block.address &&
               found.requested == block.bytes);
        EXPECT(pool_block_id(inside) == pool_block_id(block.address));
        EXPECT(fake_pool_free(inside | 1) == -EINVAL);
        if (rand_r(seed) % 64 == 0) {
            EXPECT(pool_mark_externally_visible(inside) == 0);
            block.outside = true;
        }
    }
    for (unsigned i = 0; i < SLOTS; i++) { /* into the next empty slot */
        pthread_mutex_lock(&slots_lock);
        bool empty = slots[at].address == 0;
        if (empty)
            slots[at] = block;
        pthread_mutex_unlock(&slots_lock);
        if (empty)
            return;
        at = (at + 1) % SLOTS;
    }
    free_it(&block, seed); /* no slot is empty */
}

/* Checks the pool's invariants while all threads wait: pool_check() reads everything. */
static void check_together(void) {
    if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD) {
        const char *broken = pool_check(pool);
        if (broken && atomic_fetch_add(&failures, 1) == 0)
            fprintf(stderr, "%s does not hold\n", broken);
    }
    pthread_barrier_wait(&together);
}

struct thread {
    pthread_t id;
    unsigned seed;
    enum role role;
};

static void *thread_body(void *argument) {
    const struct thread *self = argument;
    unsigned seed = self->seed;
    for (unsigned long i = 0; i < steps_each; i++) {
        if (i % CHECK_EVERY == 0)
            check_together();
        step_once(&seed, self->role);
        unsigned what = (unsigned)rand_r(&seed) % 4096;
        if (what < (self->role == ASKS_AND_FREES ? 256 : 8)) {
            fake_finish_one(fake, what % FAKE_STREAMS);
        } else if (what < 280) {
            disturb(&seed);
        } else if (what < (self->role == ASKS_AND_FREES ? 292 : 281)) {
            int r = pool_trim(pool, false);
            EXPECT(r == 0 || r == -EBUSY);
        } else if (what < 320) {
            struct stats_device counters = fake_books(pool);
            EXPECT(counters.reserved.current <= MEMORY);
        } else if (what < 340) {
            uint64_t ticket = pool_sync_begin(pool);
            fake_finish_all(fake);
            pool_sync_end(pool, ticket);
        }
    }
    return NULL;
}

static void run(enum reuse reuse, bool has_events, uint64_t budget, unsigned seed, bool roles) {
    clear_map();
    failures = 0;
    start(MEMORY, reuse, budget);
    steps_each = steps_in_all / (24 * THREADS) * (roles ? 4 : 1);
    if (roles) /* small caches: full soon, of small blocks or of large ones */
        pool->quota_most = seed % 2 ? 2 * MIB : 16 * MIB;
    else if (seed % 2 == 0)
        keep_large_blocks();
    fake_ops = fake->backend.ops;
    ops = *fake_ops;
    ops.release = release;
    ops.release_handles = release_handles;
    ops.map = maps_pages ? map_pages : NULL;
    fake->backend.ops = &ops;
    fake->backend.has_events = has_events;
    lasts = roles ? 16 : 1;
    fake->done_every = 100 * lasts;
    memset(slots, 0, sizeof slots);
    struct thread threads[THREADS];
    pthread_barrier_init(&together, NULL, THREADS);
    for (unsigned i = 0; i < THREADS; i++) {
        threads[i].seed = seed * THREADS + i + 1;
        threads[i].role = !roles ? ASKS_AND_FREES : i % 2 ? FREES : ASKS;
        assert_int_equal(pthread_create(&threads[i].id, NULL, thread_body, &threads[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i].id, NULL);
    pthread_barrier_destroy(&together);
    check();
    fake->record_code = fake->order_code = fake->unmap_code = 0;
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].address) {
            leave(&slots[i]);
            drop(slots[i].address);
        }
    }
    fake_finish_all(fake);
    check();
    struct stats_device counters = fake_books(pool);
    EXPECT(counters.requested.current == 0 && counters.allocations.current == 0);
    if (has_events) { /* the pool can release everything */
        EXPECT(pool_trim(pool, true) == 0);
        EXPECT(fake->reserved == 0);
    }
    if (failures || fake->broken_laws) {
        print_error("reuse %d, events %d, budget %lu, seed %u, roles %d, pages %d: %s\n",
                    (int)reuse, has_events, (unsigned long)budget, seed, roles, maps_pages,
                    fake->broken_laws ? fake->broken : "");
    }
    assert_int_equal(failures, 0);
    assert_int_equal(stop(NULL), 0);
}

static unsigned long from_environment(const char *name, unsigned long otherwise) {
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : otherwise;
}

static void run_all(enum reuse reuse) {
    static const uint64_t budgets[] = {TIGHT, 24 * MIB, 0, RELAXED};
    unsigned long seed = from_environment("POOL_TEST_SEED", 1);
    steps_in_all = from_environment("POOL_TEST_OPS", 240000);
    for (int run_no = 0; run_no < 32; run_no++) {
        maps_pages = run_no >= 16;
        run(reuse, run_no / 4 % 2, budgets[run_no % 4], (unsigned)seed++, run_no / 8 % 2);
    }
    maps_pages = false;
}

static void no_block_is_handed_out_early_behind_barriers(void **state) {
    (void)state;
    run_all(REUSE_BARRIER);
}

static void no_block_is_handed_out_early_after_waits(void **state) {
    (void)state;
    run_all(REUSE_WAIT);
}

static void no_block_is_handed_out_early_when_every_free_waits(void **state) {
    (void)state;
    run_all(REUSE_SYNC);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(no_block_is_handed_out_early_behind_barriers),
        TEST(no_block_is_handed_out_early_after_waits),
        TEST(no_block_is_handed_out_early_when_every_free_waits),
    };
    int failed = cmocka_run_group_tests_name("random pool", tests, NULL, NULL);
    clear_map();
    return failed;
}
