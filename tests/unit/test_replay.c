/*
 * Tests `gpucache replay`: readers of histories in all formats, models of other allocators, and the
 * pool on the replay's device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "replay/input.h"
#include "replay/models.h"
#include "replay/rerun.h"
#include "tuning/tuning.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)
#define PERIODS 64

static int read_text(const char *text, struct histories *histories) {
    char *copy = strdup(text); /* a heap copy, so that sanitizers see reads behind its end */
    struct input input = {copy, strlen(text), SIZE_MAX};
    int r = input_histories(&input, histories);
    free(copy);
    return r;
}

static struct history *history_from(const char *text, struct histories *histories) {
    int r = read_text(text, histories);
    assert_string_equal(histories->why, "");
    assert_int_equal(r, 0);
    assert_int_equal(histories->count, 1);
    return histories->list;
}

/* ---- keys ---- */

/** Returns the processor time of a history of blocks whose keys are `step` apart. */
static double time_of_keys(uint64_t step) {
    struct history history = {0};
    clock_t begin = clock();
    for (uint64_t i = 1; i <= 40000; i++)
        history_allocate(&history, i, i * step, 512, 0);
    for (uint64_t i = 1; i <= 40000; i++) {
        assert_true(history_has(&history, i * step));
        history_free(&history, i, i * step);
    }
    assert_int_equal(history.unknown_frees, 0);
    history_end(&history);
    return (double)(clock() - begin) / CLOCKS_PER_SEC;
}

static void keys_with_equal_hashes_take_no_longer(void **state) {
    (void)state;
    assert_true(time_of_keys((uint64_t)1 << 40) < 20 * time_of_keys(4096) + 0.2);
}

/* ---- readers ---- */

static void rows_of_traces(void **state) {
    (void)state;
    struct histories histories;
    struct history *history = history_from("time_us,thread,op,id,bytes\r\n"
                                           "# period 0\n"
                                           "1000,0,a,7,1048576\n"
                                           "1010,3,a,18446744073709551615,512\n"
                                           "# what is no period\n"
                                           "# period 1\n"
                                           "1005,0,f,7\n"
                                           "1020,0,f,7,\n"
                                           "1030,0,a,7,4\n"
                                           "1040,0,a,7,8\n"
                                           "1050,0,a,",
                                           &histories);
    assert_int_equal(history->count, 6); /* a lost free is inserted, an unknown free left out */
    assert_int_equal(history->events[1].time_us, 10);
    assert_int_equal(history->events[2].time_us, 10); /* time does not go back to 5 */
    assert_true(history->events[2].frees);
    assert_int_equal(history->events[2].block, history->events[0].block);
    assert_int_equal(history->unknown_frees, 1);
    assert_int_equal(history->lost_frees, 1);
    assert_int_equal(history->requested_peak, MIB + 512);
    assert_int_equal(history->blocks, 4);
    assert_int_equal(history->threads, 2); /* in order of appearance */
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(history->events[i].thread, i == 1);
    assert_int_equal(history->period_count, 2);
    assert_int_equal(history->periods[1], 2);
    assert_true(history->cut);
    histories_free(&histories);
    history = history_from("a 0 4000\na 1 100\nf 0\nf 1\n", &histories);
    assert_int_equal(history->count, 4);
    assert_int_equal(history->requested_peak, 4100);
    histories_free(&histories);
}

static void rows_of_rmm(void **state) {
    (void)state;
    static const char *const logs[] = {
        "Thread,Time,Action,Pointer,Size,Stream\n"
        "main,23:59:59.000000,allocate,0x7f00,1000,0x2\n"
        "1,23:59:59.5,allocate failure,(nil),99999999999,0x2\n"
        "1,00:00:01.250000,free,0x7f00,1000,0x2\n",
        "Thread,Time,Action,Pointer,Size,Stream\n"
        "1,23:59:59:000000,allocate,0x7f00,1000,0\n"
        "1,23:59:59:500000,allocate failure,0x0,99999999999,0\n"
        "1,00:00:01:250000,free,0x7f00,1000,0\n",
        "1,1634567890.000000,allocate,0x7f00,1000,0x7f8a38001020\n"
        "1,1634567890.1,allocate failure,nullptr,99999999999,0x7f8a38001020\n"
        "1,1634567892.25,deallocate,0x7f00,1000,0x7f8a38001020\n",
    };
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        struct histories histories;
        struct history *history = history_from(logs[i], &histories);
        assert_int_equal(history->count, 2);
        assert_int_equal(history->events[0].bytes, 1000);
        assert_int_equal(history->events[1].time_us, 2250000);
        assert_int_equal(history->failures, 1);
        histories_free(&histories);
    }
}

