/*
 * Tests the verdict of a report about out of memory (OOM), and where it is written.
 *
 * Cases that depend on options run in a child, because options are read once per process.
 */
#include "reports.h"

#include "report/emitter.h"

#include <stdio.h>

static struct report_oom oom;

static void write_oom(void) {
    report_oom(&oom);
}

static void write_five_ooms(void) {
    for (int i = 0; i < 5; i++)
        report_oom(&oom);
}

/* Returns the text of an OOM report in a process with this environment variable. */
static const char *oom_text(const char *variable) {
    static char source[64];
    snprintf(source, sizeof source, "%.*s", (int)strcspn(variable, "="), variable);
    *limit_source_of(0) = strstr(source, "_MEMORY_") ? source : NULL;
    const char *text = STDERR_OF(write_oom, variable);
    assert_fits(text, 1);
    assert_memory_equal(text, "gpucache: out of memory: device 0 has no room for ", 50);
    return text;
}

static void the_limit_is_blamed_with_a_value_that_would_do(void **state) {
    (void)state;
    add_typical(0)->limit_bytes = GIB;
    oom = (struct report_oom){0, 2 * GIB, GIB, 100 * GIB, 150117580800};
    const char *text = oom_text("GPUCACHE_MEMORY_LIMIT=1G");
    assert_says(text, "has no room for 2.00 GiB\nLimit 1.00 GiB, left 0 B, device 139.81 GiB, free "
                      "100.00 GiB\n");
    assert_says(text, "Held: live 400.00 MiB, idle 624.00 MiB, outside 2.00 MiB,\n"
                      "  others about 38.81 GiB\n");
    assert_says(text, "Not fragmentation: largest free block 156.00 MiB of 624.00 MiB idle\n");
    assert_says(text, "Most likely to help: GPUCACHE_MEMORY_LIMIT=3074M or more\n");
    assert_says(text, "Still live: 300.00 MiB in 3 allocations: 2 x 149.00 MiB, 1 x 2.00 MiB\n");
    assert_says(text, "written when out of memory");
    oom.limit = 1501175808;
    assert_says(oom_text("GPUCACHE_MEMORY_FRACTION=0.01"),
                "Most likely to help: GPUCACHE_MEMORY_FRACTION=0.03 or more\n");
    assert_says(oom_text("A=1"), "Most likely to help: a limit of 3.00 GiB or more\n");
    assert_says(oom_text("CUDA_DEVICE_MEMORY_LIMIT_0=1g"),
                "Most likely to help: CUDA_DEVICE_MEMORY_LIMIT_0=3074M or more\n");
    oom.requested = 140 * GIB - 400 * MIB;
    oom.device_total = 140 * GIB;
    assert_says(oom_text("GPUCACHE_MEMORY_LIMIT=1G"),
                "No setting is known to help: all of it together is more than there is\n");
}

/* Tests the advice after no live sizes, after a few, after too many, and after a sentence that
 * leaves no space in its line. */
static void call_stacks_are_advised_unless_they_are_on(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    static const char whose[] = "GPUCACHE_STACKS=16 says whose";
    oom = (struct report_oom){0, 2 * GIB, GIB, 100 * GIB, 150117580800};
    for (int round = 0; round < 8; round++) {
        struct lines lines;
        bool off = round % 2 == 0;
        device->live_groups = (size_t[]){0, 2, 5, 2}[round / 2];
        for (unsigned i = 2; i < 5; i++)
            device->live[i] = (struct stats_live){(i + 10) * MIB, 7};
        if (round / 2 == 3)
            device->allocations.current = UINT64_MAX;
        verdict_write(&lines, &oom, device, &the_map, !off);
        const char *last = lines.text[lines.count - 1];
        assert_int_equal(strstr(last, whose) != NULL, off);
        assert_true(strlen(last) <= LINES_COLUMNS && lines.count <= LINES_MAX);
    }
    assert_says(oom_text("A=1"), "GPUCACHE_STACKS=16 says whose\n");
}

