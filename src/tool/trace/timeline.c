/*
 * gpucache timeline: writes traces as trace-event JSON for Perfetto and chrome://tracing.
 *
 * Each trace becomes one process, whose counters are the metrics of the reports. Each counter has
 * its own event: viewers stack the counters of one event, but these metrics contain one another.
 * A change of less than a thousandth of the counter's peak within a millisecond is left out. The
 * highest and the last value are always written.
 */
#include "base/json_put.h"
#include "options/value.h"
#include "tool/common/arguments.h"
#include "tool/common/tool.h"
#include "tool/trace/trace_file.h"

#include <stdlib.h>
#include <string.h>

#define STEP_NS 1000000
#define STEP_SHARE 1000
#define PID_STEP 10000000 /* added to a process number that another trace has too */

/* Counters of a device. A kind of unpooled memory has the counter UNPOOLED + its number. Kinds that
 * are counted together share a name, and the counter of the lowest number. */
enum { REQUESTED, ALLOCATED, RESERVED, UNPOOLED, COUNTERS = UNPOOLED + TRACE_UNPOOLED_MOST + 1 };

static const char *const names[COUNTERS] = {
    [REQUESTED] = "requested",
    [ALLOCATED] = "allocated",
    [RESERVED] = "reserved",
#define KIND(number, name, space, charged, metric, words, meaning) [UNPOOLED + (number)] = words,
#include "driver/limit/unpooled_kind.def"
};

struct counter {
    uint64_t value, peak;
    uint64_t shown, shown_ns; /* the value written last, and its time */
    bool peak_shown;
};

struct timeline {
    struct json_put *json;
    const struct trace_file *file;
    struct counter counters[STATS_MAX_DEVICES][COUNTERS];
    uint64_t base_real_ns;
    uint64_t pid;
    bool writing; /* false in the first pass over the events, which finds the peaks */
};

/* ---- events ---- */

static void put_us(struct json_put *to, const char *name, uint64_t ns) {
    json_put_key(to, name);
    json_put_raw(to);
    print_format(to->out, "%llu.%u%u%u", (unsigned long long)(ns / 1000), (unsigned)(ns / 100 % 10),
                 (unsigned)(ns / 10 % 10), (unsigned)(ns % 10));
}

static uint64_t real_of(const struct trace_file *file, uint64_t ns) {
    return ns + file->header->real_ns;
}

static void begin_event(struct timeline *to, const char *phase, const char *name) {
    json_put_line(to->json);
    json_put_open(to->json, '{');
    json_put_named_text(to->json, "ph", phase);
    json_put_named_u64(to->json, "pid", to->pid);
    json_put_named_text(to->json, "name", name);
}

static void put_time(struct timeline *to, uint64_t ns) {
    uint64_t real = real_of(to->file, ns);
    put_us(to->json, "ts", real > to->base_real_ns ? real - to->base_real_ns : 0);
}

/** Ends an event and its arguments. */
static void end_event(struct timeline *to) {
    json_put_close(to->json, '}');
    json_put_close(to->json, '}');
}

/* ---- counters ---- */

static void write_counter(struct timeline *to, unsigned device, unsigned which, uint64_t ns) {
    struct counter *counter = &to->counters[device][which];
    struct print text = PRINT_TEXT(64);
    print_format(&text, "device %u %s", device, names[which]);
    begin_event(to, "C", print_end(&text));
    put_time(to, ns);
    json_put_named_u64(to->json, "tid", 0);
    json_put_named_open(to->json, "args", '{');
    json_put_named_u64(to->json, "bytes", counter->value);
    end_event(to);
    counter->shown = counter->value;
    counter->shown_ns = ns;
    counter->peak_shown |= counter->value == counter->peak;
}

static void set_counter(struct timeline *to, unsigned device, unsigned which, uint64_t value,
                        uint64_t ns) {
    struct counter *counter = &to->counters[device][which];
    uint64_t change = value > counter->shown ? value - counter->shown : counter->shown - value;
    counter->value = value;
    if (!to->writing)
        counter->peak = value > counter->peak ? value : counter->peak;
    else if (change > counter->peak / STEP_SHARE ||
             (change > 0 && ns - counter->shown_ns >= STEP_NS) ||
             (value == counter->peak && !counter->peak_shown))
        write_counter(to, device, which, ns);
}

static void add(struct timeline *to, const struct trace_event *event, unsigned which,
                uint64_t bytes) {
    set_counter(to, event->device, which, to->counters[event->device][which].value + bytes,
                event->time_ns);
}

