#include "tool/html.h"

#include "html_files.h"
#include "tool/table.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OPEN_MOST 2 /* processes that are shown at once; of more the first, and the others unfold */
#define BRIEF_FROM 8
#define SAME_START 2000000000 /* ns: two reports of one process agree that far about its start */

struct page_parts {
    struct html_process *processes;
    size_t count;
    struct sheets newest; /* of each process the newest, for the table; its list only */
};

/* ---- whose reports they are ---- */

static uint64_t start_of(const struct sheet *sheet) {
    return less(sheet->process.time_ns, sheet->process.uptime_ns);
}

static bool are_of_one(const struct sheet *a, const struct sheet *b) {
    uint64_t x = start_of(a), y = start_of(b);
    return a->process.pid == b->process.pid && (x > y ? x - y : y - x) < SAME_START &&
           a->program.rank == b->program.rank && strcmp(a->program.host, b->program.host) == 0;
}

static int by_time(const void *a, const void *b) {
    const struct sheet *first = *(const struct sheet *const *)a;
    const struct sheet *second = *(const struct sheet *const *)b;
    return (first->process.time_ns > second->process.time_ns) -
           (first->process.time_ns < second->process.time_ns);
}

static int by_rank(const void *a, const void *b) {
    const struct sheet *first = ((const struct html_process *)a)->sheets[0];
    const struct sheet *second = ((const struct html_process *)b)->sheets[0];
    if (first->program.rank != second->program.rank)
        return (first->program.rank > second->program.rank) -
               (first->program.rank < second->program.rank);
    return (start_of(first) > start_of(second)) - (start_of(first) < start_of(second));
}

static void *allocate(size_t count, size_t each) {
    void *memory = calloc(count + 1, each);
    if (!memory)
        fail(STATUS_OWN_FAILURE, "memory", strerror(ENOMEM));
    return memory;
}

static struct page_parts sort_out(const struct sheets *sheets) {
    struct page_parts parts = {allocate(sheets->count, sizeof *parts.processes), 0, {0}};
    for (size_t i = 0; i < sheets->count; i++) {
        struct html_process *of = NULL;
        for (size_t k = 0; k < parts.count && !of; k++)
            of = are_of_one(parts.processes[k].sheets[0], sheets->list[i]) ? &parts.processes[k]
                                                                           : NULL;
        if (!of) {
            of = &parts.processes[parts.count++];
            of->sheets = allocate(sheets->count, sizeof *of->sheets);
        }
        of->sheets[of->count++] = sheets->list[i];
    }
    for (size_t i = 0; i < parts.count; i++)
        qsort(parts.processes[i].sheets, parts.processes[i].count, sizeof(void *), by_time);
    qsort(parts.processes, parts.count, sizeof *parts.processes, by_rank);
    parts.newest.list = allocate(parts.count, sizeof *parts.newest.list);
    for (size_t i = 0; i < parts.count; i++) {
        parts.processes[i].number = i;
        parts.processes[i].brief = parts.count > BRIEF_FROM;
        parts.newest.list[parts.newest.count++] =
            (struct sheet *)parts.processes[i].sheets[parts.processes[i].count - 1];
    }
    return parts;
}

static void free_parts(struct page_parts *parts) {
    for (size_t i = 0; i < parts->count; i++)
        free(parts->processes[i].sheets);
    free(parts->processes);
    free(parts->newest.list);
}

/* ---- the head ---- */

static void write_name(FILE *out, const struct program *program) {
    char name[TOOL_PROGRAM_NAME];
    tool_program_name(program, name);
    html_text(out, name);
}

static void write_time(FILE *out, uint64_t ns) {
    time_t seconds = (time_t)(ns / 1000000000);
    struct tm day;
    char text[64] = "";
    if (localtime_r(&seconds, &day))
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S %Z", &day);
    html_text(out, text);
}

static void write_command(FILE *out, const struct program *program) {
    fputs("<p class=\"command mono\">", out);
    for (size_t i = 0; i < program->argument_count; i++) {
        fputs(i ? " " : "", out);
        html_text(out, program->arguments[i]);
    }
    fputs("</p>\n", out);
}