/* Sets the map of the pool to `count` free ranges of `bytes`, each behind a live block. */
static void holes_of(unsigned count, uint64_t bytes) {
    the_map = (struct segment_map){.count = 2 * count};
    for (unsigned i = 0; i < 2 * count; i++) {
        uint32_t units = (uint32_t)(bytes / SEGMENT_MAP_UNIT);
        the_map.pieces[i] = (struct segment_piece){
            .address = (i + 1) * bytes, .units = units, .live = i % 2 ? 0 : units};
    }
}

static void fragmentation_is_blamed_when_enough_lies_idle(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    oom = (struct report_oom){0, 200 * MIB, 0, 10 * MIB, 150117580800};
    const char *text = oom_text("A=1");
    assert_says(text, "Cause is fragmentation: largest free block 156.00 MiB of 624.00 MiB idle\n");
    assert_says(text, "No setting is known to help: free memory lies between live blocks\n");
    assert_silent_on(text, "GPUCACHE_");
    oom.requested = 150 * MIB; /* less than the largest free block, which the pool did not use */
    text = oom_text("A=1");
    assert_says(text, "Cause is fragmentation: free blocks that fit serve small requests only\n");
    assert_silent_on(text, "largest free block 156.00 MiB of");
    oom.requested = 200 * MIB;
    device->backend_reason = "GPUCACHE_BACKEND=segments";
    holes_of(100, 31 * MIB); /* no hole is sure to contain a whole handle */
    assert_silent_on(oom_text("A=1"), "GPUCACHE_BACKEND");
    holes_of(12, 32 * MIB);
    assert_says(oom_text("A=1"),
                "Most likely to help: GPUCACHE_BACKEND=auto, which takes pages if it can\n");
    device->limit_bytes = oom.limit =
        GIB + 10 * MIB; /* the device has free memory that the limit does not allow */
    oom.device_free = 100 * GIB;
    assert_says(oom_text("GPUCACHE_MEMORY_LIMIT=1034M"),
                "Most likely to help: GPUCACHE_BACKEND=auto, GPUCACHE_MEMORY_LIMIT=1226M\n");
    assert_says(oom_text("A=1"),
                "Most likely to help: GPUCACHE_BACKEND=auto, a limit of 1.20 GiB\n");
    device->limit_bytes = oom.limit = 0;
    oom.device_free = 0; /* without fragmentation that advice is not given either */
    oom.requested = 700 * MIB;
    assert_silent_on(oom_text("A=1"), "GPUCACHE_BACKEND");
}

/* If the device has free memory above the limit, a larger limit helps in any state of the pool. */
static void a_larger_limit_is_advised_where_the_device_has_the_memory(void **state) {
    (void)state;
    add_typical(0)->limit_bytes = GIB + 10 * MIB;
    oom = (struct report_oom){0, 200 * MIB, GIB + 10 * MIB, 100 * GIB, 150117580800};
    const char *text = oom_text("GPUCACHE_MEMORY_LIMIT=1034M");
    assert_says(text, "Cause is fragmentation");
    assert_says(text, "Most likely to help: GPUCACHE_MEMORY_LIMIT=1226M or more\n");
    oom.device_free = 100 * MIB; /* the device has not enough memory either */
    assert_says(oom_text("GPUCACHE_MEMORY_LIMIT=1034M"), "No setting is known to help: ");
    oom = (struct report_oom){0, 600 * MIB, GIB + 10 * MIB, 100 * GIB, 150117580800};
    text = oom_text("GPUCACHE_MEMORY_LIMIT=1034M");
    assert_says(text, "100.00 MiB of 624.00 MiB idle may still be in use\n");
    assert_says(text, "Most likely to help: GPUCACHE_MEMORY_LIMIT=1626M or more\n");
}

static void pending_memory_is_blamed_when_nothing_else_is_idle(void **state) {
    (void)state;
    add_typical(0);
    oom = (struct report_oom){0, 600 * MIB, 0, 10 * MIB, 150117580800};
    const char *text = oom_text("A=1");
    assert_says(text, "Not fragmentation: 100.00 MiB of 624.00 MiB idle may still be in use\n");
    assert_says(text,
                "No setting is known to help: the work before the frees may not have ended\n");
}

