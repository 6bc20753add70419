/* Reads reports from JSON or live pages, with bounded memory, and writes them (parsed_report.h). */
#include "tool/report/parsed_report.h"

#include "replay/plain.h"
#include "tool/common/tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LINE_MOST ((size_t)256 << 20) /* bytes; a line without an end is no report */
/* Bytes that the reports of a file may take: MEMORY_MOST, and MEMORY_TIMES the bytes of the lines
 * so far. The JSON values of one line have such a bound of their own. */
#define MEMORY_MOST ((size_t)64 << 20)
#define MEMORY_TIMES 12
#define DEVICE_BYTES (sizeof(struct parsed_device) + sizeof(const char *[STATS_LIVE_SIZES]))
#define OLD_NS 1000000000 /* metrics are called old from this age on */
#define TOO_LARGE "takes more memory than reports of its size do"
#define REPORT_BEGINS "{\"schema\":\"gpucache-report/1\""

/** Adds a report, with memory for `most` devices. */
static struct parsed_report *add_report(struct parsed_reports *reports, const char *source,
                                        size_t most) {
    struct parsed_report *report = checked(calloc(1, sizeof *report));
    *APPEND(reports->list, reports->count) = report;
    snprintf(report->source, sizeof report->source, "%s", source);
    report->devices = most > 0 ? checked(calloc(most, sizeof *report->devices)) : NULL;
    return report;
}

/** Copies a text. The report owns the copy. */
static const char *keep_text(struct parsed_report *report, const char *text) {
    return *APPEND(report->texts, report->text_count) = checked(strdup(text));
}

static void free_report(struct parsed_report *report) {
    for (size_t k = 0; k < report->text_count; k++)
        free(report->texts[k]);
    free(report->texts);
    free(report->devices);
    parsed_stacks_free(report->stacks);
    free(report->events);
    free(report);
}

static bool is_of_same_process(const struct parsed_report *a, const struct parsed_report *b) {
    return a->process.pid == b->process.pid && a->program.rank == b->program.rank &&
           strcmp(a->program.host, b->program.host) == 0;
}

/** Returns whether no report of the same process is newer, or as new and behind it in the list. */
static bool is_newest(const struct parsed_reports *reports, size_t at) {
    const struct parsed_report *report = reports->list[at];
    for (size_t i = 0; i < reports->count; i++) {
        uint64_t other = reports->list[i]->process.time_ns, own = report->process.time_ns;
        if (i != at && is_of_same_process(reports->list[i], report) &&
            (other > own || (other == own && i > at)))
            return false;
    }
    return true;
}

size_t parsed_reports_keep_newest(struct parsed_reports *reports, bool only_if_several) {
    bool *keep = checked(calloc(reports->count + 1, sizeof *keep));
    size_t kept = 0, all = reports->count;
    for (size_t i = 0; i < all; i++)
        kept += keep[i] = is_newest(reports, i);
    bool removes = kept > 1 || !only_if_several;
    for (size_t i = 0, to = 0; removes && i < all; i++)
        if (keep[i])
            reports->list[to++] = reports->list[i];
        else
            free_report(reports->list[i]);
    reports->count = removes ? kept : all;
    free(keep);
    return all - reports->count;
}

void parsed_reports_free(struct parsed_reports *reports) {
    for (size_t i = 0; i < reports->count; i++)
        free_report(reports->list[i]);
    free(reports->list);
    *reports = (struct parsed_reports){0};
}

/* ---- from a file ---- */

static struct stats_metric read_metric(const struct plain_value *from) {
    return (struct stats_metric){
        json_u64(plain_get(from, "current")), json_u64(plain_get(from, "peak")),
        json_u64(plain_get(from, "total")), json_u64(plain_get(from, "freed"))};
}

/** Reads a gauge: a member of `from`, or of its member "fragmentation". */
static uint64_t read_gauge(const struct plain_value *from, const char *name) {
    const struct plain_value *own = plain_get(from, name);
    return json_u64(own ? own : plain_get(plain_get(from, "fragmentation"), name));
}

/** Reads a counter. Reports have counters of nanoseconds as seconds. */
static uint64_t read_counter(const struct plain_value *from, const char *name) {
    char key[TOOL_COUNTER_KEY];
    bool time = tool_counter_key(name, key);
    return time ? json_seconds(plain_get(from, key)) : json_u64(plain_get(from, key));
}

static unsigned class_of(const struct plain_value *row) {
    const struct plain_value *upper = plain_get(row, "upper_bytes");
    return json_is_number(upper) ? stats_size_class(json_u64(upper)) : STATS_SIZE_CLASSES - 1;
}

