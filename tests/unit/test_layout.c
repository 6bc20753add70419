/* Layouts: what a program that repeats itself finds again, what may be mapped where and when, and the end. */
#include "pool_bench.h"

#include "pool/page_map.h"

#define PAGE (2 * MIB)

static int with_pages(void **state) {
    (void)state;
    maps_pages = true;
    return 0;
}

/* As a program has it that does not simply repeat itself, below its peak: only pages come from the driver (test_extent.c has
 * the others). */
static void start_in_pages(uint64_t memory, enum pool_reuse reuse, uint64_t budget) {
    start(memory, reuse, budget);
    pool->layouts.dissolved = true;
    books_set(&pool->books.reserved.peak, UINT64_MAX);
}

static uint64_t page_at(uint64_t address) {
    return fake_physical(fake, address) - address % PAGE;
}

static void finish_all(void) {
    uint64_t ticket = pool_sync_begin(pool);
    fake_finish_all(fake);
    pool_sync_end(pool, ticket);
}

/* Used by work that is still running when it is freed. */
static void drop_used(uint64_t address, uint64_t bytes) {
    fake_reach(fake, address, bytes, 0, fake_submit(fake, 0));
    drop(address);
}

static void a_block_is_made_of_whole_pages(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, 0);
    uint64_t block = get(5 * MIB);
    assert_int_equal(block % PAGE, 0);
    assert_int_equal(fake->reserved, 3 * PAGE);
    struct pool_block found;
    struct pool_segment segment;
    assert_int_equal(pool_find_segment(block + 5 * MIB - 1, &found, &segment), 0);
    assert_int_equal(segment.address, block);
    assert_int_equal(segment.bytes, 3 * PAGE);
    assert_int_equal(pool_find(block + 5 * MIB, &found), -EINVAL);
}

static void what_is_freed_keeps_its_mappings(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, TIGHT);
    uint64_t block = get(40 * MIB);
    drop(block);
    unsigned maps = fake->maps;
    assert_int_equal(get(40 * MIB), block);
    assert_int_equal(fake->maps, maps);
    assert_int_equal(fake->unmaps, 0);
}

/* Blocks of different sizes in turn take each other's pages at first. */
static void a_program_that_repeats_itself_maps_nothing_any_more(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, 76 * MIB);
    unsigned maps = 0, before = 0;
    for (int period = 0; period < 10; period++) {
        before = maps;
        for (uint64_t size = 3; size < 40; size += 5) {
            uint64_t a = get(size * MIB), b = get((60 - size) * MIB), c = get(64 * KIB);
            drop(a);
            drop(b);
            drop(c);
            finish_all();
        }
        maps = fake->maps;
    }
    assert_int_equal(maps, before);
    assert_in_range(fake->reserved, 60 * MIB, 76 * MIB);
}

/* Also where another one is free that was made before it. */
static void a_request_gets_the_window_it_had_the_last_time(void **state) {
    (void)state;
    start_in_pages(16 * GIB, POOL_BARRIER, RELAXED);
    uint64_t other = get(100 * MIB), had[2];
    for (int period = 0; period < 2; period++) {
        for (uint64_t size = 2; size < 30;
             size++) { /* so that it knows where in the program it is */
            drop(get(2 * size * MIB));
            finish_all();
        }
        had[period] = get(100 * MIB);
        drop(had[period]);
        if (period == 0) {
            drop(other);
        }
        finish_all();
    }
    assert_int_not_equal(had[0], other);
    assert_int_equal(had[1], had[0]);
}

static void pages_come_from_anywhere(void **state) {
    (void)state;
    start_in_pages(64 * MIB, POOL_BARRIER, 0);
    uint64_t blocks[32];
    for (int i = 0; i < 32; i++) {
        blocks[i] = get(2 * MIB);
    }
    for (int i = 0; i < 32; i += 2) {
        drop(blocks[i]);
    }
    finish_all();
    uint64_t address; /* all that is free, and no two pages of it side by side */
    assert_int_equal(pool_alloc(pool, 32 * MIB, &address), 0);
    assert_int_equal(pool_alloc(pool, MIB + 1, &address), -ENOMEM);
    assert_int_equal(fake->reserved, 64 * MIB);
}

