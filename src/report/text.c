/*
 * Writes a report as text: a table like PyTorch's, with sentences above and below it.
 *
 * A device takes at most 75 columns and 25 lines, for any values. Every cell is as wide as its
 * longest value. Names of programs, hosts and libraries are cut. The sentences below the table have
 * a bounded number of lines, the most important first. The verdict of an OOM stands before the
 * first table; those sentences then have fewer lines. The text is ASCII, so a column is a byte. If
 * call stacks are recorded, the holders of memory follow in additional lines. walk.c calls the
 * functions through text_emitter. Takes no lock and allocates nothing.
 */
#include "report/emitter.h"

#include "base/program.h"
#include "report/holders.h"

#include <string.h>

#define COLUMNS LINES_COLUMNS
#define INNER (COLUMNS - 4) /* between "| " and " |" */
#define TABLE_LINES 16      /* frames, headings and rows of a device's table */
#define REPORT_LINES 25
#define LIVE_SIZES 5 /* sizes of live blocks, at most */
#define REQUESTERS_SHOWN 3
#define REQUESTER_COLUMNS 24
#define WORTH_SAYING 5 /* percent of the peak of reserved memory */

/* Widths of cells, with the blanks on both sides. */
#define METRIC_CELL 18
#define CELL 12
#define PEAK_CELL 15
_Static_assert(METRIC_CELL + 3 * CELL + PEAK_CELL + 6 == COLUMNS, "the table fills its columns");
_Static_assert(REPORT_LINES - TABLE_LINES == LINES_MAX, "the sentences fill the report");

static void rule(struct emitter *emitter, char character) {
    print_char(emitter->out, '|');
    print_repeat(emitter->out, character, COLUMNS - 2);
    print_str(emitter->out, "|\n");
}

static void boxed(struct emitter *emitter, const char *text) {
    print_str(emitter->out, "| ");
    print_cell(emitter->out, text, INNER, PRINT_LEFT);
    print_str(emitter->out, " |\n");
}

/** Writes a line of the box, cut to its width. */
static void boxed_print(struct emitter *emitter, struct print *text) {
    char line[INNER + 1];
    struct print out;
    print_init(&out, -1, line, sizeof line);
    print_plain(&out, print_end(text), INNER);
    boxed(emitter, print_end(&out));
}

/** Writes a cell with a blank on its right. */
static void cell(struct emitter *emitter, const char *text, size_t columns) {
    print_cell(emitter->out, text, columns - 1, PRINT_RIGHT);
    print_str(emitter->out, " |");
}

static void row(struct emitter *emitter, const char *label, bool bytes,
                const struct stats_metric *metric, enum peak peak) {
    char text[LINES_VALUE], bounded[LINES_VALUE + 4];
    const char *(*format)(char *, uint64_t) = bytes ? lines_size : lines_count;
    print_str(emitter->out, "| ");
    print_cell(emitter->out, label, METRIC_CELL - 1, PRINT_LEFT);
    print_char(emitter->out, '|');
    cell(emitter, format(text, metric->current), CELL);
    struct print out;
    print_init(&out, -1, bounded, sizeof bounded);
    print_str(&out, peak == PEAK_AT_LEAST ? ">= " : peak == PEAK_AT_MOST ? "<= " : "");
    print_str(&out, format(text, metric->peak));
    cell(emitter, print_end(&out), PEAK_CELL);
    cell(emitter, format(text, metric->total), CELL);
    cell(emitter, format(text, metric->freed), CELL);
    print_char(emitter->out, '\n');
}

/* ---- above the table ---- */

static void begin(struct emitter *emitter) {
    const struct lines *verdict = emitter->head->verdict;
    for (size_t i = 0; verdict && i < verdict->count; i++) {
        print_untrusted(emitter->out, verdict->text[i]);
        print_char(emitter->out, '\n');
    }
}

static const char *why(const char *reason) {
    static const char *const words[][2] = {
        {"exit", "at exit"},           {"signal", "at a signal"}, {"interval", "at an interval"},
        {"oom", "when out of memory"}, {"request", "on request"},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(reason, words[i][0]) == 0)
            return words[i][1];
    return NULL;
}

static void title(struct emitter *emitter) {
    char text[256];
    struct print out;
    const struct report_process *of = emitter->head->process;
    const struct program *self = of->program;
    const char *reason = emitter->head->reason;
    print_init(&out, -1, text, sizeof text);
    print_format(&out, "gpucache %s report, written ", of->version);
    if (why(reason))
        print_str(&out, why(reason));
    else /* "at", not "killed by": the first process of a container survives */
        print_format(&out, "at SIG%s", reason);
    print_format(&out, " after %s s", SECONDS(of->uptime_ns));
    boxed_print(emitter, &out);

    print_init(&out, -1, text, sizeof text);
    print_plain(&out, self->name, 36);
    print_format(&out, ", pid %lld", (long long)of->pid);
    if (self->rank >= 0)
        print_format(&out, ", rank %lld", (long long)self->rank);
    print_str(&out, ", on ");
    print_plain(&out, self->host, sizeof self->host);
    boxed_print(emitter, &out);
}

