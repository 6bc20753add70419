/*
 * One device of one process: its figures now, its memory over time, and at up to three moments (the newest,
 * the fullest, the last OOM) where the memory was: the map of the pool, sizes, holders.
 */
#include "tool/html.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LAST_EVENTS 100

/* ---- now ---- */

static void tile(FILE *out, const char *name, const char *value, const char *more, bool bad) {
    fprintf(out, "<div class=\"tile%s\"><span>%s</span><b>%s</b><small>%s</small></div>",
            bad ? " bad" : "", name, value, more);
}

__attribute__((format(printf, 2, 3))) static const char *worded(char words[64], const char *format,
                                                                ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(words, 64, format, values);
    va_end(values);
    return words;
}

static void write_tiles(FILE *out, const struct stats_device *device,
                        const struct report_derived *derived) {
    char words[64];
    uint64_t asked = device->cache_hits + device->cache_misses;
    fputs("<div class=\"tiles\">", out);
    tile(out, "Live", SIZE(device->requested.current),
         worded(words, "in %s allocations", COUNT(device->allocations.current)), false);
    tile(out, device->peaks_exact ? "Peak live" : "Peak live, at least",
         SIZE(device->requested.peak), "asked for by the program", false);
    tile(out, "Reserved", SIZE(device->reserved.current),
         worded(words, "in %s segments", COUNT(device->segments.current)), false);
    tile(out, "Peak reserved", SIZE(device->reserved.peak),
         worded(words, "%s times peak live", RATIO(derived->peak_ratio)), false);
    tile(out, "Idle in the pool", SIZE(derived->idle),
         worded(words, "largest free block %s", SIZE(derived->largest_free)), false);
    tile(out, "Outside the pool", SIZE(derived->outside.current),
         worded(words, derived->outside_peak_exact ? "peak %s" : "peak at most %s",
                SIZE(derived->outside.peak)),
         false);
    tile(out, "Hit rate", PERCENT(device->cache_hits, asked),
         worded(words, "of %s allocations", COUNT(asked)), false);
    tile(out, "Out of memory", COUNT(device->ooms),
         worded(words, "%s retries", COUNT(device->oom_retries)), device->ooms > 0);
    fputs("</div>\n", out);
}

struct part {
    const char *class, *name;
    uint64_t bytes;
};

/** The device's memory, or the limit: what this process holds of it. */
static void write_bar(FILE *out, const struct stats_device *device,
                      const struct report_derived *derived) {
    uint64_t limit = device->limit_bytes, all = limit ? limit : device->total_bytes;
    const struct part parts[] = {
        {"live", "live", device->requested.current},
        {"round", "rounding", less(device->allocated.current, device->requested.current)},
        {"pending", "freed, not yet reusable", device->pending_bytes},
        {"ready", "ready", device->ready_bytes},
        {"outside", "outside the pool", derived->outside.current},
    };
    uint64_t held = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        held += parts[i].bytes;
    uint64_t whole = all > held ? all : held; /* a limit may have been lowered below what is held */
    fprintf(out, "<section class=\"part\"><h3>%s of %s %s</h3><div class=\"bar\">", SIZE(held),
            SIZE(all), limit ? "that the limit allows" : "that the device has");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].bytes)
            fprintf(out, "<i class=\"%s\" style=\"width:%.3f%%\" data-tip=\"%s: %s, %.1f%%\"></i>",
                    parts[i].class, html_share(parts[i].bytes, whole), parts[i].name,
                    SIZE(parts[i].bytes), html_share(parts[i].bytes, whole));
    fputs("</div><ul class=\"key\">", out);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].bytes)
            fprintf(out, "<li><i class=\"%s\"></i>%s <b>%s</b>", parts[i].class, parts[i].name,
                    SIZE(parts[i].bytes));
    fprintf(out, "<li><i class=\"rest\"></i>%s <b>%s</b></ul></section>\n",
            limit ? "left of the limit" : "used by others, or free", SIZE(less(all, held)));
}

/* ---- at a moment ---- */

static unsigned digits(uint64_t value) {
    unsigned bits = 0;
    for (; value; value >>= 1)
        bits++;
    return bits;
}

/* Bars by the logarithm: a program asks for a million small blocks and ten large ones. */
static void write_sizes(FILE *out, const struct stats_device *device) {
    uint64_t most = 0;
    for (size_t i = 0; i < STATS_SIZE_CLASSES; i++)
        if (device->size_classes[i].total > most)
            most = device->size_classes[i].total;
    fputs("<section class=\"part\"><h3>Allocations by size</h3>", out);
    if (most == 0) {
        fputs("<p class=\"none\">None yet.</p></section>\n", out);
        return;
    }
    fputs("<p class=\"hint\">On a logarithmic scale.</p><div class=\"rows\">", out);
    for (size_t i = 0; i < STATS_SIZE_CLASSES; i++) {
        const struct stats_size_class *class = &device->size_classes[i];
        char label[HTML_LABEL];
        bool last = i + 1 == STATS_SIZE_CLASSES;
        if (class->total == 0)
            continue;
        html_size(label, last ? UINT64_C(512) << (i - 1) : UINT64_C(512) << i);
        fprintf(
            out,
            "<span class=\"n\">%s %s</span><div class=\"track\" data-tip=\"%s in all, %s "
            "live\"><i class=\"total\" style=\"width:%.1f%%\"></i><i class=\"live\" "
            "style=\"width:%.1f%%\"></i></div><span class=\"n\">%s <small>%s live</small></span>",
            last ? "&gt;" : "&le;", label, COUNT(class->total), COUNT(class->live),
            100.0 * digits(class->total) / digits(most), 100.0 * digits(class->live) / digits(most),
            COUNT(class->total), COUNT(class->live));
    }
    fputs("</div><ul class=\"key\"><li><i class=\"total\"></i>in all<li><i class=\"live\"></i>live"
          "</ul></section>\n",
          out);
}

