/*
 * Reads options from random text. A value is either accepted, and the option is then in its range,
 * or refused with exactly one warning, and the option then has its default. Sizes and shares are
 * compared with a second parser.
 *
 * Options are read once per process, so the target includes the module's source and reads one
 * option again and again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "options/options.c"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

static uint64_t state;

static unsigned below(unsigned bound) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 20) % bound;
}

static unsigned long from_environment(const char *name, unsigned long otherwise) {
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : otherwise;
}

/* ---- making text ---- */

static const char *const pieces[] = {"0",
                                     "1",
                                     "2",
                                     "9",
                                     "63",
                                     "64",
                                     "65",
                                     "0.5",
                                     "1.0",
                                     "1.00",
                                     ".",
                                     "..",
                                     "-",
                                     "+",
                                     " ",
                                     ":",
                                     ",",
                                     "0:",
                                     ",1:",
                                     "K",
                                     "M",
                                     "G",
                                     "T",
                                     "iB",
                                     "B",
                                     "KiB",
                                     "kb",
                                     "E",
                                     "e9",
                                     "0x",
                                     "nan",
                                     "inf",
                                     "none",
                                     "auto",
                                     "off",
                                     "on",
                                     "never",
                                     "stderr",
                                     "json",
                                     "USR1",
                                     "SIGUSR2",
                                     "RTMIN",
                                     "RTMIN+1",
                                     "%p",
                                     "%h",
                                     "%",
                                     "%%",
                                     "%n",
                                     "/",
                                     "a/b",
                                     "\n",
                                     "\033",
                                     "\x80",
                                     "18446744073709551615",
                                     "18446744073709551616",
                                     "99999999999999999999999999",
                                     "0.000000000000000000000001",
                                     "barrier"};

static void make_text(char *text, size_t size, enum option_id id) {
    size_t used = 0;
    unsigned count = below(below(8) ? 6 : 400);
    const char *seed = below(2) ? option_table[id].initial : "";
    used = (size_t)snprintf(text, size, "%s", seed);
    for (unsigned i = 0; i < count && used + 32 < size; i++) {
        const char *piece = pieces[below(sizeof pieces / sizeof *pieces)];
        used += (size_t)snprintf(text + used, size - used, "%s", piece);
    }
    for (unsigned i = below(3); i > 0 && used > 0; i--)
        text[below((unsigned)used)] = (char)(1 + below(255));
    if (below(4) == 0 && used > 0)
        text[below((unsigned)used)] = '\0';
}

/* ---- what must hold ---- */

static int messages = -1; /* stands in for stderr */

static size_t take_messages(char *text, size_t size) {
    ssize_t got = pread(messages, text, size - 1, 0);
    assert_true(got >= 0);
    text[got] = '\0';
    assert_int_equal(ftruncate(messages, 0), 0);
    lseek(messages, 0, SEEK_SET);
    size_t lines = 0;
    for (const char *c = text; *c; c++) {
        lines += *c == '\n';
        assert_true(*c == '\n' || ((unsigned char)*c >= 0x20 && *c != 0x7f));
    }
    assert_true(got == 0 || text[got - 1] == '\n');
    assert_true(got <= (ssize_t)lines * LOG_LINE);
    return lines;
}

static void everything_is_in_range(void) {
    for (int i = 0; i < OPTIONS_MAX_DEVICES; i++) {
        assert_true(in_force.memory_fraction[i] > 0 && in_force.memory_fraction[i] <= 1);
        const char *source;
        assert_true((options_limit(i, 1 << 20, &source) == 0) == !source);
    }
    assert_in_range(in_force.report, REPORT_TO_STDERR, REPORT_TO_FILE);
    assert_in_range(in_force.report_format, REPORT_TEXT, REPORT_JSON);
    assert_in_range(in_force.report_signal, 0, SIGRTMAX);
    assert_in_range(in_force.reuse, REUSE_BARRIER, REUSE_SYNC);
    assert_in_range(in_force.backend, BACKEND_AUTO, BACKEND_PAGES);
    assert_in_range(in_force.stacks, 0, OPTIONS_MAX_STACK);
    assert_in_range(in_force.log, LOG_LEVEL_ERROR, LOG_LEVEL_DEBUG);
    assert_true(strnlen(in_force.report_pattern, OPTIONS_PATH) < OPTIONS_PATH);
    assert_true(strnlen(in_force.trace_pattern, OPTIONS_PATH) < OPTIONS_PATH);
    assert_true(in_force.report != REPORT_TO_FILE || in_force.report_pattern[0] == '/');
    assert_true(in_force.trace_pattern[0] == '/' || in_force.trace_pattern[0] == '\0');
}

static struct options defaults;

static void load_one(enum option_id id, const char *value) {
    texts[id][0] = '\0';
    memcpy(&in_force, &defaults, sizeof in_force);
    assert_int_equal(setenv(option_table[id].name, value, 1), 0);
    if (!load_option(id))
        say_refused(id);
    unsetenv(option_table[id].name);
}