static void small_blocks_get_the_pages_of_large_ones(void **state) {
    (void)state;
    start_in_pages(16 * MIB, POOL_BARRIER, 0);
    drop(get(16 * MIB));
    finish_all();
    for (int i = 0; i < 16; i++) {
        get(MIB);
    }
    assert_int_equal(fake->reserved, 16 * MIB);
}

/* CPU time in which thousands of blocks become usable that were freed in this order. */
static uint64_t time_of(bool from_the_last) {
    enum { COUNT = 4000 };
    static uint64_t blocks[COUNT];
    struct timespec from, to;
    start_in_pages(16 * GIB, POOL_BARRIER, RELAXED);
    for (unsigned i = 0; i < COUNT; i++) {
        blocks[i] = get(2 * MIB);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        drop(blocks[from_the_last ? COUNT - 1 - i : i]);
    }
    finish_all();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    pool_stuck_bytes(pool);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    assert_whole(pool);
    stop(NULL);
    return (uint64_t)(to.tv_sec - from.tv_sec) * 1000000000u + (uint64_t)to.tv_nsec -
           (uint64_t)from.tv_nsec;
}

static void thousands_are_freed_as_fast_in_any_order(void **state) {
    (void)state;
    uint64_t forwards = UINT64_MAX, backwards = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        uint64_t one = time_of(false), other = time_of(true);
        forwards = one < forwards ? one : forwards;
        backwards = other < backwards ? other : backwards;
    }
    assert_true(forwards < 10 * backwards && backwards < 10 * forwards);
}

/* ---- when ---- */

static void a_page_is_mapped_elsewhere_when_its_work_has_finished(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, TIGHT);
    fake->wait_code = -EBUSY; /* barriers only */
    uint64_t block = get(8 * MIB);
    drop_used(block, 8 * MIB);
    assert_int_equal(get(8 * MIB), block); /* where it lies, a barrier is enough */
    drop_used(block, 8 * MIB);
    uint64_t other = get(12 * MIB);
    for (uint64_t at = other; at < other + 12 * MIB; at += PAGE) {
        assert_int_not_equal(page_at(at), page_at(block));
    }
    assert_int_equal(fake->reserved, 20 * MIB);
    finish_all();
    get(20 * MIB - 12 * MIB + 1);
    assert_int_equal(fake->reserved, 22 * MIB);
}

static void a_slot_is_mapped_anew_when_its_work_has_finished(void **state) {
    (void)state;
    start_in_pages(256 * MIB, POOL_BARRIER, TIGHT);
    uint64_t sizes[] = {20 * MIB, 30 * MIB, 26 * MIB, 12 * MIB, 46 * MIB};
    for (unsigned i = 0; i < 500; i++) {
        fake->wait_code = i % 4 ? -EBUSY : 0;
        uint64_t size = sizes[i * 7 % 5], more = sizes[i * 3 % 5];
        uint64_t a = get(size), b = get(more); /* fake_reach() sees to what is unmapped */
        drop_used(a, size);
        drop_used(b, more);
        if (i % 3 == 0) {
            fake_finish_one(fake, 0);
        }
    }
    finish_all();
}

/* ---- what something outside reaches ---- */

static void exported_pages_go_to_no_other_block(void **state) {
    (void)state;
    start_in_pages(64 * MIB, POOL_BARRIER, 0);
    uint64_t block = get(8 * MIB), page = page_at(block);
    assert_int_equal(pool_mark_reached_from_outside(block), 0);
    drop(block);
    finish_all();
    uint64_t rest = get(56 * MIB), address;
    for (uint64_t at = rest; at < rest + 56 * MIB; at += PAGE) {
        assert_int_not_equal(page_at(at), page);
    }
    assert_int_equal(get(8 * MIB), block); /* but to one at the same place */
    drop(block);
    finish_all();
    /* Where nothing else is left they go to the driver, and what it gives is theirs no more. */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pool_alloc(pool, 2 * MIB, &address), 0);
    }
    assert_int_equal(fake->reserved, 64 * MIB);
    assert_in_range(fake->releases, 4, 4);
}

