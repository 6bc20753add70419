/*
 * The pool without host memory for descriptors. Requests that it cannot serve go to the driver
 * (-ERANGE), and no device memory is taken in vain. The pool works again when there is host memory.
 *
 * Linked with --wrap=mmap64 (the symbol of mmap with 64-bit offsets) and --wrap=munmap.
 */
#include "pool_bench.h"

#include "heap/page_map.h"
#include "heap/ranges.h"

#include <sys/mman.h>

void *__real_mmap64(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
int __real_munmap(void *at, size_t bytes);
void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
int __wrap_munmap(void *at, size_t bytes);

/* Mappings with numbers from `fails_from` up to, not including, `fails_to` fail. */
static unsigned maps, fails_from, fails_to;
static size_t mapped;
static void (*while_mapping)(void); /* called once, during the next mapping */

void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    unsigned number = maps++;
    if (fails_from <= number && number < fails_to) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    mapped += bytes;
    void (*call)(void) = while_mapping;
    while_mapping = NULL;
    if (call)
        call();
    return __real_mmap64(at, bytes, protection, flags, file, offset);
}

int __wrap_munmap(void *at, size_t bytes) {
    mapped -= bytes;
    return __real_munmap(at, bytes);
}

static void fail_mappings(unsigned from, unsigned count) {
    maps = 0;
    fails_from = from;
    fails_to = from + count;
}

#define FOR_EVER 1000000
#define ROUNDS 60

/* Allocates from the pool, or counts a request that goes to the driver. */
static uint64_t get_or_pass(uint64_t bytes, unsigned *passed) {
    uint64_t at = 0;
    int r = pool_alloc(pool, bytes, &at);
    assert_true(r == 0 || r == -ERANGE);
    *passed += r != 0;
    return at;
}

static void drop_all(uint64_t *at, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        if (at[i])
            use_and_drop(at[i]);
        at[i] = 0;
    }
}

static const uint64_t sizes[] = {100, 4096, 70 * KIB, MIB, 3 * MIB, 5 * MIB + 512, 40 * MIB};
#define SIZES (sizeof sizes / sizeof *sizes)

/*
 * Allocates blocks of all sizes and frees half of them. Returns the number of requests that went
 * to the driver.
 */
static unsigned use(uint64_t *at) {
    unsigned passed = 0;
    for (unsigned i = 0; i < ROUNDS; i++) {
        at[i] = get_or_pass(sizes[i % SIZES], &passed);
        if (i % 3 == 0 && at[i / 2]) {
            use_and_drop(at[i / 2]);
            at[i / 2] = 0;
        }
        if (i % 16 == 0)
            fake_finish_all(fake);
    }
    check();
    return passed;
}

static void whatever_mapping_fails_the_request_passes_through(void **state) {
    (void)state;
    static const unsigned counts[] = {1, 2, FOR_EVER};
    for (unsigned c = 0; c < 3; c++) {
        unsigned needed = 1;
        for (unsigned from = 0; from < needed; from++) {
            uint64_t at[ROUNDS] = {0};
            unsigned passed = 0;
            fail_mappings(FOR_EVER, 0);
            start(4 * GIB, REUSE_BARRIER, from % 2 ? TIGHT : RELAXED);
            fail_mappings(from, counts[c]);
            passed = use(at);
            assert_true(passed > 0 || counts[c] < FOR_EVER || maps <= from);
            assert_true(passed < ROUNDS || fake->reserves == 0);
            /* or released to stay in the budget */
            assert_true(fake->releases == 0 || (maps_pages && from % 2));
            assert_int_equal(fake->reserved, fake_books(pool).reserved.current);
            assert_int_equal(counter_get(&pool->source.counters.driver_allocs) -
                                 counter_get(&pool->source.counters.driver_frees),
                             pool->source.large.segment_count + pool->source.small.segment_count);
            needed = maps > needed ? maps : needed;
            drop_all(at, ROUNDS);
            fail_mappings(FOR_EVER, 0);
            assert_int_equal(use(at), 0); /* the pool works again */
            assert_int_equal(stop(NULL), 0);
        }
        assert_true(needed > 5);
    }
}