static void write_chips(FILE *out, const struct html_process *of) {
    const struct sheet *newest = of->sheets[of->count - 1];
    char label[HTML_LABEL];
    fprintf(out, "<ul class=\"chips\"><li>pid <b>%lld</b>", (long long)newest->process.pid);
    if (newest->program.rank >= 0)
        fprintf(out, "<li>rank <b>%lld</b>", (long long)newest->program.rank);
    fputs("<li>host <b>", out);
    html_text(out, newest->program.host);
    fputs("</b><li>figures of <b>", out);
    write_time(out, newest->process.time_ns);
    fprintf(out, "</b>, %s after its start<li>reason <b>",
            html_time(label, (double)newest->process.uptime_ns / 1e9));
    html_text(out, newest->page ? page_state_words(newest->page) : newest->head.reason);
    fprintf(out, "</b><li><b>%zu</b> report%s", of->count, of->count == 1 ? "" : "s");
    if (newest->head.driver_version > 0)
        fprintf(out, "<li>driver of CUDA <b>%d.%d</b>", newest->head.driver_version / 1000,
                newest->head.driver_version % 1000 / 10);
    fputs("<li>libgpucache <b>", out);
    html_text(out, newest->process.version);
    fputs("</b></ul>\n", out);
}

static void write_call(FILE *out, const char *text) {
    if (!*text)
        return;
    fputs("<div class=\"call\"><p>", out);
    html_text(out, text);
    fputs("</p></div>\n", out);
}

static void write_oom(FILE *out, const struct sheet *sheet) {
    fputs("<div class=\"call bad\">", out);
    for (size_t i = 0; i < sheet->verdict.count; i++) {
        fputs("<p>", out);
        const char *line = sheet->verdict.text[i];
        html_text(out, strncmp(line, "gpucache: ", 10) == 0 ? line + 10 : line);
        fputs("</p>", out);
    }
    fputs("</div>\n", out);
}

static void write_process(FILE *out, const struct html_process *of, bool alone, bool open) {
    const struct sheet *newest = of->sheets[of->count - 1], *oom = NULL;
    if (!alone) {
        fprintf(out, "<details class=\"process\"%s><summary>", open ? " open" : "");
        write_name(out, &newest->program);
        fprintf(out, " <small>pid %lld", (long long)newest->process.pid);
        if (newest->program.rank >= 0)
            fprintf(out, ", rank %lld", (long long)newest->program.rank);
        fputs("</small></summary>\n", out);
        write_command(out, &newest->program);
        write_chips(out, of);
    }
    for (size_t i = 0; i < of->count; i++)
        oom = of->sheets[i]->head.oom ? of->sheets[i] : oom;
    if (oom)
        write_oom(out, oom);
    write_call(out, newest->note);
    write_call(out, newest->sizes_note);
    for (size_t i = 0; i < newest->device_count; i++)
        html_device(out, of, newest->devices[i].ordinal);
    if (newest->device_count == 0)
        write_call(out, "This process has used no device.");
    fputs(alone ? "" : "</details>\n", out);
}

/* ---- all of them side by side ---- */

/** The place of a report among the newest ones, which is that of its process in the page. */
static size_t number_of(const struct sheets *newest, const struct sheet *sheet) {
    size_t i = 0;
    while (i < newest->count && newest->list[i] != sheet)
        i++;
    return i;
}

static void write_row(FILE *out, const struct table *table, const struct table_row *row,
                      size_t number) {
    const struct program *program = &row->sheet->program;
    uint64_t most = table->spreads[3].most, live = row->figures[0];
    uint64_t idle = row->device->pending_bytes + row->device->ready_bytes;
    char text[LINES_VALUE];
    fprintf(out, "<tr><td>%s<td><a href=\"#p%zud%d\">%lld</a><td class=\"t\">",
            program->rank < 0 ? "&ndash;" : COUNT((uint64_t)program->rank), number,
            row->device->ordinal, (long long)row->sheet->process.pid);
    html_text(out, program->host);
    fprintf(out,
            "<td>%d<td><span class=\"mini\" data-tip=\"live %s, idle %s\"><i class=\"live\" "
            "style=\"width:%.1f%%\"></i><i class=\"idle\" style=\"width:%.1f%%\"></i></span>",
            row->device->ordinal, SIZE(live), SIZE(idle),
            most ? 100 * (double)live / (double)most : 0,
            most ? 100 * (double)idle / (double)most : 0);
    for (unsigned i = 0; i < TABLE_FIGURES; i++)
        fprintf(out, "<td%s>%s", table_is_far(table, row, i) ? " class=\"far\"" : "",
                table_worded(text, i, row->figures[i]));
    fputs("\n", out);
}