/* A line from before midnight may follow one from after it. A program may pause for most of a day.
 */
static void rows_around_midnight(void **state) {
    (void)state;
    struct histories histories;
    struct history *history = history_from("1,23:59:59.9,allocate,0x10,1000,0\n"
                                           "1,00:00:00.1,allocate,0x20,1000,0\n"
                                           "2,23:59:59.95,allocate,0x30,1000,0\n"
                                           "1,00:00:00.2,free,0x10,1000,0\n"
                                           "1,20:00:00.2,free,0x20,1000,0\n"
                                           "1,00:00:00.2,free,0x30,1000,0\n",
                                           &histories);
    static const uint64_t times_us[] = {0, 200000, 200000, 300000, 72000300000, 86400300000};
    assert_int_equal(history->count, 6);
    for (size_t i = 0; i < history->count; i++)
        assert_int_equal(history->events[i].time_us, times_us[i]);
    histories_free(&histories);
}

/* A thread beyond HISTORY_THREADS_MOST shares the number of an earlier one. A stream keeps its
 * number. */
static void many_threads_and_streams(void **state) {
    (void)state;
    struct histories histories = {0};
    struct history *history = histories_of(&histories, 0);
    for (uint32_t i = 0; i < 1000; i++) {
        history_on_thread(history, 7 * i);
        history_allocate(history, i, i, 1, 5 * i);
    }
    for (uint32_t i = 0; i < 1000; i++) {
        assert_int_equal(history->events[i].thread, i % HISTORY_THREADS_MOST);
        assert_int_equal(history->events[i].stream, i);
    }
    assert_int_equal(history->threads, 1000);
    histories_free(&histories);
}

/* Errors name the line and the expected text. */
static void invalid_rows(void **state) {
    (void)state;
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"", "empty"},
        {"nonsense\n", "no known format"},
        {"PK\x03\x04", "no pickle"},
        {"{\"a\":1}", "no memory snapshot"},
        {"{", "broken JSON at byte 1: it ends there"},
        {"{\"", "it ends there"},
        {"{\"a\\", "it ends there"},
        {"{\"a\":-", "it ends there"},
        {"{\"a\":[1,tru", "no JSON"},
        {"time_us,thread,op,id,bytes\n", "no allocation"},
        {"0,0,a,1,1\n0,0,b,1,1\n", "line 2 is `0,0,b,1,1`; wanted is time_us,thread,a|f,id,bytes"},
        {"0,0,a,1,1\n0,0,a,1\n", "line 2"},
        {"0,0,a,1,1\n0,0,a,1,1,1\n", "line 2"},
        {"0,0,a,1,1\n0,0,a,1,-1\n", "line 2"},
        {"0,0,a,1,1\n0,0,a,1,140737488355329\n", "line 2"}, /* 2^47 and 1 */
        {"0,0,a,1,1\n0,0,a,1,99999999999999999999999\n", "line 2"},
        {"0,0,a,1,1\n9223372036854775808,0,a,1,1\n", "line 2"},
        {"0,0,a,1,1\n0,0,a,18446744073709551616,1\n", "line 2"},
        {"0,0,a,1,1\n\x01\xff,,,\n", "line 2 is `??,,,`"},
        {"a 1 1\na 1\n", "line 2 is `a 1`; wanted is a ID BYTES, or f ID"},
        {"a 1 1\nf 1 2\n", "line 2"},
        {"1,1:2:3,allocate,0x1,1,0\n1,1:2:3,take,0x1,1,0\n", "line 2"},
        {"1,1:2:3,allocate,0x1,1,0\n1,1:60:3,free,0x1,1,0\n", "line 2"},
        {"1,1:2:3,allocate,0x1,1,0\n1,1:2,free,0x1,1,0\n", "line 2"},
        {"1,1:2:3,allocate,0x1,1,0\n1,1:2:3,free,0xg,1,0\n", "line 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct histories histories;
        assert_int_equal(read_text(cases[i].text, &histories), -EINVAL);
        assert_non_null(strstr(histories.why, cases[i].why));
        histories_free(&histories);
    }
}

/* ---- models ---- */

static uint64_t by_period[PERIODS];

static struct account run_model(enum model model, uint64_t limit, const char *text) {
    struct histories histories;
    struct account account;
    memset(by_period, 0, sizeof by_period);
    account_start(&account, history_from(text, &histories), by_period);
    model_run(model, limit, &account);
    assert_int_equal(account.error, 0);
    account.history = NULL;
    histories_free(&histories);
    return account;
}