static void without_host_memory_no_device_memory_is_taken(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    fail_mappings(0, FOR_EVER);
    unsigned passed = 0;
    for (unsigned i = 0; i < 100; i++)
        get_or_pass(sizes[i % SIZES], &passed);
    assert_int_equal(passed, 100);
    assert_int_equal(fake->reserves, 0);
    fail_mappings(FOR_EVER, 0);
}

static void whatever_mapping_fails_a_vmm_request_passes_through(void **state) {
    maps_pages = true;
    whatever_mapping_fails_the_request_passes_through(state);
    without_host_memory_no_device_memory_is_taken(state);
}

static void no_handles_are_created_in_vain(void **state) {
    (void)state;
    maps_pages = true;
    for (unsigned before = 2; before < 4; before++) { /* segments that exist before the requests */
        unsigned passed = 0;
        start(8 * GIB, REUSE_BARRIER, RELAXED);
        for (unsigned i = 0; i < before; i++)
            get(2 * MIB);
        fail_mappings(0, FOR_EVER);
        for (unsigned i = 0; i < 450 && passed == 0; i++)
            get_or_pass(18 * MIB, &passed); /* one segment of 16 MiB and one of 2 MiB */
        assert_int_equal(passed, 1);
        assert_int_equal(fake->releases, 0);
        fail_mappings(FOR_EVER, 0);
        get(18 * MIB);
        assert_int_equal(stop(NULL), 0);
    }
}

static const struct backend_ops *fake_ops;

/* While the driver maps, other threads take all prepared descriptors but one. */
static int map_and_take_descriptors(struct backend *backend, uint64_t address, unsigned count,
                                    unsigned length, const uint64_t *handles) {
    int r = fake_ops->map(backend, address, count, length, handles);
    lock_acquire(&pool->source.lock);
    struct host_freelist *slab = &pool->source.large.segment_freelist;
    fail_mappings(0, FOR_EVER);
    void *last = NULL;
    for (void *object; (object = host_freelist_get(slab)) != NULL; last = object) {
    }
    host_freelist_put(slab, last);
    lock_release(&pool->source.lock);
    return r;
}

/* The growth needs three segments. Two are remapped, but there is a descriptor for one only. */
static void handles_without_descriptors_go_back_to_the_driver(void **state) {
    (void)state;
    maps_pages = true;
    start(4 * GIB, REUSE_BARRIER, 96 * MIB);
    uint64_t at[5], more;
    for (unsigned i = 0; i < 5; i++)
        at[i] = get(16 * MIB);
    drop(at[0]), drop(at[2]);
    pool_sync_end(pool, pool_sync_begin(pool));
    pool_stuck_bytes(pool);
    fake_ops = fake->backend.ops;
    struct backend_ops taking = *fake_ops;
    taking.map = map_and_take_descriptors;
    fake->backend.ops = &taking;
    assert_int_equal(pool_alloc(pool, 48 * MIB, &more), -ERANGE);
    fail_mappings(FOR_EVER, 0);
    fake->backend.ops = fake_ops;
    const struct counters *counters = &pool->source.counters;
    assert_int_equal(fake->reserved,
                     5 * 16 * MIB); /* one of them until its stale mapping is gone */
    assert_int_equal(pool->source.large.segment_count, 4);
    assert_int_equal(counter_get(&counters->driver_allocs), 5); /* the third segment has none */
    assert_int_equal(counter_get(&counters->driver_frees), 1);
    assert_int_equal(atomic_load(&pool->source.remap.unmapping_bytes), 0);
    assert_int_equal(pool->source.remap.held_bytes + pool->source.growing.bytes, 0);
    check();
    get(48 * MIB);
}

