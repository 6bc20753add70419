/*
 * The text of a report: the size of the table and the words in it.
 */
#include "reports.h"

static void the_table_has_the_counters(void **state) {
    (void)state;
    add_typical(0);
    const char *text = report_in(REPORT_TEXT);
    assert_fits(text, 1);
    assert_says(text, "| gpucache " GPUCACHE_VERSION " report, written at exit after ");
    assert_says(text, "| device 0: NVIDIA H200, 139.81 GiB, no limit ");
    assert_says(text,
                "| Metric           |  Cur Usage |    Peak Usage |  Tot Alloc |  Tot Freed |\n");
    assert_says(text,
                "| Requested memory | 300.00 MiB |    900.00 MiB |  40.00 GiB |  39.71 GiB |\n");
    assert_says(text,
                "| Allocated memory | 400.00 MiB |    950.00 MiB |  41.00 GiB |  40.61 GiB |\n");
    assert_says(text,
                "| Active memory    | 500.00 MiB |      1.00 GiB |  41.00 GiB |  40.51 GiB |\n");
    assert_says(text,
                "| Reserved memory  |   1.00 GiB |      1.50 GiB |   1.50 GiB | 512.00 MiB |\n");
    assert_says(text,
                "| Outside the pool |   2.00 MiB |  <= 66.00 MiB |  66.00 MiB |  64.00 MiB |\n");
    assert_says(text,
                "| Allocations      |          3 |          1000 |  123456789 |  123456786 |\n");
    assert_says(text,
                "| Segments         |         10 |            15 |         15 |          5 |\n");
    assert_says(text, "| Hit rate 99.99% of 123456789, driver calls avoided 246913555 ");
    assert_says(text, "| Peak reserved over peak requested 1.71: about 33% ready ");
    assert_says(text, "Fragmentation: internal 25.00%, external 70.22% of 524.00 MiB ready");
    assert_says(text, "Free blocks 7, largest free block 156.00 MiB, releasable 512.00 MiB");
    assert_says(text, "OOMs 0, refused at the limit 0, retries 0, host memory 1.50 MiB ");
    assert_says(text, "Still live: 300.00 MiB in 3 allocations: 2 x 149.00 MiB, 1 x 2.00 MiB ");
    assert_says(text, "CPU waits 2 (1.234 s)");
    assert_says(text, "Peaks outside: array 64.00 MiB, managed 2.00 MiB, pinned_host 1.00 GiB,");
    assert_says(text, "|   pinned hit rate 99.00% of 100 ");
    assert_silent_on(text, ">=");
}

static void libraries_are_named_with_live_and_peak_bytes(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->requesters[0] = (struct stats_requester){"libtorch_cuda.so", 250 * MIB, 800 * MIB};
    device->requesters[1] = (struct stats_requester){"libnccl.so.2", 40 * MIB, 90 * MIB};
    device->requesters[2] = (struct stats_requester){"small blocks", 12 * MIB, STATS_NO_PEAK};
    device->requester_count = 3;
    const char *text = report_in(REPORT_TEXT);
    assert_fits(text, 1);
    assert_says(text, "| By library (peak): libtorch_cuda.so 250.00 MiB (800.00 MiB),");
    assert_says(text, "|   libnccl.so.2 40.00 MiB (90.00 MiB) ");
    assert_silent_on(text, "small blocks"); /* their peak is unknown */
}

static void without_live_blocks_the_table_says_nothing_is_live(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->requested.current = device->allocated.current = device->allocations.current = 0;
    assert_says(report_in(REPORT_TEXT), "| Still live: nothing ");
}

/* Sizes that print alike become one. The JSON has the exact sizes. */
static void live_sizes_that_read_the_same_are_one(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->live[0] = (struct stats_live){32 * MIB, 1};
    device->live[1] = (struct stats_live){30 * MIB + 1, 1};
    device->live[2] = (struct stats_live){30 * MIB, 1};
    device->live_groups = 3;
    assert_says(report_in(REPORT_TEXT), " allocations: 2 x 30.00 MiB, 1 x 32.00 MiB ");
    device->live_groups = 0; /* another thread held the lock */
    assert_says(report_in(REPORT_TEXT), "Still live: 300.00 MiB in 3 allocations ");
}