static uint64_t reserved(enum model model, const char *text) {
    struct account account = run_model(model, 0, text);
    assert_false(account.out_of_memory);
    return account.reserved_peak;
}

static void pytorch_sizes(void **state) {
    (void)state;
    assert_int_equal(reserved(MODEL_PYTORCH, "a 1 1\n"), 2 * MIB);
    assert_int_equal(reserved(MODEL_PYTORCH, "a 1 1048576\na 2 1048576\n"), 2 * MIB);
    assert_int_equal(reserved(MODEL_PYTORCH, "a 1 1048577\n"), 20 * MIB);
    assert_int_equal(reserved(MODEL_PYTORCH, "a 1 10485248\na 2 10485248\n"), 20 * MIB);
    assert_int_equal(reserved(MODEL_PYTORCH, "a 1 10485760\na 2 10485760\n"), 20 * MIB);
    assert_int_equal(reserved(MODEL_PYTORCH, "a 1 10485760\n"), 10 * MIB);
    assert_int_equal(reserved(MODEL_PYTORCH, "a 1 10485761\n"), 12 * MIB);
    /* in 20 MiB, a rest of 1 MiB stays with its block, a rest of 512 bytes more is split off */
    assert_int_equal(reserved(MODEL_PYTORCH, "a 1 20971520\nf 1\na 2 19922944\na 3 1048577\n"),
                     40 * MIB);
    assert_int_equal(reserved(MODEL_PYTORCH, "a 1 20971520\nf 1\na 2 19922432\na 3 1048577\n"),
                     20 * MIB);
    /* small blocks never come from large segments, nor large blocks from small segments */
    assert_int_equal(reserved(MODEL_PYTORCH, "a 1 20971520\nf 1\na 2 1000\n"), 22 * MIB);
    /* free neighbours merge: 3 and 4 MiB of 20 serve 7 */
    assert_int_equal(reserved(MODEL_PYTORCH, "a 1 3145728\na 2 4194304\na 3 9437184\na 4 3145728\n"
                                             "f 1\nf 2\na 5 7340032\n"),
                     20 * MIB);
}

static void each_stream_has_its_own_blocks(void **state) {
    (void)state;
    static const char log[] = "1,1.0,allocate,0x10,20971520,0x1\n1,1.1,free,0x10,20971520,0x1\n"
                              "1,1.2,allocate,0x10,20971520,0x2\n";
    assert_int_equal(reserved(MODEL_PYTORCH, log), 40 * MIB);
    assert_int_equal(reserved(MODEL_EXPANDABLE, log), 40 * MIB);
    assert_int_equal(reserved(MODEL_NATIVE, log), 20 * MIB);
}

static void expandable_ranges_grow(void **state) {
    (void)state;
    assert_int_equal(reserved(MODEL_EXPANDABLE, "a 1 1\n"), 2 * MIB);
    assert_int_equal(reserved(MODEL_EXPANDABLE, "a 1 2097152\na 2 18874368\n"), 20 * MIB);
    /* the free end of the range is extended: 10 free MiB and 20 more serve 25 */
    assert_int_equal(reserved(MODEL_EXPANDABLE, "a 1 31457280\na 2 26214400\n"), 60 * MIB);
    /* a hole inside serves no longer block, and is taken before the end of the range */
    assert_int_equal(
        reserved(MODEL_EXPANDABLE, "a 1 10485760\na 2 10485760\nf 1\na 3 12582912\na 4 5242880\n"),
        40 * MIB);
}

static void whole_blocks_are_not_cut(void **state) {
    (void)state;
    assert_int_equal(reserved(MODEL_WHOLE, "a 1 8388608\nf 1\na 2 4194816\na 3 4194304\n"),
                     12 * MIB);
    assert_int_equal(reserved(MODEL_WHOLE, "a 1 8388608\nf 1\na 2 4194304\n"), 12 * MIB);
}

static void cudamalloc_gives_back(void **state) {
    (void)state;
    assert_int_equal(reserved(MODEL_NATIVE, "a 1 5242880\nf 1\na 2 5242880\n"), 6 * MIB);
    assert_int_equal(reserved(MODEL_NATIVE, "a 1 1000\na 2 1000\nf 1\nf 2\na 3 3145728\n"),
                     4 * MIB);
    assert_int_equal(run_model(MODEL_NATIVE, 0, "a 1 5242880\nf 1\n").reserved, 0);
}

