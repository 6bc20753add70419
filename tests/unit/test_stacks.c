/*
 * Tests the call stacks of live blocks: equal stacks, the bytes of each stack, the peak, bytes x
 * time, and the bounds of the tables.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "stacks/live_blocks.h"
#include "stacks/module.h"
#include "stacks/stacks.h"
#include "stats/holders.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SITES 64 /* stacks in the table; the last 4 are for stacks without frames */
#define BLOCKS 8 /* blocks in each part of the table */
#define KIB ((uint64_t)1 << 10)

/* ---- two call sites that allocate, and the holders ---- */

static __attribute__((noinline)) void directly_here(int device, uint64_t address, uint64_t bytes) {
    stacks_add(stacks_here(device), address, bytes, false);
    __asm__ volatile("");
}

static __attribute__((noinline)) void directly_there(int device, uint64_t address, uint64_t bytes) {
    stacks_add(stacks_here(device), address, bytes, false);
    __asm__ volatile("");
}

/* An allocation in a new thread, so that the stack has no frame of the test. */
struct taking {
    void (*where)(int device, uint64_t address, uint64_t bytes);
    uint64_t address, bytes;
    int device;
};

static void *take(void *with) {
    const struct taking *taking = with;
    taking->where(taking->device, taking->address, taking->bytes);
    return NULL;
}

static void in_thread(struct taking taking) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, take, &taking), 0);
    pthread_join(thread, NULL);
}

static void here(int device, uint64_t address, uint64_t bytes) {
    in_thread((struct taking){directly_here, address, bytes, device});
}

static void there(int device, uint64_t address, uint64_t bytes) {
    in_thread((struct taking){directly_there, address, bytes, device});
}

static void forget(uint64_t address) {
    struct stacks_block block;
    assert_true(stacks_remove(address, &block));
    assert_int_equal(block.address, address);
}

static const struct stats_stacks *view(void) {
    const struct stats_stacks *stacks = stacks_view();
    assert_non_null(stacks);
    return stacks;
}

static struct stats_held held(int device) {
    return view()->held(view()->of, device);
}

/* Lists the holders of a device in the order of their first allocation. Returns their number. */
static unsigned holders(int device, struct stats_holder *list, unsigned most) {
    unsigned count = 0;
    uint32_t at = 0;
    while (count < most && view()->next(view()->of, device, &at, &list[count]))
        count++;
    return count;
}

static struct stats_holder only_holder(int device) {
    struct stats_holder list[2];
    assert_int_equal(holders(device, list, 2), 1);
    return list[0];
}

/* Returns a new device for each test, because stacks of a device are never dropped. */
static int fresh_device(void) {
    static int next;
    return next++;
}

/* ---- the tests ---- */

static void equal_stacks_are_one_holder(void **state) {
    (void)state;
    int device = fresh_device();
    struct stats_holder list[4];
    for (uint64_t i = 1; i <= 5; i++)
        here(device, i << 20, 100);
    assert_int_equal(holders(device, list, 4), 1);
    for (uint64_t i = 6; i <= 7; i++)
        there(device, i << 20, 1000);
    assert_int_equal(holders(device, list, 4), 2);
    assert_int_equal(list[0].held.live.bytes, 500);
    assert_int_equal(list[0].held.live.count, 5);
    assert_int_equal(list[1].held.live.bytes, 2000);
    assert_int_equal(held(device).live.bytes, 2500);
    int other = fresh_device();
    here(other, (uint64_t)8 << 20, 1);
    assert_int_equal(only_holder(other).held.live.bytes, 1);
    assert_int_equal(holders(device, list, 4), 2);
    for (uint64_t i = 1; i <= 8; i++)
        forget(i << 20);
    struct stacks_block block;
    assert_false(stacks_remove((uint64_t)8 << 20, &block));
    assert_int_equal(held(device).live.count, 0);
    assert_int_equal(held(other).live.count, 0);
}

static void frames_name_the_file_and_where_in_it(void **state) {
    (void)state;
    int device = fresh_device();
    const char *path = NULL, *build_id = NULL;
    char self[512] = "";
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    here(device, 1 << 20, 1);
    struct stats_frame frame;
    bool found = false;
    Dl_info info;
    assert_true(dladdr((void *)(uintptr_t)directly_here, &info) != 0);
    uint64_t low = (uintptr_t)directly_here - (uintptr_t)info.dli_fbase, high = low + 64;
    for (unsigned i = 0; view()->frame(view()->of, only_holder(device).stack, i, &frame); i++) {
        assert_null(frame.function);
        found |= frame.file && strcmp(frame.file, self) == 0 && frame.offset > low &&
                 frame.offset < high;
    }
    assert_true(found);
    found = false;
    for (uint32_t i = 0; view()->module(view()->of, i, &path, &build_id); i++)
        found |= strcmp(path, self) == 0;
    assert_true(found);
    forget(1 << 20);
}