static void read_lists(const struct parsed_report *report, struct stats_device *device,
                       const struct plain_value *from) {
    const struct plain_value *classes = plain_get(from, "size_classes"),
                             *live = plain_get(from, "live");
    for (size_t i = 0; i < plain_count(classes); i++) {
        const struct plain_value *row = plain_item(classes, i);
        device->size_classes[class_of(row)] = (struct stats_size_class){
            json_u64(plain_get(row, "live")), json_u64(plain_get(row, "total"))};
    }
    for (size_t i = 0; i < plain_count(live) && device->live_groups < STATS_LIVE_SIZES; i++) {
        const struct plain_value *row = plain_item(live, i);
        if (report->stacks)
            device->live_stacks[device->live_groups] = parsed_stacks_add(report->stacks, row);
        device->live[device->live_groups++] = (struct stats_live){
            json_u64(plain_get(row, "bytes")), json_u64(plain_get(row, "count"))};
    }
}

static void read_requesters(struct stats_device *device, const struct plain_value *from) {
    for (size_t i = 0; i < plain_count(from) && device->requester_count < STATS_REQUESTERS; i++) {
        const struct plain_value *row = plain_item(from, i);
        const struct plain_value *peak = plain_get(row, "peak");
        struct stats_requester *to = &device->requesters[device->requester_count++];
        snprintf(to->name, sizeof to->name, "%s", json_text(plain_get(row, "name")));
        to->current = json_u64(plain_get(row, "current"));
        to->peak = json_is_number(peak) ? json_u64(peak) : STATS_NO_PEAK;
    }
}

static uint32_t read_units(const struct plain_value *value) {
    uint64_t units = json_u64(value) / SEGMENT_MAP_UNIT;
    return units < UINT32_MAX ? (uint32_t)units : UINT32_MAX;
}

static void read_map(struct segment_map *map, const struct plain_value *from) {
    const struct plain_value *pieces = plain_get(from, "pieces");
    map->grain = json_u64(plain_get(from, "merged_up_to_bytes"));
    for (size_t i = 0; i < plain_count(pieces) && map->count < SEGMENT_MAP_PIECES; i++) {
        const struct plain_value *row = plain_item(pieces, i);
        struct segment_piece *piece = &map->pieces[map->count++];
        *piece =
            (struct segment_piece){json_u64(plain_item(row, 0)), read_units(plain_item(row, 1)),
                                   read_units(plain_item(row, 2)), read_units(plain_item(row, 3)),
                                   (uint32_t)json_u64(plain_item(row, 4))};
        piece->live = piece->live < piece->units ? piece->live : piece->units;
        uint32_t rest = piece->units - piece->live;
        piece->cached = piece->cached < rest ? piece->cached : rest;
    }
}

static void read_device(struct parsed_report *report, const struct plain_value *from) {
    struct parsed_device *parsed = &report->devices[report->device_count++];
    struct stats_device *device = &parsed->stats;
    const struct plain_value *exact = plain_get(from, "peaks_exact");
    device->ordinal = (int)json_i64(plain_get(from, "device"));
    snprintf(device->name, sizeof device->name, "%s", json_text(plain_get(from, "name")));
    snprintf(device->uuid, sizeof device->uuid, "%s", json_text(plain_get(from, "uuid")));
    device->total_bytes = json_u64(plain_get(from, "total_bytes"));
    device->limit_bytes = json_u64(plain_get(from, "limit_bytes"));
    const char *source = json_text(plain_get(from, "limit_source"));
    device->limit_source = *source ? keep_text(report, source) : NULL;
    device->backend = keep_text(report, json_text(plain_get(from, "backend")));
    device->reuse = keep_text(report, json_text(plain_get(from, "reuse")));
    device->backend_reason = keep_text(report, json_text(plain_get(from, "backend_reason")));
    device->peaks_exact = !exact || json_is_true(exact);
    device->peak_error_bytes = json_u64(plain_get(from, "peak_error_bytes"));
    const struct plain_value *outside = plain_get(from, "outside_bytes");
#define METRIC(field, json, label) device->field = read_metric(plain_get(from, json));
#define UNPOOLED(field, json) device->field = read_metric(plain_get(outside, json));
#define GAUGE(field) device->field = read_gauge(from, #field);
#define COUNTER(field) device->field = read_counter(from, #field);
#include "stats/fields.def"
    read_lists(report, device, from);
    read_requesters(device, plain_get(from, "libraries"));
    read_map(&parsed->moment.map, plain_get(from, "segment_map"));
}