/* A model releases segments that are free as a whole before it is out of memory, and no others. */
static void models_at_a_limit(void **state) {
    (void)state;
    static const char idle[] = "a 1 20971520\nf 1\na 2 41943040\n";
    static const char held[] = "a 1 10485760\na 2 10485760\nf 1\na 3 31457280\n";
    for (int model = 0; model < MODELS; model++) {
        struct account account = run_model((enum model)model, 40 * MIB, idle);
        assert_false(account.out_of_memory);
        assert_true(account.reserved_peak <= 40 * MIB);
    }
    assert_true(run_model(MODEL_PYTORCH, 39 * MIB, "a 1 5242880\na 2 20971520\n").out_of_memory);
    assert_false(run_model(MODEL_EXPANDABLE, 60 * MIB, held).out_of_memory);
    assert_true(run_model(MODEL_EXPANDABLE, 40 * MIB, held).out_of_memory);
    assert_true(run_model(MODEL_NATIVE, 40 * MIB, "a 1 41943041\n").out_of_memory);
    /* the free end of the range is released too, so the next request maps it again */
    assert_false(run_model(MODEL_EXPANDABLE, 40 * MIB,
                           "1,1.0,allocate,0x10,20971520,0x1\n1,1.1,free,0x10,20971520,0x1\n"
                           "1,1.2,allocate,0x10,20971520,0x2\n1,1.3,free,0x10,20971520,0x2\n"
                           "1,1.4,allocate,0x10,41943040,0x2\n")
                     .out_of_memory);
}

/* ---- the pool ---- */

static const int turns_wanted[] = {2, 0, 1, 1, 0, 2, 3, LOCKSTEP_OVER};
static pthread_t actors[8];
static unsigned acted;

static int act(void *with) {
    assert_ptr_equal(with, actors);
    actors[acted++] = pthread_self();
    return turns_wanted[acted];
}

static void threads_take_turns(void **state) {
    (void)state;
    acted = 0;
    assert_int_equal(lockstep_run(4, turns_wanted[0], act, actors), 0);
    assert_int_equal(acted, 7);
    for (unsigned i = 0; i < acted; i++) {
        for (unsigned j = 0; j < i; j++) {
            assert_int_equal(pthread_equal(actors[i], actors[j]) != 0,
                             turns_wanted[i] == turns_wanted[j]);
        }
        assert_false(pthread_equal(actors[i], pthread_self()));
    }
    acted = 6; /* the calling thread is the only one */
    assert_int_equal(lockstep_run(1, 0, act, actors), 0);
    assert_int_equal(acted, 7);
    assert_true(pthread_equal(actors[6], pthread_self()));
}

