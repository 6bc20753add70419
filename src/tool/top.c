/*
 * gpucache top: every process of this user under the library, again and again.
 *
 * One row for each device of each process, sorted by a column; below it, of the one that is chosen, its
 * history, what it has live and its last events. The figures come from live pages (tool/pages.h), which
 * are looked for anew every time, so processes may come and go. Without a terminal, or without ncurses
 * where this was built, the table is printed once.
 */
#include "process/value.h"
#include "tool/pages.h"
#include "tool/screen.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 150
#define INTERVAL_MS 1000

/* ---- the rows ---- */

static void *grown(void *list, size_t count, size_t each) {
    void *memory = realloc(list, count * each);
    if (!memory)
        fail(STATUS_OWN_FAILURE, "memory", strerror(ENOMEM));
    return memory;
}

static void remember(struct history *history, uint64_t value) {
    if (history->count == TOP_HISTORY) {
        memmove(history->values, history->values + 1,
                (TOP_HISTORY - 1) * sizeof history->values[0]);
        history->count--;
    }
    history->values[history->count++] = value;
}

/** The history of that device of that process, made if there is none. */
static struct history *history_of(struct top *top, const struct page *page, unsigned ordinal) {
    for (size_t i = 0; i < top->history_count; i++) {
        struct history *history = top->histories[i];
        if (history->pid == page->pid && history->started_ns == page->started_ns &&
            history->ordinal == ordinal)
            return history;
    }
    struct history *history = calloc(1, sizeof *history);
    if (!history)
        fail(STATUS_OWN_FAILURE, "memory", strerror(ENOMEM));
    history->pid = page->pid;
    history->started_ns = page->started_ns;
    history->ordinal = ordinal;
    top->histories = grown(top->histories, top->history_count + 1, sizeof(struct history *));
    top->histories[top->history_count++] = history;
    return history;
}

static bool is_wanted(const struct top *top, int pid) {
    bool all = top->pid_count == 0, wanted = false;
    for (size_t i = 0; i < top->pid_count; i++)
        wanted |= top->pids[i] == pid;
    return all || wanted;
}

static void add_row(struct top *top, struct page *page, unsigned ordinal) {
    top->rows = grown(top->rows, top->row_count + 1, sizeof *top->rows);
    struct top_row *row = &top->rows[top->row_count];
    memset(row, 0, sizeof *row);
    if (!page_device(page, ordinal, &row->device, &row->sizes_age))
        return;
    row->page = page;
    row->history = history_of(top, page, ordinal);
    row->history->seen = true;
    report_derive(&row->device, &row->derived);
    if (top->tick)
        remember(row->history, row->device.requested.current);
    top->row_count++;
}

static void forget_histories(struct top *top) {
    size_t kept = 0;
    for (size_t i = 0; i < top->history_count; i++) {
        if (top->histories[i]->seen)
            top->histories[kept++] = top->histories[i];
        else
            free(top->histories[i]);
    }
    top->history_count = kept;
}

static double fragmentation(const struct top_row *row) {
    return row->derived.external_fragmentation;
}

static double hit_rate(const struct top_row *row) {
    uint64_t asked = row->device.cache_hits + row->device.cache_misses;
    return asked == 0 ? 0 : (double)row->device.cache_hits / (double)asked;
}

static double sort_value(const struct top_row *row, enum top_column column) {
    switch (column) {
    case TOP_PID:
        return -(double)row->page->pid;
    case TOP_LIVE:
        return (double)row->device.requested.current;
    case TOP_CACHED:
        return (double)row->derived.idle;
    case TOP_RESERVED:
        return (double)row->device.reserved.current;
    case TOP_PEAK:
        return (double)row->device.reserved.peak;
    case TOP_FRAG:
        return fragmentation(row);
    case TOP_HIT:
        return hit_rate(row);
    case TOP_COLUMNS:
        break;
    }
    return 0;
}

static enum top_column sorted_by;

static int by_column(const void *a, const void *b) {
    const struct top_row *first = a, *second = b;
    double x = sort_value(first, sorted_by), y = sort_value(second, sorted_by);
    if (x == y) /* rows that are equal stay where they are */
        return first->page->pid != second->page->pid
                   ? first->page->pid - second->page->pid
                   : first->device.ordinal - second->device.ordinal;
    return (x < y) - (x > y);
}

void top_read(struct top *top) {
    pages_close(&top->pages);
    pages_open(&top->pages, 0);
    pages_ask(&top->pages, top->detail, ANSWER_MS);
    top->row_count = 0;
    for (size_t i = 0; i < top->history_count; i++)
        top->histories[i]->seen = false;
    for (size_t i = 0; i < top->pages.count; i++) {
        struct page *page = top->pages.list[i];
        page_look(page); /* it may have ended since it was asked */
        bool shown = (page_is_running(page) || top->dead) && page->state != PAGE_ENDED &&
                     is_wanted(top, page->pid);
        for (unsigned k = 0; shown && k < page_devices(page); k++)
            add_row(top, page, k);
    }
    forget_histories(top);
    sorted_by = top->column;
    if (top->row_count > 1)
        qsort(top->rows, top->row_count, sizeof *top->rows, by_column);
}

