/*
 * Reports from made-up snapshots: size and words of the text, schema of the JSON, that both say the
 * same, where they go, and what an OOM's verdict blames. The statistics are replaced by an array;
 * Python's parser judges the JSON.
 *
 * What depends on options runs in a child, because they are read once in the life of a process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "process/log.h"
#include "process/options.h"
#include "report/report.h"
#include "stats/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define COLUMNS 75
#define LINES 25

/* ---- the statistics' place is taken by these ---- */

static struct stats_device devices[STATS_MAX_DEVICES];
static bool used[STATS_MAX_DEVICES];
static int device_count;

int stats_device_count(void) {
    return device_count;
}

bool stats_read(int ordinal, struct stats_device *out) {
    if (ordinal < 0 || ordinal >= device_count || !used[ordinal])
        return false;
    *out = devices[ordinal];
    return true;
}

bool stats_read_books(int ordinal, struct stats_device *out) {
    bool known = stats_read(ordinal, out);
    out->live_groups = 0;
    return known;
}

static struct stats_device *add_device(int ordinal) {
    struct stats_device *device = &devices[ordinal];
    memset(device, 0, sizeof *device);
    device->ordinal = ordinal;
    strcpy(device->name, "NVIDIA H200");
    strcpy(device->uuid, "GPU-01234567-89ab-cdef-0123-456789abcdef");
    device->total_bytes = 150117580800;
    device->backend = "segments";
    device->reuse = "barrier";
    device->peaks_exact = true;
    used[ordinal] = true;
    if (device_count <= ordinal)
        device_count = ordinal + 1;
    return device;
}

/** A program that has done its work and leaks three blocks. Its books balance. */
static struct stats_device *add_typical(int ordinal) {
    struct stats_device *device = add_device(ordinal);
    device->requested = (struct stats_metric){300 * MIB, 900 * MIB, 40 * GIB, 40 * GIB - 300 * MIB};
    device->allocated = (struct stats_metric){400 * MIB, 950 * MIB, 41 * GIB, 41 * GIB - 400 * MIB};
    device->active = (struct stats_metric){500 * MIB, GIB, 41 * GIB, 41 * GIB - 500 * MIB};
    device->reserved = (struct stats_metric){GIB, 3 * GIB / 2, 3 * GIB / 2, GIB / 2};
    device->allocations = (struct stats_metric){3, 1000, 123456789, 123456786};
    device->segments = (struct stats_metric){10, 15, 15, 5};
    device->array = (struct stats_metric){0, 64 * MIB, 64 * MIB, 64 * MIB};
    device->managed = (struct stats_metric){2 * MIB, 2 * MIB, 2 * MIB, 0};
    device->pinned_host = (struct stats_metric){GIB, GIB, GIB, 0};
    device->pending_bytes = 100 * MIB;
    device->ready_bytes = 524 * MIB;
    device->releasable_bytes = 512 * MIB;
    device->non_releasable_bytes = 112 * MIB;
    device->largest_free_bytes = 156 * MIB;
    device->free_blocks = 7;
    device->cache_hits = 123456774;
    device->cache_misses = 15;
    device->driver_allocs = 15;
    device->driver_frees = 5;
    device->epochs = 4242;
    device->barriers = 17;
    device->cpu_waits = 2;
    device->cpu_wait_ns = 1234567890;
    device->pinned_hits = 99;
    device->pinned_misses = 1;
    device->size_classes[0] = (struct stats_size_class){1, 100};
    device->size_classes[12] = (struct stats_size_class){2, 123456};
    device->size_classes[STATS_SIZE_CLASSES - 1] = (struct stats_size_class){0, 5};
    device->live[0] = (struct stats_live){149 * MIB, 2};
    device->live[1] = (struct stats_live){2 * MIB, 1};
    device->live_groups = 2;
    return device;
}

