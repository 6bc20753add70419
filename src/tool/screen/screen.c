/*
 * The screen of gpucache top: its keys, its help, and the loop that draws it. Uses ncurses, if the
 * build found ncurses.
 */
#include "tool/screen/screen.h"

#include "tool/common/tool.h"

#ifdef GPUCACHE_NCURSES

#include "live/place.h"
#include "tool/screen/screen_draw.h"

#include <errno.h>
#include <langinfo.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define TITLE_LINE 1 /* of the table; rows begin below it */
#define NAME_COLUMNS 18
#define ESCAPE 27

static const char *const blocks[SCREEN_FILLS] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
static const char *const letters[SCREEN_FILLS] = {" ", ".", ".", ":", ":", "+", "+", "#", "#"};

void screen_put(int y, struct print *text, attr_t attributes) {
    const char *line = print_end(text);
    if (y < 0 || y >= LINES)
        return;
    move(y, 0);
    clrtoeol(); /* the last line may lie on a row of the table */
    attron(attributes);
    addnstr(line, COLS);
    if (attributes & A_REVERSE)
        for (int x = getcurx(stdscr); x > 0 && x < COLS && getcury(stdscr) == y; x++)
            addch(' ');
    attroff(attributes);
}

void screen_put_text(int y, const char *words, attr_t attributes) {
    struct print text = PRINT_TEXT(SCREEN_LINE);
    print_str(&text, words);
    screen_put(y, &text, attributes);
}

void screen_put_keys(const struct screen *screen, const char *const *keys) {
    while (keys[1] && strlen(*keys) > (size_t)COLS)
        keys++;
    struct print text = PRINT_TEXT(SCREEN_LINE);
    if (screen->typing)
        print_format(&text, "filter: %s_", screen->top->filter);
    else
        print_str(&text, *screen->message ? screen->message : *keys);
    screen_put(LINES - 1, &text, screen->typing || *screen->message ? A_BOLD : A_DIM);
}

/* ---- help ---- */

static const struct {
    const char *name, *meaning;
} help[] = {
#define KEY(keys, meaning) {keys, meaning},
#include "tool/screen/top.def"
#define PART(name, meaning) {name, meaning},
#include "tool/screen/top.def"
#define COLUMN(id, title, width, kind, worth, meaning) {title, meaning},
#include "tool/screen/top.def"
};
#define HELP_LINES ((int)(sizeof help / sizeof *help))

static void draw_help(struct screen *screen) {
    static const char *const keys[] = {"any other key goes back  up, down scroll  q ends",
                                       "any other key goes back", NULL};
    int capacity = LINES - 2 > 1 ? LINES - 2 : 1;
    int last = HELP_LINES > capacity ? HELP_LINES - capacity : 0;
    screen->help_first = screen->help_first > last ? last : screen->help_first;
    screen_put_text(0, "gpucache top: keys and columns", A_BOLD);
    for (int i = 0; i < capacity && screen->help_first + i < HELP_LINES; i++) {
        struct print text = PRINT_TEXT(SCREEN_LINE);
        print_cell(&text, help[screen->help_first + i].name, NAME_COLUMNS, PRINT_LEFT);
        print_str(&text, help[screen->help_first + i].meaning);
        screen_put(1 + i, &text, A_NORMAL);
    }
    screen_put_keys(screen, keys);
}

/* ---- drawing ---- */

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

static void draw(struct screen *screen) {
    erase();
    find_chosen(screen);
    if (screen->help)
        draw_help(screen);
    else if (screen->top->detail && screen->top->row_count > 0)
        screen_draw_one(screen);
    else
        screen_draw_table(screen);
    refresh();
}

/* ---- ending a process ---- */

static const struct top_row *chosen_row(const struct screen *screen) {
    const struct top *top = screen->top;
    return top->row_count > 0 ? &top->rows[screen->chosen] : NULL;
}

/** Asks whether the chosen process shall end. */
static void ask_to_end(struct screen *screen) {
    const struct top_row *row = chosen_row(screen);
    if (!screen->top->kill)
        snprintf(screen->message, sizeof screen->message,
                 "k ends a process only if gpucache top was started with --kill");
    else if (row && row->page->state != PAGE_RUNNING)
        snprintf(screen->message, sizeof screen->message,
                 "process %d cannot be ended from here: %s", row->page->pid,
                 page_state_words(row->page));
    else if (row) {
        screen->asks = row->page->who;
        snprintf(screen->message, sizeof screen->message,
                 "end process %d (%s) by SIGTERM? y ends it, any other key does not",
                 row->page->pid, row->page->program.name);
    }
}