static void read_program(struct parsed_report *report, const struct plain_value *from) {
    struct program *program = &report->program;
    const struct plain_value *rank = plain_get(from, "rank"), *command = plain_get(from, "command");
    program->rank = json_is_number(rank) ? json_i64(rank) : -1;
    snprintf(program->host, sizeof program->host, "%s", json_text(plain_get(from, "host")));
    for (size_t i = 0; i < plain_count(command) && program->argument_count < PROGRAM_ARGUMENTS; i++)
        program->arguments[program->argument_count++] =
            keep_text(report, json_text(plain_item(command, i)));
    const char *path = program->argument_count > 0 ? program->arguments[0] : "unknown";
    snprintf(program->name, sizeof program->name, "%s", basename(path));
}

static void read_oom(struct parsed_report *report, const struct plain_value *from) {
    const struct plain_value *lines = plain_get(from, "verdict");
    report->oom =
        (struct report_oom){.device = (int)json_i64(plain_get(from, "device")),
                            .requested = json_u64(plain_get(from, "requested_bytes")),
                            .limit = json_u64(plain_get(from, "limit_bytes")),
                            .device_free = json_u64(plain_get(from, "device_free_bytes")),
                            .device_total = json_u64(plain_get(from, "device_total_bytes"))};
    for (size_t i = 0; i < plain_count(lines) && report->verdict.count < LINES_MAX; i++)
        snprintf(report->verdict.text[report->verdict.count++], LINES_COLUMNS + 1, "%s",
                 json_text(plain_item(lines, i)));
    report->head.oom = &report->oom;
    report->head.verdict = &report->verdict;
}

/** Subtracts the memory of a report from reports->memory_left. Returns NULL, or why the report is
 * refused. A device that is written as `{}` takes thousands of times its bytes in memory. */
static const char *take_memory(struct parsed_reports *reports, size_t devices) {
    size_t bytes = sizeof(struct parsed_report) + devices * DEVICE_BYTES;
    if (devices > STATS_MAX_DEVICES)
        return "holds a report of more devices than the library knows";
    if (bytes > reports->memory_left)
        return TOO_LARGE;
    reports->memory_left -= bytes;
    return NULL;
}

/** Adds one report. Returns NULL, or why it is refused. */
static const char *read_report(struct parsed_reports *reports, const char *source,
                               const struct plain_value *from) {
    const struct plain_value *devices = plain_get(from, "devices");
    const char *refused = take_memory(reports, plain_count(devices));
    if (refused)
        return refused;
    struct parsed_report *report = add_report(reports, source, plain_count(devices));
    read_program(report, from);
    report->process =
        (struct report_process){.pid = json_i64(plain_get(from, "pid")),
                                .version = keep_text(report, json_text(plain_get(from, "version"))),
                                .program = &report->program,
                                .time_ns = json_seconds(plain_get(from, "time_unix")),
                                .uptime_ns = json_seconds(plain_get(from, "uptime_seconds"))};
    report->head =
        (struct report_head){.process = &report->process,
                             .reason = keep_text(report, json_text(plain_get(from, "reason"))),
                             .driver_version = (int)json_i64(plain_get(from, "driver_version")),
                             .host_bytes = json_u64(plain_get(from, "host_bytes"))};
    if (plain_get(from, "oom"))
        read_oom(report, plain_get(from, "oom"));
    report->stacks = parsed_stacks_read(from);
    report->head.stacks = report->stacks ? &report->stacks->view : NULL;
    for (size_t i = 0; i < plain_count(devices); i++)
        read_device(report, plain_item(devices, i));
    return NULL;
}

/** Reads the next line, without its end. Returns false at the end of the file, and with *error set
 * if the line is longer than any report. */
static bool read_line(FILE *file, char **line, size_t *capacity, int *error) {
    size_t count = 0;
    int byte = getc_unlocked(file);
    if (byte == EOF)
        return false;
    for (;; byte = getc_unlocked(file)) {
        bool ends = byte == EOF || byte == '\n';
        if (count == LINE_MOST)
            return *error = EFBIG, false;
        if (count == *capacity) {
            *capacity = 2 * count + 4096;
            *line = checked(realloc(*line, *capacity));
        }
        (*line)[count++] = ends ? '\0' : (char)byte;
        if (ends)
            return true;
    }
}

/** Returns whether a line begins with REPORT_BEGINS, or was cut off within it. A `{` alone does not
 * count, because it is the first line of JSON over several lines. */
static bool begins_like_report(const char *line, size_t length) {
    size_t most = strlen(REPORT_BEGINS);
    return length > 1 && strncmp(line, REPORT_BEGINS, length < most ? length : most) == 0;
}

/** Adds the report on a line, if the line is a report. Returns NULL, or why it is refused. Sets
 * *cut if the line begins like a report and is no JSON. */