/** Every figure as large as it can be, every text as long. */
static struct stats_device *add_extreme(int ordinal) {
    struct stats_device *device = add_device(ordinal);
    memset(device->name, 'N', sizeof device->name - 1);
    device->total_bytes = device->limit_bytes = UINT64_MAX;
    device->peaks_exact = false;
    device->peak_error_bytes = 1023 * GIB + GIB - GIB / 100;
    const struct stats_metric most = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
#define METRIC(field, json, label) device->field = most;
#define OUTSIDE(field, json) device->field = most;
#define GAUGE(field) device->field = UINT64_MAX;
#define COUNTER(field) device->field = UINT64_MAX;
#include "stats/fields.def"
    for (size_t i = 0; i < STATS_SIZE_CLASSES; i++)
        device->size_classes[i] = (struct stats_size_class){UINT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < STATS_LIVE_SIZES; i++)
        device->live[i] = (struct stats_live){1047 * GIB, 99999999999};
    device->live_groups = STATS_LIVE_SIZES;
    return device;
}

static int forget_devices(void **state) {
    (void)state;
    memset(used, 0, sizeof used);
    device_count = 0;
    return 0;
}

/* ---- getting a report ---- */

static const char *read_all(int fd) {
    static char text[1 << 20];
    size_t length = 0;
    ssize_t part;
    while ((part = read(fd, text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)part;
    text[length] = '\0';
    return text;
}

/** A report of this process as text. */
static const char *report_in(enum report_format format) {
    FILE *file = tmpfile();
    assert_non_null(file);
    errno = EDOM;
    assert_int_equal(report_write_fd(fileno(file), format, "exit"), 0);
    assert_int_equal(errno, EDOM);
    lseek(fileno(file), 0, SEEK_SET);
    const char *text = read_all(fileno(file));
    fclose(file);
    return text;
}

/** What body() writes to stderr in a child with these variables. */
static const char *stderr_with(const char *const *variables, void (*body)(void)) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        clearenv();
        for (; *variables; variables++)
            putenv((char *)*variables);
        options_load();
        body();
        _exit(0);
    }
    close(ends[1]);
    const char *text = read_all(ends[0]);
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    return text;
}

#define STDERR_OF(body, ...) stderr_with((const char *const[]){__VA_ARGS__, NULL}, body)

/* ---- text ---- */

/** Asserts the limits; returns the number of lines. */
static int assert_fits(const char *text, int tables) {
    int lines = 0;
    for (const char *at = text; *at; lines++) {
        size_t length = strcspn(at, "\n");
        assert_true(length <= COLUMNS);
        assert_int_equal(at[length], '\n');
        for (size_t i = 0; i < length; i++)
            assert_true(at[i] >= 0x20 && at[i] < 0x7f);
        if (at[0] == '|')
            assert_true(length == COLUMNS && at[length - 1] == '|');
        at += length + 1;
    }
    assert_true(lines <= LINES * tables);
    return lines;
}

#define assert_says(text, words)                                                                   \
    do {                                                                                           \
        if (!strstr(text, words))                                                                  \
            fail_msg("\"%s\" is not said in:\n%s", words, text);                                   \
    } while (0)

#define assert_silent_on(text, words)                                                              \
    do {                                                                                           \
        if (strstr(text, words))                                                                   \
            fail_msg("\"%s\" is said in:\n%s", words, text);                                       \
    } while (0)

static void the_table_says_what_was_counted(void **state) {
    (void)state;
    add_typical(0);
    const char *text = report_in(REPORT_TEXT);
    assert_fits(text, 1);
    assert_says(text, "| gpucache 0.1.0 report, written at exit after ");
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
    assert_says(text, "Fragmentation: internal 25.00%, external 75.00% of 624.00 MiB idle");
    assert_says(text, "Free blocks 7, largest free block 156.00 MiB, releasable 512.00 MiB");
    assert_says(text, "OOMs 0, refused at the limit 0, retries 0");
    assert_says(text, "Still live: 300.00 MiB in 3 allocations: 2 x 149.00 MiB, 1 x 2.00 MiB ");
    assert_says(text, "CPU waits 2 (1.234 s)");
    assert_says(text, "Peaks outside: array 64.00 MiB, managed 2.00 MiB, pinned_host 1.00 GiB,");
    assert_says(text, "|   pinned hit rate 99.00% of 100 ");
    assert_silent_on(text, ">=");
}

static void nothing_live_is_called_nothing(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->requested.current = device->allocated.current = device->allocations.current = 0;
    assert_says(report_in(REPORT_TEXT), "| Still live: nothing ");
}

/* Sizes that differ by less than is printed are one; JSON has them to the byte. */
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

static void an_empty_pool_has_no_external_fragmentation(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->pending_bytes = device->ready_bytes = 0;
    const char *text = report_in(REPORT_TEXT);
    assert_says(text, "Fragmentation: internal 25.00%, nothing idle ");
    assert_silent_on(text, "external");
}

