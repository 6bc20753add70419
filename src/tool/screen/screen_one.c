/*
 * Draws one process of gpucache top: its metrics, its history and its last events.
 */
#include "report/holders.h"
#include "tool/report/stacks.h"
#include "tool/screen/screen_draw.h"

#include <stdlib.h>

#define GRAPH_LINES 8
#define NOW_COLUMNS 11
#define PEAK_COLUMNS 12
#define LINES_EACH 10 /* a screen of ten times as many lines names ten libraries */
#define LIVE_LINES 5
#define LEAST_COLUMNS 24 /* sentences are wrapped at this width or more */

static const char *const one_keys[] = {"enter goes back  arrows choose another  ? help  q ends",
                                       "enter goes back  ? help  q ends", "q ends", NULL};

static void draw_graph(const struct screen *screen, int y, const struct top_history *history,
                       uint64_t most) {
    int capacity = COLS - 12;
    uint64_t highest = most;
    if (capacity <= 0)
        return;
    size_t first = history->count > (size_t)capacity ? history->count - (size_t)capacity : 0;
    for (int line = 0; line < GRAPH_LINES && y + line < LINES - 1; line++) {
        mvaddnstr(y + line, 0, line == 0 ? SIZE(highest) : line == GRAPH_LINES - 1 ? "0" : "", 11);
        for (size_t i = first; i < history->count; i++) {
            double share = highest ? (double)history->values[i] / (double)highest : 0;
            double above = share * GRAPH_LINES - (GRAPH_LINES - 1 - line);
            above = above < 0 ? 0 : above > 1 ? 1 : above;
            mvaddstr(y + line, 12 + (int)(i - first),
                     screen->fills[(unsigned)(above * (SCREEN_FILLS - 1) + 0.5)]);
        }
    }
}

/** Draws sentences in as many lines as they need. Returns the next line. */
static int put_lines(int y, const struct lines *words) {
    for (size_t i = 0; i < words->count; i++)
        screen_put_text(y++, words->text[i], A_NORMAL);
    return y;
}

static void start_lines(struct lines *words) {
    lines_init(words, LINES_MAX, COLS > LEAST_COLUMNS ? (size_t)COLS : LEAST_COLUMNS);
}

static int draw_metrics(int y, const struct top_row *row) {
    const struct stats_device *device = &row->device;
    struct lines words;
    const struct {
        const char *name;
        const struct stats_metric *metric;
    } metrics[] = {{"requested", &device->requested},
                   {"allocated", &device->allocated},
                   {"active", &device->active},
                   {"reserved", &device->reserved},
                   {"outside", &row->derived.unpooled}};
    size_t columns = COLS < 57 ? 2 : 4; /* only as many columns as fit */
    screen_put_text(y++,
                    columns == 2 ? "                 now        peak"
                                 : "                 now        peak       taken       freed",
                    A_REVERSE);
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        struct print text = PRINT_TEXT(SCREEN_LINE);
        print_cell(&text, metrics[i].name, 9, PRINT_LEFT);
        const struct stats_metric *metric = metrics[i].metric;
        const uint64_t values[] = {metric->current, metric->peak, metric->total, metric->freed};
        for (size_t k = 0; k < columns; k++)
            print_cell(&text, SIZE(values[k]), k == 0 ? NOW_COLUMNS : PEAK_COLUMNS, PRINT_RIGHT);
        screen_put(y++, &text, A_NORMAL);
    }
    start_lines(&words);
    lines_start(&words, "pending %s", SIZE(device->pending_bytes));
    lines_clause(&words, "ready %s", SIZE(device->ready_bytes));
    lines_clause(&words, "largest free block %s", SIZE(device->largest_free_bytes));
    lines_clause(&words, "OOMs %s", COUNT(device->ooms));
    lines_clause(&words, "CPU waits %s", COUNT(device->cpu_waits));
    return put_lines(y, &words);
}

static int draw_nvml(int y, const struct top_row *row) {
    struct lines words;
    const struct nvml_values *nvml = &row->nvml;
    if (nvml->total == 0)
        return y;
    start_lines(&words);
    lines_start(&words, "NVML: this process %s",
                nvml->process == NVML_UNKNOWN ? "unknown" : SIZE(nvml->process));
    lines_clause(&words, "others %s",
                 nvml->others == NVML_UNKNOWN ? "unknown" : SIZE(nvml->others));
    lines_clause(&words, "in use %s of %s", SIZE(nvml->used), SIZE(nvml->total));
    if (nvml->busy != NVML_UNKNOWN)
        lines_clause(&words, "GPU busy %u%% of the time", (unsigned)nvml->busy);
    return put_lines(y, &words);
}

