/*
 * Tests the ring of a trace: it keeps the last events, at any pace of the threads, and the older
 * allocations that are still live.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "child.h"
#include "driver/limit/unpooled_kind.h"
#include "large_pages.h"
#include "process/guard.h"
#include "trace/ring.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_THREADS 40
#define MOST_EVENTS 4100000
#define EVENTS 5000 /* the ring keeps at least this number */
#define LIVE 300    /* maximum of live blocks */

static int file;
static struct trace_header *header;
static struct ring_place places[MOST_THREADS];
static bool lives[MOST_EVENTS];
static uint64_t live[LIVE]; /* addresses of live blocks; 0: none */
static uint64_t now;        /* number of events so far; the time and address of the last one */

static bool is_alive(const struct trace_record *record, unsigned kind) {
    (void)kind;
    return lives[atomic_load(&record->address)];
}

/** Records an allocation. Its block stays live until the next one in `slot`; LIVE: not live. */
static void write_event(unsigned thread, unsigned slot) {
    struct ring_place *place = &places[thread];
    if (place->left == 0 && !ring_take(place, thread + 1))
        abort();
    now++;
    if (slot < LIVE) {
        lives[live[slot]] = false;
        live[slot] = now;
        lives[now] = true;
    }
    const uint64_t words[7] = {[0] = now, [1] = now};
    trace_put(place->next++, words, 0, 0, TRACE_ALLOCATE);
    place->left--;
}

/** Runs a test in a child, because a process opens the ring once. */
static void in_a_child(void (*run)(void)) {
    char path[] = "/tmp/ring-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    file = fd;
    pid_t child = fork();
    if (child == 0) {
        header = ring_open((struct ring_file){fd, path}, EVENTS, is_alive, NULL);
        if (header)
            run();
        _exit(header ? 0 : 2);
    }
    assert_int_equal(child_status(child), 0);
    close(fd);
    unlink(path);
}

static uint64_t kept(void) {
    return now - atomic_load(&header->dropped_until);
}

static void check_kept(const char *what) {
    if (now >= EVENTS && kept() < EVENTS) {
        fprintf(stderr, "%s: of %llu events the last %llu\n", what, (unsigned long long)now,
                (unsigned long long)kept());
        _exit(1);
    }
}

/** One thread fills its chunk slowly: the ring reuses the chunk only when it is full. */
static void one_slow_thread(void) {
    for (unsigned turn = 0; turn < 30; turn++) {
        write_event(1, LIVE);
        for (unsigned i = 0; i < 9000 + 100 * turn; i++) {
            write_event(0, LIVE);
            check_kept("a slow thread");
        }
        while (places[1].left > 0)
            write_event(1, LIVE);
        ring_leave(&places[1]);
    }
}

static void paces(unsigned seed, unsigned threads, unsigned alive) {
    unsigned pace[MOST_THREADS], sum = 0;
    srandom(seed);
    for (unsigned i = 0; i < threads; i++)
        sum += pace[i] = 1U << random() % 10;
    for (unsigned i = 0; i < 40000; i++) {
        unsigned thread = 0, at = (unsigned)random() % sum;
        for (; at >= pace[thread]; thread++)
            at -= pace[thread];
        write_event(thread, random() % 10 == 0 ? (unsigned)random() % alive : LIVE);
        if (random() % 3000 == 0)
            ring_leave(&places[random() % threads]);
        check_kept("paces");
    }
}

static void paces_at_random(void) {
    for (unsigned seed = 1; seed <= 100; seed++)
        paces(seed, 1 + seed * seed % MOST_THREADS, 1 + (seed * 7) % LIVE);
}

/** Checks that every live block has a record without the mark of dead blocks. */
static void check_live_blocks(void) {
    static bool found[MOST_EVENTS];
    paces(7, 20, LIVE);
    const struct trace_record *slots =
        (const struct trace_record *)((char *)header + TRACE_HEADER_BYTES);
    for (uint64_t i = 0; i < atomic_load(&header->slots); i++) {
        uint64_t head = atomic_load(&slots[i].head);
        if ((uint8_t)head == TRACE_ALLOCATE && !(head >> 8 & TRACE_DEAD))
            found[atomic_load(&slots[i].address)] = true;
    }
    for (unsigned i = 0; i < LIVE; i++)
        if (live[i] != 0 && !found[live[i]])
            _exit(3);
}

static void on_sigbus(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    if (!guard_repair(info))
        _exit(4);
}

/** Truncates the file at several moments, so that all state of the ring becomes zeros. */
static void cut_short(void) {
    const struct sigaction repair = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &repair, NULL);
    for (unsigned i = 0; i < 200000; i++) {
        if (i % 40000 == 20000 &&
            ftruncate(file, i < 100000 ? TRACE_HEADER_BYTES + 100000 : 0) != 0)
            _exit(5);
        write_event((unsigned)random() % 20, random() % 10 == 0 ? (unsigned)random() % LIVE : LIVE);
    }
    struct stat status;
    if (fstat(file, &status) != 0 || status.st_size != 0) /* the file must not grow again */
        _exit(6);
}