/* Runs the pool in a child process, because a pool cannot be destroyed. */
static struct account run_pool(const struct rerun_setting *setting, const char *text) {
    struct account *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct histories histories;
    struct history *history = history_from(text, &histories);
    int status = -1;
    assert_true(shared != MAP_FAILED);
    account_start(shared, history, by_period);
    pid_t pid = fork();
    if (pid == 0) {
        rerun(setting, shared);
        _exit(0);
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_int_equal(status, 0);
    struct account account = *shared;
    munmap(shared, sizeof *shared);
    histories_free(&histories);
    assert_int_equal(account.error, 0);
    return account;
}

/* The device has not reached the frees yet: at the budget they cost a barrier, below it memory. The
 * limit holds. */
static void the_device_lags_behind(void **state) {
    (void)state;
    static const char text[] = "0,0,a,1,67108864\n1000,0,f,1\n4000,0,a,2,67108864\n";
    for (int pages = 0; pages < 2; pages++) {
        struct rerun_setting setting = {.capacity = UINT64_C(1) << 40, .pages = pages};
        setting.budget = 64 * MIB;
        setting.delay_us = 2000;
        struct account account = run_pool(&setting, text);
        assert_int_equal(account.reserved_peak, 64 * MIB);
        assert_int_equal(account.barriers, 0);
        setting.delay_us = 4000;
        account = run_pool(&setting, text);
        assert_int_equal(account.reserved_peak, 64 * MIB);
        assert_int_equal(account.barriers, 1);
        setting.reuse = REUSE_WAIT;
        account = run_pool(&setting, text);
        assert_int_equal(account.waited_us, 1000);
        setting.budget = UINT64_C(1) << 40;
        assert_int_equal(run_pool(&setting, text).reserved_peak, 128 * MIB);
        setting.limit = 64 * MIB;
        account = run_pool(&setting, text);
        assert_false(account.out_of_memory);
        assert_int_equal(account.reserved_peak, 64 * MIB);
        setting.limit = 62 * MIB;
        account = run_pool(&setting, text);
        assert_true(account.out_of_memory);
        assert_int_equal(account.at, 0);
    }
}

static void pages_are_counted(void **state) {
    (void)state;
    struct rerun_setting setting = {.capacity = UINT64_C(1) << 40, .pages = true};
    struct account account = run_pool(&setting, "0,0,a,1,67108864\n10,0,f,1\n20,0,a,2,67108864\n");
    assert_int_equal(account.mapped, 32);
    assert_int_equal(account.calls,
                     2 * 64 * MIB / VMM_HANDLE); /* each segment is made and mapped */
    assert_int_equal(account.requested_peak, 64 * MIB);
    assert_true(account.requested_sum[3] < 1); /* nothing was requested between the two blocks */
}

/* Each thread of the history has its own cache, so no thread gets blocks of another one's cache. */
static void each_thread_has_its_own_cache(void **state) {
    (void)state;
    const struct rerun_setting setting = {.capacity = UINT64_C(1) << 40, .pages = true};
    uint64_t reserved[2];
    for (int other = 0; other < 2; other++) {
        char text[16384];
        size_t used = 0;
        for (int i = 0; i < 240;
             i++) { /* four allocations and frees, then forty of another or the same thread */
            bool in = i >= 200 || i % 8 < 4;
            used += (size_t)snprintf(text + used, sizeof text - used, "%d,%d,%c,%d,%s\n", i * 1000,
                                     i >= 200 && other, in ? 'a' : 'f', i < 200 ? i % 4 : i,
                                     in ? "409600" : "");
        }
        reserved[other] = run_pool(&setting, text).reserved_peak;
    }
    assert_true(reserved[1] > reserved[0]);
}

/* Memory decays at the times of the history: after the whole decay time, and not earlier. */
static void idle_memory_decays(void **state) {
    (void)state;
    static const char late[] = "0,0,a,1,67108864\n1000,0,f,1\n7000000,0,a,2,20971520\n";
    static const char soon[] = "0,0,a,1,67108864\n1000,0,f,1\n3000000,0,a,2,20971520\n";
    for (int pages = 0; pages < 2; pages++) {
        struct rerun_setting setting = {.capacity = UINT64_C(1) << 40, .pages = pages};
        assert_true(run_pool(&setting, late).reserved >= 64 * MIB);
        setting.decay_us = 4000000;
        assert_int_equal(run_pool(&setting, late).reserved, 20 * MIB);
        assert_true(run_pool(&setting, soon).reserved >= 64 * MIB);
        setting.decay_us = 1; /* a tick lasts at least 1 ms */
        assert_int_equal(run_pool(&setting, soon).reserved, 20 * MIB);
    }
}

/* ---- the account ---- */

static void periods_of_the_last_quarter(void **state) {
    (void)state;
    uint64_t periods[8] = {0};
    struct history_event events[80] = {{0}};
    struct history history = {.events = events, .count = 80, .period_count = 8};
    size_t begins[8];
    struct account account;
    history.periods = begins;
    for (size_t i = 0; i < 8; i++)
        begins[i] = 10 * i;
    account_start(&account, &history, periods);
    for (size_t i = 0; i < 80; i++) {
        account_begin_event(&account, i);
        if (i % 10 == 0)
            account_map(&account, i < 60 ? 100 : i / 10);
        account_end_event(&account);
    }
    assert_int_equal(periods[5], 100);
    assert_int_equal(periods[7], 7);
    assert_true(account_mapped_late(&account) == 6.5);
    assert_int_equal(account_last_mapped(&account), 8);
    periods[7] = 0;
    assert_int_equal(account_last_mapped(&account), 7);
    history.period_count = 0; /* without periods: the last quarter of the events */
    assert_true(account_mapped_late(&account) == 13);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_with_equal_hashes_take_no_longer),
        cmocka_unit_test(rows_of_traces),
        cmocka_unit_test(rows_of_rmm),
        cmocka_unit_test(rows_around_midnight),
        cmocka_unit_test(many_threads_and_streams),
        cmocka_unit_test(invalid_rows),
        cmocka_unit_test(pytorch_sizes),
        cmocka_unit_test(each_stream_has_its_own_blocks),
        cmocka_unit_test(expandable_ranges_grow),
        cmocka_unit_test(whole_blocks_are_not_cut),
        cmocka_unit_test(cudamalloc_gives_back),
        cmocka_unit_test(models_at_a_limit),
        cmocka_unit_test(the_device_lags_behind),
        cmocka_unit_test(idle_memory_decays),
        cmocka_unit_test(pages_are_counted),
        cmocka_unit_test(threads_take_turns),
        cmocka_unit_test(each_thread_has_its_own_cache),
        cmocka_unit_test(periods_of_the_last_quarter),
    };
    return cmocka_run_group_tests_name("replay", tests, NULL, NULL);
}