static void the_peak_lists_the_bytes_of_each_stack_at_that_time(void **state) {
    (void)state;
    int device = fresh_device();
    struct stats_holder list[2];
    here(device, 1 << 20, 500);
    there(device, 2 << 20, 300); /* the peak: 800 bytes */
    forget(1 << 20);
    there(device, 3 << 20, 400); /* 700 bytes live */
    assert_int_equal(held(device).peak.bytes, 800);
    assert_int_equal(holders(device, list, 2), 2);
    assert_int_equal(list[0].held.peak.bytes, 500);
    assert_int_equal(list[0].held.live.bytes, 0);
    assert_int_equal(list[1].held.peak.bytes, 300);
    assert_int_equal(list[1].held.peak.count, 1);
    assert_int_equal(list[1].held.live.bytes, 700);
    here(device, 4 << 20, 200); /* a new peak: 900 bytes */
    forget(4 << 20);
    holders(device, list, 2);
    assert_int_equal(held(device).peak.bytes, 900);
    assert_int_equal(list[0].held.peak.bytes, 200);
    assert_int_equal(list[1].held.peak.bytes, 700);
    forget(3 << 20);
    stacks_reset_peak(device);
    holders(device, list, 2);
    assert_int_equal(held(device).peak.bytes, 300);
    assert_int_equal(list[0].held.peak.bytes, 0);
    assert_int_equal(list[1].held.peak.bytes, 300);
    forget(2 << 20);
}

/* Compares with a copy of all holders at every new peak. */
static void random_peaks_are_those_of_a_copy(void **state) {
    (void)state;
    int device = fresh_device();
    enum { SLOTS = 40 };
    uint64_t bytes[SLOTS] = {0}, live[2] = {0}, at_peak[2] = {0}, peak = 0;
    unsigned owner[SLOTS] = {0};
    struct stats_holder list[2];
    srand(7);
    for (unsigned step = 0; step < 8000; step++) {
        unsigned slot = (unsigned)rand() % SLOTS;
        uint64_t address = (uint64_t)(slot + 1) << 9;
        if (bytes[slot] > 0) {
            forget(address);
            live[owner[slot]] -= bytes[slot];
            bytes[slot] = 0;
        } else {
            owner[slot] = (unsigned)rand() % 2;
            bytes[slot] = 1 + (uint64_t)rand() % KIB;
            live[owner[slot]] += bytes[slot];
            (owner[slot] ? there : here)(device, address, bytes[slot]);
        }
        if (live[0] + live[1] > peak) {
            peak = live[0] + live[1];
            memcpy(at_peak, live, sizeof live);
        }
        if (step > 100 && step % 64 == 0) {
            assert_int_equal(holders(device, list, 2), 2);
            unsigned first =
                list[0].held.live.bytes == live[0] && list[1].held.live.bytes == live[1] ? 0 : 1;
            assert_int_equal(list[0].held.live.bytes, live[first]);
            assert_int_equal(list[1].held.live.bytes, live[1 - first]);
            assert_int_equal(list[0].held.peak.bytes, at_peak[first]);
            assert_int_equal(list[1].held.peak.bytes, at_peak[1 - first]);
            assert_int_equal(held(device).peak.bytes, peak);
        }
    }
    for (unsigned slot = 0; slot < SLOTS; slot++)
        if (bytes[slot] > 0)
            forget((uint64_t)(slot + 1) << 9);
}

