/*
 * Who holds the memory: by the call that asked for it where a report has call stacks, else by size.
 */
#include "tool/html.h"

#include "report/holders.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FEWEST_HOLDERS 5 /* that are named, however little they hold */
#define LEAST_SHARE 0.1  /* percent, of the others */
#define MOST_STACKS 40
#define FRAME 2304 /* bytes: a function and a file, each as long as a report has them */
#define NAMED_FRAMES 2

double html_share(uint64_t part, uint64_t whole) {
    return whole ? 100 * (double)part / (double)whole : 0;
}

/* ---- a stack ---- */

/** Writes a stack: the frames that the text report names, and behind them, folded, all of it. */
static void write_stack(FILE *out, const struct stats_stacks *stacks, uint32_t stack) {
    char text[FRAME];
    struct print words;
    struct stats_frame frame;
    fputs("<details><summary>", out);
    for (unsigned i = 0; i < NAMED_FRAMES; i++) {
        print_init(&words, -1, text, sizeof text);
        if (!holders_print_named(stacks, stack, i, &words))
            break;
        fputs(i > 0 ? " &larr; " : "", out);
        html_text(out, print_end(&words));
    }
    fputs("</summary><ol>", out);
    for (unsigned i = 0; stacks->frame(stacks->of, stack, i, &frame); i++) {
        print_init(&words, -1, text, sizeof text);
        holders_print_frame(&words, &frame, false);
        fputs("<li class=\"mono\">", out);
        html_text(out, print_end(&words));
    }
    fputs("</ol></details>", out);
}

static bool has_frames(const struct stats_stacks *stacks, uint32_t stack) {
    struct stats_frame frame;
    return stacks && stacks->frame(stacks->of, stack, 0, &frame);
}

/* ---- by call stack ---- */

static int by_bytes(const void *a, const void *b) {
    const struct stats_held *first = &((const struct stats_holder *)a)->held;
    const struct stats_held *second = &((const struct stats_holder *)b)->held;
    if (first->live.bytes != second->live.bytes)
        return first->live.bytes < second->live.bytes ? 1 : -1;
    return (first->peak.bytes < second->peak.bytes) - (first->peak.bytes > second->peak.bytes);
}

/** Reads the holders of a device that hold something now or did at the peak, the largest first.
 * To be freed. */
static struct stats_holder *sorted_holders(const struct stats_stacks *stacks, int device,
                                           size_t *count) {
    struct stats_holder *list = NULL, holder;
    uint32_t at = 0;
    *count = 0;
    while (stacks && stacks->next(stacks->of, device, &at, &holder)) {
        if (holder.held.live.bytes == 0 && holder.held.peak.bytes == 0)
            continue;
        list = realloc(list, (*count + 1) * sizeof *list);
        if (!list)
            fail(STATUS_OWN_FAILURE, "memory", strerror(ENOMEM));
        list[(*count)++] = holder;
    }
    if (*count > 0)
        qsort(list, *count, sizeof *list, by_bytes);
    return list;
}

static void write_holder(FILE *out, const struct stats_held *held, uint64_t most) {
    fprintf(out,
            "<span class=\"n\">%s</span><div class=\"track\" data-tip=\"live %s in %s block%s\nat "
            "the peak %s in %s block%s\"><i class=\"peak\" style=\"width:%.2f%%\"></i><i "
            "class=\"live\" style=\"width:%.2f%%\"></i></div><span class=\"n\"><small>%s%s%s"
            "</small></span>",
            SIZE(held->live.bytes), SIZE(held->live.bytes), COUNT(held->live.count),
            PLURAL(held->live.count), SIZE(held->peak.bytes), COUNT(held->peak.count),
            PLURAL(held->peak.count), html_share(held->peak.bytes, most),
            html_share(held->live.bytes, most),
            held->live.count > 0 ? COUNT(held->live.count) : "peak ",
            held->live.count > 0 ? " block" : SIZE(held->peak.bytes),
            held->live.count > 0 ? PLURAL(held->live.count) : "");
}

static void write_by_stack(FILE *out, const struct stats_stacks *stacks,
                           const struct stats_holder *holders, size_t count) {
    uint64_t most = 1;
    size_t shown = 0;
    for (size_t i = 0; i < count; i++) {
        const struct stats_held *held = &holders[i].held;
        most = held->peak.bytes > most ? held->peak.bytes : most;
        most = held->live.bytes > most ? held->live.bytes : most;
    }
    fputs("<p class=\"hint\">By the call that asked for it.</p><div class=\"rows\">", out);
    for (; shown < count && shown < MOST_STACKS; shown++) {
        write_holder(out, &holders[shown].held, most);
        if (has_frames(stacks, holders[shown].stack))
            write_stack(out, stacks, holders[shown].stack);
    }
    fputs("</div>", out);
    if (shown < count)
        fprintf(out, "<p class=\"hint\">%s more hold less.</p>", COUNT(count - shown));
    fputs(
        "<ul class=\"key\"><li><i class=\"live\"></i>live<li><i class=\"peak\"></i>at the peak of "
        "the device</ul>",
        out);
}

/* ---- by size ---- */

static void write_size(FILE *out, const struct stats_live *live, uint64_t whole) {
    uint64_t bytes = live->bytes * live->count;
    fprintf(
        out,
        "<span class=\"n\">%s</span><div class=\"track\" data-tip=\"%.1f%% of what is live\"><i "
        "class=\"live\" style=\"width:%.2f%%\"></i></div><span class=\"n\"><small>%s &times; "
        "%s</small></span>",
        SIZE(bytes), html_share(bytes, whole), html_share(bytes, whole), COUNT(live->count),
        SIZE(live->bytes));
}

static void write_by_size(FILE *out, const struct stats_device *device,
                          const struct stats_stacks *stacks) {
    uint64_t whole = device->requested.current, named = 0;
    bool any = false;
    for (size_t i = 0; i < device->live_groups; i++)
        any |= has_frames(stacks, device->live_stacks[i]);
    fprintf(out, "<p class=\"hint\">Live allocations by size%s</p><div class=\"rows\">",
            any ? " and by the call that made them." : ".");
    for (size_t i = 0; i < device->live_groups; i++) {
        uint64_t bytes = device->live[i].bytes * device->live[i].count;
        bool stack = has_frames(stacks, device->live_stacks[i]);
        if (!stack && i >= FEWEST_HOLDERS && html_share(bytes, whole) < LEAST_SHARE)
            continue;
        write_size(out, &device->live[i], whole);
        if (stack)
            write_stack(out, stacks, device->live_stacks[i]);
        named += bytes;
    }
    if (whole > named)
        fprintf(out,
                "<span class=\"n\">%s</span><div class=\"track\"><i class=\"live\" "
                "style=\"width:%.2f%%\"></i></div><span class=\"n\"><small>in other "
                "sizes</small></span>",
                SIZE(whole - named), html_share(whole - named, whole));
    fputs("</div>", out);
}

void html_holders(FILE *out, const struct sheet *sheet, const struct stats_device *device) {
    const struct stats_stacks *stacks = sheet_stacks_view(sheet->stacks);
    size_t count;
    struct stats_holder *holders = sorted_holders(stacks, device->ordinal, &count);
    fputs("<section class=\"part\"><h3>What holds it</h3>", out);
    if (count > 0)
        write_by_stack(out, stacks, holders, count);
    else if (device->live_groups > 0)
        write_by_size(out, device, stacks);
    else
        fprintf(out, "<p class=\"none\">%s</p>",
                device->requested.current ? "The sizes of what is live are not known."
                                          : "Nothing is live.");
    fputs("</section>\n", out);
    free(holders);
}
