/*
 * The options: every one with values that make sense and values that do not, and the exact words of
 * the warnings.
 *
 * Options are read once per process. Every case therefore runs in a child with its own environment
 * and a pipe as stderr.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/print.h"
#include "base/program.h"
#include "child.h"
#include "options/options.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define GIB (1ull << 30)

/* Replaces secure_getenv() of libc: a set-user-ID program has no environment. */
static bool set_user_id;

char *secure_getenv(const char *name) {
    return set_user_id ? NULL : getenv(name);
}

unsigned long getauxval(unsigned long type) {
    return type == AT_SECURE && set_user_id;
}

static bool (*check)(void);

static void load_and_check(void) {
    errno = EDOM;
    options_load();
    options_load(); /* does nothing */
    _exit(errno != EDOM ? 2 : check && !check() ? 1 : 0);
}

/** Returns the text that options_load() writes to stderr with these variables. then_true() runs
 * after it and must return true. */
static const char *load_with(const char *const *variables, bool (*then_true)(void)) {
    check = then_true;
    return child_stderr(variables, load_and_check);
}

#define LOAD(check, ...) load_with((const char *const[]){__VA_ARGS__, NULL}, check)

/* Whether a device of `total` bytes has the limit `bytes`, set by the variable `source`. */
static bool limit_is(int device, uint64_t total, uint64_t bytes, const char *source) {
    const char *from;
    return options_limit(device, total, &from) == bytes &&
           (source ? from && strcmp(from, source) == 0 : !from);
}

#define FRACTION "GPUCACHE_MEMORY_FRACTION"
#define LIMIT "GPUCACHE_MEMORY_LIMIT"
#define THEIRS "CUDA_DEVICE_MEMORY_LIMIT"

/* ---- defaults ---- */

static bool all_default(void) {
    const struct options *is = options();
    for (int id = 0; id < OPTION_COUNT; id++)
        if (options_from_environment((enum option_id)id) ||
            strcmp(options_text((enum option_id)id), option_table[id].initial) != 0)
            return false;
    return limit_is(0, 80 * GIB, 0, NULL) && limit_is(63, 0, 0, NULL) &&
           is->report == REPORT_TO_STDERR && is->report_format == REPORT_TEXT &&
           is->report_signal == SIGUSR2 && is->report_interval_ms == 0 &&
           is->reuse == REUSE_BARRIER && is->backend == BACKEND_AUTO &&
           is->budget_bytes == OPTIONS_AUTOMATIC && is->decay_ms == 10000 && is->stacks == 0 &&
           is->trace_pattern[0] == '\0' && is->pinned && !is->disable && is->log == LOG_LEVEL_WARN;
}

static void nothing_set_is_the_defaults_and_silence(void **state) {
    (void)state;
    assert_string_equal(load_with((const char *const[]){NULL}, all_default), "");
}

static void defaults_spelled_out_are_silent(void **state) {
    (void)state;
    char variable[128];
    for (int id = 0; id < OPTION_COUNT; id++) {
        snprintf(variable, sizeof variable, "%s=%s", option_table[id].name,
                 option_table[id].initial);
        assert_string_equal(LOAD(NULL, variable), "");
    }
}

static void an_empty_value_is_as_unset(void **state) {
    (void)state;
    char variable[128];
    for (int id = 0; id < OPTION_COUNT; id++) {
        snprintf(variable, sizeof variable, "%s=", option_table[id].name);
        assert_string_equal(LOAD(all_default, variable), "");
    }
}

/* ---- values ---- */

static bool half_and_limits(void) {
    return limit_is(0, 16 * GIB, 8 * GIB, FRACTION) && limit_is(1, 16 * GIB, 4 * GIB, LIMIT) &&
           limit_is(0, 0, 0, NULL) && limit_is(1, 0, 4 * GIB, LIMIT);
}

static bool sevenths(void) {
    return limit_is(2, 1000, 125, FRACTION) && limit_is(0, 1000, 0, NULL) &&
           limit_is(-1, 1000, 0, NULL) && limit_is(64, 1000, 0, NULL);
}