static double byte_seconds(const struct stats_holder *holder) {
    return (double)holder->byte_seconds + holder->byte_seconds_ns * 1e-9;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* bytes x time lies between the times measured just inside and just outside. */
static void bytes_times_time_add_up(void **state) {
    (void)state;
    int device = fresh_device();
    const uint64_t big = (uint64_t)1 << 50, small = 1000; /* bytes x ns needs more than 64 bits */
    double outer[2], inner[2];
    outer[0] = seconds();
    here(device, 1 << 20, big);
    inner[0] = seconds();
    usleep(20000);
    struct stats_holder holder = only_holder(device); /* live blocks count up to now */
    assert_true(byte_seconds(&holder) >= (double)big * 0.02);
    here(device, 2 << 20, small);
    inner[1] = seconds();
    forget(1 << 20);
    outer[1] = seconds();
    forget(2 << 20);
    holder = only_holder(device);
    assert_true(byte_seconds(&holder) >= (double)big * (inner[1] - inner[0]) * 0.999999);
    assert_true(byte_seconds(&holder) <=
                (double)big * (outer[1] - outer[0]) + (double)small * (seconds() - inner[0]));
    double then = byte_seconds(&holder);
    usleep(2000);
    holder = only_holder(device); /* no block is live */
    assert_true(byte_seconds(&holder) == then);
    assert_int_equal(holder.total.bytes, big + small);
    assert_int_equal(holder.total.count, 2);
}

static void a_free_that_was_refused_changes_nothing(void **state) {
    (void)state;
    int device = fresh_device();
    struct stacks_block block;
    here(device, 1 << 20, 100);
    assert_true(stacks_remove(1 << 20, &block));
    stacks_restore(&block);
    struct stats_holder holder = only_holder(device);
    assert_int_equal(holder.held.live.bytes, 100);
    assert_int_equal(holder.total.bytes, 100);
    assert_int_equal(holder.total.count, 1);
    forget(1 << 20);
}

static void a_reused_address_belongs_to_its_last_stack(void **state) {
    (void)state;
    int device = fresh_device();
    struct stats_holder list[2];
    here(device, 1 << 20, 100);
    there(device, 1 << 20, 30);
    assert_int_equal(holders(device, list, 2), 2);
    assert_int_equal(list[0].held.live.bytes, 0);
    assert_int_equal(list[1].held.live.bytes, 30);
    forget(1 << 20);
    assert_int_equal(held(device).live.bytes, 0);
}

static bool is_below(uint64_t address, const void *bound) {
    return address < *(const uint64_t *)bound;
}

static void blocks_of_an_ended_context_are_dropped(void **state) {
    (void)state;
    int device = fresh_device();
    uint64_t bound = (uint64_t)100 << 20;
    for (uint64_t i = 90; i < 110; i++)
        here(device, i << 20, 10);
    stacks_remove_if(is_below, &bound);
    assert_int_equal(held(device).live.count, 10);
    assert_int_equal(held(device).live.bytes, 100);
    bound = UINT64_MAX;
    stacks_remove_if(is_below, &bound);
    assert_int_equal(held(device).live.count, 0);
}

static void sizes_stand_with_their_stacks(void **state) {
    (void)state;
    int device = fresh_device();
    static struct stats_device stats;
    here(device, 1 << 20, 100);
    here(device, 2 << 20, 100);
    there(device, 3 << 20, 100);
    there(device, 4 << 20, 7);
    assert_true(stacks_read_live(device, &stats));
    assert_int_equal(stats.live_groups, 3);
    assert_int_equal(stats.live[0].bytes, 100);
    assert_int_equal(stats.live[0].count, 2);
    assert_int_equal(stats.live[1].count, 1);
    assert_int_not_equal(stats.live_stacks[0], stats.live_stacks[1]);
    assert_int_equal(stats.live_stacks[1], stats.live_stacks[2]);
    for (uint64_t i = 1; i <= 4; i++)
        forget(i << 20);
}

/* ---- many threads ---- */

#define THREADS 8
#define ROUNDS 3000

static int busy_device;

static void *allocate_and_free(void *number) {
    uint64_t mine = ((uint64_t)(uintptr_t)number + 1) << 30;
    for (unsigned i = 0; i < ROUNDS; i++) {
        (i % 2 ? directly_here : directly_there)(busy_device, mine, 10);
        directly_here(busy_device, mine + 512, 1);
        struct stacks_block block;
        if (!stacks_remove(mine, &block) || !stacks_remove(mine + 512, &block))
            abort();
    }
    return NULL;
}

static void threads_leave_the_counters_in_order(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    struct stats_holder list[8];
    static struct stats_device stats;
    busy_device = fresh_device();
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, allocate_and_free, (void *)i), 0);
    for (unsigned i = 0; i < 200; i++) { /* reports while the threads allocate */
        unsigned count = holders(busy_device, list, 8);
        for (unsigned k = 0; k < count; k++)
            assert_true(list[k].held.live.bytes <= THREADS * 11);
        stacks_read_live(busy_device, &stats);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    unsigned count = holders(busy_device, list, 8);
    assert_int_equal(count, 3); /* the two call sites, and the one of allocate_and_free() */
    uint64_t total = 0;
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(list[i].held.live.bytes, 0);
        assert_int_equal(list[i].held.live.count, 0);
        total += list[i].total.bytes;
    }
    assert_int_equal(total, (uint64_t)THREADS * ROUNDS * 11);
    assert_in_range(held(busy_device).peak.bytes, 10, THREADS * 11);
}