/* The removal of the segment would split a free range, which needs one more descriptor. */
static void without_host_memory_a_segment_between_free_ones_stays(void **state) {
    (void)state;
    struct arena arena;
    uint64_t base = (uint64_t)7 << 44;
    arena_start(&arena, (struct pool *)0x1000, true);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(arena_add(&arena, base + i * 2 * MIB, 2 * MIB, arena.last), 0);
    fail_mappings(0, FOR_EVER);
    while (host_freelist_get(&arena.range_freelist)) {
    }
    struct segment *middle = arena.segments->next;
    for (unsigned round = 0; round < 2; round++) {
        assert_int_equal(arena_remove(&arena, middle), round > 0);
        assert_int_equal(arena.segment_count, 3 - round);
        assert_int_equal(arena.free_count, 1 + round);
        assert_int_equal(arena_largest_free(&arena), round ? 2 * MIB : 6 * MIB);
        assert_int_equal(arena.idle_bytes, (6 - 2 * round) * MIB);
        assert_int_equal(page_map_pool(base + 2 * MIB) != NULL, round == 0);
        fail_mappings(FOR_EVER, 0);
    }
    assert_true(arena_remove(&arena, arena.segments));
    assert_true(arena_remove(&arena, arena.segments));
}

/* The driver then answers that there is no memory. */
static void out_of_host_and_device_memory_passes_through(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    uint64_t at = get(60 * MIB);
    unsigned passed = 0;
    fail_mappings(0, FOR_EVER);
    get_or_pass(100, &passed);
    get_or_pass(20 * MIB, &passed);
    assert_int_equal(passed, 2);
    use_and_drop(at);
    fake_finish_all(fake);
    assert_int_equal(get(60 * MIB), at);
    fail_mappings(FOR_EVER, 0);
    uint64_t more;
    assert_int_equal(pool_alloc(pool, 20 * MIB, &more), -ENOMEM);
}

static void a_pool_that_cannot_be_made_leaves_nothing(void **state) {
    (void)state;
    fake = fake_new(GIB);
    for (unsigned from = 0; from < 2; from++) {
        size_t before = mapped;
        fail_mappings(from, 1);
        assert_null(pool_create(&fake->backend, &(struct pool_config){.reuse = REUSE_BARRIER}));
        assert_int_equal(mapped, before);
    }
    fail_mappings(FOR_EVER, 0);
}

/*
 * host_bytes() counts mappings for slabs, ranges, caches and the page map, and no longer those that
 * were unmapped.
 */
static void host_bytes_counts_all_mappings(void **state) {
    (void)state;
    size_t others = mapped - host_bytes();
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    for (unsigned i = 0; i < 2 * ROUNDS; i++) {
        get(sizes[i % SIZES]);
        assert_int_equal(host_bytes(), mapped - others);
    }
    fail_mappings(1, 1); /* the mapping before it is unmapped */
    assert_null(pool_create(&fake->backend, &(struct pool_config){.reuse = REUSE_BARRIER}));
    fail_mappings(FOR_EVER, 0);
    assert_int_equal(host_bytes(), mapped - others);
}

static void host_bytes_stays_right_when_the_list_of_free_ranges_grows(void **state) {
    (void)state;
    size_t others = mapped - host_bytes(), before = mapped;
    struct arena arena;
    unsigned wider = 0;
    arena_start(&arena, (struct pool *)0x1000, true);
    for (size_t capacity = 0; wider<4; wider += arena.free_capacity> capacity) {
        capacity = arena.free_capacity;
        assert_true(arena_prepare(&arena, (unsigned)capacity));
        assert_int_equal(host_bytes(), mapped - others);
    }
    assert_true(mapped > before);
}

static void take_the_spare_leaf(void) {
    assert_true(page_map_spare());
}

/* Another thread makes the spare leaf first: one of the two leaves is unmapped. */
static void host_bytes_stays_right_when_two_threads_make_a_spare_leaf(void **state) {
    (void)state;
    size_t others = mapped - host_bytes(), before = mapped;
    const uint64_t nowhere = (uint64_t)5 << 44;
    assert_int_equal(page_map_prepare(nowhere, 2 * MIB), 0); /* uses up the spare leaf */
    while_mapping = take_the_spare_leaf;
    assert_true(page_map_spare());
    assert_null(while_mapping);
    assert_true(mapped > before);
    assert_int_equal(host_bytes(), mapped - others);
}