static void no_figure_touches_the_border_of_its_cell(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->requested.total = 1024 * MIB - 6 * MIB / 100; /* 1023.94 MiB: nothing is longer */
    device->allocations.total = UINT64_MAX;
    device->peaks_exact = false;
    device->requested.peak = device->requested.total;
    const char *text = report_in(REPORT_TEXT);
    assert_says(text, "| >= 1023.9 MiB | 1023.9 MiB |");
    for (const char *at = text; (at = strchr(at, '|')); at++)
        if (at[1] >= '0' && at[1] <= '9')
            fail_msg("a figure touches its border: %.40s\n%s", at, text);
}

/* What fits is whole: no line ends with a comma that nothing follows. */
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
    add_typical(0)->limit_bytes = 8 * GIB;
    assert_says(report_in(REPORT_TEXT), ", 139.81 GiB, limit 8.00 GiB ");
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

static void one_kind_outside_has_an_exact_peak(void **state) {
    (void)state;
    struct stats_device *device = add_typical(0);
    device->managed = (struct stats_metric){0, 0, 0, 0};
    assert_says(report_in(REPORT_TEXT), "| Outside the pool |        0 B |     64.00 MiB |");
}

static void the_largest_figures_keep_the_tables_shape(void **state) {
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

static void no_device_is_said_when_asked(void **state) {
    (void)state;
    assert_says(report_in(REPORT_TEXT), "| No device was used ");
}

/* ---- JSON ---- */

static const char schema[] =
    "import json,sys\n"
    "text=open(sys.argv[1]).read()\n"
    "assert text.endswith('\\n') and text.count('\\n')==1, 'one line'\n"
    "r=json.loads(text)\n"
    "def keys(o,*k):\n"
    "    assert sorted(o)==sorted(k), sorted(set(o)^set(k))\n"
    "extra=['oom'] if r['reason']=='oom' else []\n"
    "keys(r,'schema','version','reason','pid','rank','host','command','time_unix','uptime_seconds',"
    "\n"
    "     'driver_version','devices',*extra)\n"
    "assert r['schema']=='gpucache-report/1' and r['version']=='0.1.0'\n"
    "assert r['pid']>1 and r['rank'] is None and r['host'] and len(r['command'])>=1\n"
    "assert r['time_unix']>1.6e9 and r['uptime_seconds']>0\n"
    "for d in r['devices']:\n"
    "    "
    "metrics=['requested_bytes','allocated_bytes','active_bytes','reserved_bytes','allocations','"
    "segments']\n"
    "    "
    "counters=['cache_hits','cache_misses','driver_allocs','driver_frees','epochs','barriers','cpu_"
    "waits',\n"
    "        "
    "'ooms','oom_retries','limit_refusals','invalid_frees','capture_deferred_frees','pinned_hits',"
    "\n"
    "        'pinned_misses']\n"
    "    gauges=['pending_bytes','ready_bytes','releasable_bytes','non_releasable_bytes']\n"
    "    "
    "keys(d,'device','name','uuid','total_bytes','limit_bytes','backend','reuse','peaks_exact',\n"
    "        "
    "'peak_error_bytes',*metrics,*gauges,'outside_bytes',*counters,'cpu_wait_seconds','"
    "fragmentation',\n"
    "        'size_classes','live')\n"
    "    "
    "keys(d['outside_bytes'],'stream_ordered','virtual','array','managed','pinned_host','ipc_"
    "imported')\n"
    "    for m in [d[k] for k in metrics]+list(d['outside_bytes'].values()):\n"
    "        keys(m,'current','peak','total','freed')\n"
    "        assert all(type(v) is int for v in m.values())\n"
    "    for k in gauges+counters: assert type(d[k]) is int\n"
    "    keys(d['fragmentation'],'internal','external','largest_free_bytes','free_blocks',\n"
    "        'peak_reserved_over_peak_requested')\n"
    "    for c in d['size_classes']: keys(c,'upper_bytes','live','total'); assert c['total']>0\n"
    "    for l in d['live']: keys(l,'bytes','count','stack'); assert l['stack']==[]\n"
    "d=r['devices'][0] if r['devices'] else None\n";

/** Has Python check a report against the schema and then against more. */
static void assert_json(const char *report, const char *more) {
    char path[] = "/tmp/gpucache-json-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, report, strlen(report)), strlen(report));
    close(fd);
    char program[16384];
    snprintf(program, sizeof program, "%s%s", schema, more);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        execlp("python3", "python3", "-c", program, path, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status != 0)
        fail_msg("not as it should be: %s", report);
    unlink(path);
}

static void json_follows_the_schema_and_the_books_balance(void **state) {
    (void)state;
    add_typical(0);
    report_set_driver_version(13000);
    assert_json(
        report_in(REPORT_JSON),
        "assert r['driver_version']==13000 and r['reason']=='exit' and len(r['devices'])==1\n"
        "assert d['device']==0 and d['name']=='NVIDIA H200' and d['uuid'].startswith('GPU-')\n"
        "assert d['limit_bytes'] is None and d['backend']=='segments' and d['reuse']=='barrier'\n"
        "assert d['peaks_exact'] is True and d['peak_error_bytes']==0\n"
        "assert "
        "d['ready_bytes']+d['pending_bytes']+d['allocated_bytes']['current']==d['reserved_bytes']['"
        "current']\n"
        "assert "
        "d['releasable_bytes']+d['non_releasable_bytes']==d['ready_bytes']+d['pending_bytes']\n"
        "for k in "
        "'requested_bytes','allocated_bytes','active_bytes','reserved_bytes','allocations','"
        "segments':\n"
        "    assert d[k]['total']-d[k]['freed']==d[k]['current'], k\n"
        "assert d['allocations']['total']==123456789 and d['cpu_wait_seconds']==1.23456789\n"
        "f=d['fragmentation']\n"
        "assert f['internal']==0.25 and f['external']==0.75 and f['largest_free_bytes']==156<<20\n"
        "assert f['free_blocks']==7 and abs(f['peak_reserved_over_peak_requested']-1536/900)<1e-5\n"
        "assert [c['upper_bytes'] for c in d['size_classes']]==[512,512<<12,None]\n"
        "assert d['live'][0]=={'bytes':149<<20,'count':2,'stack':[]} and len(d['live'])==2\n"
        "assert d['outside_bytes']['pinned_host']['current']==1<<30\n");
}

static void json_keeps_every_digit_of_the_largest_figures(void **state) {
    (void)state;
    add_typical(1)->limit_bytes = 8 * GIB;
    add_extreme(2);
    assert_json(report_in(REPORT_JSON),
                "assert [x['device'] for x in r['devices']]==[1,2] and d['limit_bytes']==8<<30\n"
                "e=r['devices'][1]\n"
                "assert e['reserved_bytes']['total']==2**64-1 and e['epochs']==2**64-1\n"
                "assert e['peaks_exact'] is False and e['peak_error_bytes']>0\n"
                "assert len(e['size_classes'])==22 and len(e['live'])==16\n");
}

static void json_survives_strange_names_and_no_devices(void **state) {
    (void)state;
    assert_json(report_in(REPORT_JSON), "assert r['devices']==[]\n");
    struct stats_device *device = add_typical(0);
    strcpy(device->name, "a\"b\\\n\xff\xe2\x82\xac");
    device->backend = device->reuse = NULL;
    assert_json(report_in(REPORT_JSON), "assert d['name']=='a\"b\\\\\\n\\ufffd\\u20ac'\n");
}

/* ---- where it goes ---- */

static void write_at_exit(void) {
    close(STDERR_FILENO); /* as coreutils do */
    errno = EDOM;
    report_write("exit");
    if (errno != EDOM)
        _exit(1);
}

static void by_default_it_goes_to_the_kept_stderr(void **state) {
    (void)state;
    add_typical(0);
    assert_fits(STDERR_OF(write_at_exit, "A=1"), 1);
    assert_json(STDERR_OF(write_at_exit, "GPUCACHE_REPORT_FORMAT=json"), "");
}

static void off_and_no_device_are_silent(void **state) {
    (void)state;
    assert_string_equal(STDERR_OF(write_at_exit, "A=1"), "");
    add_typical(0);
    assert_string_equal(STDERR_OF(write_at_exit, "GPUCACHE_REPORT=off"), "");
}

static char directory[] = "/tmp/gpucache-report-XXXXXX";

static char *in_directory(const char *name) {
    static char path[4][256];
    static int next;
    char *to = path[next++ % 4];
    snprintf(to, sizeof *path, "%s/%s", directory, name);
    return to;
}

/** The report of a file in the directory, which is then taken away. */
static const char *take_file(const char *name) {
    int fd = open(in_directory(name), O_RDONLY);
    if (fd < 0)
        fail_msg("no file %s", in_directory(name));
    const char *text = read_all(fd);
    struct stat file;
    fstat(fd, &file);
    assert_int_equal(file.st_mode & 0777, 0644);
    close(fd);
    unlink(in_directory(name));
    return text;
}

static void write_one(void) {
    report_write("exit");
}

static void write_three(void) {
    umask(022);
    assert_int_equal(chdir("/"), 0);
    report_write("request");
    report_write("request");
    report_write("exit");
}

static void no_file_is_ever_written_twice(void **state) {
    (void)state;
    add_typical(0);
    char variable[512];
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("r.txt"));
    assert_string_equal(STDERR_OF(write_three, variable, "GPUCACHE_LOG=error"), "");
    assert_says(take_file("r.txt"), "on request");
    assert_says(take_file("r.txt.1"), "on request");
    assert_says(take_file("r.txt.2"), "at exit");

    FILE *mine = fopen(in_directory("n1"), "w");
    fputs("mine", mine);
    fclose(mine);
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("n%n"));
    assert_string_equal(STDERR_OF(write_three, variable, "GPUCACHE_LOG=error"), "");
    assert_string_equal(take_file("n1"), "mine");
    assert_fits(take_file("n2"), 1);
    assert_fits(take_file("n3"), 1);
    assert_says(take_file("n4"), "at exit");
}

