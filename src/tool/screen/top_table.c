/*
 * Prints the table of gpucache top as text. A narrow screen leaves out whole columns, the least
 * important first, but never the one by which rows are sorted.
 */
#include "tool/common/tool.h"
#include "tool/screen/screen.h"

#include <string.h>

#define PROGRAM 28      /* width of name and rank, at most */
#define MOST_WORTH 13   /* importance of the columns that are always printed */
#define PROGRAM_LEAST 1 /* width of the name, at least, on a narrow screen */
#define PROGRAM_SEEN 12 /* width that optional columns leave for name and rank, at least */
#define GAP 2           /* before the name */
#define MILLION 1000000

static const struct {
    const char *title;
    unsigned width;
    enum { NUMBER, BYTES, SHARE } kind;
    unsigned worth; /* importance; the highest is chosen first */
} columns[TOP_COLUMNS] = {
#define COLUMN(id, title, width, kind, worth, meaning) {title, width, kind, worth},
#include "tool/screen/top.def"
};

static unsigned width_of(unsigned shown) {
    unsigned width = 0;
    for (unsigned i = 0; i < TOP_COLUMNS; i++)
        width += shown >> i & 1 ? columns[i].width : 0;
    return width;
}

/** Returns the importance of a column. Columns without any value are less important than all
 * others. */
static unsigned worth_of(const struct top *top, unsigned column) {
    if (columns[column].worth == MOST_WORTH || column == top->column)
        return 2 * MOST_WORTH;
    return columns[column].worth + (top->known >> column & 1 ? MOST_WORTH : 0);
}

/** Returns a bit for each column that fits: the permanent columns, then others by importance.
 * Columns without any value leave the width of whole names and of the history. */
static unsigned columns_that_fit(const struct top *top) {
    unsigned shown = 0;
    for (unsigned worth = 2 * MOST_WORTH; worth > 0; worth--) {
        for (unsigned i = 0; i < TOP_COLUMNS; i++) {
            unsigned with = shown | 1u << i;
            unsigned rest = top->known >> i & 1 ? PROGRAM_SEEN : GAP + PROGRAM + TOP_LEAST_HISTORY;
            bool fits = top->width == 0 || width_of(with) + rest <= top->width;
            if (worth_of(top, i) == worth && (fits || worth == 2 * MOST_WORTH))
                shown = with;
        }
    }
    return shown;
}

unsigned top_width(const struct top *top) {
    return width_of(columns_that_fit(top)) + GAP + PROGRAM;
}

enum top_column top_column_at(const struct top *top, unsigned x) {
    unsigned shown = columns_that_fit(top), end = 0;
    for (unsigned i = 0; i < TOP_COLUMNS; i++) {
        end += shown >> i & 1 ? columns[i].width : 0;
        if (x < end)
            return (enum top_column)i;
    }
    return top->column;
}

void top_print_head(struct print *out, const struct top *top) {
    unsigned shown = columns_that_fit(top);
    for (unsigned i = 0; i < TOP_COLUMNS; i++) {
        if (!(shown >> i & 1))
            continue;
        struct print name = PRINT_TEXT(LINES_VALUE);
        print_str(&name, top->column == i ? ">" : "");
        print_str(&name, columns[i].title);
        print_cell(out, print_end(&name), columns[i].width, PRINT_RIGHT);
    }
    print_str(out, "  PROGRAM");
}

static uint64_t share(double value) {
    return (uint64_t)(value * MILLION + 0.5);
}