static bool tiny_share(void) {
    return limit_is(0, 100, 1, FRACTION);
}

static void the_smaller_of_fraction_and_limit_holds(void **state) {
    (void)state;
    assert_string_equal(
        LOAD(half_and_limits, "GPUCACHE_MEMORY_FRACTION=0.5", "GPUCACHE_MEMORY_LIMIT=1:4G"), "");
    assert_string_equal(LOAD(sevenths, "GPUCACHE_MEMORY_FRACTION=2:0.125,0:1.0"), "");
    assert_string_equal(LOAD(tiny_share, "GPUCACHE_MEMORY_FRACTION=0.000000001"), "");
}

/* ---- the variables of HAMi-core (test_hami.c has their syntax) ---- */

static bool theirs_per_device(void) {
    return limit_is(0, 16 * GIB, 8 * GIB, THEIRS) && limit_is(1, 16 * GIB, 4 * GIB, THEIRS "_1");
}

static bool ours_alone(void) {
    return limit_is(0, 16 * GIB, 12 * GIB, LIMIT) && limit_is(1, 16 * GIB, 0, NULL);
}

static bool the_share_alone(void) {
    return limit_is(0, 16 * GIB, 8 * GIB, FRACTION);
}

static bool no_limit(void) {
    return limit_is(0, 16 * GIB, 0, NULL);
}

static void options_win_over_variables_of_hami_core(void **state) {
    (void)state;
    assert_string_equal(LOAD(ours_alone, LIMIT "=0:12G", THEIRS "=4g", THEIRS "_1=4g"), "");
    assert_string_equal(LOAD(the_share_alone, FRACTION "=0.5", THEIRS "_0=4g"), "");
    assert_string_equal(LOAD(no_limit, LIMIT "=none", THEIRS "=nonsense"), "");
    assert_string_equal(LOAD(theirs_per_device, THEIRS "_1=4g", THEIRS "=8g"), "");
    const char *got = LOAD(theirs_per_device, LIMIT "=8X", THEIRS "=8g", THEIRS "_1=4g");
    assert_non_null(strstr(got, "; only " THEIRS " limits the memory now\n"));
}

static bool to_file(void) {
    char directory[4096], expected[5000];
    if (!getcwd(directory, sizeof directory))
        return false;
    snprintf(expected, sizeof expected, "%s/r.%%p.%%n.%%%%", directory);
    return chdir("/") == 0 && options()->report == REPORT_TO_FILE &&
           strcmp(options()->report_pattern, expected) == 0 &&
           options()->report_format == REPORT_JSON;
}

static bool to_absolute_file(void) {
    return strcmp(options()->report_pattern, "/tmp/%h-%e-%r") == 0;
}

static bool to_nowhere(void) {
    return options()->report == REPORT_TO_NOWHERE;
}

static void report_patterns_are_made_absolute(void **state) {
    (void)state;
    assert_string_equal(LOAD(to_file, "GPUCACHE_REPORT=r.%p.%n.%%", "GPUCACHE_REPORT_FORMAT=json"),
                        "");
    assert_string_equal(LOAD(to_absolute_file, "GPUCACHE_REPORT=/tmp/%h-%e-%r"), "");
    assert_string_equal(LOAD(to_nowhere, "GPUCACHE_REPORT=off"), "");
}

static bool percent_directory(void) {
    char directory[] = "/tmp/gpucache-%p-XXXXXX";
    return mkdtemp(directory) != NULL && chdir(directory) == 0;
}

static bool pattern_in_percent_directory(void) {
    return strncmp(options()->report_pattern, "/tmp/gpucache-%%p-", 18) == 0;
}