static void write_pid_too(void) {
    umask(022);
    FILE *file = fopen(in_directory("pid"), "w");
    fprintf(file, "%d", getpid());
    fclose(file);
    report_write("exit");
}

static void a_pattern_names_process_host_program_and_rank(void **state) {
    (void)state;
    add_typical(0);
    char variable[512], name[256], host[65] = "";
    gethostname(host, sizeof host - 1);
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("%h-%e-%r-%p-%%"));
    assert_string_equal(STDERR_OF(write_pid_too, variable, "PMI_RANK=7", "GPUCACHE_LOG=error"), "");
    int pid = atoi(take_file("pid"));
    extern char *program_invocation_short_name;
    /* under valgrind the command line is valgrind's view of it; its first word stays ours */
    snprintf(name, sizeof name, "%s-%s-7-%d-%%", host, program_invocation_short_name, pid);
    assert_says(take_file(name), ", rank 7, on ");
}

static void what_is_no_file_is_written_to_as_it_is(void **state) {
    (void)state;
    add_typical(0);
    assert_string_equal(STDERR_OF(write_three, "GPUCACHE_REPORT=/dev/null"), "");
    assert_int_equal(access("/dev/null.1", F_OK), -1);
}

/** Exchanges two links, one to /dev/null and one to a file, until it is killed. */
static pid_t keep_exchanging(const char *a, const char *b, const char *victim) {
    assert_int_equal(symlink("/dev/null", a), 0);
    assert_int_equal(symlink(victim, b), 0);
    pid_t child = fork();
    while (child == 0)
        renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
    return child;
}

