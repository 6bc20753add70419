/*
 * gpucache metrics: prints the metrics of all running processes, for a scrape or a file collector.
 *
 * There are two formats. OpenMetrics and the older Prometheus text differ for counters: above a
 * sample x_total, OpenMetrics needs `# TYPE x counter`, and Prometheus `# TYPE x_total counter`.
 * In both, all samples of a family must be adjacent. The outer loop therefore walks the families,
 * and the inner one all devices of all processes.
 *
 * With --listen the same metrics answer scrapes, and are read again for each.
 */
#include "base/print.h"
#include "tool/common/arguments.h"
#include "tool/common/tool.h"
#include "tool/report/pages.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 200
#define LABEL 128         /* bytes of a label's value; names and UUIDs are shorter */
#define ENVIRONMENT 65536 /* bytes of a process's environment that are searched */

struct sample {
    const struct page *page;
    const char *job; /* the Slurm job, or ""; shared by the devices of a process */
    struct stats_device device;
};

struct writer {
    struct print out;
    bool prometheus;
    const struct sample *samples;
    size_t count;
};

/* ---- names ---- */

/** Removes `suffix` from the end of `name`. Returns false if the name does not end with it. */
static bool take_suffix(char *name, const char *suffix) {
    size_t length = strlen(name), end = strlen(suffix);
    bool ends = length > end && strcmp(name + length - end, suffix) == 0;
    if (ends)
        name[length - end] = '\0';
    return ends;
}

/** Writes the lines above the samples of a family: type, unit and help. */
static void write_head(struct writer *to, const char *name, bool counter, const char *help) {
    struct print *out = &to->out;
    char unit[64];
    snprintf(unit, sizeof unit, "%s", name);
    const char *measure = take_suffix(unit, "_bytes")     ? "bytes"
                          : take_suffix(unit, "_seconds") ? "seconds"
                                                          : NULL;
    const char *total = counter && to->prometheus ? "_total" : "";
    print_format(out, "# TYPE gpucache_%s%s %s\n", name, total, counter ? "counter" : "gauge");
    if (measure && !to->prometheus)
        print_format(out, "# UNIT gpucache_%s %s\n", name, measure);
    print_format(out, "# HELP gpucache_%s%s %s\n", name, total, help);
}

/** Writes a label behind another one. */
static void write_label(struct print *out, const char *name, const char *value) {
    struct print visible = PRINT_TEXT(LABEL);
    print_untrusted(&visible, value);
    print_format(out, ",%s=\"", name);
    for (const char *at = print_end(&visible); *at; at++) {
        if (*at == '\\' || *at == '"')
            print_char(out, '\\');
        print_char(out, *at);
    }
    print_char(out, '"');
}

static void write_labels(struct print *out, const struct sample *sample, const char *kind) {
    const struct program *program = &sample->page->program;
    print_format(out, "{pid=\"%d\"", sample->page->pid);
    if (sample->page->namespace) /* process numbers of containers are not unique */
        print_format(out, ",pid_namespace=\"%llu\"", (unsigned long long)sample->page->namespace);
    write_label(out, "host", program->host); /* the pod's name in Kubernetes */
    if (*sample->job)
        write_label(out, "slurm_job", sample->job);
    if (program->rank >= 0)
        print_format(out, ",rank=\"%lld\"", (long long)program->rank);
    write_label(out, "program", program->name);
    print_format(out, ",device=\"%d\"", sample->device.ordinal);
    write_label(out, "uuid", sample->device.uuid);
    if (kind)
        write_label(out, "kind", kind);
    print_str(out, "} ");
}

/** Writes a sample. With `decimals`, the number is nanoseconds, written as seconds. */
static void write_sample(struct writer *to, const char *name, bool counter,
                         const struct sample *sample, const char *kind, uint64_t number,
                         unsigned decimals) {
    print_format(&to->out, "gpucache_%s%s", name, counter ? "_total" : "");
    write_labels(&to->out, sample, kind);
    if (decimals > 0)
        print_seconds(&to->out, number, decimals);
    else
        print_u64(&to->out, number);
    print_char(&to->out, '\n');
}