/** Returns the counter of a metric (trace_metric()), or 0 for none. */
static unsigned counter_of(unsigned metric) {
    unsigned which = metric == 0 ? RESERVED : UNPOOLED + metric - 1;
    for (unsigned i = UNPOOLED; names[which] && i < which; i++)
        if (names[i] && strcmp(names[i], names[which]) == 0)
            return i;
    return names[which] ? which : 0;
}

static void count(struct timeline *to, const struct trace_event *event) {
    unsigned metric = trace_metric(event->kind, event->value);
    if (event->device >= STATS_MAX_DEVICES)
        return;
    if (event->kind == TRACE_ALLOCATE || event->kind == TRACE_FREE) {
        bool comes = event->kind == TRACE_ALLOCATE;
        add(to, event, REQUESTED, comes ? event->bytes : -event->bytes);
        add(to, event, ALLOCATED, comes ? event->value : -event->value);
    } else if (metric < TRACE_METRICS && counter_of(metric) && !(event->flags & TRACE_CARRIED)) {
        set_counter(to, event->device, counter_of(metric), event->detail, event->time_ns);
    }
}

/** Sets the requested and allocated bytes at the front of the trace: the sums of the carried blocks
 * (trace_file.h). */
static void start_with_carried(struct timeline *to, uint64_t front_ns) {
    uint64_t sums[STATS_MAX_DEVICES][2] = {{0}};
    for (size_t i = 0; i < to->file->carried; i++) {
        const struct trace_event *event = &to->file->events[i];
        if (event->kind != TRACE_ALLOCATE || event->device >= STATS_MAX_DEVICES)
            continue;
        sums[event->device][0] += event->bytes;
        sums[event->device][1] += event->value;
    }
    for (unsigned device = 0; device < STATS_MAX_DEVICES; device++) {
        if (sums[device][1] == 0)
            continue;
        set_counter(to, device, REQUESTED, sums[device][0], front_ns);
        set_counter(to, device, ALLOCATED, sums[device][1], front_ns);
    }
}

/** Sets the counters at the front of the trace, then applies each event to them. Also calls
 * write_event() for each event, unless it is NULL. */
static void apply_events(struct timeline *to,
                         void (*write_event)(struct timeline *, const struct trace_event *)) {
    const struct trace_file *file = to->file;
    for (unsigned device = 0; device < STATS_MAX_DEVICES; device++)
        for (unsigned metric = 0; metric < TRACE_METRICS; metric++)
            if (file->before[device][metric] && counter_of(metric))
                set_counter(to, device, counter_of(metric), file->before[device][metric],
                            file->front_ns);
    start_with_carried(to, file->front_ns);
    for (size_t i = file->carried; i < file->count; i++) {
        count(to, &file->events[i]);
        if (write_event)
            write_event(to, &file->events[i]);
    }
}

/* ---- moments ---- */

/** Ends an event with its thread and arguments. */
static void put_arguments(struct timeline *to, const struct trace_event *event) {
    json_put_named_u64(to->json, "tid", event->thread);
    json_put_named_open(to->json, "args", '{');
    if (event->device != TRACE_NO_DEVICE)
        json_put_named_u64(to->json, "device", event->device);
    if (event->bytes)
        json_put_named_u64(to->json, "bytes", event->bytes);
    if (event->address) {
        struct print text = PRINT_TEXT(24);
        print_format(&text, "0x%llx", (unsigned long long)event->address);
        json_put_named_text(to->json, "address", print_end(&text));
    }
    end_event(to);
}

/** Begins an event that takes no time. The caller adds its thread and its arguments. */
static void put_instant(struct timeline *to, const char *name, const struct trace_event *event) {
    begin_event(to, "i", name);
    put_time(to, event->time_ns);
    json_put_named_text(to->json, "s", "p");
}

static void write_moment(struct timeline *to, const struct trace_event *event) {
    uint64_t took = event->value;
    uint64_t begun = event->flags & TRACE_BEGINS ? event->time_ns : event->time_ns - took;
    if (took > 0 && took < event->time_ns) {
        begin_event(to, "X", trace_event_words(event->kind));
        put_time(to, begun);
        put_us(to->json, "dur", took);
    } else {
        put_instant(to, trace_event_words(event->kind), event);
    }
    put_arguments(to, event);
}

