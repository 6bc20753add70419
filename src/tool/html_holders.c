/*
 * Who holds the memory: by the call that asked for it where a report has call stacks, else by size.
 */
#include "tool/html.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FEWEST_HOLDERS 5 /* that are named, however little they hold */
#define LEAST_SHARE 0.1  /* percent, of the others */
#define MOST_STACKS 40
#define FRAME 1024
#define OWN_FRAMES 2

double html_share(uint64_t part, uint64_t whole) {
    return whole ? 100 * (double)part / (double)whole : 0;
}

/* ---- a stack ---- */

/** Copies a line; returns what stands behind it. */
static const char *next_frame(const char *frames, char frame[FRAME]) {
    size_t length = strcspn(frames, "\n"), kept = length < FRAME ? length : FRAME - 1;
    memcpy(frame, frames, kept);
    frame[kept] = '\0';
    return frames + length + (frames[length] == '\n');
}

/** Whether a frame is of what everybody has: libraries between the program and the driver. */
static bool is_of_others(const char *frame) {
    static const char *const others[] = {
        "site-packages", "dist-packages",     "/lib/python",
        "libcuda",       "libgpucache",       "libtorch",
        "libc10",        "<frozen importlib", "/lib/x86_64-linux-gnu/",
        "/usr/lib"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(frame, others[i]))
            return true;
    return false;
}

/** A frame with the name of its file alone. */
static void write_brief(FILE *out, char frame[FRAME]) {
    char *file = strchr(frame, '('), *slash = strrchr(file ? file : frame, '/');
    if (slash)
        memmove(file ? file + 1 : frame, slash + 1, strlen(slash));
    html_text(out, frame);
}

/** The lines that its author looks for: the innermost ones of their own, else the innermost of all. */
static void write_own(FILE *out, const char *frames) {
    char frame[FRAME];
    unsigned written = 0;
    for (const char *at = frames; *at && written < OWN_FRAMES;) {
        at = next_frame(at, frame);
        if (is_of_others(frame))
            continue;
        fputs(written++ > 0 ? " &larr; " : "", out);
        write_brief(out, frame);
    }
    if (written == 0) {
        next_frame(frames, frame);
        write_brief(out, frame);
    }
}

static void write_stack(FILE *out, const char *frames) {
    char frame[FRAME];
    fputs("<details><summary>", out);
    write_own(out, frames);
    fputs("</summary><ol>", out);
    for (const char *at = frames; *at;) {
        at = next_frame(at, frame);
        fputs("<li class=\"mono\">", out);
        html_text(out, frame);
    }
    fputs("</ol></details>", out);
}

/* ---- by call stack ---- */

static int by_bytes(const void *a, const void *b) {
    const struct sheet_holder *first = *(const struct sheet_holder *const *)a;
    const struct sheet_holder *second = *(const struct sheet_holder *const *)b;
    if (first->live.bytes != second->live.bytes)
        return first->live.bytes < second->live.bytes ? 1 : -1;
    return (first->peak.bytes < second->peak.bytes) - (first->peak.bytes > second->peak.bytes);
}