static void other_processes_are_blamed_when_they_hold_the_memory(void **state) {
    (void)state;
    add_typical(0);
    oom = (struct report_oom){0, 20 * GIB, 0, GIB, 150117580800};
    const char *text = oom_text("A=1");
    assert_says(text, "others about 137.81 GiB\n");
    assert_says(text, "No setting is known to help: nvidia-smi names the other processes\n");
}

static void the_verdict_says_if_no_setting_helps(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    oom = (struct report_oom){0, 200 * GIB, 0, 100 * GIB, 150117580800};
    assert_says(oom_text("A=1"),
                "No setting is known to help: the device is smaller than the request\n");
    oom = (struct report_oom){0, GIB, 0, 100 * GIB, 150117580800};
    assert_says(oom_text("A=1"),
                "No setting is known to help: the driver refused what it has room for\n");
    device->pending_bytes = device->ready_bytes = device->largest_free_bytes = 0;
    device->allocated.current = device->reserved.current = 139 * GIB;
    oom = (struct report_oom){0, 2 * GIB, 0, GIB / 2, 150117580800};
    const char *text = oom_text("A=1");
    assert_says(text, "No setting is known to help: the program's live memory fills the device\n");
    assert_says(text, "Not fragmentation: nothing lies idle\n");
    device->stream_ordered.current = 130 * GIB;
    device->allocated.current = device->reserved.current = 9 * GIB;
    assert_says(oom_text("A=1"),
                "No setting is known to help: the program itself can release what is outside\n");
}

static void unknown_counters_are_left_out(void **state) {
    (void)state;
    add_typical(0);
    oom = (struct report_oom){0, 2 * GIB, 0, 0, 0};
    const char *text = oom_text("A=1");
    assert_silent_on(text, "others");
    assert_silent_on(text, "free\n");
    oom.device = 0;
    forget_devices(NULL);
    text = STDERR_OF(write_oom, "A=1");
    assert_says(text, "gpucache: out of memory: device 0 has no room for 2.00 GiB\n");
    assert_says(text, "No device was used");
}

static void the_largest_oom_keeps_its_shape(void **state) {
    (void)state;
    struct stats_device *device = add_extreme(0);
    oom = (struct report_oom){0, 1047 * GIB, 1048575 * GIB, 1048575 * GIB, 1048575 * GIB};
    assert_says(oom_text("A=1"), " help");
    device->pending_bytes = 0; /* without pending memory the verdict is another */
    assert_says(oom_text("A=1"), " help");
}

/* The table's own sentences follow a verdict of any length. */
static void an_oom_report_is_whole(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->limit_bytes = GIB;
    oom = (struct report_oom){0, 2 * GIB, GIB, 100 * GIB, 150117580800};
    const char *text = oom_text("GPUCACHE_MEMORY_LIMIT=1G");
    assert_says(text, "| Hit rate 99.99% of 123456789, driver calls avoided 246913555 ");
    device->live_groups = 0; /* now the hint about call stacks shares a line */
    assert_says(oom_text("GPUCACHE_MEMORY_LIMIT=1G"),
                "| OOMs 0, refused at the limit 0, retries 0, host memory ");
    add_extreme(0);
    text = oom_text("GPUCACHE_MEMORY_LIMIT=1G");
    assert_says(text, "| Hit rate ");
    assert_says(text, "\nStill live: ");
    assert_says(text, " help");
}

static void an_oom_in_json_carries_the_verdict(void **state) {
    (void)state;
    add_typical(0);
    oom = (struct report_oom){0, 2 * GIB, GIB, 0, 0};
    assert_json(
        STDERR_OF(write_oom, "GPUCACHE_REPORT_FORMAT=json"),
        "o=r['oom']; keys(o,'device','requested_bytes','limit_bytes','device_free_bytes',\n"
        "    'device_total_bytes','verdict')\n"
        "assert o['device']==0 and o['requested_bytes']==2<<30 and o['limit_bytes']==1<<30\n"
        "assert o['device_free_bytes'] is None and o['device_total_bytes'] is None\n"
        "assert o['verdict'][0].startswith('gpucache: out of memory')\n");
}