static int draw_live(int y, const struct top_row *row) {
    const struct stats_device *device = &row->device;
    struct lines words;
    start_lines(&words);
    lines_start(&words, "live: %s allocation%s", COUNT(device->allocations.current),
                PLURAL(device->allocations.current));
    for (size_t i = 0; i < device->live_groups && i < LIVE_LINES; i++)
        lines_clause(&words, "%s x %s", COUNT(device->live[i].count), SIZE(device->live[i].bytes));
    if (row->sizes_age > 0)
        lines_clause(
            &words, "(%s s older)",
            SECONDS(row->sizes_age < PAGE_AGE_SHOWN_NS ? PAGE_AGE_SHOWN_NS : row->sizes_age));
    return put_lines(y, &words);
}

/* ---- libraries and holders ---- */

/** Draws a line of the table of libraries. `name` fills what the other columns leave. */
static void put_library(int y, const char *name, const char *now, const char *peak, attr_t look) {
    int left = COLS - NOW_COLUMNS - PEAK_COLUMNS;
    size_t width = left < 1 ? 1 : left > STATS_NAME ? STATS_NAME : (size_t)left;
    struct print words = PRINT_TEXT(STATS_NAME);
    print_plain(&words, name, width - 1);
    struct print text = PRINT_TEXT(SCREEN_LINE);
    print_cell(&text, print_end(&words), width, PRINT_LEFT);
    print_cell(&text, now, NOW_COLUMNS, PRINT_RIGHT);
    print_cell(&text, peak, PEAK_COLUMNS, PRINT_RIGHT);
    screen_put(y, &text, look);
}

/** Draws which libraries hold most. A low screen names fewer, and adds up what the others hold. */
static int draw_libraries(int y, const struct top_row *row) {
    const struct stats_device *device = &row->device;
    size_t count = device->requester_count, most = (size_t)LINES / LINES_EACH;
    uint64_t rest = 0;
    if (count > 0)
        put_library(y++, "by library", "now", "peak", A_REVERSE);
    for (size_t i = 0; i < count; i++) {
        const struct stats_requester *of = &device->requesters[i];
        if (i < most)
            put_library(y++, of->name, SIZE(of->current),
                        of->peak == STATS_NO_PEAK ? "-" : SIZE(of->peak), A_NORMAL);
        else
            rest += of->current;
    }
    if (count > most)
        put_library(y++, "others", SIZE(rest), "-", A_NORMAL);
    return y;
}

static void put_holder(void *with, struct print *text) {
    int *y = with;
    if (*y < LINES - 1)
        screen_put((*y)++, text, A_NORMAL);
}

static int draw_holders(int y, const struct top_row *row) {
    struct parsed_stacks *stacks = parsed_stacks_of_page(row->page);
    parsed_stacks_resolve(stacks, true);
    if (stacks)
        holders_write(&stacks->view, row->device.ordinal, true, put_holder, &y);
    else
        screen_put_text(y++, "held by: unknown, GPUCACHE_STACKS is not set there", A_DIM);
    parsed_stacks_free(stacks);
    return y;
}

static void draw_events(int y, const struct page *page) {
    size_t count;
    struct page_event *events = page_events(page, &count);
    screen_put_text(y++, page_event_head, A_REVERSE);
    for (size_t i = count; i > 0 && y < LINES - 1; i--) { /* newest first */
        struct print text = PRINT_TEXT(SCREEN_LINE);
        page_print_event(page, &text, &events[i - 1]);
        text.used -= text.used > 0; /* without the newline */
        screen_put(y++, &text, A_NORMAL);
    }
    free(events);
}

void screen_draw_one(struct screen *screen) {
    const struct top_row *row = &screen->top->rows[screen->chosen];
    struct print text = PRINT_TEXT(SCREEN_LINE);
    print_format(&text, "process %d, device %d: ", row->page->pid, row->device.ordinal);
    print_plain(&text, row->page->program.name, 40);
    print_format(&text, ", %s, figures %s s old", page_state_words(row->page),
                 SECONDS(page_age_ns(row->page)));
    screen_put(0, &text, A_BOLD);
    int y = draw_metrics(1, row);
    y = draw_nvml(y, row);
    y = draw_live(y, row);
    y = draw_libraries(y, row);
    y = draw_holders(y, row) + 1;
    if (y + GRAPH_LINES < LINES - 1) { /* a part of the graph would show wrong heights */
        draw_graph(screen, y, row->history, row->device.requested.peak);
        y += GRAPH_LINES + 1;
    }
    draw_events(y, row->page);
    screen_put_keys(screen, one_keys);
}