static void write_by_stack(FILE *out, const struct sheet_holders *holders) {
    const struct sheet_holder **sorted = calloc(holders->count, sizeof(void *));
    uint64_t most = 1;
    size_t shown = 0, count = 0;
    if (!sorted)
        fail(STATUS_OWN_FAILURE, "memory", strerror(ENOMEM));
    for (size_t i = 0; i < holders->count; i++) {
        const struct sheet_holder *holder = &holders->list[i];
        if (holder->live.bytes > 0 || holder->peak.bytes > 0)
            sorted[count++] = holder;
        most = holder->peak.bytes > most ? holder->peak.bytes : most;
        most = holder->live.bytes > most ? holder->live.bytes : most;
    }
    qsort(sorted, count, sizeof(void *), by_bytes);
    fputs("<p class=\"hint\">By the call that asked for it.</p><div class=\"rows\">", out);
    for (; shown < count && shown < MOST_STACKS; shown++) {
        const struct sheet_holder *holder = sorted[shown];
        fprintf(
            out,
            "<span class=\"n\">%s</span><div class=\"track\" data-tip=\"live %s in %s block%s\nat "
            "the peak %s in %s block%s\"><i class=\"round\" style=\"width:%.2f%%\"></i><i "
            "class=\"live\" style=\"width:%.2f%%\"></i></div><span class=\"n\"><small>%s%s%s"
            "</small></span>",
            SIZE(holder->live.bytes), SIZE(holder->live.bytes), COUNT(holder->live.count),
            PLURAL(holder->live.count), SIZE(holder->peak.bytes), COUNT(holder->peak.count),
            PLURAL(holder->peak.count), html_share(holder->peak.bytes, most),
            html_share(holder->live.bytes, most),
            holder->live.count > 0 ? COUNT(holder->live.count) : "peak ",
            holder->live.count > 0 ? " block" : SIZE(holder->peak.bytes),
            holder->live.count > 0 ? PLURAL(holder->live.count) : "");
        if (holder->frames)
            write_stack(out, holder->frames);
    }
    fputs("</div>", out);
    if (shown < count)
        fprintf(out, "<p class=\"hint\">%s more hold less.</p>", COUNT(count - shown));
    fputs(
        "<ul class=\"key\"><li><i class=\"live\"></i>live<li><i class=\"round\"></i>at the peak of "
        "the device</ul>",
        out);
    free(sorted);
}

/* ---- by size ---- */

static void write_size(FILE *out, const struct stats_live *live, uint64_t whole,
                       const char *frames) {
    uint64_t bytes = live->bytes * live->count;
    fprintf(
        out,
        "<span class=\"n\">%s</span><div class=\"track\" data-tip=\"%.1f%% of what is live\"><i "
        "class=\"live\" style=\"width:%.2f%%\"></i></div><span class=\"n\"><small>%s &times; "
        "%s</small></span>",
        SIZE(bytes), html_share(bytes, whole), html_share(bytes, whole), COUNT(live->count),
        SIZE(live->bytes));
    if (frames)
        write_stack(out, frames);
}

static void write_by_size(FILE *out, const struct stats_device *device,
                          const char *const frames[STATS_LIVE_SIZES]) {
    uint64_t whole = device->requested.current, named = 0;
    bool any = false;
    for (size_t i = 0; i < device->live_groups; i++)
        any |= frames[i] != NULL;
    fprintf(out, "<p class=\"hint\">Live allocations by size%s</p><div class=\"rows\">",
            any ? " and by the call that made them." : ".");
    for (size_t i = 0; i < device->live_groups; i++) {
        uint64_t bytes = device->live[i].bytes * device->live[i].count;
        if (!frames[i] && i >= FEWEST_HOLDERS && html_share(bytes, whole) < LEAST_SHARE)
            continue;
        write_size(out, &device->live[i], whole, frames[i]);
        named += bytes;
    }
    if (whole > named)
        fprintf(out,
                "<span class=\"n\">%s</span><div class=\"track\"><i class=\"round\" "
                "style=\"width:%.2f%%\"></i></div><span class=\"n\"><small>in other "
                "sizes</small></span>",
                SIZE(whole - named), html_share(whole - named, whole));
    fputs("</div>", out);
}

void html_holders(FILE *out, const struct sheet *sheet, const struct stats_device *device) {
    const struct sheet_holders *holders = &sheet->holders[device - sheet->devices];
    fputs("<section class=\"part\"><h3>What holds it</h3>", out);
    if (holders->count > 0)
        write_by_stack(out, holders);
    else if (device->live_groups > 0)
        write_by_size(out, device, sheet->live_frames[device - sheet->devices]);
    else
        fprintf(out, "<p class=\"none\">%s</p>",
                device->requested.current ? "The sizes of what is live are not known."
                                          : "Nothing is live.");
    fputs("</section>\n", out);
}
