/*
 * Draws the table of gpucache top: one line for each device of each process.
 */
#include "live/place.h"
#include "tool/screen/screen_draw.h"

#include <string.h>

/** Draws each value as a cell whose fill level is relative to the highest value. */
static void put_history(const struct screen *screen, int y, int x,
                        const struct top_history *history) {
    int capacity = COLS - x;
    uint64_t highest = 0;
    if (capacity <= 0)
        return;
    size_t first = history->count > (size_t)capacity ? history->count - (size_t)capacity : 0;
    for (size_t i = first; i < history->count; i++)
        highest = history->values[i] > highest ? history->values[i] : highest;
    for (size_t i = first; i < history->count; i++) {
        unsigned height =
            highest ? (unsigned)((double)history->values[i] * (SCREEN_FILLS - 1) / (double)highest +
                                 0.5)
                    : 0;
        mvaddstr(y, x + (int)(i - first), screen->fills[height]);
    }
}

/** Prints a text only if all of it fits: half a number would be another number. */
static void add_clause(struct print *text, const char *name, const char *value) {
    if (text->used + strlen(name) + strlen(value) <= (size_t)COLS)
        print_format(text, "%s%s", name, value);
}

/** Counts the processes that run, or those that do not. */
static size_t count_processes(const struct top *top, bool running) {
    size_t count = 0;
    for (size_t i = 0; i < top->row_count; i++) {
        size_t k = 0;
        while (k < i && top->rows[k].page != top->rows[i].page)
            k++;
        count += k == i && page_is_running(top->rows[i].page) == running;
    }
    return count;
}

/** Draws the sums of all running processes, because dead processes hold no memory. */
static void draw_sums(const struct top *top) {
    uint64_t live = 0, reserved = 0;
    for (size_t i = 0; i < top->row_count; i++) {
        bool running = page_is_running(top->rows[i].page);
        live += running ? top->rows[i].device.requested.current : 0;
        reserved += running ? top->rows[i].device.reserved.current : 0;
    }
    size_t processes = count_processes(top, true), dead = count_processes(top, false);
    struct print text = PRINT_TEXT(SCREEN_LINE);
    print_format(&text, "gpucache top: %s process%s", COUNT(processes), processes == 1 ? "" : "es");
    add_clause(&text, ", live ", SIZE(live));
    add_clause(&text, ", reserved ", SIZE(reserved));
    if (dead)
        add_clause(&text, ", killed ", COUNT(dead));
    if (*top->filter)
        add_clause(&text, ", with ", top->filter);
    if (top->pages.other_versions)
        add_clause(&text, ", of other versions ", COUNT(top->pages.other_versions));
    screen_put(0, &text, A_BOLD);
}

static const char *const table_keys[] = {
    "arrows choose  enter shows one  < > sort  r reverses  / filter  d killed too  ? help  q ends",
    "arrows choose  enter shows one  < > sort  / filter  ? help  q ends",
    "arrows choose  enter shows one  < > sort  ? help  q ends",
    "arrows choose  enter shows one  ? help  q ends",
    "enter shows one  ? help  q ends",
    "? help  q ends",
    "q ends",
    NULL};

/** Draws that there is no process, and which folders cannot hold pages: a possible reason. */
static void draw_nothing(const struct top *top) {
    char text[PAGES_REFUSED];
    int y = 2;
    if (*top->filter) {
        screen_put_text(y, "no line contains the text of the filter; / changes it", A_NORMAL);
        return;
    }
    screen_put_text(y++, TOP_NOTHING, A_NORMAL);
    for (unsigned i = 0; i < PLACE_READ; i++)
        if (pages_refused(i, text))
            screen_put_text(y++, text, A_NORMAL);
}

void screen_draw_table(struct screen *screen) {
    struct top *top = screen->top;
    int capacity = LINES - 3 > 1 ? LINES - 3 : 1;
    draw_sums(top);
    top->width = (unsigned)COLS;
    struct print head = PRINT_TEXT(SCREEN_LINE);
    top_print_head(&head, top);
    int column = (int)top_width(top);
    if (column + TOP_LEAST_HISTORY <= COLS) {
        print_repeat(&head, ' ', (size_t)column > head.used ? (size_t)column - head.used : 2);
        print_str(&head, "LIVE OVER TIME");
    }
    screen_put(1, &head, A_REVERSE);
    if (top->row_count == 0)
        draw_nothing(top);
    if (screen->chosen < screen->first)
        screen->first = screen->chosen;
    if (screen->chosen >= screen->first + capacity)
        screen->first = screen->chosen - capacity + 1;
    for (int i = 0; i < capacity && (size_t)(screen->first + i) < top->row_count; i++) {
        const struct top_row *row = &top->rows[screen->first + i];
        struct print text = PRINT_TEXT(SCREEN_LINE);
        top_print_row(&text, top, row);
        int end = (int)text.used + 2;
        screen_put(2 + i, &text, screen->first + i == screen->chosen ? A_STANDOUT : A_NORMAL);
        put_history(screen, 2 + i, end > column ? end : column, row->history);
    }
    screen_put_keys(screen, table_keys);
}
