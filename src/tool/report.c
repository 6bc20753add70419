/*
 * gpucache report: reports again, of files and processes, each in full or all in one table.
 */
#include "process/value.h"
#include "tool/sheet.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 500
#define EVENTS 10

struct wanted {
    enum report_format format;
    uint64_t events; /* of the flight recorder, of each kind at most */
    bool each, compare;
};

static char **parse(struct wanted *wanted, char **arguments) {
    const char *value;
    for (; *arguments && strncmp(*arguments, "--", 2) == 0; arguments++) {
        if (strcmp(*arguments, "--each") == 0)
            wanted->each = true;
        else if (strcmp(*arguments, "--compare") == 0)
            wanted->compare = true;
        else if ((value = tool_value(*arguments, "format")) &&
                 (strcmp(value, "text") == 0 || strcmp(value, "json") == 0))
            wanted->format = *value == 't' ? REPORT_TEXT : REPORT_JSON;
        else if (!(value = tool_value(*arguments, "events")) ||
                 !value_number(value, 1000000, &wanted->events))
            fail(STATUS_OWN_FAILURE, *arguments,
                 "wanted is --format=text|json, --events=N, --each or --compare");
    }
    return arguments;
}

/** Opens all pages if a process is meant, and asks those that are: all at once, for each may be idle. */
static void ask_processes(struct pages *all, char **sources) {
    struct pages meant = {0};
    for (char **source = sources; *source; source++) {
        if (tool_pid(*source) == 0)
            continue;
        if (!all->list)
            pages_open(all, 0);
        struct page *page = pages_of(all, tool_pid(*source));
        meant.list = realloc(meant.list, (meant.count + 1) * sizeof(struct page *));
        if (!meant.list)
            fail(STATUS_OWN_FAILURE, "memory", strerror(ENOMEM));
        if (page)
            meant.list[meant.count++] = page;
    }
    pages_ask(&meant, true, ANSWER_MS);
    free(meant.list);
}

static bool read_process(struct sheets *sheets, struct pages *all, int pid) {
    struct page *page = pages_of(all, pid);
    if (page)
        sheets_read_page(sheets, page);
    else
        fprintf(stderr, "gpucache: %d: %s\n", pid,
                all->other_versions
                    ? "no page of this version; another version of the library is in use"
                    : "no process of yours with that number uses CUDA under the library, or did so "
                      "lately and was killed");
    return page != NULL;
}

static bool read_one(struct sheets *sheets, struct pages *pages, const char *source) {
    const char *why;
    int pid = tool_pid(source);
    if (pid != 0)
        return read_process(sheets, pages, pid);
    if (sheets_read_file(sheets, source, &why))
        return true;
    fprintf(stderr, "gpucache: %s: %s\n", source, why);
    return false;
}

static void print_all(const struct sheets *sheets, const struct wanted *wanted, struct print *out) {
    for (size_t i = 0; i < sheets->count; i++) {
        const struct sheet *sheet = sheets->list[i];
        if (*sheet->note)
            fprintf(stderr, "gpucache: %s\n", sheet->note);
        if (*sheet->sizes_note)
            fprintf(stderr, "gpucache: %s\n", sheet->sizes_note);
        sheet_print(sheet, wanted->format, out);
        if (sheet->page && wanted->format == REPORT_TEXT && wanted->events > 0)
            page_print_events(sheet->page, out, wanted->events);
    }
}

int tool_report(char **arguments) {
    static char buffer[65536];
    struct wanted wanted = {.events = EVENTS};
    struct sheets sheets = {0};
    struct pages pages = {0};
    struct print out;
    bool good = true;
    char **sources = parse(&wanted, arguments);
    if (!*sources)
        fail(STATUS_OWN_FAILURE, "report", "wanted is a file with reports, or a process number");
    ask_processes(&pages, sources);
    for (; *sources; sources++)
        good &= read_one(&sheets, &pages, *sources);
    if (wanted.compare && sheets.count != 2 && good)
        fail(STATUS_OWN_FAILURE, "--compare", "wanted are two reports");
    print_init(&out, STDOUT_FILENO, buffer, sizeof buffer);
    if (wanted.compare && sheets.count == 2)
        sheets_print_difference(sheets.list[0], sheets.list[1], &out);
    else if (sheets.count > 1 && !wanted.each && wanted.format == REPORT_TEXT)
        sheets_print_table(&sheets, &out);
    else
        print_all(&sheets, &wanted, &out);
    good &= print_flush(&out) == 0;
    sheets_free(&sheets);
    pages_close(&pages);
    return good ? 0 : EXIT_FAILURE;
}