static void a_file_that_is_cut_short_ends_no_program(void **state) {
    (void)state;
    if (child_under_valgrind())
        skip();
    in_a_child(cut_short);
}

/** Another file has the path of the ring by now: another user may have exchanged the names. */
static void the_ring_grows_only_its_own_file(void **state) {
    (void)state;
    char path[] = "/tmp/ring-XXXXXX";
    int made = mkstemp(path);
    struct stat status;
    assert_int_equal(unlink(path), 0);
    int other = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(made >= 0 && other >= 0);
    pid_t child = fork();
    if (child == 0) /* the path leads to another file, so there is no ring */
        _exit(ring_open((struct ring_file){made, path}, EVENTS, is_alive, NULL) ? 1 : 0);
    int ended = child_status(child);
    assert_int_equal(fstat(other, &status), 0);
    unlink(path);
    close(made);
    close(other);
    assert_int_equal(ended, 0);
    assert_int_equal(status.st_size, 0);
}

static void a_slow_thread_costs_no_events(void **state) {
    (void)state;
    in_a_child(one_slow_thread);
}

static void the_last_events_are_there(void **state) {
    (void)state;
    in_a_child(paces_at_random);
}

static void live_blocks_have_their_records(void **state) {
    (void)state;
    in_a_child(check_live_blocks);
}

/** Files of older versions contain these numbers. Add a row for each new kind, and never change
 * one. */
static void the_numbers_of_kinds_in_files_never_change(void **state) {
    (void)state;
    static const unsigned kinds[][2] = {
        {0, TRACE_NONE},
        {1, TRACE_CHUNK},
        {2, TRACE_ALLOCATE},
        {3, TRACE_FREE},
        {4, TRACE_MAP},
        {5, TRACE_UNMAP},
        {6, TRACE_CONTEXT_END},
        {7, TRACE_UNPOOLED_TAKE},
        {8, TRACE_UNPOOLED_LEAVE},
        {9, TRACE_MARK},
        {10, TRACE_TEXT},
        {11, TRACE_STACK},
        {12, TRACE_FRAME},
        {13, TRACE_MODULE},
        {14, TRACE_MORE},
        {0, FLIGHT_ALLOCATE},
        {1, FLIGHT_FREE},
        {2, FLIGHT_GROW},
        {3, FLIGHT_GROW_REFUSED},
        {4, FLIGHT_LIMIT_REFUSED},
        {5, FLIGHT_GIVE_BACK},
        {6, FLIGHT_WAIT},
        {7, FLIGHT_OOM},
        {8, FLIGHT_REPORT},
        {9, FLIGHT_EMPTY_CACHE},
        {10, FLIGHT_RESET_PEAK},
        {11, FLIGHT_LIMIT},
        {66, TRACE_MOMENT_GROW},
        {75, TRACE_MOMENT_LIMIT},
        {0, UNPOOLED_NATIVE},
        {1, UNPOOLED_STREAM_ORDERED},
        {2, UNPOOLED_MANAGED},
        {3, UNPOOLED_VIRTUAL},
        {4, UNPOOLED_ARRAY},
        {5, UNPOOLED_PINNED_HOST},
        {6, UNPOOLED_IPC_IMPORTED},
        {7, UNPOOLED_POOL_IMPORTED},
        {8, UNPOOLED_HANDLE_IMPORTED},
        {9, UNPOOLED_MAPPING},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        assert_int_equal(kinds[i][0], kinds[i][1]);
    assert_int_equal(trace_metric(TRACE_CONTEXT_END, 0), 0); /* places in the header */
    assert_int_equal(trace_metric(TRACE_UNPOOLED_TAKE, UNPOOLED_NATIVE), 1);
    assert_int_equal(trace_metric(TRACE_UNPOOLED_LEAVE, UNPOOLED_HANDLE_IMPORTED), 9);
    assert_int_equal(sizeof(struct trace_device), 136 + 12 * 16);
}

static void write_past_a_step(void) {
    enum { PAST = 3 * (1 << 20) / TRACE_RECORD_BYTES };
    for (unsigned i = 0; i < PAST; i++)
        write_event(0, LIVE);
    check_kept("large pages");
    if (atomic_load(&header->refused) != 0)
        abort();
}

/* The header has 32 KiB: the first chunk does not begin with a host page. */
static void the_file_grows_on_large_host_pages(void **state) {
    (void)state;
    large_pages_start(65536);
    in_a_child(write_past_a_step);
    large_pages_end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_numbers_of_kinds_in_files_never_change),
        cmocka_unit_test(a_slow_thread_costs_no_events),
        cmocka_unit_test(a_file_that_is_cut_short_ends_no_program),
        cmocka_unit_test(the_ring_grows_only_its_own_file),
        cmocka_unit_test(the_last_events_are_there),
        cmocka_unit_test(live_blocks_have_their_records),
        cmocka_unit_test(the_file_grows_on_large_host_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