/* ---- families ---- */

/** The offset of a field in a snapshot. */
#define AT(field) offsetof(struct stats_device, field)

static uint64_t number_at(const struct sample *sample, size_t offset) {
    uint64_t number;
    memcpy(&number, (const char *)&sample->device + offset, sizeof number);
    return number;
}

/** Writes a family with one value of each device, at `offset` of struct stats_device. */
static void write_family(struct writer *to, const char *name, bool counter, const char *help,
                         size_t offset, unsigned decimals) {
    write_head(to, name, counter, help);
    for (size_t i = 0; i < to->count; i++)
        write_sample(to, name, counter, &to->samples[i], NULL, number_at(&to->samples[i], offset),
                     decimals);
}

/** Writes the four values of a metric. Names of values in bytes keep the unit at their end. */
static void write_metric(struct writer *to, const char *json, const char *words, size_t offset) {
    static const struct {
        const char *suffix, *help;
        bool counter;
        size_t offset;
    } parts[] = {
        {"", "now", false, offsetof(struct stats_metric, current)},
        {"_peak", "highest value since the start or the last reset", false,
         offsetof(struct stats_metric, peak)},
        {"_taken", "in all", true, offsetof(struct stats_metric, total)},
        {"_freed", "given back in all", true, offsetof(struct stats_metric, freed)},
    };
    char base[64], name[96], help[160];
    snprintf(base, sizeof base, "%s", json);
    bool bytes = take_suffix(base, "_bytes");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(name, sizeof name, "%s%s%s", base, parts[i].suffix, bytes ? "_bytes" : "");
        snprintf(help, sizeof help, "%s, %s.", words, parts[i].help);
        write_family(to, name, parts[i].counter, help, offset + parts[i].offset, 0);
    }
}

/** Writes a family of all kinds of unpooled memory; `part` is an offset in struct stats_metric. */
static void write_unpooled(struct writer *to, const char *name, const char *help, size_t part) {
    write_head(to, name, false, help);
    for (size_t i = 0; i < to->count; i++) {
#define UNPOOLED(field, json)                                                                      \
    write_sample(to, name, false, &to->samples[i], json,                                           \
                 number_at(&to->samples[i], AT(field) + part), 0);
#include "stats/fields.def"
    }
}

/** Writes a counter or a gauge. A counter of nanoseconds becomes one of seconds. */
static void write_field(struct writer *to, const char *json, bool counter, size_t offset) {
    char name[TOOL_COUNTER_KEY], help[96];
    bool seconds = tool_counter_key(json, name);
    snprintf(help, sizeof help, "%s %s.", name, counter ? "since the start of the process" : "now");
    for (char *at = help; *at; at++)
        *at = *at == '_' ? ' ' : *at;
    write_family(to, name, counter, help, offset, seconds ? 9 : 0);
}

static void write_ages(struct writer *to) {
    write_head(to, "age_seconds", false, "How old the figures of the process are.");
    for (size_t i = 0; i < to->count; i++)
        write_sample(to, "age_seconds", false, &to->samples[i], NULL,
                     page_age_ns(to->samples[i].page), 3);
}

static void write_all_families(struct writer *to) {
#define METRIC(field, json, label) write_metric(to, json, label, AT(field));
#define GAUGE(name) write_field(to, #name, false, AT(name));
#define COUNTER(name) write_field(to, #name, true, AT(name));
#include "stats/fields.def"
    write_unpooled(to, "outside_bytes", "Memory taken past the pool, now.",
                   offsetof(struct stats_metric, current));
    write_unpooled(to, "outside_peak_bytes", "Memory taken past the pool, highest value.",
                   offsetof(struct stats_metric, peak));
    write_family(to, "device_memory_bytes", false, "Memory of the device.", AT(total_bytes), 0);
    write_family(to, "limit_bytes", false, "What the process may take; 0: no limit.",
                 AT(limit_bytes), 0);
    write_ages(to);
    if (!to->prometheus)
        print_str(&to->out, "# EOF\n");
}

/* ---- all processes ---- */