static void more_live_sizes_than_are_named_are_hinted_at(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    for (unsigned i = 0; i < 7; i++)
        device->live[i] = (struct stats_live){(7 - i) * MIB, 1};
    device->live_groups = 7;
    device->array.peak = device->managed.peak = 0;
    const char *text = report_in(REPORT_TEXT);
    assert_says(text, "allocations: 1 x 7.00 MiB, 1 x 6.00 MiB,");
    assert_says(text, "1 x 3.00 MiB, ... ");
    assert_silent_on(text, "1 x 2.00 MiB");
    assert_fits(text, 1);
}

static void the_main_reasons_for_a_large_reserve_are_named(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->requested.peak = 100 * MIB;
    device->allocated.peak = 160 * MIB;
    device->active.peak = 300 * MIB;
    device->reserved.peak = 400 * MIB;
    const char *text = report_in(REPORT_TEXT);
    assert_says(text, "| Peak reserved over peak requested 4.00: about 35% pending, 25% ready,");
    assert_says(text, "|   15% rounding ");
    device->reserved.peak = device->active.peak = 160 * MIB;
    text = report_in(REPORT_TEXT);
    assert_says(text, "| Peak reserved over peak requested 1.60: about 37% rounding ");
}

static void a_part_of_a_peak_is_never_more_than_the_peak(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->requested.peak = device->allocated.peak = 0;
    device->active.peak = (uint64_t)1 << 60;
    device->reserved.peak = 1;
    assert_says(report_in(REPORT_TEXT), "about 100% pending ");
}

static void an_empty_pool_has_no_external_fragmentation(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->pending_bytes = device->ready_bytes = 0;
    const char *text = report_in(REPORT_TEXT);
    assert_says(text, "Fragmentation: internal 25.00%, nothing idle ");
    assert_silent_on(text, "external");
}

/* The free ranges of pending memory are not known before its work has finished, so it does not
 * count. */
static void pending_memory_is_no_external_fragmentation(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->pending_bytes += device->ready_bytes;
    device->ready_bytes = device->largest_free_bytes = 0;
    const char *text = report_in(REPORT_TEXT);
    assert_says(text, "Fragmentation: internal 25.00%, nothing ready of 624.00 MiB idle ");
    assert_silent_on(text, "external");
    assert_json(report_in(REPORT_JSON), "assert d['fragmentation']['external']==0\n");
}

static void no_figure_touches_the_border_of_its_cell(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->requested.total =
        1024 * MIB - 6 * MIB / 100; /* 1023.94 MiB: the longest text of a size */
    device->allocations.total = UINT64_MAX;
    device->peaks_exact = false;
    device->requested.peak = device->requested.total;
    const char *text = report_in(REPORT_TEXT);
    assert_says(text, "| >= 1023.9 MiB | 1023.9 MiB |");
    for (const char *at = text; (at = strchr(at, '|')); at++)
        if (at[1] >= '0' && at[1] <= '9')
            fail_msg("a figure touches its border: %.40s\n%s", at, text);
}

/* No line ends with a comma, so every printed sentence is whole. */
static void no_sentence_is_cut_off(void **state) {
    (void)state;
    struct stats_device *device = add_extreme(0);
    for (int i = 0; i < 64; i++) {
        device->invalid_frees = i & 1 ? UINT64_MAX : 0;
        device->peaks_exact = i & 2;
        device->stream_ordered.peak = i & 4 ? UINT64_MAX : 0;
        device->ready_bytes = i & 8 ? UINT64_MAX / 4 : 0;
        device->pending_bytes = i & 8 ? UINT64_MAX / 4 : 0;
        device->barriers = i & 16 ? UINT64_MAX : 0;
        device->pinned_hits = i & 32 ? 1 : 0;
        const char *text = report_in(REPORT_TEXT);
        assert_fits(text, 1);
        assert_says(text, "\n| Still live: ");
        for (const char *at = text; (at = strchr(at, '\n')); at++) {
            const char *end = at - 2;
            while (end > text && *end == ' ')
                end--;
            if (*end == ',' && strncmp(at + 1, "|   ", 4) != 0)
                fail_msg("a sentence ends in the middle:\n%s", text);
        }
    }
}