static void of_exported_pages_a_shorter_block_leaves_the_rest_alone(void **state) {
    (void)state;
    start_in_pages(64 * MIB, POOL_BARRIER, 0);
    uint64_t block = get(8 * MIB), page = page_at(block + 6 * MIB);
    pool_mark_reached_from_outside(block);
    drop(block);
    finish_all();
    assert_int_equal(get(7 * MIB), block);
    drop(block);
    finish_all();
    assert_int_equal(get(5 * MIB), block);
    uint64_t rest = get(56 * MIB);
    for (uint64_t at = rest; at < rest + 56 * MIB; at += PAGE) {
        assert_int_not_equal(page_at(at), page);
    }
}

static uint64_t outside;

static void free_it(void) {
    drop(outside);
    finish_all();
    pool_stuck_bytes(pool); /* which looks at what is usable */
}

/* Freed by another thread while the mapper looks for a window, and then the only one that fits. */
static void what_was_exported_stays_so_whoever_finds_it(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, TIGHT);
    fake->next = fake->base + ((uint64_t)64 << 30) - 12 * MIB;
    outside = get(10 * MIB);
    uint64_t page = page_at(outside + 8 * MIB);
    pool_mark_reached_from_outside(outside);
    fake->meanwhile = free_it;
    assert_int_equal(get(8 * MIB), outside);
    finish_all();
    assert_int_not_equal(page_at(get(2 * MIB)), page);
    assert_whole(pool);
}

/* ---- frozen ---- */

static void frozen_no_mapped_page_is_moved(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, TIGHT);
    uint64_t a = get(40 * MIB), b = get(24 * MIB);
    drop(a);
    drop(b);
    finish_all();
    fake->frozen = true;
    unsigned unmaps = fake->unmaps;
    uint64_t pages[20];
    for (unsigned i = 0; i < 20; i++) {
        pages[i] = page_at(a + i * PAGE);
    }
    assert_int_equal(get(40 * MIB), a); /* whole, it is used again */
    uint64_t more = get(44 * MIB);
    for (uint64_t at = more; at < more + 44 * MIB; at += PAGE) {
        for (unsigned i = 0; i < 20; i++) {
            assert_int_not_equal(page_at(at), pages[i]);
        }
    }
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(page_at(a + i * PAGE), pages[i]);
    }
    drop(more);
    finish_all();
    assert_int_equal(get(44 * MIB), more);
    assert_int_equal(fake->unmaps - unmaps, 12); /* those of the second one went to the driver */
    assert_int_equal(fake->reserved, 84 * MIB);
}

/* A window that shares a frame with a block elsewhere would have to be mapped anew. */
static void frozen_a_window_is_used_whole_or_not_at_all(void **state) {
    (void)state;
    start_in_pages(64 * MIB, POOL_BARRIER, TIGHT);
    uint64_t a = get(40 * MIB);
    drop(a);
    finish_all();
    uint64_t b = get(44 * MIB); /* of the first one's pages, and two more */
    assert_int_equal(fake->reserved, 44 * MIB);
    drop(b);
    finish_all();
    uint64_t c = get(8 * MIB);
    drop(c);
    finish_all();
    fake->frozen = true;
    assert_int_equal(get(44 * MIB), b);
    unsigned maps = fake->maps;
    uint64_t d =
        get(10 * MIB); /* nothing is idle: five new ones, in a window of its own or an empty one */
    assert_int_equal(fake->maps, maps + 5);
    assert_true(d + 10 * MIB <= a || d >= a + 40 * MIB);
    assert_int_equal(fake->reserved, 54 * MIB);
}