/**
 * Copies SLURM_JOB_ID from the environment with which a process was started. The text is "" without
 * that variable, and for a process of another container, whose process number is unknown here.
 */
static void find_job(const struct page *page, char job[LABEL]) {
    static const char name[] = "SLURM_JOB_ID=";
    static char variables[ENVIRONMENT];
    char path[64];
    job[0] = '\0';
    if (page->namespace != 0)
        return;
    snprintf(path, sizeof path, "/proc/%d/environ", page->pid);
    size_t length = program_read_file(path, variables, sizeof variables - 1);
    variables[length] = '\0';
    for (const char *at = variables; at < variables + length; at += strlen(at) + 1) {
        if (strncmp(at, name, sizeof name - 1) == 0) {
            snprintf(job, LABEL, "%s", at + sizeof name - 1);
            return;
        }
    }
}

/**
 * Returns whether a newer process has the process number of a page in the same PID namespace. The
 * page is then that of a killed process: the kernel gives numbers of namespaces out again. Two
 * processes with the same labels would make a scrape fail.
 */
static bool is_replaced(const struct pages *pages, size_t of) {
    const struct page *page = pages->list[of];
    for (size_t i = of + 1; i < pages->count; i++)
        if (page_is_running(pages->list[i]) && pages->list[i]->pid == page->pid &&
            pages->list[i]->namespace == page->namespace)
            return true;
    return false;
}

/** Returns a sample of each device of each running process. The caller frees the list. `jobs` has
 * one text for each page. */
static struct sample *read_samples(const struct pages *pages, char (*jobs)[LABEL], size_t *count) {
    struct sample *samples = checked(calloc(pages->count * STATS_MAX_DEVICES + 1, sizeof *samples));
    *count = 0;
    for (size_t i = 0; i < pages->count; i++) {
        const struct page *page = pages->list[i];
        if (!page_is_running(page) || is_replaced(pages, i))
            continue;
        find_job(page, jobs[i]);
        for (unsigned k = 0; k < page->devices; k++) {
            samples[*count].page = page;
            samples[*count].job = jobs[i];
            *count += page_device(page, k, &samples[*count].device, NULL, NULL);
        }
    }
    return samples;
}

/** Reads the metrics of all processes and writes them to fd, for a scrape, a file or a terminal.
 * Returns 0 or a negative errno. */
static int write_metrics(int fd, bool prometheus, bool scraped) {
    static char buffer[65536];
    struct writer to = {.prometheus = prometheus};
    struct pages pages;
    pages_open(&pages, 0);
    pages_ask(&pages, false, ANSWER_MS);
    if (pages.count == 0 && !scraped)
        pages_print_refused();
    char(*jobs)[LABEL] = checked(calloc(pages.count + 1, sizeof *jobs));
    struct sample *samples = read_samples(&pages, jobs, &to.count);
    to.samples = samples;
    print_init(&to.out, fd, buffer, sizeof buffer);
    to.out.in_time = scraped; /* a client that does not read must not block the others */
    write_all_families(&to);
    int result = scraped ? print_flush(&to.out) : tool_flush(&to.out) ? 0 : -EIO;
    free(samples);
    free(jobs);
    pages_close(&pages);
    return result;
}

static int answer_scrape(int fd, bool open) {
    return write_metrics(fd, !open, true);
}

int tool_metrics(char **arguments) {
    struct arguments left = {.command = "metrics", .at = arguments};
    enum option_of_command option;
    const char *where = NULL;
    bool prometheus = false;
    while ((option = arguments_next(&left)) != ARGUMENTS_END) {
        if (option == ARGUMENT_metrics_listen) {
            where = left.value;
            continue;
        }
        prometheus = strcmp(left.value, "prometheus") == 0;
        if (!prometheus && strcmp(left.value, "openmetrics") != 0)
            arguments_refuse(&left);
    }
    if (*left.at)
        fail(STATUS_OWN_FAILURE, *left.at, "metrics takes only options");
    if (where)
        listen_and_answer(where, answer_scrape);
    return write_metrics(STDOUT_FILENO, prometheus, false) == 0 ? 0 : STATUS_OWN_FAILURE;
}