static void write_many(void) {
    umask(022);
    for (int i = 0; i < 3000; i++)
        report_write("request");
}

/* Between the look at what it is and its opening, a file comes in its place. */
static void a_file_that_was_put_there_meanwhile_is_not_written_to(void **state) {
    (void)state;
    add_typical(0);
    char variable[512], a[256], b[256], victim[256], rest[256];
    strcpy(a, in_directory("a"));
    strcpy(b, in_directory("b"));
    strcpy(victim, in_directory("victim"));
    close(open(victim, O_WRONLY | O_CREAT | O_EXCL, 0644));
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", a);
    pid_t child = keep_exchanging(a, b, victim);
    const char *said = STDERR_OF(write_many, variable, "GPUCACHE_LOG=error");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_string_equal(said, "");
    struct stat file;
    assert_int_equal(stat(victim, &file), 0);
    unlink(a);
    unlink(b);
    unlink(victim);
    for (int i = 1; i <= 3000; i++) {
        snprintf(rest, sizeof rest, "%s.%d", a, i);
        unlink(rest);
    }
    assert_int_equal(file.st_size, 0);
}

static void what_cannot_be_written_is_said_and_not_lost(void **state) {
    (void)state;
    add_typical(0);
    const char *text = STDERR_OF(write_three, "GPUCACHE_REPORT=/nonexistent/r");
    static const char warning[] = "gpucache: cannot write report file /nonexistent/r: no such "
                                  "directory; writing to stderr\n|====";
    assert_memory_equal(text, warning, strlen(warning));
    assert_null(strstr(text + 1, "gpucache: cannot"));
    assert_fits(strchr(text, '\n') + 1, 3);

    text = STDERR_OF(write_three, "GPUCACHE_REPORT=/dev/full");
    assert_says(text, "gpucache: cannot write report file /dev/full: no space left");
    assert_fits(strchr(text, '\n') + 1, 3);

    static char variable[1100] = "GPUCACHE_REPORT=/tmp/";
    memset(variable + strlen(variable), 'x', 300);
    text = STDERR_OF(write_three, variable);
    assert_says(text, ": name too long; writing to stderr\n");
}