static const char *read_line_of_json(struct parsed_reports *reports, const char *path, char *line,
                                     bool *cut) {
    size_t length = strlen(line), most = MEMORY_MOST + MEMORY_TIMES * length;
    struct plain values;
    char why[128];
    const char *refused = NULL;
    bool begins = begins_like_report(line, length); /* json_read() changes the line */
    int r = json_read(line, length, most, &values, why, sizeof why);
    reports->memory_left += MEMORY_TIMES * length;
    if (r == -EFBIG)
        refused = TOO_LARGE;
    else if (r != 0)
        *cut |= begins;
    else if (strcmp(json_text(plain_get(&values.root, "schema")), "gpucache-report/1") == 0)
        refused = read_report(reports, path, &values.root);
    plain_free(&values);
    return refused;
}

bool parsed_reports_read_file(struct parsed_reports *reports, const char *path, const char **why) {
    char *line = NULL;
    size_t capacity = 0, before = reports->count;
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    int error = file ? 0 : errno;
    const char *refused = NULL;
    bool cut = false;
    reports->memory_left = MEMORY_MOST;
    while (file && !refused && read_line(file, &line, &capacity, &error))
        if (*line == '{')
            refused = read_line_of_json(reports, path, line, &cut);
    if (file && ferror(file))
        error = errno;
    *why = refused ? refused
           : error ? strerror(error)
           : cut   ? "a report in it is not whole"
                   : "holds no report of the library as JSON in one line "
                     "(GPUCACHE_REPORT_FORMAT=json); jq -c . makes one line";
    if (file && file != stdin)
        fclose(file);
    free(line);
    return !refused && !error && !cut && reports->count > before;
}

/* ---- from a live page ---- */

/** Writes the note on the age of the live sizes. The library counts live sizes less often than it
 * updates all other metrics. */
static void note_sizes(struct parsed_report *report, uint64_t age) {
    if (age > 0)
        snprintf(report->sizes_note, sizeof report->sizes_note,
                 "the sizes of what is live are %s s older than the other metrics",
                 SECONDS(age < PAGE_AGE_SHOWN_NS ? PAGE_AGE_SHOWN_NS : age));
}

static void note_age(struct parsed_report *report) {
    const struct page *page = report->page;
    uint64_t age = page_age_ns(page);
    char old[LINES_VALUE];
    lines_seconds(old, age);
    if (page->state == PAGE_KILLED)
        snprintf(report->note, sizeof report->note,
                 "process %d has ended without a last update, as after SIGKILL; its metrics are "
                 "%s s old",
                 page->pid, old);
    else if (page->state == PAGE_SIGNALLED)
        snprintf(report->note, sizeof report->note, "process %d died %s s ago of: %s", page->pid,
                 old, strsignal(page->signal));
    else if (!page->fresh && age > OLD_NS)
        snprintf(report->note, sizeof report->note,
                 "process %d does not answer now; its metrics are %s s old", page->pid, old);
}

void parsed_reports_read_page(struct parsed_reports *reports, struct page *page) {
    char source[32];
    snprintf(source, sizeof source, "%d", page->pid);
    struct parsed_report *report = add_report(reports, source, page->devices);
    report->page = page;
    report->program = page->program;
    report->process = page_process(page);
    report->process.program = &report->program;
    report->head = (struct report_head){.process = &report->process,
                                        .reason = "request",
                                        .driver_version = atomic_load(&page->live->driver_version),
                                        .host_bytes = atomic_load(&page->live->host_bytes)};
    uint64_t age, oldest = 0;
    for (unsigned i = 0; i < page->devices; i++) {
        struct parsed_device *device = &report->devices[report->device_count];
        struct stats_device *read = &device->stats;
        if (!page_device(page, i, read, &age, &device->moment))
            continue;
        read->backend = keep_text(report, read->backend);
        read->reuse = keep_text(report, read->reuse);
        read->backend_reason = keep_text(report, read->backend_reason);
        read->limit_source = read->limit_source ? keep_text(report, read->limit_source) : NULL;
        report->device_count++;
        oldest = age > oldest ? age : oldest;
    }
    report->events = page_events(page, &report->event_count);
    note_age(report);
    note_sizes(report, oldest);
}

/* ---- writing ---- */

void parsed_report_print(const struct parsed_report *report, enum report_format format,
                         struct print *out) {
    static struct emitter emitter;
    struct report_head head = report->head;
    /* The stacks of a live page have no peaks and totals, and JSON would show these as 0. Therefore
     * only text has these stacks. */
    bool named = report->page && format == REPORT_TEXT;
    struct parsed_stacks *now = named ? parsed_stacks_of_page(report->page) : NULL;
    parsed_stacks_resolve(now, true);
    head.stacks = now ? &now->view : head.stacks;
    walk_begin(&emitter, format, out, &head);
    for (size_t i = 0; i < report->device_count; i++)
        walk_device(&emitter, &report->devices[i].stats, &report->devices[i].moment.map);
    walk_end(&emitter);
    parsed_stacks_free(now);
}
