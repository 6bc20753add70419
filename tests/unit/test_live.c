/*
 * Tests the live page in one process: a reader during writes, the checks of names and folders, and
 * the flight recorder with many writers. All counters of the fake statistics have the same value,
 * so a mixture of two states shows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "live/live.h"
#include "live/place.h"
#include "options/options.h"
#include "stats/holders.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITERS 4
#define EACH 60000
#define FOR_EVER_NS 3600000000000

static _Atomic uint64_t turn;
static char folder[] = "/tmp/gpucache-test-XXXXXX";

const struct stats_stacks *stats_stacks(void) {
    return NULL;
}

uint64_t stats_host_bytes(void) {
    return 0;
}

bool stats_read_counters(int ordinal, struct stats_device *out) {
    uint64_t now = atomic_fetch_add(&turn, 1) + 1;
    if (ordinal != 0)
        return false;
    *out = (struct stats_device){.ordinal = 0, .name = "made up", .backend = "segments"};
#define METRIC(field, json, label) out->field = (struct stats_metric){now, now, now, now};
#define UNPOOLED(field, json) out->field = (struct stats_metric){now, now, now, now};
#define GAUGE(field) out->field = now;
#define COUNTER(field) out->field = now;
#include "stats/fields.def"
    return true;
}

bool stats_read(int ordinal, struct stats_device *out, struct segment_map *map) {
    if (map)
        map->count = 0;
    return stats_read_counters(ordinal, out);
}

int stats_device_count(void) {
    return 1;
}

/* ---- the page ---- */

static struct live_page *open_page(int *count) {
    char path[PLACE_PATH], name[PLACE_NAME];
    struct live_identity self = place_self();
    assert_true(place_folder(0, path));
    int place = place_open(path, false);
    place_name(&self, name);
    int fd = openat(place, name, O_RDWR);
    struct stat file;
    *count = fd >= 0;
    if (fd < 0)
        return NULL;
    assert_int_equal(fstat(fd, &file), 0);
    void *memory = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    close(fd);
    close(place);
    return memory;
}

/** Returns the value that all counters of a published copy have; 0: they differ. */
static uint64_t read_copy(const struct live_slot *slot) {
    struct live_device copy;
    for (;;) {
        uint64_t published = atomic_load_explicit(&slot->published, memory_order_acquire);
        memcpy(&copy, &slot->copies[published % 2], sizeof copy);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load(&slot->published) == published)
            break;
    }
    uint64_t number = copy.stats.requested.current;
    bool same = true;
#define METRIC(field, json, label)                                                                 \
    same &= copy.stats.field.peak == number && copy.stats.field.freed == number;
#define UNPOOLED(field, json) same &= copy.stats.field.total == number;
#define GAUGE(field) same &= copy.stats.field == number;
#define COUNTER(field) same &= copy.stats.field == number;
#include "stats/fields.def"
    return same ? number : 0;
}

