/*
 * Tests the holders of memory in a report. The text names the largest first, one line each, within
 * the width of the table. The JSON has all of them.
 */
#include "reports.h"

#include "report/holders.h"

#define LONG "a_function_with_a_name_that_is_longer_than_any_line_of_a_report_could_ever_be_or_so_"

/* ---- eight invented stacks ---- */

#define STACKS 8

static const struct stats_frame frames[STACKS + 1][6] = {
    [1] = {{.file = "/usr/lib/libcudart.so.13", .offset = 0x1234},
           {.file = "/opt/lib/libtorch.so", .offset = 0xabcd},
           {.function = "linear",
            .file = "/usr/lib/python3/dist-packages/torch/functional.py",
            .line = 7,
            .python = true},
           {.function = "step", .file = "/home/me/train.py", .line = 31, .python = true},
           {.function = "main", .file = "/home/me/train.py", .line = 52, .python = true}},
    [2] = {{.file = "/usr/lib/libcudart.so.13", .offset = 0x1234},
           {.file = "/home/me/app", .offset = 0x77},
           {.offset = 0x99}},
    [3] = {{.function = LONG, .file = "/home/me/long.py", .line = 1, .python = true},
           {.function = LONG LONG, .file = "/home/me/long.py", .line = 2, .python = true}},
    [4] = {{.function = "_call",
            .file = "/v/lib/python3.11/site-packages/x.py",
            .line = 3,
            .python = true}},
    [5] = {{.file = "/home/me/\"quoted\" app", .offset = 1}},
    [6] = {{.function = "resolved", .file = "kernel.cpp", .line = 9},
           {.function = "unlined", .file = "libk.so"}},
};

static struct stats_holder holders[STACKS + 1];
static struct stats_held all;
static uint64_t lost[2];

static struct stats_recording recording(const void *of) {
    (void)of;
    return (struct stats_recording){"libunwind", lost[0], lost[1]};
}

static struct stats_held held(const void *of, int device) {
    (void)of, (void)device;
    return all;
}

static bool next(const void *of, int device, uint32_t *at, struct stats_holder *holder) {
    (void)of;
    if (device != 0 || *at == STACKS)
        return false;
    *holder = holders[STACKS - (*at)++]; /* in ascending order of bytes */
    return true;
}

static bool frame(const void *of, uint32_t stack, unsigned index, struct stats_frame *out) {
    (void)of;
    bool there = index < 6 && (frames[stack][index].file || frames[stack][index].offset);
    if (there)
        *out = frames[stack][index];
    return there;
}

static bool module(const void *of, uint32_t index, const char **path, const char **build_id) {
    (void)of;
    *path = index == 0 ? "/opt/lib/libtorch.so" : "/home/me/app";
    *build_id = index == 0 ? "abcdef" : "";
    return index < 2;
}

static const struct stats_stacks stacks = {.frames = 16,
                                           .python = 0x30b,
                                           .recording = recording,
                                           .held = held,
                                           .next = next,
                                           .frame = frame,
                                           .module = module};

/* The first stack holds 100 MiB at the peak and nothing now. Each later stack holds less than the
 * one before it. */
static void add_holders(void) {
    memset(&all, 0, sizeof all);
    memset(lost, 0, sizeof lost);
    for (uint32_t i = 1; i <= STACKS; i++) {
        struct stats_share peak = {(110 - 10 * i) * MIB, i},
                           live = {i == 1 ? 0 : peak.bytes / 2, i == 1 ? 0 : i};
        holders[i] = (struct stats_holder){i, {live, peak}, {3 * GIB, 50}, 12345678901234, 5};
        all.live.bytes += live.bytes;
        all.live.count += live.count;
        all.peak.bytes += peak.bytes;
        all.peak.count += peak.count;
    }
    remembered = &stacks;
    add_typical(0);
}