static void any_text_is_taken_or_refused_with_one_warning(void **unused) {
    (void)unused;
    static char text[4096], said[65536];
    unsigned long iterations = from_environment("FUZZ_ITERATIONS", 60000), taken = 0;
    state = from_environment("FUZZ_SEED", 88172645463325252ul);
    for (unsigned long i = 0; i < iterations; i++) {
        enum option_id id = (enum option_id)below(OPTION_COUNT);
        make_text(text, sizeof text, id);
        load_one(id, text);
        size_t lines = take_messages(said, sizeof said);
        everything_is_in_range();
        if (options_from_environment(id)) {
            taken++;
            assert_string_equal(options_text(id), text);
            assert_true(lines == 0 || (lines == 1 && strstr(said, "has no effect")));
        } else {
            assert_int_equal(lines, text[0] != '\0');
            assert_true(lines == 0 || strstr(said, option_table[id].name));
            assert_memory_equal(&in_force, &defaults, sizeof defaults);
        }
    }
    assert_true(taken > iterations / 50); /* the text is not all noise */
}

static void a_size_means_what_it_says(void **unused) {
    (void)unused;
    static const char letters[] = "KMGT";
    char text[64], said[1024];
    state = from_environment("FUZZ_SEED", 7);
    for (int i = 0; i < 5000; i++) {
        unsigned exponent = 1 + below(4);
        uint64_t whole = below(3) ? below(10000) : (uint64_t)below(1u << 31) << below(33);
        static const char *const ends[] = {"", "B", "iB", "b", "i", "ib"};
        unsigned quarters = below(3) ? 0 : below(4);
        snprintf(text, sizeof text, "%lu%s%c%s", (unsigned long)whole,
                 (const char *const[]){"", ".25", ".5", ".750"}[quarters], letters[exponent - 1],
                 ends[below(6)]);
        unsigned __int128 bytes = ((unsigned __int128)whole * 4 + quarters) << (10 * exponent - 2);
        load_one(OPTION_MEMORY_LIMIT, text);
        bool fits = bytes > 0 && bytes <= UINT64_MAX;
        assert_int_equal(take_messages(said, sizeof said), fits ? 0 : 1);
        assert_int_equal(in_force.memory_limit[5], fits ? (uint64_t)bytes : 0);
    }
}

static void a_share_means_what_it_says(void **unused) {
    (void)unused;
    char text[64], said[1024];
    state = from_environment("FUZZ_SEED", 9);
    for (int i = 0; i < 5000; i++) {
        unsigned device = below(OPTIONS_MAX_DEVICES + 2), millionths = below(1100000);
        snprintf(text, sizeof text, "%u:%u.%06u", device, millionths / 1000000,
                 millionths % 1000000);
        load_one(OPTION_MEMORY_FRACTION, text);
        bool right = device < OPTIONS_MAX_DEVICES && millionths > 0 && millionths <= 1000000;
        assert_int_equal(take_messages(said, sizeof said), right ? 0 : 1);
        if (right) {
            double off = in_force.memory_fraction[device] - millionths / 1e6;
            assert_true(off < 1e-12 && off > -1e-12);
            assert_true(in_force.memory_fraction[(device + 1) % OPTIONS_MAX_DEVICES] == 1);
        }
    }
}

static void any_unknown_name_gets_one_warning(void **unused) {
    (void)unused;
    static char entry[512], said[8192];
    state = from_environment("FUZZ_SEED", 11);
    for (int i = 0; i < 20000; i++) {
        char text[256];
        make_text(text, sizeof text, OPTION_LOG);
        snprintf(entry, sizeof entry, "%s%s%s", below(8) ? PREFIX : "", text, below(4) ? "=1" : "");
        bool ours = strncmp(entry, PREFIX, strlen(PREFIX)) == 0;
        warn_if_unknown(entry);
        size_t lines = take_messages(said, sizeof said);
        assert_true(lines <= ours);
    }
}

static int start(void **unused) {
    (void)unused;
    log_set_level(LOG_LEVEL_WARN);
    int kept = dup(STDERR_FILENO);
    messages = memfd_create("messages", MFD_CLOEXEC);
    if (kept < 0 || messages < 0 || fcntl(messages, F_SETFL, O_APPEND) != 0) /* like a log */
        return -1;
    dup2(messages, STDERR_FILENO);
    log_keep();
    dup2(kept, STDERR_FILENO);
    close(kept);
    for (int id = 0; id < OPTION_COUNT; id++) {
        unsetenv(option_table[id].name);
        load_option((enum option_id)id);
    }
    memcpy(&defaults, &in_force, sizeof defaults);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_text_is_taken_or_refused_with_one_warning),
        cmocka_unit_test(a_size_means_what_it_says),
        cmocka_unit_test(a_share_means_what_it_says),
        cmocka_unit_test(any_unknown_name_gets_one_warning),
    };
    return cmocka_run_group_tests_name("options, fuzzed", tests, start, NULL);
}
