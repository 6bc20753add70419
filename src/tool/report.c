/*
 * gpucache report: prints reports of files and processes, each in full, or all in one table. Also
 * writes them as a page for a browser, or as folded stacks.
 */
#include "options/value.h"
#include "tool/common/arguments.h"
#include "tool/common/tool.h"
#include "tool/page/html.h"
#include "tool/report/parsed_report.h"
#include "tool/trace/trace_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_MS 1000
#define EVENTS_MOST 1000000

struct settings {
    enum report_format format;
    uint64_t events; /* of the flight recorder, of each kind at most */
    bool each, compare;
    enum folded folded;
    const char *html; /* a file, or NULL */
};

static enum folded parse_folded(const char *value) {
    return strcmp(value, "byte-seconds") == 0 ? FOLDED_BYTE_SECONDS
           : strcmp(value, "peak") == 0       ? FOLDED_PEAK
           : strcmp(value, "live") == 0       ? FOLDED_LIVE
                                              : FOLDED_NOT;
}

static const char no_page[] = "is no page of gpucache report --html, and is not overwritten";

/** Refuses an empty name, and a page over another file, before anything is read. In `--html *.json`
 * the first report would be the value of the option. */
static void check_html(const struct arguments *arguments) {
    if (!*arguments->value)
        fail(STATUS_OWN_FAILURE, arguments->option, "wanted is a file");
    if (html_check(arguments->value) == 0)
        return;
    fail(STATUS_OWN_FAILURE, arguments->value,
         strchr(arguments->option, '=')
             ? no_page
             : "would be overwritten with a page: wanted is --html=FILE in front of the reports");
}

static char **parse(struct settings *settings, char **arguments) {
    struct arguments left = {.command = "report", .at = arguments};
    value_number(option_rows[ARGUMENT_report_events].initial, EVENTS_MOST, &settings->events);
    for (;;) {
        switch ((int)arguments_next(&left)) {
        case ARGUMENT_report_each:
            settings->each = true;
            break;
        case ARGUMENT_report_compare:
            settings->compare = true;
            break;
        case ARGUMENT_report_html:
            settings->html = left.value;
            check_html(&left);
            break;
        case ARGUMENT_report_folded:
            settings->folded = parse_folded(left.value);
            if (settings->folded == FOLDED_NOT)
                arguments_refuse(&left);
            break;
        case ARGUMENT_report_format:
            if (strcmp(left.value, "text") != 0 && strcmp(left.value, "json") != 0)
                arguments_refuse(&left);
            settings->format = *left.value == 't' ? REPORT_TEXT : REPORT_JSON;
            break;
        case ARGUMENT_report_events:
            if (!value_number(left.value, EVENTS_MOST, &settings->events))
                fail(STATUS_OWN_FAILURE, left.option, "wanted is a number from 0 to 1000000");
            break;
        default:
            return left.at;
        }
    }
}

/** Opens all pages if a source is a process. Asks all processes among the sources at once, because
 * each may take long to answer. */
static void ask_processes(struct pages *all, char **sources) {
    struct pages asked = {0};
    for (char **source = sources; *source; source++) {
        if (tool_pid(*source) == 0)
            continue;
        if (!all->list)
            pages_open(all, 0);
        struct page *page = pages_of(all, tool_pid(*source));
        if (page)
            *APPEND(asked.list, asked.count) = page;
    }
    pages_ask(&asked, true, ANSWER_MS);
    free(asked.list);
}

static bool read_process(struct parsed_reports *reports, struct pages *all, int pid) {
    struct page *page = pages_of(all, pid);
    if (page)
        parsed_reports_read_page(reports, page);
    else
        tool_say(
            "%d: %s", pid,
            pages_have_other(all, pid)
                ? "no page of this version; another version of the library is in use"
                : "no process of yours with that number uses CUDA under the library, or did so "
                  "lately and was killed, or it has GPUCACHE_LIVE=off");
    if (!page)
        pages_print_refused();
    return page != NULL;
}

static bool read_one(struct parsed_reports *reports, struct pages *pages, const char *source) {
    const char *why;
    int pid = tool_pid(source);
    if (pid != 0)
        return read_process(reports, pages, pid);
    if (parsed_reports_read_file(reports, source, &why))
        return true;
    tool_say("%s: %s", source,
             trace_file_is(source)
                 ? "is a trace; `gpucache timeline`, `snapshot` and `replay` read it"
                 : why);
    return false;
}

/** Writes the root of a report's stacks: the process if there are several processes, the device if
 * there are several devices, or both. */
static void format_root(const struct parsed_report *report, int device, bool several, char *to,
                        size_t size) {
    char process[64] = "", number[32] = "";
    if (several && report->program.rank >= 0)
        snprintf(process, sizeof process, "rank %lld", (long long)report->program.rank);
    else if (several)
        snprintf(process, sizeof process, "pid %lld", (long long)report->process.pid);
    if (report->device_count > 1)
        snprintf(number, sizeof number, "device %d", device);
    snprintf(to, size, "%s%s%s", process, *process && *number ? ";" : "", number);
}