/* The device is opened while new pages are made for a window that idle ones were to lie in as well. */
static void frozen_while_pages_are_made(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, 46 * MIB);
    drop(get(40 * MIB));
    finish_all();
    fake->freezes = true;
    get(44 * MIB);
    for (unsigned i = 0; i < FAKE_PAGES; i++) {
        assert_in_range(fake->pages[i].mappings, 0, 1); /* each here or there, but not in both */
    }
    assert_in_range(fake->reserved, 44 * MIB, 46 * MIB);
}

static void frozen_for_a_while(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, TIGHT);
    uint64_t a = get(40 * MIB);
    fake->frozen = true;
    drop(get(4 * MIB));
    drop(a);
    finish_all();
    assert_int_equal(fake->reserved, 44 * MIB);
    fake->frozen = false;
    get(44 * MIB);
    assert_int_equal(fake->reserved, 44 * MIB); /* nothing was made or given back for it */
    unsigned moved = 0;
    for (unsigned i = 0; i < FAKE_PAGES; i++) {
        moved += fake->pages[i].mappings == 2;
    }
    assert_int_equal(moved, 22);
}

/* ---- refusals ---- */

static void what_cannot_be_mapped_is_the_driver_s(void **state) {
    (void)state;
    start_in_pages(64 * MIB, POOL_BARRIER, 0);
    uint64_t address;
    fake->map_code = -EBUSY;
    assert_int_equal(pool_alloc(pool, 8 * MIB, &address), -ERANGE);
    assert_whole(pool);
    fake->map_code = 0;
    drop(get(8 * MIB));
    finish_all();
    fake->map_code = -EBUSY;
    assert_int_equal(pool_alloc(pool, 20 * MIB, &address), -ERANGE);
    assert_whole(pool);
    fake->map_code = 0;
    drop(get(20 * MIB));
}

/* The end, after which nothing is looked for that the driver has kept. */
static void end_without_what_is_kept(void) {
    fake->unmap_code = 0;
    assert_int_equal(pool_forget(pool), 0);
    fake->reserved = fake->addresses = 0;
}

static void assert_apart(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
    for (uint64_t i = 0; a && b && i < a_bytes; i += PAGE) {
        for (uint64_t n = 0; n < b_bytes; n += PAGE) {
            assert_int_not_equal(page_at(a + i), page_at(b + n));
        }
    }
}

/* The fake sees to what is given back while it is mapped, and to what is mapped where something is. */
static void what_is_not_unmapped_is_in_nobody_s_way(void **state) {
    (void)state;
    start_in_pages(256 * MIB, POOL_BARRIER, TIGHT);
    uint64_t sizes[] = {20 * MIB, 30 * MIB, 26 * MIB, 12 * MIB, 46 * MIB}, at[3], bytes[3];
    for (unsigned i = 0; i < 300; i++) {
        fake->unmap_code = i % 3 ? 0 : -EBUSY;
        for (unsigned n = 0; n < 3; n++) {
            bytes[n] = sizes[(i * 7 + n * 3 + i / 60) % 5];
            int r = pool_alloc(pool, bytes[n], &at[n]);
            assert_true(r == 0 || (r == -ERANGE && fake->unmap_code != 0));
            at[n] = r == 0 ? at[n] : 0;
        }
        assert_apart(at[0], bytes[0], at[1], bytes[1]);
        assert_apart(at[0], bytes[0], at[2], bytes[2]);
        assert_apart(at[1], bytes[1], at[2], bytes[2]);
        for (unsigned n = 0; n < 3; n++) {
            if (at[n]) {
                drop_used(at[n], bytes[n]);
            }
        }
        finish_all();
        if (i % 100 == 0) {
            pool_trim(pool, true);
        }
        assert_whole(pool);
    }
    fake->unmap_code = 0;
    get(40 * MIB);
    end_without_what_is_kept();
}