/* So it does not mix with what other processes write to the same pipe. */
static void a_report_on_eight_devices_leaves_in_one_write(void **state) {
    (void)state;
    static char text[1 << 18];
    int ends[2];
    for (int i = 0; i < 8; i++)
        add_extreme(i);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    assert_int_equal(report_write_fd(ends[1], REPORT_JSON, "request"), 0);
    ssize_t length = recv(ends[0], text, sizeof text - 1, MSG_DONTWAIT);
    assert_true(length > 16384);
    text[length] = '\0';
    assert_json(text, "assert len(r['devices'])==8\n");
    assert_int_equal(recv(ends[0], text, sizeof text, MSG_DONTWAIT), -1);
    close(ends[0]);
    close(ends[1]);
}

static void a_bad_descriptor_or_format_is_an_error(void **state) {
    (void)state;
    add_typical(0);
    assert_int_equal(report_write_fd(1000000, REPORT_TEXT, "request"), -EBADF);
    assert_int_equal(report_write_fd(-1, REPORT_TEXT, "request"), -EBADF);
    assert_int_equal(report_write_fd(1, 2, "request"), -EINVAL);
}

static int handler_fd;

static void report_in_handler(int number) {
    (void)number;
    report_write_fd(handler_fd, REPORT_JSON, "signal");
}

static void a_small_signal_stack_is_enough(void **state) {
    (void)state;
    add_extreme(0);
    FILE *file = tmpfile();
    handler_fd = fileno(file);
    /* the kernel's frame may take 4 KiB and more; the sanitizers' frames are no measure */
    size_t size = 16384;
    stack_t stack = {.ss_sp = malloc(size), .ss_size = size}, before;
    assert_int_equal(sigaltstack(&stack, &before), 0);
    struct sigaction action = {.sa_handler = report_in_handler, .sa_flags = SA_ONSTACK}, old;
    sigaction(SIGUSR1, &action, &old);
    raise(SIGUSR1);
    sigaction(SIGUSR1, &old, NULL);
    sigaltstack(&before, NULL);
    free(stack.ss_sp);
    lseek(handler_fd, 0, SEEK_SET);
    assert_json(read_all(handler_fd), "assert r['reason']=='signal'\n");
    fclose(file);
}

/* ---- OOM ---- */

static struct report_oom oom;

static void write_oom(void) {
    report_oom(&oom);
}

static void write_five_ooms(void) {
    for (int i = 0; i < 5; i++)
        report_oom(&oom);
}

static const char *oom_text(const char *variable) {
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
    oom.requested = 140 * GIB - 400 * MIB;
    oom.device_total = 140 * GIB;
    assert_says(oom_text("GPUCACHE_MEMORY_LIMIT=1G"),
                "No setting is known to help: all of it together is more than there is\n");
}

static void fragmentation_is_blamed_when_enough_lies_idle(void **state) {
    (void)state;
    add_typical(0);
    oom = (struct report_oom){0, 200 * MIB, 0, 10 * MIB, 150117580800};
    const char *text = oom_text("A=1");
    assert_says(text, "Cause is fragmentation: largest free block 156.00 MiB of 624.00 MiB idle\n");
    assert_says(text, "No setting is known to help: free memory lies between live blocks\n");
    assert_silent_on(text, "GPUCACHE_");
}

