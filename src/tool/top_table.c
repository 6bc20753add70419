/*
 * Prints the table of gpucache top as text. A narrow screen leaves out whole columns, the least
 * important first, but never the one by which rows are sorted.
 */
#include "tool/screen.h"
#include "tool/tool.h"

#include <string.h>

#define PROGRAM 28      /* width of name and rank, at most */
#define MOST_WORTH 11   /* importance of the columns that are always printed */
#define PROGRAM_LEAST 1 /* width of the name, at least, on a narrow screen */
#define PROGRAM_SEEN 12 /* width that optional columns leave for name and rank, at least */

enum cell {
    CELL_PID,
    CELL_DEVICE,
    CELL_LIVE,
    CELL_CACHED,
    CELL_RESERVED,
    CELL_PEAK,
    CELL_LIMIT,
    CELL_NVML,
    CELL_USED,
    CELL_FRAG,
    CELL_HIT,
    CELLS
};

static const struct {
    const char *name;
    unsigned width;
    int sorted;     /* enum top_column, or -1 */
    unsigned worth; /* importance; the highest is chosen first */
} cells[CELLS] = {
    [CELL_PID] = {"PID", 8, TOP_PID, MOST_WORTH},
    [CELL_DEVICE] = {"DEV", 4, -1, 8},
    [CELL_LIVE] = {"LIVE", 11, TOP_LIVE, MOST_WORTH},
    [CELL_CACHED] = {"CACHED", 11, TOP_CACHED, 7},
    [CELL_RESERVED] = {"RESERVED", 11, TOP_RESERVED, 9},
    [CELL_PEAK] = {"PEAK", 11, TOP_PEAK, 10},
    [CELL_LIMIT] = {"LIMIT", 11, -1, 2},
    [CELL_NVML] = {"NVML", 11, -1, 6},
    [CELL_USED] = {"USED", 6, -1, 3},
    [CELL_FRAG] = {"FRAG", 6, TOP_FRAG, 5},
    [CELL_HIT] = {"HIT", 6, TOP_HIT, 4},
};

static unsigned width_of(unsigned shown) {
    unsigned width = 0;
    for (unsigned i = 0; i < CELLS; i++)
        width += shown >> i & 1 ? cells[i].width : 0;
    return width;
}

/** Returns a bit for each column that fits: the permanent columns, then others by importance. */
static unsigned choose(const struct top *top) {
    unsigned shown = 0;
    for (unsigned worth = MOST_WORTH; worth > 0; worth--) {
        for (unsigned i = 0; i < CELLS; i++) {
            unsigned with = shown | 1u << i;
            bool fits = top->width == 0 || width_of(with) + PROGRAM_SEEN <= top->width;
            bool always = worth == MOST_WORTH && cells[i].sorted == (int)top->column;
            bool known = top->nvml || (i != CELL_NVML && i != CELL_USED);
            if (always || cells[i].worth == MOST_WORTH ||
                (cells[i].worth == worth && fits && known))
                shown = with;
        }
    }
    return shown;
}

unsigned top_width(const struct top *top) {
    return width_of(choose(top)) + 2 + PROGRAM;
}

void top_print_head(struct print *out, const struct top *top) {
    unsigned shown = choose(top);
    for (unsigned i = 0; i < CELLS; i++) {
        char text[LINES_VALUE];
        struct print name;
        if (!(shown >> i & 1))
            continue;
        print_init(&name, -1, text, sizeof text);
        print_str(&name, (int)top->column == cells[i].sorted ? ">" : "");
        print_str(&name, cells[i].name);
        print_cell(out, print_end(&name), cells[i].width, PRINT_RIGHT);
    }
    print_str(out, "  PROGRAM");
}

static const char *percent(char text[LINES_VALUE], double share) {
    struct print whole;
    print_init(&whole, -1, text, LINES_VALUE);
    print_double(&whole, share * 100, 0);
    print_char(&whole, '%');
    return print_end(&whole);
}

static const char *words_of(char text[LINES_VALUE], const struct top_row *row, enum cell cell) {
    const struct stats_device *device = &row->device;
    switch (cell) {
    case CELL_PID:
        return lines_count(text, (uint64_t)row->page->pid);
    case CELL_DEVICE:
        return lines_count(text, (uint64_t)device->ordinal);
    case CELL_LIVE:
        return lines_size(text, device->requested.current);
    case CELL_CACHED:
        return lines_size(text, row->derived.idle);
    case CELL_RESERVED:
        return lines_size(text, device->reserved.current);
    case CELL_PEAK:
        return lines_size(text, device->reserved.peak);
    case CELL_LIMIT:
        return device->limit_bytes ? lines_size(text, device->limit_bytes) : "-";
    case CELL_NVML: /* bytes of the process, counted by the driver */
        return row->has_nvml && row->nvml.process != NVML_UNKNOWN
                   ? lines_size(text, row->nvml.process)
                   : "-";
    case CELL_USED: /* bytes of the device, by all processes */
        return row->has_nvml ? percent(text, (double)row->nvml.used / (double)row->nvml.total)
                             : "-";
    case CELL_FRAG:
        return percent(text, row->derived.external_fragmentation);
    case CELL_HIT:
        return percent(text, top_hit_rate(row));
    case CELLS:
        break;
    }
    return "";
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
    unsigned shown = choose(top);
    for (unsigned i = 0; i < CELLS; i++) {
        char text[LINES_VALUE];
        if (shown >> i & 1)
            print_cell(out, words_of(text, row, (enum cell)i), cells[i].width, PRINT_RIGHT);
    }
    print_str(out, "  ");
    print_program(out, top, row->page);
}