static void what_is_not_unmapped_is_handed_out_to_nobody(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, TIGHT);
    uint64_t address = get(40 * MIB);
    drop(address);
    finish_all();
    uint64_t block = get(4 * MIB); /* over two of its pages */
    fake->unmap_code = -EBUSY;
    assert_int_equal(pool_alloc(pool, 40 * MIB, &address), -ERANGE);
    fake->unmap_code = 0;
    assert_apart(get(40 * MIB), 40 * MIB, block, 4 * MIB);
}

static void what_is_not_unmapped_stays_the_driver_s(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, 0);
    uint64_t block = get(8 * MIB);
    drop(block);
    finish_all();
    fake->unmap_code = -EBUSY;
    pool_trim(pool, true);
    assert_int_equal(fake->reserved, 8 * MIB);
    assert_int_equal(fake_books(pool).reserved.current, 0);
    fake->unmap_code = 0;
    assert_int_equal(get(8 * MIB), block); /* its place is emptied after all */
    fake->unmap_code = -EBUSY;
    assert_int_equal(pool_forget(pool), 0);
    assert_int_equal(fake->reserved, 16 * MIB);
    assert_int_not_equal(fake->addresses, 0);
    fake->unmap_code = 0;
    get(8 * MIB);
    end_without_what_is_kept();
}

static void a_refusal_in_the_middle_loses_nothing(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, 0);
    uint64_t address;
    fake->limit = 400 * MIB;
    drop(get(100 * MIB));
    assert_int_equal(pool_alloc(pool, 500 * MIB, &address), -EDQUOT);
    assert_whole(pool);
    assert_int_equal(fake->reserved, 100 * MIB); /* nor is more held for it */
    assert_int_equal(pool_alloc(pool, 400 * MIB, &address), 0);
    assert_int_equal(pool_alloc(pool, 4 * MIB, &address), -EDQUOT);
    assert_in_range(fake->reserved_peak, 400 * MIB, 400 * MIB);
}

/* Others may be refused meanwhile what this one then gives back. */
static void what_was_had_in_vain_is_told(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, 0);
    uint64_t address;
    fake->limit = 400 * MIB;
    get(300 * MIB);
    assert_int_equal(fake->in_vain, 0);
    assert_int_equal(pool_alloc(pool, 300 * MIB, &address), -EDQUOT);
    assert_int_not_equal(fake->in_vain, 0);
    assert_int_equal(fake->growing, 0);
}

/* Asked for all that a block lacks, the driver refuses; of what is idle and what it has there is enough. */
static void what_lies_idle_and_what_the_driver_has_make_a_block(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, RELAXED);
    fake->limit = 400 * MIB;
    uint64_t block = get(2 * MIB);
    drop(get(300 * MIB));
    finish_all();
    get(396 * MIB);
    assert_int_equal(fake->reserved, 398 * MIB);
    drop(block);
}

/* However many are made at once, and however many lie idle behind work that runs. */
static void no_more_pages_are_made_than_are_lacking(void **state) {
    (void)state;
    start_in_pages(4 * GIB, POOL_BARRIER, 2500 * MIB);
    uint64_t long_one = get(1600 * MIB), others[5];
    drop(long_one);
    finish_all();
    for (int i = 0; i < 5; i++) { /* three in new pages, two in some of those */
        others[i] = get(300 * MIB);
    }
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 1500 * MIB);
    for (int i = 0; i < 5; i++) {
        drop_used(others[i], 300 * MIB);
    }
    fake->reserved_peak = 0;
    assert_int_equal(get(1600 * MIB), long_one);
    assert_int_equal(fake->waits, 0);
    assert_int_equal(fake->orders, 1);
    assert_int_equal(fake->reserved_peak, 2500 * MIB);
}