static void descriptors_of_small_blocks_take_a_fifteenth_of_their_memory(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    for (unsigned i = 0; i < 64; i++) /* maps all else that the pool needs */
        get(MIB);
    size_t before = mapped;
    for (unsigned i = 0; i < 2048; i++)
        get(MIB);
    assert_true(mapped - before <= 2 * GIB / 14); /* including a new region of descriptors */
}

/* Returns how many host pages the descriptors of a slab occupy. */
static unsigned resident(const struct slab *slab) {
    unsigned char in[40] = {0};
    size_t bytes = sizeof slab->blocks, page = (size_t)getpagesize();
    assert_int_equal(mincore((void *)((uintptr_t)slab->blocks & ~(page - 1)), bytes, in), 0);
    unsigned count = 0;
    for (size_t i = 0; i < bytes / page; i++)
        count += in[i] & 1;
    return count;
}

static void released_memory_takes_no_host_memory(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    for (int i = 0; i < 2; i++) {
        uint64_t at[1024];
        for (unsigned j = 0; j < 1024; j++)
            at[j] = get(4096);
        const struct slab *slab = page_map_slab(page_map_get(at[500]));
        unsigned pages = (unsigned)(sizeof slab->blocks / (size_t)getpagesize());
        assert_in_range(resident(slab), pages / 2, pages);
        for (unsigned j = 0; j < 1024; j++)
            use_and_drop(at[j]);
        fake_finish_all(fake);
        if (i == 0)
            assert_int_equal(pool_trim(pool, false), 0);
        else
            pool_forget(pool);
        assert_true(resident(slab) <= 2); /* host pages shared with neighbours */
        check();
    }
}

static void prepared_objects_need_no_more_memory(void **state) {
    (void)state;
    struct host_freelist slab = {.object_bytes = 24 * KIB}; /* a mapping holds two */
    assert_true(host_freelist_prepare(&slab, 1));
    char *first = host_freelist_get(&slab);
    assert_true(host_freelist_prepare(&slab, 2));
    fail_mappings(0, FOR_EVER);
    for (int i = 0; i < 3; i++) {
        char *object = host_freelist_get(&slab);
        assert_non_null(object);
        assert_true(object != first && object[0] == 0 && object[24 * KIB - 1] == 0);
    }
    assert_null(host_freelist_get(&slab));
    assert_false(host_freelist_prepare(&slab, 1));
    host_freelist_put(&slab, first);
    assert_true(host_freelist_prepare(&slab, 1));
    assert_ptr_equal(host_freelist_get(&slab), first);
    fail_mappings(FOR_EVER, 0);
}

/*
 * A thread without a cache of its own uses the common cache, and gets its own when there is host
 * memory.
 */
static void a_thread_gets_its_cache_as_soon_as_there_is_memory(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    fail_mappings(0, 1); /* the cache's mapping fails, later ones succeed */
    uint64_t at = get(100);
    assert_int_equal(pool->caches_owned, 0);
    use_and_drop(at);
    assert_int_equal(pool->caches_owned, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(whatever_mapping_fails_the_request_passes_through),
        TEST(without_host_memory_no_device_memory_is_taken),
        cmocka_unit_test_teardown(whatever_mapping_fails_a_vmm_request_passes_through, stop_vmm),
        cmocka_unit_test_teardown(no_handles_are_created_in_vain, stop_vmm),
        cmocka_unit_test_teardown(handles_without_descriptors_go_back_to_the_driver, stop_vmm),
        TEST(without_host_memory_a_segment_between_free_ones_stays),
        TEST(out_of_host_and_device_memory_passes_through),
        TEST(a_pool_that_cannot_be_made_leaves_nothing),
        TEST(host_bytes_counts_all_mappings),
        TEST(host_bytes_stays_right_when_the_list_of_free_ranges_grows),
        TEST(host_bytes_stays_right_when_two_threads_make_a_spare_leaf),
        TEST(descriptors_of_small_blocks_take_a_fifteenth_of_their_memory),
        TEST(released_memory_takes_no_host_memory),
        TEST(prepared_objects_need_no_more_memory),
        TEST(a_thread_gets_its_cache_as_soon_as_there_is_memory),
    };
    return cmocka_run_group_tests_name("host", tests, NULL, NULL);
}
