/*
 * A file of reports as JSON, read by gpucache report and printed in each of its forms.
 *
 * Texts of the file reach a terminal, a page of HTML and JSON again. None may command the terminal,
 * and the JSON must be JSON. The files that a report names as modules are not opened here: names
 * are made up.
 */
#include "fuzz.h"
#include "made_up_symbols.h"

#include "tool/html.h"
#include "tool/json.h"
#include "tool/sheet.h"

#include <string.h>

static char text[4 << 20];

static struct print begin(void) {
    struct print out;
    print_init(&out, -1, text, sizeof text);
    return out;
}

static void print_forms(const struct sheet *sheet) {
    struct print out = begin();
    sheet_print(sheet, REPORT_TEXT, &out);
    fuzz_check_plain(print_end(&out));
    out = begin();
    sheet_print(sheet, REPORT_JSON, &out);
    print_end(&out);
    if (out.error == 0 && out.used < sizeof text - 1) {
        const char *at = text;
        struct json *again = json_read(&at);
        FUZZ_CHECK(again && strcmp(at, "\n") == 0);
        json_free(again);
        fuzz_check_json(text, out.used);
    }
    for (size_t i = 0; i < sheet->device_count && sheet->stacks; i++) {
        out = begin();
        sheet_stacks_fold(sheet->stacks, sheet->devices[i].ordinal, FOLDED_PEAK, "", &out);
        fuzz_check_plain(print_end(&out));
    }
}

static void print_together(const struct sheets *sheets) {
    struct print out = begin();
    sheets_print_table(sheets, &out);
    fuzz_check_plain(print_end(&out));
    if (sheets->count > 1) {
        out = begin();
        sheets_print_difference(sheets->list[0], sheets->list[1], &out);
        fuzz_check_plain(print_end(&out));
    }
}

int fuzz_one(const uint8_t *data, size_t size) {
    struct sheets sheets = {0};
    const char *why = NULL;
    bool read = sheets_read_file(&sheets, fuzz_file(data, size), &why);
    FUZZ_CHECK(read || why);
    for (size_t i = 0; i < sheets.count; i++) {
        if (size % 2 == 0 && sheets.list[i]->stacks)
            sheet_stacks_resolve(sheets.list[i]->stacks, size % 4 == 0);
        print_forms(sheets.list[i]);
    }
    print_together(&sheets);
    if (size % 8 == 0 && sheets.count > 0)
        FUZZ_CHECK(html_write(&(struct html){.sheets = &sheets}, "/dev/null") == 0);
    sheets_free(&sheets);
    return 0;
}