static void *take_one(void *device) {
    directly_here(*(int *)device, 1 << 20, 1);
    return NULL;
}

/* Also in a thread with the smallest stack that the system allows. */
static void a_small_stack_is_enough(void **state) {
    (void)state;
    int device = fresh_device();
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    assert_int_equal(pthread_attr_setstacksize(&small, (size_t)sysconf(_SC_THREAD_STACK_MIN)), 0);
    if (pthread_create(&thread, &small, take_one, &device) != 0)
        skip(); /* threads of a sanitizer need larger stacks */
    pthread_join(thread, NULL);
    pthread_attr_destroy(&small);
    assert_int_equal(only_holder(device).held.live.count, 1);
    forget(1 << 20);
}

/* ---- the bounds; last, because they are reached ---- */

static __attribute__((noinline)) void deep(unsigned levels, int device, uint64_t address) {
    if (levels == 0)
        stacks_add(stacks_here(device), address, 1, false);
    else
        deep(levels - 1, device, address);
    __asm__ volatile("");
}

static void blocks_beyond_the_bound_are_counted(void **state) {
    (void)state;
    int device = fresh_device();
    uint64_t count = 0;
    for (uint64_t i = 1; i <= 64 * BLOCKS; i++)
        directly_here(device, i << 20, 1);
    uint64_t lost = view()->recording(view()->of).lost_blocks;
    assert_true(lost > 0);
    for (uint64_t i = 1; i <= 64 * BLOCKS; i++) {
        struct stacks_block block;
        count += stacks_remove(i << 20, &block);
    }
    assert_int_equal(count + lost, 64 * BLOCKS);
    assert_int_equal(held(device).peak.count, count);
    assert_int_equal(held(device).live.count, 0);
}

static void stacks_beyond_the_bound_share_one_without_frames(void **state) {
    (void)state;
    int device = fresh_device();
    struct stats_holder list[SITES];
    struct stats_frame frame;
    unsigned count, without = 0;
    for (unsigned i = 0; i < SITES; i++) {
        deep(i % 16, device + (int)i / 16, 1 << 20);
        forget(1 << 20);
    }
    for (int i = 0; i < 4; i++) {
        count = holders(device + i, list, SITES);
        for (unsigned k = 0; k < count; k++)
            if (!view()->frame(view()->of, list[k].stack, 0, &frame))
                without += (unsigned)list[k].total.count;
    }
    assert_true(without > 0);
    assert_int_equal(without, view()->recording(view()->of).lost_stacks);
}

/* libunwind takes a lock at a thread's end, after ThreadSanitizer has removed the thread. Returns
 * NULL for it in such builds, so that libc's backtrace() is used. */
static void *look_up(void *handle, const char *name) {
#ifdef __SANITIZE_THREAD__
    if (strcmp(name, "unw_backtrace") == 0)
        return NULL;
#endif
    return dlsym(handle, name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_stacks_are_one_holder),
        cmocka_unit_test(frames_name_the_file_and_where_in_it),
        cmocka_unit_test(the_peak_lists_the_bytes_of_each_stack_at_that_time),
        cmocka_unit_test(random_peaks_are_those_of_a_copy),
        cmocka_unit_test(bytes_times_time_add_up),
        cmocka_unit_test(a_free_that_was_refused_changes_nothing),
        cmocka_unit_test(a_reused_address_belongs_to_its_last_stack),
        cmocka_unit_test(blocks_of_an_ended_context_are_dropped),
        cmocka_unit_test(sizes_stand_with_their_stacks),
        cmocka_unit_test(threads_leave_the_counters_in_order),
        cmocka_unit_test(a_small_stack_is_enough),
        cmocka_unit_test(stacks_beyond_the_bound_share_one_without_frames),
        cmocka_unit_test(blocks_beyond_the_bound_are_counted),
    };
    stacks_bounds = (struct stacks_bounds){.sites = SITES, .blocks_of_part = BLOCKS};
    assert_true(stacks_start(24, look_up));
    return cmocka_run_group_tests_name("stacks", tests, NULL, NULL);
}