static void text_names_the_largest_with_their_own_lines(void **state) {
    (void)state;
    add_holders();
    const char *text = report_in(REPORT_TEXT);
    assert_says(text, "| Held at the peak, 520.00 MiB: ");
    assert_says(text, "|   100.00 MiB in 1: step (train.py:31) ");
    assert_says(text, "|     from main (train.py:52) ");
    assert_silent_on(text, "linear");
    assert_silent_on(text, "libcudart");
    assert_says(text, "|   90.00 MiB in 2: app+0x77 ");
    assert_says(text,
                "|   70.00 MiB in 4: _call (x.py:3) "); /* a stack without a frame of the program */
    assert_says(text, "|   120.00 MiB of 3 more call stacks ");
    assert_says(text, "| Held now, 210.00 MiB: ");
    assert_says(text, "|   45.00 MiB in 2: app+0x77 ");
    assert_says(text, "|   25.00 MiB in 6: resolved (kernel.cpp:9) ");
    assert_says(text, "|     from unlined (libk.so) ");
    assert_true(strstr(text, "Held now") > strstr(text, "Still live"));
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        assert_true(strcspn(line, "\n") == 75);
}

#define LIBRARIES "/v/lib/python3.11/site-packages/"

/* A stack of a PyTorch thread has only frames of libraries. */
static const struct stats_frame backward[] = {
    {.file = LIBRARIES "nvidia/lib/libcudart.so.13", .offset = 0x1234},
    {.function = "c10::cuda::allocate", .file = LIBRARIES "torch/lib/libc10_cuda.so"},
    {.function =
         "void at::(anonymous namespace)::reduce<4, std::array<char*, 2ul> >::run<(at::Kind)3>",
     .file = LIBRARIES "torch/lib/libtorch_cuda.so"},
    {.function = "bool at::operator<< <int>", .file = LIBRARIES "torch/lib/libtorch_cpu.so"},
    {.file = "/usr/lib/libcuda.so.1", .offset = 0x77},
};

static bool frame_of_backward(const void *of, uint32_t stack, unsigned index,
                              struct stats_frame *out) {
    (void)of;
    bool there = index < stack;
    if (there)
        *out = backward[index];
    return there;
}

static void assert_stack(uint32_t stack, const char *wanted, const char *more) {
    const struct stats_stacks of = {.frame = frame_of_backward};
    char texts[2][512];
    struct print first, second;
    print_init(&first, -1, texts[0], sizeof texts[0]);
    print_init(&second, -1, texts[1], sizeof texts[1]);
    holders_print_stack(&of, stack, &first, &second);
    assert_string_equal(print_end(&first), wanted);
    assert_string_equal(print_end(&second), more);
}

static void a_frame_that_asks_the_driver_gets_no_line(void **state) {
    (void)state;
    assert_stack(5, ": at::(anonymous namespace)::reduce::run (libtorch_cuda.so)",
                 "    from bool at::operator<< <int> (libtorch_cpu.so)");
    assert_stack(2, ": libcudart.so.13+0x1234", "    from c10::cuda::allocate (libc10_cuda.so)");
}