/** Ends the process that was asked about, unless its number belongs to another process by now. */
static void end_process(struct screen *screen) {
    int pid = screen->asks.pid;
    bool same = place_life(&screen->asks, place_self().pid_namespace) == PLACE_ALIVE;
    const char *result = !same                     ? "has ended before"
                         : kill(pid, SIGTERM) == 0 ? "got SIGTERM"
                                                   : strerror(errno);
    snprintf(screen->message, sizeof screen->message, "process %d: %s", pid, result);
}

/* ---- keys ---- */

/** Handles a key while the filter is typed. */
static void type_key(struct screen *screen, int key) {
    char *filter = screen->top->filter;
    size_t length = strlen(filter);
    if (key == '\n' || key == KEY_ENTER)
        screen->typing = false;
    else if (key == ESCAPE) {
        screen->typing = false;
        *filter = 0;
    } else if ((key == KEY_BACKSPACE || key == 127 || key == '\b') && length > 0)
        filter[length - 1] = 0;
    else if (key >= ' ' && key < 127 && length + 1 < sizeof screen->top->filter) {
        filter[length] = (char)key;
        filter[length + 1] = 0;
    }
}

/** Moves the selection, or scrolls the help. */
static void move_by(struct screen *screen, int lines) {
    if (screen->help)
        screen->help_first = screen->help_first + lines < 0 ? 0 : screen->help_first + lines;
    else
        choose(screen, screen->chosen + lines);
}

static void sort_by(struct top *top, unsigned column) {
    top->column = (enum top_column)(column % TOP_COLUMNS);
}

/** The wheel moves the selection. A click chooses a row, or the column to sort by. */
static void execute_mouse(struct screen *screen) {
    MEVENT event;
    if (getmouse(&event) != OK)
        return;
    if (event.bstate & (BUTTON4_PRESSED | BUTTON5_PRESSED))
        move_by(screen, event.bstate & BUTTON4_PRESSED ? -1 : 1);
    else if (screen->help || screen->top->detail)
        return;
    else if (event.y > TITLE_LINE && event.y < LINES - 1)
        choose(screen, screen->first + event.y - TITLE_LINE - 1);
    else if (event.y == TITLE_LINE)
        sort_by(screen->top, top_column_at(screen->top, (unsigned)event.x));
}

/** Executes a key. Returns false if the key ends the program. */
static bool execute_key(struct screen *screen, int key) {
    struct top *top = screen->top;
    switch (key) {
    case 'q':
        return false;
    case KEY_UP:
        move_by(screen, -1);
        break;
    case KEY_DOWN:
        move_by(screen, 1);
        break;
    case KEY_MOUSE:
        execute_mouse(screen);
        break;
    case '<':
    case KEY_LEFT:
        sort_by(top, top->column + TOP_COLUMNS - 1);
        break;
    case '>':
    case KEY_RIGHT:
        sort_by(top, top->column + 1);
        break;
    case 'r':
        top->reversed = !top->reversed;
        break;
    case '/':
        screen->typing = true;
        top->detail = false;
        break;
    case '?':
        screen->help = true;
        screen->help_first = 0;
        break;
    case 'd':
        top->dead = !top->dead;
        break;
    case 'k':
        ask_to_end(screen);
        break;
    case '\n':
    case KEY_ENTER:
        choose(screen, screen->chosen);
        top->detail = !top->detail;
        break;
    case ESCAPE:
        top->detail = false;
        break;
    default:
        break;
    }
    return true;
}

/** Executes a key in the current mode. Returns false if the key ends the program. */
static bool handle_key(struct screen *screen, int key) {
    bool scrolls = key == KEY_UP || key == KEY_DOWN || key == KEY_MOUSE;
    bool asks = screen->asks.pid != 0;
    if (key == KEY_RESIZE)
        return true;
    *screen->message = 0;
    if (asks && key == 'y')
        end_process(screen);
    screen->asks = (struct live_identity){0};
    if (screen->typing && key != KEY_MOUSE)
        type_key(screen, key);
    else if (screen->help && key != 'q' && !scrolls)
        screen->help = false;
    else if (!asks)
        return execute_key(screen, key);
    return true;
}

int screen_run(struct top *top) {
    struct screen screen = {.top = top, .fills = letters};
    if (!terminal_open())
        return STATUS_OWN_FAILURE;
    if (strcmp(nl_langinfo(CODESET), "UTF-8") == 0)
        screen.fills = blocks;
    int key = ERR;
    do {
        top->tick = key == ERR;
        top_read(top);
        draw(&screen);
        timeout(top->interval_ms > 60000 ? 60000 : (int)top->interval_ms);
        key = getch();
    } while (key == ERR ? !terminal_is_gone() : handle_key(&screen, key));
    return 0;
}

#else

const char *screen_obstacle(void) {
    return "this gpucache was built without ncurses";
}

int screen_run(struct top *top) {
    (void)top;
    return STATUS_OWN_FAILURE;
}

#endif