static void no_signal_where_no_file_may_be_so_large(void **state) {
    (void)state;
    int status;
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit little = {4096, 4096};
        setrlimit(RLIMIT_FSIZE, &little);
        live_start(2);
        live_refresh(true);
        flight_event(FLIGHT_GROW, 0, 0, 0, 0);
        _exit(atomic_load(&live_page) ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void no_page_where_there_are_no_addresses_for_it(void **state) {
    (void)state;
    int status, there;
    const char *preloaded = getenv("LD_PRELOAD");
    if (preloaded && strstr(preloaded, "vgpreload"))
        skip(); /* valgrind needs addresses for itself */
    if (getenv("GPUCACHE_TEST_EMULATED"))
        skip(); /* qemu-user ignores RLIMIT_AS, because its own memory would count */
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit little = {4096, 4096};
        setrlimit(RLIMIT_AS, &little);
        live_start(2);
        live_refresh(true);
        _exit(atomic_load(&live_page) ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_null(open_page(&there));
}

static void *refresh_often(void *unused) {
    for (int i = 0; i < 40000; i++)
        live_refresh(i % 64 == 0);
    return unused;
}

static void a_reader_sees_whole_copies_only(void **state) {
    (void)state;
    int there;
    pthread_t threads[2];
    live_start(2);
    struct live_page *page = open_page(&there);
    assert_true(there);
    assert_int_equal(atomic_load(&page->magic), LIVE_MAGIC);
    assert_int_equal(page->slots, 2);
    assert_int_equal(atomic_load(&page->devices[1].published), 0);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, refresh_often, NULL);
    uint64_t last = 0;
    for (int i = 0; i < 100000; i++) {
        uint64_t now = read_copy(&page->devices[0]);
        assert_true(now != 0 && now >= last);
        last = now;
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

static void a_question_is_answered_once_it_has_been_asked(void **state) {
    (void)state;
    int there;
    struct live_page *page = open_page(&there);
    assert_true(there);
    live_refresh(false);
    uint32_t asked = atomic_fetch_add(&page->asked, 1) + 1;
    uint64_t before = atomic_load(&turn);
    assert_false(live_is_answered(atomic_load(&page->answered), asked));
    live_wait(FOR_EVER_NS); /* returns at once */
    live_refresh(false);
    assert_true(live_is_answered(atomic_load(&page->answered), asked));
    assert_true(read_copy(&page->devices[0]) > before);
    assert_true(live_is_answered(0, UINT32_MAX)); /* question numbers wrap around */
    assert_false(live_is_answered(UINT32_MAX, 0));
}

static void *ask(void *page) {
    _Atomic uint32_t *asked = &((struct live_page *)page)->asked;
    while (syscall(SYS_futex, asked, FUTEX_WAKE, 1, NULL, NULL, 0) == 0) /* until it waits */
        usleep(1000);
    return NULL;
}

static void a_reader_with_a_mapping_of_its_own_ends_the_wait(void **state) {
    (void)state;
    int there;
    pthread_t thread;
    struct live_page *page = open_page(&there);
    live_refresh(false);
    live_wait(1000000); /* nobody asks */
    assert_int_equal(pthread_create(&thread, NULL, ask, page), 0);
    live_wait(FOR_EVER_NS);
    pthread_join(thread, NULL);
}

static void an_order_is_taken_once(void **state) {
    (void)state;
    int there;
    struct live_request wish;
    struct live_page *page = open_page(&there);
    assert_true(there);
    assert_false(live_take_order(&wish));
    atomic_store(&page->order_value, 77);
    atomic_store(&page->order_device, UINT64_MAX);
    atomic_fetch_add(&page->order_number, 1);
    atomic_store(&page->order, LIVE_LIMIT);
    assert_int_equal(live_next_order(), LIVE_LIMIT);
    live_hold_up(LIVE_IN_CAPTURE);
    assert_int_equal(atomic_load(&page->order_held_up), LIVE_IN_CAPTURE);
    assert_true(live_take_order(&wish));
    assert_int_equal(live_next_order(), 0);
    assert_int_equal(wish.order, LIVE_LIMIT);
    assert_int_equal(wish.value, 77);
    assert_int_equal(wish.device, -1);
    assert_int_equal(atomic_load(&page->order), 0); /* no reader can withdraw the order any more */
    assert_false(live_take_order(&wish));
    live_order_done(&wish, -EBUSY);
    assert_int_equal(atomic_load(&page->order_done), atomic_load(&page->order_number));
    assert_int_equal(atomic_load(&page->order_result), -EBUSY);
}

static void an_order_that_was_given_up_is_not_taken(void **state) {
    (void)state;
    int there;
    struct live_request wish;
    struct live_page *page = open_page(&there);
    atomic_fetch_add(&page->order_number, 1);
    atomic_store(&page->order, LIVE_LIMIT);
    assert_int_equal(atomic_exchange(&page->order, 0), LIVE_LIMIT);
    assert_false(live_take_order(&wish));
}

static void a_damaged_page_is_written_within_its_bounds(void **state) {
    (void)state;
    int there;
    struct live_page *page = open_page(&there);
    uint32_t slots = page->slots;
    page->slots = UINT32_MAX;
    live_refresh(true);
    page->slots = slots;
}

static void a_child_has_no_page(void **state) {
    (void)state;
    int there, status;
    struct live_page *page = open_page(&there);
    uint64_t before = atomic_load(&page->devices[0].published);
    pid_t child = fork();
    if (child == 0) { /* a fork of which no handler was told */
        live_refresh(true);
        live_end(PROCESS_EXECS, 0);
        live_end(PROCESS_EXITS, 0);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(atomic_load(&page->devices[0].published), before);
    assert_int_equal(atomic_load(&page->ending), LIVE_RUNNING);
    assert_non_null(open_page(&there));
}

static void the_page_is_gone_at_the_end(void **state) {
    (void)state;
    int there;
    live_end(PROCESS_EXITS, 0);
    assert_null(open_page(&there));
    live_refresh(false); /* another thread of an ending process */
    atomic_store(&live_page, NULL);
    flight_block(FLIGHT_ALLOCATE, 0, 1, 1);
    live_wait(1);
}

/* ---- the flight recorder ---- */

static struct live_page *rings;

static void *fly(void *arg) {
    for (uint64_t i = 1; i <= EACH; i++) {
        uint64_t value = (uint64_t)(uintptr_t)arg << 32 | i;
        flight_block(FLIGHT_ALLOCATE, 3, value, ~value);
        if (i % 16 == 0)
            flight_event(FLIGHT_GROW, 3, value, ~value, 0);
    }
    return NULL;
}

static void look(uint64_t *seen) {
    for (unsigned r = 0; r < FLIGHT_RINGS; r++) {
        for (unsigned i = 0; i < FLIGHT_EVENTS; i++) {
            struct flight_event *event = &rings->rings[r].events[i];
            uint64_t number = atomic_load_explicit(&event->number, memory_order_relaxed);
            uint64_t address = atomic_load_explicit(&event->address, memory_order_relaxed);
            uint64_t bytes = atomic_load_explicit(&event->bytes, memory_order_relaxed);
            uint64_t rest = atomic_load_explicit(&event->rest, memory_order_relaxed);
            unsigned kind = (uint16_t)(rest >> 16);
            uint64_t seal =
                flight_seal(number, event->time_ns, address, bytes, event->duration_ns, rest);
            if (number == 0 || event->seal != seal)
                continue;
            assert_int_equal(address, ~bytes);
            assert_int_equal(number % FLIGHT_EVENTS, i);
            assert_int_equal(kind, r == 0 ? FLIGHT_GROW : FLIGHT_ALLOCATE);
            *seen += 1;
        }
    }
}

static void events_of_many_writers_are_whole_if_their_seal_is_right(void **state) {
    (void)state;
    pthread_t threads[WRITERS];
    uint64_t seen = 0, last = 0;
    rings = aligned_alloc(64, (sizeof *rings + 63) / 64 * 64);
    assert_non_null(rings);
    memset(rings, 0, sizeof *rings);
    atomic_store(&live_page, rings);
    for (uintptr_t i = 0; i < WRITERS; i++)
        pthread_create(&threads[i], NULL, fly, (void *)(i + 1));
    for (int i = 0; i < 300; i++)
        look(&seen);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    look(&seen);
    assert_true(seen > 0);
    for (unsigned r = 1; r < FLIGHT_RINGS; r++)
        last += atomic_load(&rings->rings[r].last);
    assert_int_equal(last, WRITERS * EACH);
    assert_int_equal(atomic_load(&rings->rings[0].last), WRITERS * (EACH / 16));
    atomic_store(&live_page, NULL);
    free(rings);
}

/* ---- where pages lie ---- */

static void names_lead_back_to_their_process(void **state) {
    (void)state;
    static const char *const others[] = {
        "",       "1",     "1-2",   "1-2-",   "-1-2-3", "1-2-3-4", "01-2-3",         "1-+2-3",
        "1- 2-3", "0-2-3", "a-2-3", "1-2-3x", ".",      "..",      "99999999999-1-1"};
    struct live_identity who = {.pid = 4711, .start = 123456789, .pid_namespace = 4026531836},
                         again;
    char name[PLACE_NAME];
    place_name(&who, name);
    assert_string_equal(name, "4711-123456789-4026531836");
    assert_true(place_parse(name, &again));
    assert_int_equal(again.pid, who.pid);
    assert_int_equal(again.start, who.start);
    assert_int_equal(again.pid_namespace, who.pid_namespace);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(place_parse(others[i], &again));
}

static void a_process_is_told_by_number_start_and_namespace(void **state) {
    (void)state;
    struct live_identity self = place_self(), other = self;
    assert_true(self.start != 0 && self.pid_namespace != 0 && place_stack(self.pid) != 0);
    assert_int_equal(place_life(&self, self.pid_namespace), PLACE_ALIVE);
    assert_int_equal(place_life(&self, self.pid_namespace + 1), PLACE_ELSEWHERE);
    other.start++;
    assert_int_equal(place_life(&other, self.pid_namespace), PLACE_DEAD);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    other = (struct live_identity){.pid = child, .pid_namespace = self.pid_namespace};
    assert_int_equal(place_life(&other, self.pid_namespace), PLACE_DEAD); /* a zombie */
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(place_life(&other, self.pid_namespace), PLACE_DEAD);
}

static void a_folder_is_the_users_alone(void **state) {
    (void)state;
    char path[64], link[64];
    snprintf(path, sizeof path, "%s/one", folder);
    snprintf(link, sizeof link, "%s/link", folder);
    assert_int_equal(place_open(path, false), -ENOENT);
    mode_t before = umask(0777);
    int fd = place_open(path, true);
    umask(before);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(symlink(path, link), 0);
    assert_true(place_open(link, true) < 0);
    assert_int_equal(chmod(path, 0750), 0);
    assert_int_equal(place_open(path, true), -EPERM);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(unlink(link), 0);
}

/** Makes fstat() and fstatat() fail, as a sandbox may. */
static bool refuse_stat(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_newfstatat, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fstat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void a_spare_folder_that_cannot_be_used_is_removed(void **state) {
    (void)state;
    int status;
    pid_t child = fork();
    if (child == 0) {
        char path[PLACE_PATH];
        if (!refuse_stat())
            _exit(77);
        bool failed = place_open_spare(path) == -EPERM;
        _exit(failed && access(path, F_OK) != 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip(); /* no seccomp here */
    assert_int_equal(status, 0);
}

static bool sweep_leaves(uint64_t refreshed_s) {
    struct live_identity who = {.pid = 12, .start = 34, .pid_namespace = 56};
    struct live_page *page = calloc(1, (sizeof *page + 63) / 64 * 64);
    char path[64], name[PLACE_NAME];
    assert_non_null(page);
    atomic_store(&page->refreshed_ns, refreshed_s * 1000000000);
    snprintf(path, sizeof path, "%s/two", folder);
    int place = place_open(path, true);
    place_name(&who, name);
    int fd = openat(place, name, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(write(fd, page, sizeof *page) == (ssize_t)sizeof *page);
    close(fd);
    free(page);
    unsigned removed = place_sweep(place, 0, 1000);
    bool there = faccessat(place, name, F_OK, 0) == 0;
    assert_int_equal(removed, !there);
    unlinkat(place, name, 0);
    close(place);
    rmdir(path);
    return there;
}

static void pages_of_reused_process_ids_are_removed(void **state) {
    (void)state;
    char path[64], name[PLACE_NAME];
    struct live_identity who = place_self();
    snprintf(path, sizeof path, "%s/three", folder);
    int place = place_open(path, true);
    assert_true(place >= 0);
    assert_false(place_is_full(place));
    for (unsigned i = 0; i < 200; i++) {
        who.start += i > 0;
        place_name(&who, name);
        close(openat(place, name, O_RDWR | O_CREAT | O_EXCL, 0600));
    }
    assert_true(place_is_full(place));
    assert_int_equal(place_sweep(place, 0, PLACE_SILENT_S), 199);
    assert_false(place_is_full(place));
    who = place_self();
    place_name(&who, name);
    assert_int_equal(unlinkat(place, name, 0), 0);
    close(place);
    assert_int_equal(rmdir(path), 0);
}

static void a_page_of_another_namespace_is_removed_after_a_long_silence(void **state) {
    (void)state;
    uint64_t now = clock_ns(CLOCK_MONOTONIC) / 1000000000;
    assert_true(sweep_leaves(now));
    assert_true(sweep_leaves(now > 900 ? now - 900 : 0));
    if (now > 1100) /* else the uptime of the machine is too short */
        assert_false(sweep_leaves(now - 1100));
}

static void a_runtime_folder_that_others_can_write_to_has_no_pages(void **state) {
    (void)state;
    char path[PLACE_PATH];
    assert_true(place_folder(0, path));
    assert_int_equal(chmod(folder, 0770), 0);
    assert_false(place_folder(0, path));
    assert_int_equal(chmod(folder, 0700), 0);
    assert_true(place_folder(0, path));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_lead_back_to_their_process),
        cmocka_unit_test(a_process_is_told_by_number_start_and_namespace),
        cmocka_unit_test(a_folder_is_the_users_alone),
        cmocka_unit_test(a_spare_folder_that_cannot_be_used_is_removed),
        cmocka_unit_test(pages_of_reused_process_ids_are_removed),
        cmocka_unit_test(a_page_of_another_namespace_is_removed_after_a_long_silence),
        cmocka_unit_test(no_signal_where_no_file_may_be_so_large),
        cmocka_unit_test(no_page_where_there_are_no_addresses_for_it),
        cmocka_unit_test(a_reader_sees_whole_copies_only),
        cmocka_unit_test(a_question_is_answered_once_it_has_been_asked),
        cmocka_unit_test(a_reader_with_a_mapping_of_its_own_ends_the_wait),
        cmocka_unit_test(an_order_is_taken_once),
        cmocka_unit_test(an_order_that_was_given_up_is_not_taken),
        cmocka_unit_test(a_damaged_page_is_written_within_its_bounds),
        cmocka_unit_test(a_child_has_no_page),
        cmocka_unit_test(the_page_is_gone_at_the_end),
        cmocka_unit_test(events_of_many_writers_are_whole_if_their_seal_is_right),
        cmocka_unit_test(a_runtime_folder_that_others_can_write_to_has_no_pages),
    };
    if (!mkdtemp(folder) || setenv("XDG_RUNTIME_DIR", folder, 1) != 0)
        return 1;
    options_load();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char path[PLACE_PATH];
    if (place_folder(0, path))
        rmdir(path);
    rmdir(folder);
    return failed;
}