static void what_could_not_be_had_then_either_is_not_waited_for(void **state) {
    (void)state;
    start_in_pages(64 * MIB, POOL_BARRIER, TIGHT);
    uint64_t live = get(40 * MIB), block = get(20 * MIB), address;
    drop_used(block, 20 * MIB);
    assert_int_equal(get(20 * MIB), block); /* behind a barrier */
    drop_used(block, 20 * MIB);
    fake->busy_for_ever = true;
    fake->waits = 0;
    assert_int_equal(pool_alloc(pool, 30 * MIB, &address), -ENOMEM);
    assert_int_equal(fake->waits, 0);
    fake->busy_for_ever = false;
    (void)live;
}

static void addresses_are_asked_for_down_to_what_is_needed(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, 0);
    fake->next = fake->base + ((uint64_t)64 << 30) - 10 * MIB; /* no more than that is left */
    assert_int_not_equal(get(10 * MIB), 0);
    assert_int_equal(fake->addresses, 10 * MIB);
}

/* Its pages are another's by now, and it would be left alone while there are addresses for a new one. */
static void without_addresses_any_free_window_will_do(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, 30 * MIB);
    fake->next =
        fake->base + ((uint64_t)64 << 30) - 62 * MIB; /* 32 for the first, 30 for the second */
    uint64_t block = get(10 * MIB), other;
    drop(block);
    finish_all();
    other = get(30 * MIB);
    assert_int_equal(fake->reserved, 30 * MIB);
    assert_int_equal(fake->addresses, 62 * MIB);
    assert_int_equal(get(10 * MIB), block);
    for (uint64_t at = block; at < block + 10 * MIB; at += PAGE) {
        for (uint64_t there = other; there < other + 30 * MIB; there += PAGE) {
            assert_int_not_equal(page_at(at), page_at(there));
        }
    }
    uint64_t address;
    assert_int_equal(pool_alloc(pool, 10 * MIB, &address), -ERANGE); /* none is free */
}

/* ---- giving back, and the end ---- */

static void idle_pages_go_back(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, TIGHT);
    for (uint64_t size = 3; size < 100; size += 7) {
        drop(get(size * MIB));
        finish_all();
    }
    uint64_t kept = get(10 * MIB);
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 10 * MIB);
    assert_int_equal(fake_books(pool).reserved.current, 10 * MIB);
    drop(kept);
    drop(get(100 * MIB));
}

static void what_still_runs_does_not_go_back(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, TIGHT);
    uint64_t block = get(8 * MIB);
    drop_used(block, 8 * MIB);
    fake->record_code = -EBUSY;
    pool_trim(pool, false);
    assert_int_equal(fake->reserved, 8 * MIB);
    fake->record_code = 0;
}

static void a_context_s_end_gives_everything_back(void **state) {
    (void)state;
    start_in_pages(GIB, POOL_BARRIER, 0);
    for (int life = 0; life < 3; life++) {
        get(40 * MIB);
        get(64 * KIB);
        uint64_t exported = get(8 * MIB);
        pool_mark_reached_from_outside(exported);
        drop(exported);
        fake_finish_all(fake);
        assert_int_equal(pool_forget(pool), 0); /* nothing went with the context */
        assert_int_equal(fake->reserved, 0);
        assert_int_equal(fake->addresses, 0);
        assert_int_equal(pool_free(exported), -ENOENT);
        assert_whole(pool);
    }
}

/* A program that needs so long for each block. */
#define BLOCK_NS 10000

static uint64_t block_ns;

static uint64_t clock_of_blocks(struct backend *backend) {
    (void)backend;
    return block_ns;
}

/* So many blocks of 2 to 64 MiB live; each is freed for another one, of a size that no other has had. What was mapped
 * meanwhile. */
static unsigned replace_at_random(uint64_t *blocks, unsigned count, unsigned times,
                                  unsigned *random) {
    unsigned before = fake->maps;
    for (unsigned i = 0; i < times; i++) {
        block_ns += BLOCK_NS;
        *random = *random * 1664525 + 1013904223;
        unsigned at = (*random >> 8) % count;
        if (blocks[at]) {
            drop(blocks[at]);
        }
        *random = *random * 1664525 + 1013904223;
        blocks[at] = get(2 * MIB + (*random >> 4) % (62 * MIB));
    }
    return fake->maps - before;
}