/* The device has what the limit withholds: then that helps, whatever state the pool is in. */
static void a_larger_limit_is_advised_where_the_device_has_the_memory(void **state) {
    (void)state;
    add_typical(0)->limit_bytes = GIB + 10 * MIB;
    oom = (struct report_oom){0, 200 * MIB, GIB + 10 * MIB, 100 * GIB, 150117580800};
    const char *text = oom_text("GPUCACHE_MEMORY_LIMIT=1034M");
    assert_says(text, "Cause is fragmentation");
    assert_says(text, "Most likely to help: GPUCACHE_MEMORY_LIMIT=1226M or more\n");
    oom.device_free = 100 * MIB; /* nor does the device have it */
    assert_says(oom_text("GPUCACHE_MEMORY_LIMIT=1034M"), "No setting is known to help: ");
    oom = (struct report_oom){0, 600 * MIB, GIB + 10 * MIB, 100 * GIB, 150117580800};
    text = oom_text("GPUCACHE_MEMORY_LIMIT=1034M");
    assert_says(text, "unfinished work still used 100.00 MiB of 624.00 MiB idle\n");
    assert_says(text, "Most likely to help: GPUCACHE_MEMORY_LIMIT=1626M or more\n");
}

static void unfinished_work_is_blamed_when_it_holds_the_rest(void **state) {
    (void)state;
    add_typical(0);
    oom = (struct report_oom){0, 600 * MIB, 0, 10 * MIB, 150117580800};
    const char *text = oom_text("A=1");
    assert_says(text,
                "Not fragmentation: unfinished work still used 100.00 MiB of 624.00 MiB idle\n");
    assert_says(text, "No setting is known to help: the work has to finish first\n");
}

static void others_are_blamed_when_they_hold_it(void **state) {
    (void)state;
    add_typical(0);
    oom = (struct report_oom){0, 20 * GIB, 0, GIB, 150117580800};
    const char *text = oom_text("A=1");
    assert_says(text, "others about 137.81 GiB\n");
    assert_says(text, "No setting is known to help: nvidia-smi names the other processes\n");
}