static void a_per_cent_sign_in_the_directory_is_no_letter(void **state) {
    (void)state;
    char before[4096], made[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_true(percent_directory());
    assert_non_null(getcwd(made, sizeof made));
    assert_string_equal(LOAD(pattern_in_percent_directory, "GPUCACHE_REPORT=r"), "");
    assert_int_equal(chdir(before), 0);
    rmdir(made);
}

static bool pinned_off(void) {
    return !options()->pinned && options()->disable;
}

static void switches_take_every_word_in_any_case(void **state) {
    (void)state;
    static const char *const words[][2] = {
        {"off", "on"}, {"False", "TRUE"}, {"NO", "Yes"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char pinned[64], disable[64], report[64];
        snprintf(pinned, sizeof pinned, "GPUCACHE_PINNED=%s", words[i][0]);
        snprintf(disable, sizeof disable, "GPUCACHE_DISABLE=%s", words[i][1]);
        snprintf(report, sizeof report, "GPUCACHE_REPORT=%s", words[i][0]);
        assert_string_equal(LOAD(pinned_off, pinned, disable), "");
        assert_string_equal(LOAD(to_nowhere, report), "");
    }
}

static bool wait_segments(void) {
    return options()->reuse == REUSE_WAIT && options()->backend == BACKEND_SEGMENTS &&
           options()->budget_bytes == 2 * GIB && options()->disable &&
           options()->log == LOG_LEVEL_ERROR;
}

static bool sync_no_budget(void) {
    return options()->reuse == REUSE_SYNC && options()->backend == BACKEND_PAGES &&
           options()->budget_bytes == 0 && !options()->disable;
}

static void words_become_values(void **state) {
    (void)state;
    assert_string_equal(LOAD(wait_segments, "GPUCACHE_REUSE=Wait", "GPUCACHE_BACKEND=SEGMENTS",
                             "GPUCACHE_BUDGET=2gib", "GPUCACHE_DISABLE=1", "GPUCACHE_LOG=error"),
                        "");
    assert_string_equal(LOAD(sync_no_budget, "GPUCACHE_REUSE=sync", "GPUCACHE_BACKEND=pages",
                             "GPUCACHE_BUDGET=0", "GPUCACHE_DISABLE=0"),
                        "");
}

static bool values_of_many(void) {
    const struct options *is = options();
    return is->report_signal == SIGUSR1 && is->report_interval_ms == 1500 && is->stacks == 8 &&
           strcmp(is->trace_pattern, "/tmp/t") == 0 && is->decay_ms == OPTIONS_NEVER;
}

static void many_at_once_have_their_values(void **state) {
    (void)state;
    assert_string_equal(LOAD(values_of_many, "GPUCACHE_REPORT_SIGNAL=SIGUSR1",
                             "GPUCACHE_REPORT_INTERVAL=1.5", "GPUCACHE_STACKS=8",
                             "GPUCACHE_TRACE=/tmp/t", "GPUCACHE_DECAY_MS=never"),
                        "");
}

static bool files_for_a_group(void) {
    return options()->file_mode == 0640;
}

static bool files_for_all(void) {
    return options()->file_mode == 0666;
}

static bool files_as_usual(void) {
    return options()->file_mode == 0600;
}

static void files_have_a_mode(void **state) {
    (void)state;
    assert_string_equal(LOAD(files_for_a_group, "GPUCACHE_FILE_MODE=0640"), "");
    assert_string_equal(LOAD(files_for_all, "GPUCACHE_FILE_MODE=666"), "");
    assert_string_equal(LOAD(files_as_usual, "GPUCACHE_FILE_MODE="), "");
}

static bool traced_at_length(void) {
    return strcmp(options()->trace_pattern, "/tmp/t.%p") == 0 &&
           options()->trace_events == OPTIONS_ALL;
}

static bool traced_in_short(void) {
    return options()->trace_events == 17;
}

static bool traced_as_usual(void) {
    return *options()->trace_pattern == '\0' && options()->trace_events == 200000;
}

static bool shot_at_oom(void) {
    return strcmp(options()->oom_snapshot_pattern, "/tmp/s.%p") == 0;
}

static bool not_shot(void) {
    return *options()->oom_snapshot_pattern == '\0';
}

static void a_trace_has_a_file_and_a_length(void **state) {
    (void)state;
    assert_string_equal(
        LOAD(traced_at_length, "GPUCACHE_TRACE=/tmp/t.%p", "GPUCACHE_TRACE_EVENTS=ALL"), "");
    assert_string_equal(LOAD(traced_in_short, "GPUCACHE_TRACE_EVENTS=17"), "");
    assert_string_equal(LOAD(traced_as_usual, "GPUCACHE_TRACE=off"), "");
}

static void a_snapshot_has_a_file(void **state) {
    (void)state;
    assert_string_equal(LOAD(shot_at_oom, "GPUCACHE_OOM_SNAPSHOT=/tmp/s.%p"), "");
    assert_string_equal(LOAD(not_shot, "GPUCACHE_OOM_SNAPSHOT=off"), "");
}

static void another_spelling_of_the_default_is_silent(void **state) {
    (void)state;
    assert_string_equal(LOAD(NULL, "GPUCACHE_REPORT_SIGNAL=SIGUSR2"), "");
    assert_string_equal(LOAD(NULL, "GPUCACHE_REPORT_SIGNAL=12"), "");
    assert_string_equal(LOAD(NULL, "GPUCACHE_DECAY_MS=010000"), "");
}

/* ---- nonsense ---- */

/* Values that each option refuses. test_value.c tests the syntax of values. */
static const struct {
    const char *name;
    const char *values[16];
} nonsense[] = {
    {"MEMORY_FRACTION", {"0", "1.1", "2", "-0.5", "101%", "0.5x", "nan", "64:0.5", "0.5,1:0.8"}},
    {"MEMORY_LIMIT", {"0", "-1", "8GG", "8 G", "1.5", "50%", "999:1G", "0:none", "8P"}},
    {"REPORT", {"%", "a%x", "stdout", "STDOUT", "-", "1", "2", "on", "On", "yes", "true"}},
    {"REPORT_FORMAT", {"xml", "text "}},
    {"REPORT_SIGNAL",
     {"KILL", "9", "SIGSTOP", "-1", "65", "32", "SEGV", "11", "USR3", "12x", "on"}},
    {"REPORT_INTERVAL", {"-5", "5s", "nan", "1e3", "0.0001", "99999999999", "on"}},
    {"REUSE", {"banana", "sync,wait"}},
    {"BACKEND", {"page", "mmap"}},
    {"BUDGET", {"-1", "lots", "18446744073709551615", "0G"}},
    {"DECAY_MS", {"-1", "1.5", "10s", "18446744073709551616", "never ", "18446744073709551615"}},
    {"STACKS", {"65", "-1", "all", "1.0"}},
    {"TRACE", {"%z", "x%", "stdout", "1", "on"}},
    {"TRACE_EVENTS", {"0", "-1", "1e6", "200K", "500000001", "off"}},
    {"OOM_SNAPSHOT", {"%z", "x%", "stdout", "1", "on"}},
    {"FILE_MODE", {"0o600", "0700", "0400", "0200", "4600", "00600", "0608", "rw", "-1", "off"}},
    {"LIVE", {"2", "shm", "/dev/shm"}},
    {"PEAKS", {"1", "on", "a/file"}},
    {"PINNED", {"2", "y", "onn"}},
    {"DISABLE", {"2", "11", "enable"}},
    {"LOG", {"verbose", "3"}},
};

static const struct option_info *row_of(const char *name) {
    for (int id = 0; id < OPTION_COUNT; id++)
        if (strcmp(option_table[id].name + strlen("GPUCACHE_"), name) == 0)
            return &option_table[id];
    fail_msg("no option %s", name);
    return NULL;
}

static void nonsense_gives_one_exact_warning_and_the_default(void **state) {
    (void)state;
    assert_int_equal(sizeof nonsense / sizeof *nonsense, OPTION_COUNT);
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        const struct option_info *row = row_of(nonsense[i].name);
        for (size_t k = 0; nonsense[i].values[k]; k++) {
            char variable[128], expected[512];
            snprintf(variable, sizeof variable, "%s=%s", row->name, nonsense[i].values[k]);
            bool limit = strncmp(nonsense[i].name, "MEMORY_", 7) == 0;
            snprintf(expected, sizeof expected,
                     "gpucache: %s=\"%s\" makes no sense: accepted are %s; %s%s\n", row->name,
                     nonsense[i].values[k], row->values, limit ? "there is no limit now" : "using ",
                     limit ? "" : row->initial);
            assert_string_equal(LOAD(all_default, variable), expected);
        }
    }
}

static bool only_the_share(void) {
    return limit_is(0, 16 * GIB, 8 * GIB, FRACTION);
}

/* GPUCACHE_LOG=error hides warnings, but not that another user's memory is unprotected. */
static void a_limit_that_makes_no_sense_is_an_error(void **state) {
    (void)state;
    const char *got = LOAD(NULL, "GPUCACHE_MEMORY_LIMIT=8X", "GPUCACHE_LOG=error");
    assert_string_equal(got,
                        "gpucache: GPUCACHE_MEMORY_LIMIT=\"8X\" makes no sense: accepted are a "
                        "size such as 8G, per device 0:8G,1:12G, or none; there is no limit "
                        "now\n");
    got = LOAD(NULL, "GPUCACHE_MEMORY_FRACTION=3", "GPUCACHE_LOG=error");
    assert_non_null(strstr(got, "; there is no limit now\n"));
    got = LOAD(only_the_share, "GPUCACHE_MEMORY_LIMIT=8X", "GPUCACHE_MEMORY_FRACTION=50%",
               "GPUCACHE_LOG=error");
    assert_non_null(strstr(got, "; only GPUCACHE_MEMORY_FRACTION limits the memory now\n"));
}

static bool eight_bytes(void) {
    return limit_is(0, GIB, 8, LIMIT);
}

static void a_limit_of_a_few_bytes_is_taken_and_doubted(void **state) {
    (void)state;
    assert_string_equal(LOAD(eight_bytes, "GPUCACHE_MEMORY_LIMIT=8"),
                        "gpucache: GPUCACHE_MEMORY_LIMIT=8 is a limit of 8 bytes, too little for "
                        "anything; sizes take K, M, G or T\n");
    assert_non_null(strstr(LOAD(NULL, "GPUCACHE_MEMORY_LIMIT=0:8G,1:12"), " a limit of 12 bytes,"));
    assert_string_equal(LOAD(NULL, "GPUCACHE_MEMORY_LIMIT=1M"), "");
}

static bool one_device(void) {
    options_check_devices(1);
    return true;
}

static void a_limit_for_a_device_that_does_not_exist_names_it(void **state) {
    (void)state;
    assert_string_equal(LOAD(one_device, "GPUCACHE_MEMORY_LIMIT=0:8G,3:12G"),
                        "gpucache: GPUCACHE_MEMORY_LIMIT=0:8G,3:12G: there is no device 3; this "
                        "process sees 1, numbered from 0\n");
    assert_string_equal(LOAD(one_device, "GPUCACHE_MEMORY_FRACTION=1:0.5"),
                        "gpucache: GPUCACHE_MEMORY_FRACTION=1:0.5: there is no device 1; this "
                        "process sees 1, numbered from 0\n");
    assert_string_equal(
        LOAD(one_device, "GPUCACHE_MEMORY_FRACTION=0:0.5", "GPUCACHE_MEMORY_LIMIT=8G"), "");
}

static void the_words_of_a_warning(void **state) {
    (void)state;
    assert_string_equal(LOAD(all_default, "GPUCACHE_REUSE=banana"),
                        "gpucache: GPUCACHE_REUSE=\"banana\" makes no sense: accepted are barrier, "
                        "wait, sync; using barrier\n");
}

static void a_long_or_strange_value_is_shortened_and_escaped(void **state) {
    (void)state;
    assert_string_equal(LOAD(all_default, "GPUCACHE_LOG=a\"b\n\x1b"),
                        "gpucache: GPUCACHE_LOG=\"a\\\"b\\x0a\\x1b\" makes no sense: accepted are "
                        "error, warn, info, debug; using warn\n");
    static char variable[5000] = "GPUCACHE_REPORT=";
    memset(variable + strlen(variable), 'x', 4000);
    assert_string_equal(
        LOAD(all_default, variable),
        "gpucache: GPUCACHE_REPORT=\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\" makes no sense: "
        "accepted are stderr, off, or a file pattern with %p %h %e %r %n %%; using stderr\n");
}

static void an_unknown_name_is_told_the_nearest(void **state) {
    (void)state;
    assert_string_equal(
        LOAD(all_default, "GPUCACHE_RUESE=wait"),
        "gpucache: there is no option GPUCACHE_RUESE; the nearest is GPUCACHE_REUSE\n");
    assert_string_equal(LOAD(all_default, "GPUCACHE_MEMORY_LIMITS=8G"),
                        "gpucache: there is no option GPUCACHE_MEMORY_LIMITS; the nearest is "
                        "GPUCACHE_MEMORY_LIMIT\n");
    assert_string_equal(LOAD(all_default, "GPUCACHE_log=info"),
                        "gpucache: there is no option GPUCACHE_log; the nearest is GPUCACHE_LOG\n");
    assert_null(strstr(LOAD(all_default, "GPUCACHE_PEAK=1"), "GPUCACHE_PEAKS")); /* internal */
    const char *long_name =
        LOAD(all_default, "GPUCACHE_REPORT_FORMATTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTT"
                          "TTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTT=1");
    assert_non_null(strstr(long_name, "...; the nearest is GPUCACHE_REPORT_FORMAT\n"));
}

static void names_of_the_tests_and_the_command_are_no_mistakes(void **state) {
    (void)state;
    assert_string_equal(LOAD(all_default, "GPUCACHE_SIM_DEVICES=2", "GPUCACHE_SO=/x.so",
                             "GPUCACHE_TEST_SEED=1", "GPUCACHEX=1", "OTHER=1", "GPUCACHE"),
                        "");
}

static void an_option_that_asks_for_silence_gets_it(void **state) {
    (void)state;
    assert_string_equal(LOAD(NULL, "GPUCACHE_REUSE=banana", "GPUCACHE_LOG=error"), "");
}

/* ---- showing them ---- */

static char shown[16384];

static bool show(void) {
    struct print out;
    print_init(&out, STDERR_FILENO, shown, sizeof shown);
    options_print(&out);
    return print_flush(&out) == 0;
}

static void the_table_says_value_and_origin_of_every_option(void **state) {
    (void)state;
    const char *got = LOAD(show, "GPUCACHE_REUSE=wait", "GPUCACHE_MEMORY_LIMIT=0:8G,1:12G");
    assert_non_null(strstr(got, "GPUCACHE_REUSE=wait (environment)\n    how freed memory"));
    assert_non_null(strstr(got, "    accepted: barrier, wait, sync\n    default: barrier\n"));
    assert_non_null(strstr(got, "GPUCACHE_MEMORY_LIMIT=0:8G,1:12G (environment)\n"));
    assert_non_null(strstr(got, "GPUCACHE_LOG=warn (default)\n"));
    for (int id = 0; id < OPTION_COUNT; id++)
        assert_int_equal(strstr(got, option_table[id].name) == NULL, option_table[id].internal);
    assert_true(option_table[OPTION_PEAKS].internal);
    got = LOAD(show, THEIRS "_1=4g", THEIRS "=8g");
    assert_non_null(strstr(got, THEIRS "=8589934592 (environment)\n    taken as the limit"));
    got = strstr(got, THEIRS "_1=4294967296 (environment)\n    taken as the limit");
    assert_non_null(got);
    assert_null(strstr(got, THEIRS "=")); /* once, not for each device */
}

static bool log_all(void) {
    options_log();
    return true;
}

static void info_names_every_option_on_a_line_of_its_own(void **state) {
    (void)state;
    assert_string_equal(LOAD(log_all, "GPUCACHE_LOG=warn"), "");
    const char *got = LOAD(log_all, "GPUCACHE_LOG=info", "GPUCACHE_BUDGET=1G");
    int lines = 0;
    for (const char *at = got; (at = strstr(at, "gpucache: GPUCACHE_")); at++)
        lines++;
    assert_int_equal(lines, OPTION_COUNT);
    assert_non_null(strstr(got, "gpucache: GPUCACHE_BUDGET=1G (environment)\n"));
}

/* ---- who the program is ---- */

static bool rank_3(void) {
    return program()->rank == 3;
}

static bool no_rank(void) {
    return program()->rank == -1;
}

static void the_innermost_launcher_says_the_rank(void **state) {
    (void)state;
    LOAD(no_rank, "A=1");
    LOAD(rank_3, "RANK=3");
    LOAD(rank_3, "SLURM_PROCID=3");
    LOAD(rank_3, "SLURM_PROCID=0", "OMPI_COMM_WORLD_RANK=3");
    LOAD(rank_3, "SLURM_PROCID=0", "PMIX_RANK=1", "RANK=3", "WORLD_SIZE=8");
    LOAD(rank_3, "PMI_RANK=3", "RANK=first");
    LOAD(no_rank, "RANK=-1");
    LOAD(no_rank, "RANK=99999999999999999999");
}

static bool is_asked_nothing(void) {
    return all_default() && no_rank();
}

static void a_set_user_id_program_is_asked_nothing(void **state) {
    (void)state;
    set_user_id = true;
    assert_string_equal(LOAD(is_asked_nothing, "GPUCACHE_MEMORY_LIMIT=1G", "GPUCACHE_REUSE=sync",
                             "GPUCACHE_REPORT=/tmp/report", "GPUCACHE_LOG=error", "RANK=3",
                             THEIRS "=8g"),
                        "");
    set_user_id = false;
}

static bool knows_itself(void) {
    uint64_t up = program_uptime_ns();
    return strcmp(program()->name, "unknown") != 0 && program()->host[0] != '\0' &&
           program()->argument_count >= 1 && !program()->arguments_cut && up > 0 &&
           up < 3600ull * 1000000000 && program_time_ns() > 1600000000ull * 1000000000;
}

static void the_program_knows_itself(void **state) {
    (void)state;
    LOAD(knows_itself, "A=1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_set_is_the_defaults_and_silence),
        cmocka_unit_test(defaults_spelled_out_are_silent),
        cmocka_unit_test(the_smaller_of_fraction_and_limit_holds),
        cmocka_unit_test(options_win_over_variables_of_hami_core),
        cmocka_unit_test(report_patterns_are_made_absolute),
        cmocka_unit_test(a_per_cent_sign_in_the_directory_is_no_letter),
        cmocka_unit_test(switches_take_every_word_in_any_case),
        cmocka_unit_test(words_become_values),
        cmocka_unit_test(many_at_once_have_their_values),
        cmocka_unit_test(files_have_a_mode),
        cmocka_unit_test(a_trace_has_a_file_and_a_length),
        cmocka_unit_test(a_snapshot_has_a_file),
        cmocka_unit_test(another_spelling_of_the_default_is_silent),
        cmocka_unit_test(nonsense_gives_one_exact_warning_and_the_default),
        cmocka_unit_test(an_empty_value_is_as_unset),
        cmocka_unit_test(a_limit_that_makes_no_sense_is_an_error),
        cmocka_unit_test(a_limit_of_a_few_bytes_is_taken_and_doubted),
        cmocka_unit_test(a_limit_for_a_device_that_does_not_exist_names_it),
        cmocka_unit_test(the_words_of_a_warning),
        cmocka_unit_test(a_long_or_strange_value_is_shortened_and_escaped),
        cmocka_unit_test(an_unknown_name_is_told_the_nearest),
        cmocka_unit_test(names_of_the_tests_and_the_command_are_no_mistakes),
        cmocka_unit_test(an_option_that_asks_for_silence_gets_it),
        cmocka_unit_test(the_table_says_value_and_origin_of_every_option),
        cmocka_unit_test(info_names_every_option_on_a_line_of_its_own),
        cmocka_unit_test(the_innermost_launcher_says_the_rank),
        cmocka_unit_test(a_set_user_id_program_is_asked_nothing),
        cmocka_unit_test(the_program_knows_itself),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