static void a_program_that_probes_by_failing_gets_three_reports(void **state) {
    (void)state;
    add_typical(0);
    oom = (struct report_oom){0, 2 * GIB, GIB, 0, 0};
    const char *text = STDERR_OF(write_five_ooms, "A=1");
    int reports = 0;
    for (const char *at = text; (at = strstr(at, "gpucache: out of memory")); at++)
        reports++;
    assert_int_equal(reports, 3);
    const char *last =
        strstr(text, "gpucache: further OOMs are counted, but not reported one by one\n");
    assert_non_null(last);
    assert_string_equal(strchr(last, '\n'), "\n");
}

/* If reports go elsewhere, one line on stderr says that memory ran out, and why. */
static void an_oom_without_a_report_on_stderr_is_one_line_there(void **state) {
    (void)state;
    static const char line[] =
        "gpucache: out of memory: device 0 has no room for 2.00 GiB; Limit 1.00 GiB, left 0 B, "
        "device 139.81 GiB, free 100.00 GiB; Held: live 400.00 MiB, idle 624.00 MiB, outside "
        "2.00 MiB, ";
    add_typical(0)->limit_bytes = GIB;
    oom = (struct report_oom){0, 2 * GIB, GIB, 100 * GIB, 150117580800};
    const char *text = STDERR_OF(write_oom, "GPUCACHE_REPORT=/dev/null", "GPUCACHE_LOG=error");
    assert_memory_equal(text, line, strlen(line));
    assert_says(text, "Most likely to help");
    assert_silent_on(text, "Largest live");
    assert_string_equal(strchr(text, '\n'), "\n");
    text = STDERR_OF(write_five_ooms, "GPUCACHE_REPORT=/dev/null");
    size_t lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    assert_int_equal(lines, 4);
    add_extreme(0);
    oom = (struct report_oom){0, 1047 * GIB, 1048575 * GIB, 1048575 * GIB, 1048575 * GIB};
    text = STDERR_OF(write_oom, "GPUCACHE_REPORT=/dev/null");
    assert_silent_on(text, "...\n");
    assert_string_equal(strchr(text, '\n'), "\n");
}

/* The program gets the driver's error code, as natively. */
static void without_reports_no_oom_is_reported(void **state) {
    (void)state;
    add_typical(0)->limit_bytes = GIB;
    oom = (struct report_oom){0, 2 * GIB, GIB, 100 * GIB, 150117580800};
    assert_string_equal(STDERR_OF(write_five_ooms, "GPUCACHE_REPORT=off"), "");
    const char *text = STDERR_OF(write_five_ooms, "GPUCACHE_REPORT=off", "GPUCACHE_LOG=info");
    assert_says(text, "gpucache: out of memory: device 0 has no room for 2.00 GiB; ");
    assert_says(text, "gpucache: further OOMs are counted");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_limit_is_blamed_with_a_value_that_would_do),
        TEST(call_stacks_are_advised_unless_they_are_on),
        TEST(fragmentation_is_blamed_when_enough_lies_idle),
        TEST(a_larger_limit_is_advised_where_the_device_has_the_memory),
        TEST(pending_memory_is_blamed_when_nothing_else_is_idle),
        TEST(an_oom_report_is_whole),
        TEST(other_processes_are_blamed_when_they_hold_the_memory),
        TEST(the_verdict_says_if_no_setting_helps),
        TEST(unknown_counters_are_left_out),
        TEST(the_largest_oom_keeps_its_shape),
        TEST(an_oom_in_json_carries_the_verdict),
        TEST(a_program_that_probes_by_failing_gets_three_reports),
        TEST(an_oom_without_a_report_on_stderr_is_one_line_there),
        TEST(without_reports_no_oom_is_reported),
    };
    return cmocka_run_group_tests_name("report oom", tests, NULL, NULL);
}
