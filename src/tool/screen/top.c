/*
 * gpucache top: shows every process of this user that uses the library, and updates the table.
 *
 * The table has one row for each device of each process, sorted by a column. A key shows one row in
 * full instead: its metrics, history, live sizes and last events. The values come from live pages
 * (tool/report/pages.h). Each update searches the pages again, because processes start and end.
 * Without a terminal, or in a build without ncurses, the table is printed once.
 */
#include "options/value.h"
#include "tool/common/arguments.h"
#include "tool/common/tool.h"
#include "tool/report/pages.h"
#include "tool/screen/screen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 150

/* ---- the rows ---- */

static void add_to_history(struct top_history *history, uint64_t value) {
    if (history->count == TOP_HISTORY) {
        memmove(history->values, history->values + 1,
                (TOP_HISTORY - 1) * sizeof history->values[0]);
        history->count--;
    }
    history->values[history->count++] = value;
}

/** Returns the history of a device of a process, and makes it if there is none. */
static struct top_history *history_of(struct top *top, const struct page *page, unsigned ordinal) {
    for (size_t i = 0; i < top->history_count; i++) {
        struct top_history *history = top->histories[i];
        if (history->pid == page->pid && history->started_ns == page->started_ns &&
            history->ordinal == ordinal)
            return history;
    }
    struct top_history *history = checked(calloc(1, sizeof *history));
    history->pid = page->pid;
    history->started_ns = page->started_ns;
    history->ordinal = ordinal;
    return *APPEND(top->histories, top->history_count) = history;
}

/** Returns whether the filter's text is in the process number or in the command line. */
static bool passes_filter(const struct top *top, const struct page *page) {
    const struct program *program = &page->program;
    char number[16];
    snprintf(number, sizeof number, "%d", page->pid);
    bool found = strstr(number, top->filter) || strcasestr(program->name, top->filter);
    for (size_t i = 0; i < program->argument_count; i++)
        found |= strcasestr(program->arguments[i], top->filter) != NULL;
    return found;
}

static bool is_wanted(const struct top *top, const struct page *page) {
    bool all = top->pid_count == 0, wanted = false;
    for (size_t i = 0; i < top->pid_count; i++)
        wanted |= top->pids[i] == page->pid;
    return (all || wanted) && passes_filter(top, page);
}

static void add_row(struct top *top, struct page *page, unsigned ordinal) {
    struct top_row *row = APPEND(top->rows, top->row_count);
    if (!page_device(page, ordinal, &row->device, &row->sizes_age, NULL)) {
        top->row_count--;
        return;
    }
    row->page = page;
    row->history = history_of(top, page, ordinal);
    row->history->seen = true;
    nvml_read(row->device.uuid, page->pid, &row->nvml);
    report_derive(&row->device, &row->derived);
    top_set_values(top, row);
    if (top->tick)
        add_to_history(row->history, row->device.requested.current);
}

static void forget_histories(struct top *top) {
    size_t kept = 0;
    for (size_t i = 0; i < top->history_count; i++)
        if (top->histories[i]->seen)
            top->histories[kept++] = top->histories[i];
        else
            free(top->histories[i]);
    top->history_count = kept;
}

static int by_column(const void *a, const void *b, void *with) {
    const struct top *top = with;
    const struct top_row *first = a, *second = b;
    uint64_t x = first->values[top->column], y = second->values[top->column];
    int order = (x < y) - (x > y);
    if ((top->column == TOP_PID || top->column == TOP_DEVICE) != top->reversed)
        order = -order;
    if (x == TOP_UNKNOWN || y == TOP_UNKNOWN) /* unknown values come last in both orders */
        order = (x == TOP_UNKNOWN) - (y == TOP_UNKNOWN);
    if (order == 0) /* equal rows keep their order */
        order = first->page->pid != second->page->pid
                    ? first->page->pid - second->page->pid
                    : first->device.ordinal - second->device.ordinal;
    return order;
}

void top_read(struct top *top) {
    pages_close(&top->pages);
    pages_open(&top->pages, 0);
    pages_ask(&top->pages, top->detail, ANSWER_MS);
    top->row_count = 0;
    top->known = 0;
    nvml_refresh();
    for (size_t i = 0; i < top->history_count; i++)
        top->histories[i]->seen = false;
    for (size_t i = 0; i < top->pages.count; i++) {
        struct page *page = top->pages.list[i];
        page_update_state(page); /* the process may have ended since the request */
        bool shown = (page_is_running(page) || top->dead) && page->state != PAGE_ENDED &&
                     is_wanted(top, page);
        for (unsigned k = 0; shown && k < page->devices; k++)
            add_row(top, page, k);
    }
    forget_histories(top);
    if (top->row_count > 1)
        qsort_r(top->rows, top->row_count, sizeof *top->rows, by_column, top);
}

/** Prints a message for each missing process that the user named, and for an empty table. Returns
 * false if a named process is missing. */
static bool say_missing(const struct top *top) {
    bool all = true;
    for (size_t i = 0; i < top->pid_count; i++) {
        bool shown = false;
        for (size_t k = 0; k < top->row_count; k++)
            shown |= top->rows[k].page->pid == top->pids[i];
        if (!shown)
            tool_say("%d: %s", top->pids[i], TOP_NOTHING);
        all &= shown;
    }
    if (top->row_count == 0 && top->pid_count == 0)
        tool_say("top: %s", TOP_NOTHING);
    if (top->row_count == 0 || !all)
        pages_print_refused();
    return all;
}

static int print_once(struct top *top) {
    struct print out = tool_stdout();
    top_read(top);
    top_print_head(&out, top);
    print_char(&out, '\n');
    for (size_t i = 0; i < top->row_count; i++) {
        top_print_row(&out, top, &top->rows[i]);
        print_char(&out, '\n');
    }
    if (top->pages.other_versions)
        print_format(&out, "%u more under other versions of the library\n",
                     top->pages.other_versions);
    if (!tool_flush(&out))
        return STATUS_OWN_FAILURE;
    return say_missing(top) ? 0 : EXIT_FAILURE;
}

int tool_top(char **arguments) {
    /* static: nothing is freed, because the process ends */
    static struct top top = {.column = TOP_LIVE};
    bool once = !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO);
    struct arguments left = {.command = "top", .at = arguments};
    value_milliseconds(option_rows[ARGUMENT_top_interval].initial, &top.interval_ms);
    for (enum option_of_command option; (option = arguments_next(&left)) != ARGUMENTS_END;)
        if (option == ARGUMENT_top_once)
            once = true;
        else if (option == ARGUMENT_top_kill)
            top.kill = true;
        else if (!value_milliseconds(left.value, &top.interval_ms))
            fail(STATUS_OWN_FAILURE, left.option, "wanted are seconds above 0, such as 0.5");
    for (char **at = left.at; *at; at++) {
        int pid = tool_pid(*at);
        if (pid == 0)
            fail(STATUS_OWN_FAILURE, *at, "is no process number");
        *APPEND(top.pids, top.pid_count) = pid;
    }
    const char *obstacle = once ? NULL : screen_obstacle();
    if (obstacle) {
        tool_say("top: prints the table once: %s", obstacle);
        once = true;
    }
    top.dead = top.pid_count > 0;
    return once ? print_once(&top) : screen_run(&top);
}