static void device_begin(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    rule(emitter, '=');
    title(emitter);
    char text[256];
    struct print out;
    print_init(&out, -1, text, sizeof text);
    print_format(&out, "device %d: ", device->ordinal);
    print_plain(&out, device->name, 28);
    print_format(&out, ", %s, ", SIZE(device->total_bytes));
    if (device->limit_bytes != 0)
        print_format(&out, "limit %s", SIZE(device->limit_bytes));
    else
        print_str(&out, "no limit");
    boxed_print(emitter, &out);

    rule(emitter, '-');
    print_str(emitter->out, "| ");
    print_cell(emitter->out, "Metric", METRIC_CELL - 1, PRINT_LEFT);
    print_char(emitter->out, '|');
    cell(emitter, "Cur Usage", CELL);
    cell(emitter, "Peak Usage", PEAK_CELL);
    cell(emitter, "Tot Alloc", CELL);
    cell(emitter, "Tot Freed", CELL);
    print_char(emitter->out, '\n');
    rule(emitter, '-');
}

/* ---- the table ---- */

static void metric(struct emitter *emitter, const char *name, const char *label, bool bytes,
                   const struct stats_metric *metric, enum peak peak) {
    (void)name;
    if (label)
        row(emitter, label, bytes, metric, peak);
}

static void not_in_table(struct emitter *emitter, const char *name, uint64_t value) {
    (void)emitter, (void)name, (void)value;
}

static void unpooled_begin(struct emitter *emitter) {
    (void)emitter;
}

static void unpooled_end(struct emitter *emitter) {
    row(emitter, "Outside the pool", true, &emitter->derived.unpooled,
        emitter->derived.unpooled_peak_exact ? PEAK_EXACT : PEAK_AT_MOST);
}

/* ---- below the table ---- */

/** Returns how many percent of the whole the part is; 0 if the whole is 0. In a damaged report the
 * part may exceed the whole. */
static unsigned percent_of(uint64_t part, uint64_t whole) {
    if (part >= whole)
        return whole == 0 ? 0 : 100;
    return (unsigned)((double)part * 100 / (double)whole);
}

/** Writes why more was reserved than requested. "About": the peaks are from different times. */
static void say_peaks(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    struct lines *words = &emitter->words;
    uint64_t whole = device->reserved.peak;
    const struct {
        const char *name;
        uint64_t bytes;
    } parts[] = {
        {"pending", minus_or_zero(device->active.peak, device->allocated.peak)},
        {"ready", minus_or_zero(device->reserved.peak, device->active.peak)},
        {"rounding", minus_or_zero(device->allocated.peak, device->requested.peak)},
    };
    unsigned percents[sizeof parts / sizeof *parts];
    bool any = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        percents[i] = percent_of(parts[i].bytes, whole);
        any |= percents[i] >= WORTH_SAYING;
    }
    lines_start(words, "Peak reserved over peak requested %s%s", RATIO(emitter->derived.peak_ratio),
                any ? ":" : "");
    const char *about = "about ";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (percents[i] >= WORTH_SAYING) {
            lines_clause(words, "%s%u%% %s", about, percents[i], parts[i].name);
            about = "";
        }
    }
}

static void say_hits(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    uint64_t lookups = device->cache_hits + device->cache_misses;
    lines_start(&emitter->words, "Hit rate %s of %s", PERCENT(device->cache_hits, lookups),
                COUNT(lookups));
    lines_clause(&emitter->words, "driver calls avoided %s", COUNT(emitter->derived.calls_avoided));
}

static void say_fragmentation(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    const struct report_derived *derived = &emitter->derived;
    struct lines *words = &emitter->words;
    /* Rounded down like the hit rate, so that 100.00% is really all. */
    lines_start(words, "Fragmentation: internal %s",
                PERCENT(minus_or_zero(device->allocated.current, device->requested.current),
                        device->allocated.current));
    if (derived->idle == 0) {
        lines_clause(words, "nothing idle");
        return;
    }
    if (device->ready_bytes == 0)
        lines_clause(words, "nothing ready of %s idle", SIZE(derived->idle));
    else
        lines_clause(
            words, "external %s of %s ready",
            PERCENT(minus_or_zero(device->ready_bytes, derived->largest_free), device->ready_bytes),
            SIZE(device->ready_bytes));
    lines_start(words, "Free blocks %s", COUNT(device->free_blocks));
    lines_clause(words, "largest free block %s", SIZE(derived->largest_free));
    lines_clause(words, "releasable %s", SIZE(device->releasable_bytes));
}

static void say_ooms(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    struct lines *words = &emitter->words;
    lines_start(words, "OOMs %s", COUNT(device->ooms));
    lines_clause(words, "refused at the limit %s", COUNT(device->limit_refusals));
    lines_clause(words, "retries %s", COUNT(device->oom_retries));
    if (device->invalid_frees != 0)
        lines_clause(words, "invalid frees %s", COUNT(device->invalid_frees));
    lines_clause(words, "host memory %s", SIZE(emitter->head->host_bytes));
}