static void what_no_setting_helps_is_said_plainly(void **state) {
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

static void unknown_figures_are_left_out(void **state) {
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
    add_extreme(0);
    oom = (struct report_oom){0, 1047 * GIB, 1048575 * GIB, 1048575 * GIB, 1048575 * GIB};
    assert_says(oom_text("A=1"), " help");
    devices[0].pending_bytes = 0; /* other sums, other verdict */
    assert_says(oom_text("A=1"), " help");
}

/* However long the verdict is, the table's own sentences follow. */
static void an_ooms_report_is_whole(void **state) {
    (void)state;
    add_typical(0)->limit_bytes = GIB;
    oom = (struct report_oom){0, 2 * GIB, GIB, 100 * GIB, 150117580800};
    const char *text = oom_text("GPUCACHE_MEMORY_LIMIT=1G");
    assert_says(text, "| Hit rate 99.99% of 123456789, driver calls avoided 246913555 ");
    assert_says(text, "| OOMs 0, refused at the limit 0, retries 0 ");
    add_extreme(0);
    text = oom_text("GPUCACHE_MEMORY_LIMIT=1G");
    assert_says(text, "| Hit rate ");
    assert_says(text, "\nStill live: ");
    assert_says(text, " help");
}

static void one_line_says_where_a_report_was_written(void **state) {
    (void)state;
    char variable[512], expected[512];
    add_typical(0);
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("said"));
    snprintf(expected, sizeof expected, "gpucache: report written to %s\n", in_directory("said"));
    assert_string_equal(STDERR_OF(write_one, variable), expected);
    unlink(in_directory("said"));
    assert_string_equal(STDERR_OF(write_one, variable, "GPUCACHE_LOG=error"), "");
    unlink(in_directory("said"));
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

/* Whoever gets no report on stderr is told there that memory ran out, and why. */
static void an_oom_without_a_report_on_stderr_is_one_line_there(void **state) {
    (void)state;
    static const char line[] =
        "gpucache: out of memory: device 0 has no room for 2.00 GiB; Limit 1.00 GiB, left 0 B, "
        "device 139.81 GiB, free 100.00 GiB; Held: live 400.00 MiB, idle 624.00 MiB, outside "
        "2.00 MiB, ";
    add_typical(0)->limit_bytes = GIB;
    oom = (struct report_oom){0, 2 * GIB, GIB, 100 * GIB, 150117580800};
    static const char *const variables[] = {"GPUCACHE_REPORT=off", "GPUCACHE_REPORT=/dev/null"};
    for (size_t i = 0; i < 2; i++) {
        const char *text = STDERR_OF(write_oom, variables[i], "GPUCACHE_LOG=error");
        assert_memory_equal(text, line, strlen(line));
        assert_says(text, "Most likely to help");
        assert_silent_on(text, "Largest live");
        assert_string_equal(strchr(text, '\n'), "\n");
        text = STDERR_OF(write_five_ooms, variables[i]);
        size_t lines = 0;
        for (const char *at = text; (at = strchr(at, '\n')); at++)
            lines++;
        assert_int_equal(lines, 4);
    }
    add_extreme(0);
    oom = (struct report_oom){0, 1047 * GIB, 1048575 * GIB, 1048575 * GIB, 1048575 * GIB};
    const char *text = STDERR_OF(write_oom, "GPUCACHE_REPORT=off");
    assert_silent_on(text, "...\n");
    assert_string_equal(strchr(text, '\n'), "\n");
}

static int make_directory(void **state) {
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state) {
    (void)state;
    return rmdir(directory); /* fails if a report was left behind */
}

#define TEST(function) cmocka_unit_test_teardown(function, forget_devices)

int main(void) {
    const struct CMUnitTest in_children[] = {
        TEST(by_default_it_goes_to_the_kept_stderr),
        TEST(off_and_no_device_are_silent),
        TEST(no_file_is_ever_written_twice),
        TEST(a_pattern_names_process_host_program_and_rank),
        TEST(what_is_no_file_is_written_to_as_it_is),
        TEST(a_file_that_was_put_there_meanwhile_is_not_written_to),
        TEST(what_cannot_be_written_is_said_and_not_lost),
        TEST(the_limit_is_blamed_with_a_value_that_would_do),
        TEST(fragmentation_is_blamed_when_enough_lies_idle),
        TEST(a_larger_limit_is_advised_where_the_device_has_the_memory),
        TEST(unfinished_work_is_blamed_when_it_holds_the_rest),
        TEST(an_ooms_report_is_whole),
        TEST(one_line_says_where_a_report_was_written),
        TEST(others_are_blamed_when_they_hold_it),
        TEST(what_no_setting_helps_is_said_plainly),
        TEST(unknown_figures_are_left_out),
        TEST(the_largest_oom_keeps_its_shape),
        TEST(an_oom_in_json_carries_the_verdict),
        TEST(a_program_that_probes_by_failing_gets_three_reports),
        TEST(an_oom_without_a_report_on_stderr_is_one_line_there),
    };
    const struct CMUnitTest in_process[] = {
        TEST(the_table_says_what_was_counted),
        TEST(nothing_live_is_called_nothing),
        TEST(live_sizes_that_read_the_same_are_one),
        TEST(more_live_sizes_than_are_named_are_hinted_at),
        TEST(the_main_reasons_for_a_large_reserve_are_named),
        TEST(an_empty_pool_has_no_external_fragmentation),
        TEST(no_figure_touches_the_border_of_its_cell),
        TEST(no_sentence_is_cut_off),
        TEST(the_limit_stands_above_the_table),
        TEST(a_peak_that_is_not_exact_is_marked),
        TEST(one_kind_outside_has_an_exact_peak),
        TEST(the_largest_figures_keep_the_tables_shape),
        TEST(a_name_from_outside_cannot_break_the_table),
        TEST(every_used_device_has_a_table),
        TEST(no_device_is_said_when_asked),
        TEST(json_follows_the_schema_and_the_books_balance),
        TEST(json_keeps_every_digit_of_the_largest_figures),
        TEST(json_survives_strange_names_and_no_devices),
        TEST(a_report_on_eight_devices_leaves_in_one_write),
        TEST(a_bad_descriptor_or_format_is_an_error),
        TEST(a_small_signal_stack_is_enough),
    };
    int failed =
        cmocka_run_group_tests_name("report places", in_children, make_directory, remove_directory);
    options_load();
    return failed + cmocka_run_group_tests_name("report forms", in_process, NULL, NULL);
}