/** Prints the stacks of the only report of each process. */
static bool print_folded(const struct parsed_reports *reports, enum folded weight,
                         struct print *out) {
    bool any = false, several = reports->count > 1;
    char root[128];
    for (size_t i = 0; i < reports->count; i++) {
        const struct parsed_report *report = reports->list[i];
        if (!report->stacks)
            continue;
        any = true;
        for (size_t k = 0; k < report->device_count; k++) {
            format_root(report, report->devices[k].stats.ordinal, several, root, sizeof root);
            parsed_stacks_fold(report->stacks, report->devices[k].stats.ordinal, weight, root, out);
        }
    }
    if (!any)
        tool_say("--folded: there are no call stacks in these reports; run with "
                 "GPUCACHE_STACKS=16 and GPUCACHE_REPORT_FORMAT=json; of a running process, first "
                 "gpucache ctl PID report");
    return any;
}

static void print_all(const struct parsed_reports *reports, const struct settings *settings,
                      struct print *out) {
    for (size_t i = 0; i < reports->count; i++) {
        const struct parsed_report *report = reports->list[i];
        if (*report->note)
            tool_say("%s", report->note);
        if (*report->sizes_note)
            tool_say("%s", report->sizes_note);
        parsed_report_print(report, settings->format, out);
        if (report->page && settings->format == REPORT_TEXT && settings->events > 0)
            page_print_events(report->page, out, settings->events);
    }
}

/** Reads the traces among the sources for a page, and removes them from the list. Returns whether
 * all could be read. */
static bool read_traces(struct html *page, char **sources) {
    struct trace_file trace;
    char **kept = sources;
    bool good = true;
    for (; *sources; sources++) {
        if (tool_pid(*sources) != 0 || !trace_file_is(*sources)) {
            *kept++ = *sources;
            continue;
        }
        if (trace_source_read(*sources, HTML_EVENTS, &trace))
            *APPEND(page->traces, page->trace_count) = trace;
        else
            good = false;
    }
    *kept = NULL;
    return good;
}

static bool write_html(const struct html *page, const char *path) {
    int result = html_write(page, path);
    if (result != 0)
        tool_say("%s: %s", path, result == -EEXIST ? no_page : strerror(-result));
    return result == 0;
}

/** Refuses two kinds of output at once, of which one would be ignored. */
static void check_output(const struct settings *settings) {
    bool folded = settings->folded != FOLDED_NOT;
    if (settings->format == REPORT_JSON && (settings->compare || folded || settings->html))
        fail(STATUS_OWN_FAILURE, "--format=json", "does not go with --compare, --folded or --html");
    if (settings->html && (settings->compare || settings->each || folded))
        fail(STATUS_OWN_FAILURE, "--html", "does not go with --compare, --each or --folded");
    if (folded && (settings->compare || settings->each))
        fail(STATUS_OWN_FAILURE, "--folded", "does not go with --compare or --each");
    if (settings->compare && settings->each)
        fail(STATUS_OWN_FAILURE, "--compare", "does not go with --each");
}

int tool_report(char **arguments) {
    struct settings settings = {0};
    /* static: nothing is freed, because the process ends */
    static struct parsed_reports reports;
    static struct html page = {.reports = &reports};
    static struct pages pages;
    struct print out = tool_stdout();
    bool good = true;
    char **sources = parse(&settings, arguments);
    bool folded = settings.folded != FOLDED_NOT;
    if (!*sources)
        fail(STATUS_OWN_FAILURE, "report", "wanted is a file with reports, or a process number");
    check_output(&settings);
    if (settings.html)
        good = read_traces(&page, sources);
    ask_processes(&pages, sources);
    for (; *sources; sources++)
        good &= read_one(&reports, &pages, *sources);
    if (settings.compare && reports.count != 2 && good)
        fail(STATUS_OWN_FAILURE, "--compare", "wanted are two reports");
    bool table = reports.count > 1 && !settings.each && settings.format == REPORT_TEXT;
    size_t earlier = 0;
    if (folded)
        parsed_reports_keep_newest(&reports, false); /* the newest has the stacks of all time */
    else if (!settings.compare && !settings.html && table)
        earlier = parsed_reports_keep_newest(&reports, true);
    if (earlier > 0)
        tool_say("%zu earlier report%s of the same processes %s left out; --each shows all",
                 earlier, earlier == 1 ? "" : "s", earlier == 1 ? "is" : "are");
    for (size_t i = 0; i < reports.count; i++)
        parsed_stacks_resolve(reports.list[i]->stacks, settings.format == REPORT_TEXT && !folded);
    if (settings.html)
        good &= reports.count + page.trace_count > 0 && write_html(&page, settings.html);
    else if (folded)
        good &= print_folded(&reports, settings.folded, &out);
    else if (settings.compare && reports.count == 2)
        parsed_reports_print_difference(reports.list[0], reports.list[1], &out);
    else if (table)
        parsed_reports_print_table(&reports, &out);
    else
        print_all(&reports, &settings, &out);
    return !tool_flush(&out) ? STATUS_OWN_FAILURE : good ? 0 : EXIT_FAILURE;
}