/** Writes the libraries that requested most, as far as they fit. */
static void say_requesters(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    struct lines *words = &emitter->words;
    for (size_t i = 0; i < device->requester_count && i < REQUESTERS_SHOWN; i++) {
        const struct stats_requester *row = &device->requesters[i];
        char name[REQUESTER_COLUMNS + 1];
        struct print out;
        print_init(&out, -1, name, sizeof name);
        print_plain(&out, row->name, REQUESTER_COLUMNS);
        if (row->peak == STATS_NO_PEAK)
            break;
        if (i == 0)
            lines_start(words, "By library (peak): %s %s (%s)", print_end(&out), SIZE(row->current),
                        SIZE(row->peak));
        else if (!lines_item(words, "%s %s (%s)", print_end(&out), SIZE(row->current),
                             SIZE(row->peak)))
            break;
    }
}

/** Writes details, as far as lines are left. */
static void say_details(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    struct lines *words = &emitter->words;
    if (!device->peaks_exact)
        lines_start(words, "A peak marked >= may be up to %s too small",
                    SIZE(device->peak_error_bytes));
    lines_start(words, "Backend %s", device->backend ? device->backend : "none");
    lines_clause(words, "reuse %s", device->reuse ? device->reuse : "none");
    lines_clause(words, "barriers %s", COUNT(device->barriers));
    lines_clause(words, "CPU waits %s (%s s)", COUNT(device->cpu_waits),
                 SECONDS(device->cpu_wait_ns));
    bool any = false;
#define METRIC(field, json, label)
#define UNPOOLED(field, json)                                                                      \
    if (device->field.peak != 0) {                                                                 \
        if (!any)                                                                                  \
            lines_start(words, "Peaks outside: " json " %s", SIZE(device->field.peak));            \
        else                                                                                       \
            lines_clause(words, json " %s", SIZE(device->field.peak));                             \
        any = true;                                                                                \
    }
#define GAUGE(field)
#define COUNTER(field)
#include "stats/fields.def"
    uint64_t pinned = device->pinned_hits + device->pinned_misses;
    if (any && pinned != 0)
        lines_clause(words, "pinned hit rate %s of %s", PERCENT(device->pinned_hits, pinned),
                     COUNT(pinned));
}

/** Writes which variable or call set the limit. */
static void say_limit(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    if (device->limit_bytes != 0 && device->limit_source)
        lines_start(&emitter->words, "The limit comes from %s", device->limit_source);
}

/** Writes that the device has no pool: most values then mean little. */
static void say_disabled(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    if (device->reuse && strcmp(device->reuse, "none") == 0 && device->backend_reason)
        lines_start(&emitter->words, "Passed through and counted, not pooled: %s",
                    device->backend_reason);
}

/**
 * Writes the sentences below the table: why more was reserved than requested, what the pool saved,
 * and last, just above the shell's prompt, what is still live. After an OOM's verdict the live
 * memory is left out, because the verdict has it.
 */
static void say_all(struct emitter *emitter) {
    struct lines *words = &emitter->words;
    size_t verdict = emitter->head->verdict ? emitter->head->verdict->count : 0;
    lines_init(words, LINES_MAX - verdict, INNER);
    if (emitter->head->oom) {
        say_hits(emitter);
        say_ooms(emitter);
        say_requesters(emitter);
        say_peaks(emitter);
        say_details(emitter);
        return;
    }
    words->max--;
    say_limit(emitter);
    say_disabled(emitter);
    say_peaks(emitter);
    say_hits(emitter);
    say_fragmentation(emitter);
    say_ooms(emitter);
    say_requesters(emitter);
    say_details(emitter);
    words->max++;
    live_write(words, emitter->device, LIVE_SIZES);
}

static void holders_line(void *emitter, struct print *text) {
    boxed_print(emitter, text);
}

static void device_end(struct emitter *emitter) {
    const struct report_head *head = emitter->head;
    rule(emitter, '-');
    say_all(emitter);
    for (size_t i = 0; i < emitter->words.count; i++)
        boxed(emitter, emitter->words.text[i]);
    if (head->stacks) {
        rule(emitter, '-');
        holders_write(head->stacks, emitter->device->ordinal, head->oom != NULL, holders_line,
                      emitter);
    }
    rule(emitter, '=');
}

static void end(struct emitter *emitter) {
    if (emitter->devices > 0)
        return;
    rule(emitter, '=');
    title(emitter);
    boxed(emitter, "No device was used");
    rule(emitter, '=');
}

const struct emitter_kind text_emitter = {
    .begin = begin,
    .device_begin = device_begin,
    .metric = metric,
    .gauge = not_in_table,
    .counter = not_in_table,
    .unpooled_begin = unpooled_begin,
    .unpooled_end = unpooled_end,
    .device_end = device_end,
    .end = end,
};
