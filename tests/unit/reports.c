#include "reports.h"

#include "child.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define COLUMNS 75
#define LINES 25

/* ---- the statistics' place is taken by these ---- */

static struct stats_device devices[STATS_MAX_DEVICES];
static bool used[STATS_MAX_DEVICES];
static int device_count;

uint64_t stats_host_bytes(void) {
    return HOST_BYTES;
}

const struct stats_stacks *remembered;

const struct stats_stacks *stats_stacks(void) {
    return remembered;
}

int stats_device_count(void) {
    return device_count;
}

struct segment_map the_map;

bool stats_read(int ordinal, struct stats_device *out, struct segment_map *map) {
    if (ordinal < 0 || ordinal >= device_count || !used[ordinal])
        return false;
    *out = devices[ordinal];
    if (map)
        *map = the_map;
    return true;
}

bool stats_read_counters(int ordinal, struct stats_device *out) {
    bool known = stats_read(ordinal, out, NULL);
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
    device->backend_reason = "as asked";
    device->reuse = "barrier";
    device->peaks_exact = true;
    used[ordinal] = true;
    if (device_count <= ordinal)
        device_count = ordinal + 1;
    return device;
}

struct stats_device *add_typical(int ordinal) {
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

const char **limit_source_of(int ordinal) {
    return &devices[ordinal].limit_source;
}

struct stats_device *add_extreme(int ordinal) {
    struct stats_device *device = add_device(ordinal);
    memset(device->name, 'N', sizeof device->name - 1);
    device->total_bytes = device->limit_bytes = UINT64_MAX;
    device->limit_source = "gpucache_set_memory_fraction";
    device->peaks_exact = false;
    device->peak_error_bytes = 1023 * GIB + GIB - GIB / 100;
    const struct stats_metric most = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
#define METRIC(field, json, label) device->field = most;
#define UNPOOLED(field, json) device->field = most;
#define GAUGE(field) device->field = UINT64_MAX;
#define COUNTER(field) device->field = UINT64_MAX;
#include "stats/fields.def"
    for (size_t i = 0; i < STATS_SIZE_CLASSES; i++)
        device->size_classes[i] = (struct stats_size_class){UINT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < STATS_REQUESTERS; i++) {
        memset(device->requesters[i].name, 'L', STATS_NAME - 1);
        device->requesters[i].current = 1047 * GIB;
        device->requesters[i].peak = 1047 * GIB;
    }
    device->requester_count = STATS_REQUESTERS;
    for (size_t i = 0; i < STATS_LIVE_SIZES; i++)
        device->live[i] = (struct stats_live){1047 * GIB, 99999999999};
    device->live_groups = STATS_LIVE_SIZES;
    return device;
}

int forget_devices(void **state) {
    (void)state;
    memset(used, 0, sizeof used);
    device_count = 0;
    remembered = NULL;
    return 0;
}

/* ---- getting a report ---- */

const char *report_in(enum report_format format) {
    FILE *file = tmpfile();
    assert_non_null(file);
    errno = EDOM;
    assert_int_equal(report_write_fd(fileno(file), format, "exit"), 0);
    assert_int_equal(errno, EDOM);
    lseek(fileno(file), 0, SEEK_SET);
    const char *text = child_read(fileno(file));
    fclose(file);
    return text;
}

static void (*reporting)(void);

static void load_and_report(void) {
    options_load();
    reporting();
}

const char *stderr_with(const char *const *variables, void (*body)(void)) {
    reporting = body;
    return child_stderr(variables, load_and_report);
}

/* ---- what it has to be like ---- */

void assert_fits(const char *text, int tables) {
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
}

static const char schema[] =
    "import json,sys\n"
    "text=open(sys.argv[1]).read()\n"
    "assert text.endswith('\\n') and text.count('\\n')==1, 'one line'\n"
    "r=json.loads(text)\n"
    "def keys(o,*k):\n"
    "    assert sorted(o)==sorted(k), sorted(set(o)^set(k))\n"
    "extra=['oom'] if r['reason']=='oom' else []\n"
    "stacks='stacks' in r\n"
    "extra+=['stacks','modules'] if stacks else []\n"
    "keys(r,'schema','version','reason','pid','rank','host','command','time_unix','uptime_seconds',"
    "\n"
    "     'driver_version','host_bytes','devices',*extra)\n"
    "assert r['schema']=='gpucache-report/1' and r['version']=='" GPUCACHE_VERSION "'\n"
    "assert r['pid']>1 and r['rank'] is None and r['host'] and len(r['command'])>=1\n"
    "assert r['time_unix']>1.6e9 and r['uptime_seconds']>0\n"
    "for d in r['devices']:\n"
#define TEXT(name) "'" name "',"
    "    metrics=["
#define METRIC(field, json, label) TEXT(json)
#include "stats/fields.def"
    "]\n"
    "    outside=["
#define UNPOOLED(field, json) TEXT(json)
#include "stats/fields.def"
    "]\n"
    "    gauges=["
#define GAUGE(field) TEXT(#field)
#include "stats/fields.def"
    "]\n"
    "    counters=["
#define COUNTER(field) TEXT(#field)
#include "stats/fields.def"
    "]\n"
    "    counters.remove('cpu_wait_ns')\n"
    "    gauges=[g for g in gauges if g not in ('largest_free_bytes','free_blocks')]\n"
    /* names of the JSON are fixed: these stay */
    "    for name in ['requested_bytes','allocated_bytes','active_bytes','reserved_bytes',\n"
    "        'allocations','segments']: assert name in metrics, name\n"
    "    for name in ['stream_ordered','virtual','array','managed','pinned_host',\n"
    "        'ipc_imported']: assert name in outside, name\n"
    "    for name in ['pending_bytes','ready_bytes','releasable_bytes',\n"
    "        'non_releasable_bytes']: assert name in gauges, name\n"
    "    for name in ['cache_hits','cache_misses','driver_allocs','driver_frees','epochs',\n"
    "        'barriers','cpu_waits','ooms','oom_retries','limit_refusals','invalid_frees',\n"
    "        'capture_deferred_frees','pinned_hits','pinned_misses']:\n"
    "        assert name in counters, name\n"
    "    "
    "keys(d,'device','name','uuid','total_bytes','limit_bytes','limit_source','backend',"
    "'backend_reason','reuse',"
    "\n"
    "        "
    "'peaks_exact','peak_error_bytes',*metrics,*gauges,'outside_bytes',*counters,'cpu_wait_seconds'"
    ",'"
    "fragmentation',\n"
    "        'size_classes','libraries','live','segment_map',*(['held','holders'] if stacks else "
    "[]))\n"
    "    keys(d['segment_map'],'merged_up_to_bytes','columns','pieces')\n"
    "    for h in d.get('holders',[]): "
    "keys(h,'live_bytes','live_count','peak_bytes','peak_count',\n"
    "        'total_bytes','total_count','byte_seconds','stack','frames')\n"
    "    keys(d['outside_bytes'],*outside)\n"
    "    for m in [d[k] for k in metrics]+list(d['outside_bytes'].values()):\n"
    "        keys(m,'current','peak','total','freed')\n"
    "        assert all(type(v) is int for v in m.values())\n"
    "    for k in gauges+counters: assert type(d[k]) is int\n"
    "    keys(d['fragmentation'],'internal','external','largest_free_bytes','free_blocks',\n"
    "        'peak_reserved_over_peak_requested')\n"
    "    for c in d['size_classes']: keys(c,'upper_bytes','live','total'); assert c['total']>0\n"
    "    for l in d['libraries']: keys(l,'name','current','peak')\n"
    "    for l in d['live']: keys(l,'bytes','count','stack','frames'); assert stacks or "
    "l['stack']==[]\n"
    "d=r['devices'][0] if r['devices'] else None\n";

void assert_json(const char *report, const char *more) {
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
    if (child_status(child) != 0)
        fail_msg("not as it should be: %s", report);
    unlink(path);
}