void top_set_values(struct top *top, struct top_row *row) {
    const struct stats_device *device = &row->device;
    const struct nvml_values *nvml = &row->nvml;
    uint64_t asked = device->cache_hits + device->cache_misses;
    double hits = asked == 0 ? 0 : (double)device->cache_hits / (double)asked;
    double used = nvml->total == 0 ? 0 : (double)nvml->used / (double)nvml->total;
    const uint64_t values[TOP_COLUMNS] = {
        [TOP_PID] = (uint64_t)row->page->pid,
        [TOP_DEVICE] = (uint64_t)device->ordinal,
        [TOP_LIVE] = device->requested.current,
        [TOP_CACHED] = row->derived.idle,
        [TOP_RESERVED] = device->reserved.current,
        [TOP_PEAK] = device->reserved.peak,
        [TOP_LIMIT] = device->limit_bytes ? device->limit_bytes : TOP_UNKNOWN,
        [TOP_NVML] = nvml->process,
        [TOP_OTHERS] = nvml->others,
        [TOP_MEMORY] = nvml->total == 0 ? TOP_UNKNOWN : share(used),
        [TOP_BUSY] = nvml->busy == NVML_UNKNOWN ? TOP_UNKNOWN : nvml->busy * (MILLION / 100),
        [TOP_FRAG] = share(row->derived.external_fragmentation),
        [TOP_HIT] = share(hits),
    };
    _Static_assert(NVML_UNKNOWN == TOP_UNKNOWN, "unknown values are copied");
    memcpy(row->values, values, sizeof values);
    for (unsigned i = 0; i < TOP_COLUMNS; i++)
        top->known |= (unsigned)(values[i] != TOP_UNKNOWN) << i;
}

static const char *words_of(char text[LINES_VALUE], const struct top_row *row, unsigned column) {
    uint64_t value = row->values[column];
    struct print whole;
    if (value == TOP_UNKNOWN)
        return "-";
    if (columns[column].kind != SHARE)
        return columns[column].kind == BYTES ? lines_size(text, value) : lines_count(text, value);
    print_init(&whole, -1, text, LINES_VALUE);
    print_format(&whole, "%u%%", (unsigned)((value + MILLION / 200) / (MILLION / 100)));
    return print_end(&whole);
}

/**
 * Prints the program's name, its rank, and a note if the values are old. If they do not fit:
 *
 *      1. the note is left out, because half a note means nothing
 *      2. the name is cut
 *      3. the rank is left out, because half a rank would be another rank
 */
static void print_program(struct print *out, const struct top *top, const struct page *page) {
    char whole[TOOL_PROGRAM_NAME], name[PROGRAM + 1], rank[32], note[64];
    struct print words;
    bool ended = page->state != PAGE_RUNNING;
    print_init(&words, -1, rank, sizeof rank);
    if (page->program.rank >= 0)
        print_format(&words, " rank %lld", (long long)page->program.rank);
    size_t for_rank = strlen(print_end(&words));
    print_init(&words, -1, note, sizeof note);
    if (ended)
        print_format(&words, " (%s)", page_state_words(page));
    else if (!page->fresh && page_age_ns(page) > 2000000000)
        print_format(&words, " (%s s old)", COUNT(page_age_ns(page) / 1000000000));
    size_t for_note = strlen(print_end(&words));
    tool_program_name(&page->program, whole);
    print_init(&words, -1, name, sizeof name);
    print_plain(&words, whole, PROGRAM - (for_rank < PROGRAM ? for_rank : PROGRAM));
    size_t all = strlen(print_end(&words)), least = all < PROGRAM_LEAST ? all : PROGRAM_LEAST;
    size_t capacity = top->width == 0          ? SIZE_MAX
                      : top->width > out->used ? top->width - out->used
                                               : 0;
    for_note = ended || all + for_rank + for_note <= capacity ? for_note : 0;
    for_rank = least + for_rank + for_note <= capacity ? for_rank : 0;
    for_note = least + for_note <= capacity ? for_note : 0;
    capacity -= capacity < for_rank + for_note ? capacity : for_rank + for_note;
    name[capacity < all ? capacity : all] = '\0';
    print_str(out, name);
    print_str(out, for_rank ? rank : "");
    print_str(out, for_note ? note : "");
}

void top_print_row(struct print *out, const struct top *top, const struct top_row *row) {
    unsigned shown = columns_that_fit(top);
    for (unsigned i = 0; i < TOP_COLUMNS; i++) {
        char text[LINES_VALUE];
        if (shown >> i & 1)
            print_cell(out, words_of(text, row, i), columns[i].width, PRINT_RIGHT);
    }
    print_str(out, "  ");
    print_program(out, top, row->page);
}