static void the_limit_stands_above_the_table(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    assert_silent_on(report_in(REPORT_TEXT), "The limit comes from");
    device->limit_bytes = 8 * GIB;
    device->limit_source = "CUDA_DEVICE_MEMORY_LIMIT_0";
    const char *text = report_in(REPORT_TEXT);
    assert_says(text, ", 139.81 GiB, limit 8.00 GiB ");
    assert_says(text, "The limit comes from CUDA_DEVICE_MEMORY_LIMIT_0");
    assert_fits(text, 1);
}

static void a_peak_that_is_not_exact_is_marked(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->peaks_exact = false;
    device->peak_error_bytes = 16 * MIB;
    const char *text = report_in(REPORT_TEXT);
    assert_says(text, "| Requested memory | 300.00 MiB | >= 900.00 MiB |");
    assert_says(text, "| Allocated memory | 400.00 MiB | >= 950.00 MiB |");
    assert_says(text, "| Reserved memory  |   1.00 GiB |      1.50 GiB |");
    assert_says(text, "A peak marked >= may be up to 16.00 MiB too small");
}

static void a_single_unpooled_kind_has_an_exact_peak(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->managed = (struct stats_metric){0, 0, 0, 0};
    assert_says(report_in(REPORT_TEXT), "| Outside the pool |        0 B |     64.00 MiB |");
}

static void the_largest_counters_keep_the_tables_shape(void **state) {
    (void)state;
    add_extreme(63);
    const char *text = report_in(REPORT_TEXT);
    assert_fits(text, 1);
    assert_says(text, "device 63: NNNN");
    assert_says(text, "Still live:");
}

static void a_name_from_outside_cannot_break_the_table(void **state) {
    (void)state;
    strcpy(add_typical(0)->name, "a\nb\x1b[2J\xff\xc3\xa9");
    assert_fits(report_in(REPORT_TEXT), 1);
}

static void every_used_device_has_a_table(void **state) {
    (void)state;
    add_typical(0);
    add_typical(3);
    add_extreme(5);
    const char *text = report_in(REPORT_TEXT);
    assert_fits(text, 3);
    assert_says(text, "device 0: ");
    assert_says(text, "device 3: ");
    assert_says(text, "device 5: ");
    assert_silent_on(text, "device 1: ");
}

static void without_devices_a_requested_report_says_so(void **state) {
    (void)state;
    assert_says(report_in(REPORT_TEXT), "| No device was used ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_table_has_the_counters),
        TEST(libraries_are_named_with_live_and_peak_bytes),
        TEST(without_live_blocks_the_table_says_nothing_is_live),
        TEST(live_sizes_that_read_the_same_are_one),
        TEST(more_live_sizes_than_are_named_are_hinted_at),
        TEST(the_main_reasons_for_a_large_reserve_are_named),
        TEST(a_part_of_a_peak_is_never_more_than_the_peak),
        TEST(an_empty_pool_has_no_external_fragmentation),
        TEST(pending_memory_is_no_external_fragmentation),
        TEST(no_figure_touches_the_border_of_its_cell),
        TEST(no_sentence_is_cut_off),
        TEST(the_limit_stands_above_the_table),
        TEST(a_peak_that_is_not_exact_is_marked),
        TEST(a_single_unpooled_kind_has_an_exact_peak),
        TEST(the_largest_counters_keep_the_tables_shape),
        TEST(a_name_from_outside_cannot_break_the_table),
        TEST(every_used_device_has_a_table),
        TEST(without_devices_a_requested_report_says_so),
    };
    options_load();
    return cmocka_run_group_tests_name("report text", tests, NULL, NULL);
}