static void only_frames_of_the_program_are_its_own(void **state) {
    (void)state;
    static const struct {
        const char *function, *file;
        bool own;
    } rows[] = {
        {"main", "/home/me/app.cpp", true},
        {"main", "app.cpp", true},
        {"_start_training", "/home/me/train.py", true},
        {"f", "/home/me/usr/lib/app.cpp", true},
        {"f", "/home/me/include/cuda/app.h", true},
        {"_start", "/home/me/app", false},
        {"__libc_start_main_impl", "/home/me/app", false},
        {"f", NULL, false},
        {"std::make_unique", "/usr/include/c++/12/bits/unique_ptr.h", false},
        {"std::make_unique", "/opt/conda/include/c++/12/bits/unique_ptr.h", false},
        {"thrust::device_vector", "/opt/cuda/include/thrust/device_vector.h", false},
        {"run", "/usr/lib/python3.11/threading.py", false},
        {"run", "/opt/lib/python3.11/threading.py", false},
        {"step", "/v/lib/site-packages/torch/optim.py", false},
        {"<module>", "<frozen importlib._bootstrap>", false},
        {"malloc", "/lib/x86_64-linux-gnu/libc.so.6", false},
        {"at::empty", "/home/me/libtorch/lib/libtorch_cpu.so", false},
        {"cudaMalloc", "/home/me/libcudart.so.12", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct stats_frame at = {.function = rows[i].function, .file = rows[i].file};
        if (holders_frame_is_own(&at) != rows[i].own)
            fail_msg("%s (%s)", rows[i].function, rows[i].file ? rows[i].file : "");
    }
}

static void dropped_stacks_are_reported(void **state) {
    (void)state;
    add_holders();
    lost[0] = 41;
    assert_says(report_in(REPORT_TEXT), "Without frames: 41 allocations, too many different");
    lost[1] = 17;
    assert_says(report_in(REPORT_TEXT), "Not counted here: 17 allocations, for which there was no");
}

static void without_recorded_stacks_there_are_no_holders(void **state) {
    (void)state;
    add_typical(0);
    assert_silent_on(report_in(REPORT_TEXT), "Held");
    assert_fits(report_in(REPORT_TEXT), 1);
    assert_json(report_in(REPORT_JSON), "assert 'stacks' not in r and 'modules' not in r\n"
                                        "assert 'holders' not in d and 'held' not in d\n");
}

static void json_has_all_holders(void **state) {
    (void)state;
    add_holders();
    struct stats_device *device = add_typical(0);
    device->live_stacks[0] = 1;
    lost[1] = 17;
    assert_json(
        report_in(REPORT_JSON),
        "assert r['stacks']=={'frames':16,'unwinder':'libunwind','python':'3.11','lost_stacks':0,"
        "'lost_blocks':17}\n"
        "assert r['modules']==[{'path':'/opt/lib/libtorch.so','build_id':'abcdef'},"
        "{'path':'/home/me/app','build_id':None}]\n"
        "assert "
        "d['held']=={'live_bytes':210<<20,'live_count':35,'peak_bytes':520<<20,'peak_count':36}\n"
        "h=d['holders'][::-1]\n"
        "assert len(h)==8 and h[0]['live_bytes']==0 and h[0]['peak_bytes']==100<<20\n"
        "assert h[1]['live_count']==2 and h[1]['peak_count']==2\n"
        "assert h[0]['total_bytes']==3<<30 and h[0]['total_count']==50\n"
        "assert h[0]['byte_seconds']==12345678901234.000000005\n"
        "assert h[0]['stack']==['/usr/lib/libcudart.so.13+0x1234','/opt/lib/libtorch.so+0xabcd',"
        "'linear (/usr/lib/python3/dist-packages/torch/functional.py:7)',"
        "'step (/home/me/train.py:31)','main (/home/me/train.py:52)']\n"
        "assert h[1]['stack'][2]=='0x99' and h[4]['stack']==['/home/me/\"quoted\" app+0x1']\n"
        "assert h[5]['stack']==['resolved (kernel.cpp:9)','unlined (libk.so)']\n"
        "assert h[6]['stack']==[]\n"
        "assert d['live'][0]['stack']==h[0]['stack'] and d['live'][1]['stack']==[]\n");
}

static const struct report_oom oom = {
    .device = 0, .requested = GIB, .limit = 0, .device_free = MIB, .device_total = 16 * GIB};

static void fail_to_allocate(void) {
    options_load();
    report_oom(&oom);
}

static void an_oom_report_shows_current_holders(void **state) {
    (void)state;
    add_holders();
    const char *text = STDERR_OF(fail_to_allocate, "GPUCACHE_REPORT=stderr");
    assert_says(text, "Held now, 210.00 MiB:");
    assert_silent_on(text, "Held at the peak");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(text_names_the_largest_with_their_own_lines),
        TEST(a_frame_that_asks_the_driver_gets_no_line),
        TEST(only_frames_of_the_program_are_its_own),
        TEST(dropped_stacks_are_reported),
        TEST(without_recorded_stacks_there_are_no_holders),
        TEST(json_has_all_holders),
    };
    const struct CMUnitTest in_a_child[] = {TEST(an_oom_report_shows_current_holders)};
    int failed = cmocka_run_group_tests_name("report holders, OOM", in_a_child, NULL, NULL);
    options_load(); /* initialises the log's stderr */
    return failed + cmocka_run_group_tests_name("report holders", tests, NULL, NULL);
}