/* ---- their text ---- */

static void print_percent_of(struct print *out, double share) {
    char text[LINES_VALUE];
    struct print whole;
    print_init(&whole, -1, text, sizeof text);
    print_double(&whole, share * 100, 0);
    print_char(&whole, '%');
    print_cell(out, print_end(&whole), 6, PRINT_RIGHT);
}

void top_print_head(struct print *out, enum top_column column) {
    static const struct {
        const char *name;
        size_t columns;
    } heads[] = {
        [TOP_PID] = {"PID", 8},        [TOP_LIVE] = {"LIVE", 11},
        [TOP_CACHED] = {"CACHED", 11}, [TOP_RESERVED] = {"RESERVED", 11},
        [TOP_PEAK] = {"PEAK", 11},     [TOP_FRAG] = {"FRAG", 6},
        [TOP_HIT] = {"HIT", 6},
    };
    for (int i = 0; i < TOP_COLUMNS; i++) {
        char text[LINES_VALUE];
        struct print name;
        print_init(&name, -1, text, sizeof text);
        print_str(&name, (int)column == i ? ">" : "");
        print_str(&name, heads[i].name);
        if (i == TOP_LIVE)
            print_str(out, " DEV");
        if (i == TOP_FRAG)
            print_str(out, "      LIMIT");
        print_cell(out, print_end(&name), heads[i].columns, PRINT_RIGHT);
    }
    print_str(out, "  PROGRAM");
}

void top_print_row(struct print *out, const struct top_row *row) {
    const struct stats_device *device = &row->device;
    const struct program *program = &row->page->program;
    char pid[16];
    struct print number;
    print_init(&number, -1, pid, sizeof pid);
    print_i64(&number, row->page->pid);
    print_cell(out, print_end(&number), 8, PRINT_RIGHT);
    print_cell(out, COUNT((uint64_t)device->ordinal), 4, PRINT_RIGHT);
    const uint64_t sizes[] = {device->requested.current, row->derived.idle,
                              device->reserved.current, device->reserved.peak};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        print_cell(out, SIZE(sizes[i]), 11, PRINT_RIGHT);
    print_cell(out, device->limit_bytes ? SIZE(device->limit_bytes) : "-", 11, PRINT_RIGHT);
    print_percent_of(out, fragmentation(row));
    print_percent_of(out, hit_rate(row));
    print_str(out, "  ");
    print_plain(out, program->name, 24);
    if (program->rank >= 0)
        print_format(out, " rank %lld", (long long)program->rank);
    if (row->page->state != PAGE_RUNNING)
        print_format(out, " (%s)", page_state_words(row->page));
    else if (!row->page->fresh && page_age_ns(row->page) > 2000000000)
        print_format(out, " (%s s old)", COUNT(page_age_ns(row->page) / 1000000000));
}

static int print_once(struct top *top) {
    static char buffer[65536];
    struct print out;
    top_read(top);
    print_init(&out, STDOUT_FILENO, buffer, sizeof buffer);
    top_print_head(&out, top->column);
    print_char(&out, '\n');
    for (size_t i = 0; i < top->row_count; i++) {
        top_print_row(&out, &top->rows[i]);
        print_char(&out, '\n');
    }
    if (top->pages.other_versions)
        print_format(&out, "%u more under other versions of the library\n",
                     top->pages.other_versions);
    return print_flush(&out) == 0 ? 0 : STATUS_OWN_FAILURE;
}

static void free_all(struct top *top) {
    for (size_t i = 0; i < top->history_count; i++)
        free(top->histories[i]);
    free(top->histories);
    free(top->rows);
    free(top->pids);
    pages_close(&top->pages);
}

int tool_top(char **arguments) {
    struct top top = {.column = TOP_LIVE, .interval_ms = INTERVAL_MS};
    bool once = !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO) || !screen_can();
    for (; *arguments; arguments++) {
        const char *value = tool_value(*arguments, "interval");
        int pid = tool_pid(*arguments);
        if (strcmp(*arguments, "--once") == 0) {
            once = true;
        } else if (pid != 0) {
            top.pids = grown(top.pids, top.pid_count + 1, sizeof *top.pids);
            top.pids[top.pid_count++] = pid;
        } else if (!value || !value_milliseconds(value, &top.interval_ms)) {
            fail(STATUS_OWN_FAILURE, *arguments,
                 "wanted is --once, --interval=SECONDS or process numbers");
        }
    }
    top.dead = top.pid_count > 0;
    int status = once ? print_once(&top) : screen_run(&top);
    free_all(&top);
    return status;
}