static void write_moment(FILE *out, const struct sheet *sheet, const struct stats_device *device,
                         const char *name) {
    char label[HTML_LABEL];
    if (!sheet || !device)
        return;
    html_time(label, (double)sheet->process.uptime_ns / 1e9);
    fprintf(out, "<div class=\"moment\" data-name=\"%s, %s after its start\">", name, label);
    html_map(out, device, &sheet->maps[device - sheet->devices]);
    fputs("<div class=\"columns\">", out);
    html_holders(out, sheet, device);
    write_sizes(out, device);
    fputs("</div></div>\n", out);
}

/** The reports worth a look besides the newest: that with most live, and the last OOM. */
static void write_moments(FILE *out, const struct html_process *of, int ordinal) {
    const struct sheet *newest = of->sheets[of->count - 1], *fullest = newest, *oom = NULL;
    for (size_t i = 0; i < of->count; i++) {
        const struct stats_device *device = html_find(of->sheets[i], ordinal);
        const struct stats_device *most = html_find(fullest, ordinal);
        if (device && (!most || device->requested.current > most->requested.current))
            fullest = of->sheets[i];
        if (device && of->sheets[i]->head.oom && of->sheets[i]->oom.device == ordinal)
            oom = of->sheets[i];
    }
    fputs("<div class=\"moments\">", out);
    if (oom && oom != newest)
        write_moment(out, oom, html_find(oom, ordinal), "Out of memory");
    write_moment(out, newest, html_find(newest, ordinal),
                 oom == newest ? "Out of memory" : "Newest");
    if (fullest != newest && fullest != oom && !of->brief)
        write_moment(out, fullest, html_find(fullest, ordinal), "Most live in a report");
    fputs("</div>\n", out);
}

/* ---- all of it ---- */

/** The flight recorder's, if there is one. */
static void write_events(FILE *out, const struct sheet *sheet) {
    char line[256];
    struct print text;
    size_t count = sheet->event_count;
    size_t first = count > LAST_EVENTS ? count - LAST_EVENTS : 0;
    fprintf(out,
            "<details class=\"part\"><summary>Last events</summary><pre class=\"scroll mono\">%s",
            page_event_head);
    for (size_t i = first; i < count; i++) {
        print_init(&text, -1, line, sizeof line);
        page_print_event(sheet->page, &text, &sheet->events[i]);
        text.used -= text.used > 0; /* its end of line */
        fputs("\n", out);
        html_text(out, print_end(&text));
    }
    fputs("</pre></details>\n", out);
}

static void write_counters(FILE *out, const struct stats_device *device) {
    fputs("<details class=\"part\"><summary>All counters</summary><div class=\"scroll\"><table>",
          out);
#define COUNTER(field)                                                                             \
    fprintf(out, "<tr><td class=\"t mono\">" #field "<td>%llu", (unsigned long long)device->field);
#define OUTSIDE(field, json)                                                                       \
    if (device->field.peak)                                                                        \
        fprintf(out, "<tr><td class=\"t mono\">outside, " json "<td>%s, peak %s",                  \
                SIZE(device->field.current), SIZE(device->field.peak));
#include "stats/fields.def"
    fputs("</table></div></details>\n", out);
}

const struct stats_device *html_find(const struct sheet *sheet, int ordinal) {
    for (size_t i = 0; i < sheet->device_count; i++)
        if (sheet->devices[i].ordinal == ordinal)
            return &sheet->devices[i];
    return NULL;
}

void html_device(FILE *out, const struct html_process *of, int ordinal) {
    const struct sheet *newest = of->sheets[of->count - 1];
    const struct stats_device *device = html_find(newest, ordinal);
    struct report_derived derived;
    report_derive(device, &derived);
    fprintf(out, "<article class=\"card\" id=\"p%zud%d\"><div class=\"head\"><h2>Device %d</h2>",
            of->number, ordinal, ordinal);
    fputs("<span class=\"hint\">", out);
    html_text(out, device->name);
    fputs("</span></div><ul class=\"chips\"><li>backend <b>", out);
    html_text(out, device->backend);
    fputs("</b>: ", out);
    html_text(out, device->backend_reason);
    fputs("<li>reuse <b>", out);
    html_text(out, device->reuse);
    fprintf(out, "</b><li>limit <b>%s</b><li>external fragmentation <b>%s</b></ul>\n",
            device->limit_bytes ? SIZE(device->limit_bytes) : "none",
            device->ready_bytes
                ? PERCENT(less(device->ready_bytes, derived.largest_free), device->ready_bytes)
                : "none, nothing is ready");
    write_tiles(out, device, &derived);
    write_bar(out, device, &derived);
    html_over_time(out, of, ordinal);
    write_moments(out, of, ordinal);
    if (newest->page)
        write_events(out, newest);
    write_counters(out, device);
    fputs("</article>\n", out);
}