static void write_event(struct timeline *to, const struct trace_event *event) {
    if (event->kind == TRACE_MARK) {
        put_instant(to, event->text, event);
        json_put_named_u64(to->json, "tid", event->thread);
        json_put_named_open(to->json, "args", '{');
        end_event(to);
    } else if (event->kind == TRACE_CONTEXT_END) {
        put_instant(to, trace_event_words(event->kind), event);
        put_arguments(to, event);
    } else if (event->kind >= TRACE_MOMENTS) {
        write_moment(to, event);
    }
}

/* ---- a trace ---- */

static void name_process(struct timeline *to) {
    const struct trace_header *header = to->file->header;
    struct print text = PRINT_TEXT(256);
    print_format(&text, "%s", header->name);
    if (header->rank >= 0)
        print_format(&text, " rank %lld", (long long)header->rank);
    begin_event(to, "M", "process_name");
    json_put_named_open(to->json, "args", '{');
    json_put_named_text(to->json, "name", print_end(&text));
    end_event(to);
}

/** Writes the last value of each counter, unless it is written already. The counters then end at
 * the values of the last report (tests/programs/trace_records.py). */
static void close_counters(struct timeline *to) {
    for (unsigned device = 0; device < STATS_MAX_DEVICES; device++)
        for (unsigned which = 0; which < COUNTERS; which++)
            if (to->counters[device][which].value != to->counters[device][which].shown)
                write_counter(to, device, which, to->file->end_ns);
}

static void write_trace(struct timeline *to, const struct trace_file *file, uint64_t pid) {
    to->file = file;
    to->pid = pid;
    memset(to->counters, 0, sizeof to->counters);
    to->writing = false;
    apply_events(to, NULL);
    for (unsigned device = 0; device < STATS_MAX_DEVICES; device++)
        for (unsigned which = 0; which < COUNTERS; which++)
            to->counters[device][which].value = 0;
    to->writing = true;
    name_process(to);
    apply_events(to, write_event);
    close_counters(to);
}

struct source {
    struct trace_file file;
    uint64_t pid; /* unique in the output */
};

static void set_unique_pid(struct source *sources, size_t at) {
    uint64_t pid = (uint64_t)sources[at].file.header->who.pid;
    for (size_t i = 0; i < at; i++)
        if (sources[i].pid == pid) {
            pid += PID_STEP;
            i = (size_t)-1; /* checks all traces again */
        }
    sources[at].pid = pid;
}

static void write_all(struct print *out, const struct source *sources, size_t count) {
    static struct timeline to;
    struct json_put json = json_put_to(out);
    to = (struct timeline){.json = &json, .base_real_ns = UINT64_MAX};
    for (size_t i = 0; i < count; i++) {
        uint64_t started = real_of(&sources[i].file, sources[i].file.header->started_ns);
        to.base_real_ns = started < to.base_real_ns ? started : to.base_real_ns;
    }
    json_put_open(&json, '{');
    json_put_named_text(&json, "displayTimeUnit", "ms");
    json_put_named_open(&json, "otherData", '{');
    json_put_named_text(&json, "version", "gpucache " GPUCACHE_VERSION);
    json_put_close(&json, '}');
    json_put_named_open(&json, "traceEvents", '[');
    for (size_t i = 0; i < count; i++)
        write_trace(&to, &sources[i].file, sources[i].pid);
    print_char(out, '\n');
    json_put_close(&json, ']');
    json_put_close(&json, '}');
    print_char(out, '\n');
}

int tool_timeline(char **arguments) {
    struct print out = tool_stdout();
    uint64_t last = 0;
    struct arguments left = {.command = "timeline", .at = arguments};
    while (arguments_next(&left) != ARGUMENTS_END)
        if (!value_number(left.value, UINT64_MAX, &last) || last == 0)
            fail(STATUS_OWN_FAILURE, left.option, "wanted is a number of events, 1 or more");
    arguments = left.at;
    size_t count = 0, read = 0;
    while (arguments[count])
        count++;
    struct source *sources = checked(calloc(count + 1, sizeof *sources));
    if (count == 0)
        fail(STATUS_OWN_FAILURE, "timeline",
             "wanted is a trace, or the number of a process that records one");
    for (size_t i = 0; i < count; i++)
        if (trace_source_read(arguments[i], last, &sources[read].file))
            set_unique_pid(sources, read++);
    if (read > 0)
        write_all(&out, sources, read);
    bool written = tool_flush(&out);
    for (size_t i = 0; i < read; i++)
        trace_file_free(&sources[i].file);
    free(sources);
    return !written ? STATUS_OWN_FAILURE : read == count ? 0 : EXIT_FAILURE;
}