static void write_table(FILE *out, const struct sheets *newest) {
    static const char *const titles[TABLE_FIGURES] = {"Live",          "Peak",    "Reserved",
                                                      "Peak reserved", "Outside", "OOMs"};
    struct table table = table_of(newest);
    char text[LINES_VALUE];
    fprintf(out,
            "<section class=\"card\"><div class=\"head\"><h2>Side by side</h2><span "
            "class=\"hint\">%zu devices of %zu processes%s</span></div><div "
            "class=\"scroll\"><table><thead><tr><th>Rank<th>PID<th class=\"t\">Host<th>Device<th "
            "class=\"t\">Now",
            table.count, newest->count,
            table.count < TABLE_FEWEST ? "" : "; red is far from the median");
    for (unsigned i = 0; i < TABLE_FIGURES; i++)
        fprintf(out, "<th>%s", titles[i]);
    fputs("</thead><tbody>\n", out);
    for (size_t i = 0; i < table.count; i++)
        write_row(out, &table, &table.rows[i], number_of(newest, table.rows[i].sheet));
    fputs("</tbody><tfoot><tr><td class=\"t\" colspan=\"5\">Median", out);
    for (unsigned i = 0; i < TABLE_FIGURES && table.count > 0; i++)
        fprintf(out, "<td>%s", table_worded(text, i, table.spreads[i].median));
    fputs("</tfoot></table></div></section>\n", out);
    table_free(&table);
}

/* ---- the page ---- */

/* How a page begins, by which an earlier page is known. */
static const char beginning[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"generator\" content=\"gpucache report\">\n";

static void write_page(FILE *out, const struct page_parts *parts) {
    const struct html_process *first = &parts->processes[0];
    const struct sheet *newest = first->sheets[first->count - 1];
    bool alone = parts->count == 1, same = true;
    size_t devices = 0;
    for (size_t i = 0; i < parts->count; i++) {
        devices += parts->newest.list[i]->device_count;
        same &= strcmp(parts->newest.list[i]->program.name, newest->program.name) == 0;
    }
    fputs(beginning, out);
    fputs("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n"
          "<link rel=\"icon\" href=\"data:,\">\n<title>",
          out);
    write_name(out, &newest->program);
    fputs(" - GPU memory</title>\n<style>\n", out);
    fputs(html_css, out);
    fputs("</style></head>\n<body><header><p class=\"kicker\">GPU memory</p><h1>", out);
    if (same)
        write_name(out, &newest->program);
    if (!same || !alone)
        fprintf(out, "%s%zu processes", same ? ": " : "", parts->count);
    fputs("</h1>\n", out);
    if (alone) {
        write_command(out, &newest->program);
        write_chips(out, first);
    }
    fputs("</header>\n<main>\n", out);
    if (devices > 1)
        write_table(out, &parts->newest);
    for (size_t i = 0; i < parts->count; i++)
        write_process(out, &parts->processes[i], alone, i == 0 || parts->count <= OPEN_MOST);
    fputs("</main>\n<footer class=\"part\"><p>Written by gpucache " GPUCACHE_VERSION ", ", out);
    write_time(out, (uint64_t)time(NULL) * 1000000000);
    fputs(
        ". Live: what the program has asked for and not freed. Reserved: what the pool holds from "
        "the driver.</p></footer>\n<script>\n",
        out);
    fputs(html_js, out);
    fputs("</script></body></html>\n", out);
}

/* ---- its file ---- */

static bool is_page(int fd) {
    char found[sizeof beginning - 1];
    return pread(fd, found, sizeof found, 0) == sizeof found &&
           memcmp(found, beginning, sizeof found) == 0;
}

int html_check(const char *path) {
    struct stat file;
    if (strcmp(path, "-") == 0 || stat(path, &file) != 0 || !S_ISREG(file.st_mode))
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int result = fd < 0 || is_page(fd) ? 0 : -EEXIST;
    if (fd >= 0)
        close(fd);
    return result;
}

/** Opens a file for a page. Checks the descriptor, not the path, before it empties a regular
 * file: the path may mean another file by now. Returns a descriptor or a negative errno. */
static int open_for_page(const char *path, bool *created) {
    struct stat file;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    *created = fd >= 0;
    if (*created || errno != EEXIST)
        return *created ? fd : -errno;
    bool regular = stat(path, &file) == 0 && S_ISREG(file.st_mode);
    fd = open(path, (regular ? O_RDWR : O_WRONLY) | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    bool good = fstat(fd, &file) == 0 && (!S_ISREG(file.st_mode) || is_page(fd));
    if (good && (!S_ISREG(file.st_mode) || ftruncate(fd, 0) == 0))
        return fd;
    int error = good ? -errno : -EEXIST;
    close(fd);
    return error;
}

static int write_to(FILE *out, const struct sheets *sheets) {
    struct page_parts parts = sort_out(sheets);
    write_page(out, &parts);
    free_parts(&parts);
    return fflush(out) == 0 && !ferror(out) ? 0 : -errno;
}

int html_write(const struct sheets *sheets, const char *path) {
    bool created;
    if (strcmp(path, "-") == 0)
        return write_to(stdout, sheets);
    int fd = open_for_page(path, &created);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    if (!out)
        return fd < 0 ? fd : -errno;
    int error = write_to(out, sheets);
    if (fclose(out) != 0 && error == 0)
        error = -errno;
    if (error != 0 && created)
        unlink(path);
    return error;
}