/* With addresses without end for them they would map ever more: the pages would lie in ever more windows. */
static void sizes_that_never_repeat_get_more_slack(void **state) {
    (void)state;
    start(8 * GIB, POOL_BARRIER, 0);
    struct backend_ops ops = *fake->backend.ops;
    const struct backend_ops *before = fake->backend.ops;
    ops.clock = clock_of_blocks;
    fake->backend.ops = &ops;
    uint64_t blocks[128] = {0};
    unsigned random = 1;
    replace_at_random(blocks, 128, 2000, &random);
    unsigned first = replace_at_random(blocks, 128, 2000, &random);
    assert_int_equal(pool->slack_doubled, 0); /* others have settled by then, but not before */
    replace_at_random(blocks, 128, 20000, &random);
    unsigned late = replace_at_random(blocks, 128, 2000, &random);
    uint64_t peak = books_get(&pool->books.allocated.peak);
    assert_true(late < first / 4 * 3);
    assert_true(pool->layouts.slot_count < 5 * pool->layouts.frame_count);
    assert_true(fake->reserved > peak + peak / PAGES_SLACK + 2 * PAGE);
    assert_true(fake->reserved <= peak + peak / PAGES_SLACK_MOST);
    for (unsigned i = 0; i < 20000; i++) {
        block_ns += BLOCK_NS;
        drop(get(8 * MIB));
    }
    assert_int_equal(pool->slack_doubled, 0); /* it is not needed any more */
    fake->backend.ops = before;
}

#define PAGES(name) cmocka_unit_test_setup_teardown(name, with_pages, stop)

int main(void) {
    const struct CMUnitTest tests[] = {
        PAGES(a_block_is_made_of_whole_pages),
        PAGES(what_is_freed_keeps_its_mappings),
        PAGES(a_program_that_repeats_itself_maps_nothing_any_more),
        PAGES(a_request_gets_the_window_it_had_the_last_time),
        PAGES(pages_come_from_anywhere),
        PAGES(small_blocks_get_the_pages_of_large_ones),
        PAGES(thousands_are_freed_as_fast_in_any_order),
        PAGES(a_page_is_mapped_elsewhere_when_its_work_has_finished),
        PAGES(a_slot_is_mapped_anew_when_its_work_has_finished),
        PAGES(exported_pages_go_to_no_other_block),
        PAGES(of_exported_pages_a_shorter_block_leaves_the_rest_alone),
        PAGES(what_was_exported_stays_so_whoever_finds_it),
        PAGES(frozen_no_mapped_page_is_moved),
        PAGES(frozen_a_window_is_used_whole_or_not_at_all),
        PAGES(frozen_while_pages_are_made),
        PAGES(frozen_for_a_while),
        PAGES(what_cannot_be_mapped_is_the_driver_s),
        PAGES(what_is_not_unmapped_is_in_nobody_s_way),
        PAGES(what_is_not_unmapped_is_handed_out_to_nobody),
        PAGES(what_is_not_unmapped_stays_the_driver_s),
        PAGES(a_refusal_in_the_middle_loses_nothing),
        PAGES(what_was_had_in_vain_is_told),
        PAGES(what_lies_idle_and_what_the_driver_has_make_a_block),
        PAGES(no_more_pages_are_made_than_are_lacking),
        PAGES(what_could_not_be_had_then_either_is_not_waited_for),
        PAGES(addresses_are_asked_for_down_to_what_is_needed),
        PAGES(without_addresses_any_free_window_will_do),
        PAGES(sizes_that_never_repeat_get_more_slack),
        PAGES(idle_pages_go_back),
        PAGES(what_still_runs_does_not_go_back),
        PAGES(a_context_s_end_gives_everything_back),
    };
    return cmocka_run_group_tests_name("layouts", tests, NULL, NULL);
}
