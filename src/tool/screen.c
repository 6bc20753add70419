/*
 * Draws the screen of gpucache top with ncurses, if the build found ncurses.
 */
#include "tool/screen.h"

#include "live/place.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

#ifdef GPUCACHE_NCURSES

#include <curses.h>
#include <langinfo.h>
#include <locale.h>

#define LINE 512
#define GRAPH_LINES 8
#define LIVE_LINES 5
#define LEAST_COLUMNS 24 /* sentences are wrapped at this width or more */
#define SHOWN_NS 1000000 /* the smallest age that is printed, so that none reads as 0 */
#define LEAST_HISTORY 16 /* columns; the history is not drawn in fewer */
#define HEIGHTS 9        /* fill levels of a cell, from empty to full */

static const char *const blocks[HEIGHTS] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
static const char *const letters[HEIGHTS] = {" ", ".", ".", ":", ":", "+", "+", "#", "#"};
static const char *const *heights = letters; /* the set that the terminal can show */

struct screen {
    struct top *top;
    int pid; /* process of the selected row, because rows move */
    unsigned ordinal;
    int chosen, first;
    bool help; /* the help is shown */
};

/** Draws the text on a line, cut to the width of the screen. */
static void put(int y, struct print *text, attr_t attributes) {
    const char *line = print_end(text);
    if (y < 0 || y >= LINES)
        return;
    attron(attributes);
    mvaddnstr(y, 0, line, COLS);
    if (attributes & A_REVERSE)
        for (int x = getcurx(stdscr); x > 0 && x < COLS && getcury(stdscr) == y; x++)
            addch(' ');
    attroff(attributes);
}

static void put_text(int y, const char *words, attr_t attributes) {
    char line[LINE];
    struct print text;
    print_init(&text, -1, line, sizeof line);
    print_str(&text, words);
    put(y, &text, attributes);
}

/* ---- the table ---- */

static void find_chosen(struct screen *screen) {
    const struct top *top = screen->top;
    for (size_t i = 0; i < top->row_count; i++)
        if (top->rows[i].page->pid == screen->pid &&
            (unsigned)top->rows[i].device.ordinal == screen->ordinal)
            screen->chosen = (int)i;
    int last = (int)top->row_count - 1;
    screen->chosen = screen->chosen > last ? last : screen->chosen;
    screen->chosen = screen->chosen < 0 ? 0 : screen->chosen;
}

static void choose(struct screen *screen, int row) {
    const struct top *top = screen->top;
    if (row < 0 || (size_t)row >= top->row_count)
        return;
    screen->chosen = row;
    screen->pid = top->rows[row].page->pid;
    screen->ordinal = (unsigned)top->rows[row].device.ordinal;
}

