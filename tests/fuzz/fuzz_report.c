/*
 * A file of reports as JSON, read by gpucache report and printed in each of its forms.
 *
 * Texts of the file reach a terminal, a page of HTML and JSON again. No text may command the
 * terminal, and the JSON must be valid. The target does not open the files that a report names as
 * modules; it makes up their symbols.
 */
#include "fuzz.h"
#include "made_up_symbols.h"

#include "tool/page/html.h"
#include "tool/report/parsed_report.h"

#include <string.h>

static char text[4 << 20];

static struct print begin(void) {
    struct print out;
    print_init(&out, -1, text, sizeof text);
    return out;
}

static void print_forms(const struct parsed_report *report) {
    struct print out = begin();
    parsed_report_print(report, REPORT_TEXT, &out);
    fuzz_check_plain(print_end(&out));
    out = begin();
    parsed_report_print(report, REPORT_JSON, &out);
    print_end(&out);
    if (out.error == 0 && out.used < sizeof text - 1)
        fuzz_check_json(text, out.used);
    for (size_t i = 0; i < report->device_count && report->stacks; i++) {
        out = begin();
        parsed_stacks_fold(report->stacks, report->devices[i].stats.ordinal, FOLDED_PEAK, "", &out);
        fuzz_check_plain(print_end(&out));
    }
}

static void print_together(const struct parsed_reports *reports) {
    struct print out = begin();
    parsed_reports_print_table(reports, &out);
    fuzz_check_plain(print_end(&out));
    if (reports->count > 1) {
        out = begin();
        parsed_reports_print_difference(reports->list[0], reports->list[1], &out);
        fuzz_check_plain(print_end(&out));
    }
}

int fuzz_one(const uint8_t *data, size_t size) {
    struct parsed_reports reports = {0};
    const char *why = NULL;
    bool read = parsed_reports_read_file(&reports, fuzz_file(data, size), &why);
    FUZZ_CHECK(read || why);
    for (size_t i = 0; i < reports.count; i++) {
        if (size % 2 == 0 && reports.list[i]->stacks)
            parsed_stacks_resolve(reports.list[i]->stacks, size % 4 == 0);
        print_forms(reports.list[i]);
    }
    print_together(&reports);
    if (size % 8 == 0 && reports.count > 0)
        FUZZ_CHECK(html_write(&(struct html){.reports = &reports}, "/dev/null") == 0);
    parsed_reports_free(&reports);
    return 0;
}