/** Draws each value as a cell whose fill level is relative to the highest value. */
static void put_history(int y, int x, const struct top_history *history) {
    int capacity = COLS - x;
    uint64_t highest = 0;
    if (capacity <= 0)
        return;
    size_t first = history->count > (size_t)capacity ? history->count - (size_t)capacity : 0;
    for (size_t i = first; i < history->count; i++)
        highest = history->values[i] > highest ? history->values[i] : highest;
    for (size_t i = first; i < history->count; i++) {
        unsigned height =
            highest ? (unsigned)((double)history->values[i] * (HEIGHTS - 1) / (double)highest + 0.5)
                    : 0;
        mvaddstr(y, x + (int)(i - first), heights[height]);
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
    char line[LINE];
    struct print text;
    uint64_t live = 0, reserved = 0;
    for (size_t i = 0; i < top->row_count; i++) {
        bool running = page_is_running(top->rows[i].page);
        live += running ? top->rows[i].device.requested.current : 0;
        reserved += running ? top->rows[i].device.reserved.current : 0;
    }
    size_t processes = count_processes(top, true), dead = count_processes(top, false);
    print_init(&text, -1, line, sizeof line);
    print_format(&text, "gpucache top: %s process%s", COUNT(processes), processes == 1 ? "" : "es");
    add_clause(&text, ", live ", SIZE(live));
    add_clause(&text, ", reserved ", SIZE(reserved));
    if (dead)
        add_clause(&text, ", killed ", COUNT(dead));
    if (top->pages.other_versions)
        add_clause(&text, ", of other versions ", COUNT(top->pages.other_versions));
    put(0, &text, A_BOLD);
}

/** Draws the longest of the texts that fits on the screen. */
static void put_keys(const char *const *keys) {
    while (keys[1] && strlen(*keys) > (size_t)COLS)
        keys++;
    put_text(LINES - 1, *keys, A_DIM);
}

static const char *const table_keys[] = {
    "arrows choose  enter shows one  < > sort  d with the killed  ? help  q ends",
    "arrows choose  enter shows one  < > sort  ? help  q ends",
    "arrows choose  enter shows one  ? help  q ends",
    "enter shows one  ? help  q ends",
    "? help  q ends",
    "q ends",
    NULL};
static const char *const one_keys[] = {"enter goes back  arrows choose another  ? help  q ends",
                                       "enter goes back  ? help  q ends", "q ends", NULL};

/** Draws that there is no process, and which folders cannot hold pages: a possible reason. */
static void draw_nothing(void) {
    char text[PAGES_BARRED];
    int y = 2;
    put_text(y++, TOP_NOTHING, A_NORMAL);
    for (unsigned i = 0; i < PLACE_READ; i++)
        if (pages_barred(i, text))
            put_text(y++, text, A_NORMAL);
}

static void draw_table(struct screen *screen) {
    struct top *top = screen->top;
    char line[LINE];
    struct print text;
    int capacity = LINES - 3 > 1 ? LINES - 3 : 1;
    draw_sums(top);
    top->width = (unsigned)COLS;
    print_init(&text, -1, line, sizeof line);
    top_print_head(&text, top);
    int column = (int)top_width(top);
    if (column + LEAST_HISTORY <= COLS) {
        print_repeat(&text, ' ', (size_t)column > text.used ? (size_t)column - text.used : 2);
        print_str(&text, "LIVE OVER TIME");
    }
    put(1, &text, A_REVERSE);
    if (top->row_count == 0)
        draw_nothing();
    if (screen->chosen < screen->first)
        screen->first = screen->chosen;
    if (screen->chosen >= screen->first + capacity)
        screen->first = screen->chosen - capacity + 1;
    for (int i = 0; i < capacity && (size_t)(screen->first + i) < top->row_count; i++) {
        const struct top_row *row = &top->rows[screen->first + i];
        print_init(&text, -1, line, sizeof line);
        top_print_row(&text, top, row);
        int end = (int)text.used + 2;
        put(2 + i, &text, screen->first + i == screen->chosen ? A_STANDOUT : A_NORMAL);
        put_history(2 + i, end > column ? end : column, row->history);
    }
    put_keys(table_keys);
}

/* ---- one process ---- */

static void draw_graph(int y, const struct top_history *history, uint64_t most) {
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
                     heights[(unsigned)(above * (HEIGHTS - 1) + 0.5)]);
        }
    }
}

/** Draws sentences in as many lines as they need. Returns the next line. */
static int put_lines(int y, const struct lines *words) {
    for (size_t i = 0; i < words->count; i++)
        put_text(y++, words->text[i], A_NORMAL);
    return y;
}

static void start_lines(struct lines *words) {
    lines_init(words, LINES_MAX, COLS > LEAST_COLUMNS ? (size_t)COLS : LEAST_COLUMNS);
}

static int draw_metrics(int y, const struct top_row *row) {
    const struct stats_device *device = &row->device;
    char line[LINE];
    struct print text;
    struct lines words;
    const struct {
        const char *name;
        const struct stats_metric *metric;
    } metrics[] = {{"requested", &device->requested},
                   {"allocated", &device->allocated},
                   {"active", &device->active},
                   {"reserved", &device->reserved},
                   {"outside", &row->derived.outside}};
    size_t columns = COLS < 57 ? 2 : 4; /* only as many columns as fit */
    put_text(y++,
             columns == 2 ? "                 now        peak"
                          : "                 now        peak       taken       freed",
             A_REVERSE);
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        print_init(&text, -1, line, sizeof line);
        print_cell(&text, metrics[i].name, 9, PRINT_LEFT);
        const struct stats_metric *metric = metrics[i].metric;
        const uint64_t values[] = {metric->current, metric->peak, metric->total, metric->freed};
        for (size_t k = 0; k < columns; k++)
            print_cell(&text, SIZE(values[k]), k == 0 ? 11 : 12, PRINT_RIGHT);
        put(y++, &text, A_NORMAL);
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
    if (!row->has_nvml)
        return y;
    start_lines(&words);
    lines_start(&words, "NVML: this process %s",
                row->nvml.process == NVML_UNKNOWN ? "unknown" : SIZE(row->nvml.process));
    lines_clause(&words, "all of them %s of %s", SIZE(row->nvml.used), SIZE(row->nvml.total));
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
        lines_clause(&words, "(%s s older)",
                     SECONDS(row->sizes_age < SHOWN_NS ? SHOWN_NS : row->sizes_age));
    return put_lines(y, &words);
}

static void draw_events(int y, const struct page *page) {
    size_t count;
    struct page_event *events = page_events(page, &count);
    char line[LINE];
    struct print text;
    put_text(y++, page_event_head, A_REVERSE);
    for (size_t i = count; i > 0 && y < LINES - 1; i--) { /* newest first */
        print_init(&text, -1, line, sizeof line);
        page_print_event(page, &text, &events[i - 1]);
        text.used -= text.used > 0; /* without the newline */
        put(y++, &text, A_NORMAL);
    }
    free(events);
}

static void draw_one(struct screen *screen) {
    const struct top_row *row = &screen->top->rows[screen->chosen];
    char line[LINE];
    struct print text;
    print_init(&text, -1, line, sizeof line);
    print_format(&text, "process %d, device %d: ", row->page->pid, row->device.ordinal);
    print_plain(&text, row->page->program.name, 40);
    print_format(&text, ", %s, figures %s s old", page_state_words(row->page),
                 SECONDS(page_age_ns(row->page)));
    put(0, &text, A_BOLD);
    int y = draw_metrics(1, row);
    y = draw_nvml(y, row);
    y = draw_live(y, row);
    draw_graph(y + 1, row->history, row->device.requested.peak);
    draw_events(y + 2 + GRAPH_LINES, row->page);
    put_keys(one_keys);
}

/* ---- help ---- */

static void draw_help(void) {
    static const char *const lines[] = {
        "up, down, k, j    choose a line",
        "enter             shows one process, or the table again",
        "< >, left, right  change the column that lines are sorted by",
        "d                 shows or hides killed processes",
        "?                 shows this; any key goes back",
        "q                 ends",
        "",
        "LIVE      requested from the pool and not freed",
        "CACHED    idle in the pool",
        "RESERVED  taken from the driver",
        "PEAK      most that was reserved",
        "LIMIT     most that the process may take",
        "NVML      what the driver counts for the process",
        "USED      share of the device in use, by all processes",
        "FRAG      share of idle memory outside its largest free block",
        "HIT       share of allocations without a driver call",
    };
    put_text(0, "gpucache top: keys and columns", A_BOLD);
    for (int i = 0; i < (int)(sizeof lines / sizeof *lines) && 1 + i < LINES - 1; i++)
        put_text(1 + i, lines[i], A_NORMAL);
    put_text(LINES - 1, "any key goes back  q ends", A_DIM);
}

static void draw(struct screen *screen) {
    erase();
    find_chosen(screen);
    if (screen->help)
        draw_help();
    else if (screen->top->detail && screen->top->row_count > 0)
        draw_one(screen);
    else
        draw_table(screen);
    refresh();
}

/* ---- keys ---- */

/** Executes a key. Returns false if the key ends the program. */
static bool obey(struct screen *screen, int key) {
    struct top *top = screen->top;
    unsigned column = top->column;
    if (screen->help && key != 'q') {
        screen->help = false;
        return true;
    }
    switch (key) {
    case 'q':
        return false;
    case KEY_UP:
    case 'k':
        choose(screen, screen->chosen - 1);
        break;
    case KEY_DOWN:
    case 'j':
        choose(screen, screen->chosen + 1);
        break;
    case '<':
    case KEY_LEFT:
        top->column = (enum top_column)((column + TOP_COLUMNS - 1) % TOP_COLUMNS);
        break;
    case '>':
    case KEY_RIGHT:
        top->column = (enum top_column)((column + 1) % TOP_COLUMNS);
        break;
    case '?':
        screen->help = true;
        break;
    case 'd':
        top->dead = !top->dead;
        break;
    case '\n':
    case KEY_ENTER:
        choose(screen, screen->chosen);
        top->detail = !top->detail;
        break;
    case 27:
        top->detail = false;
        break;
    default:
        break;
    }
    return true;
}

bool screen_can(void) {
    return true;
}

int screen_run(struct top *top) {
    struct screen screen = {.top = top};
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") == 0)
        heights = blocks;
    if (!initscr())
        return STATUS_OWN_FAILURE;
    cbreak();
    noecho();
    curs_set(0);
    keypad(stdscr, TRUE);
    set_escdelay(25);
    int key = ERR;
    do {
        top->tick = key == ERR;
        top_read(top);
        draw(&screen);
        timeout(top->interval_ms > 60000 ? 60000 : (int)top->interval_ms);
        key = getch();
    } while (key == ERR || obey(&screen, key));
    endwin();
    return 0;
}

#else

bool screen_can(void) {
    return false;
}

int screen_run(struct top *top) {
    (void)top;
    return STATUS_OWN_FAILURE;
}

#endif
