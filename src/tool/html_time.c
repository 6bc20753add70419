/*
 * Memory over time, as charts. There are as many as there are sources: the reports of the process, and the
 * flight recorder of its live page, which has its last moments. A source fills a `struct series`; what draws it
 * does not know where it came from, so a trace is one more function that fills one.
 */
#include "tool/html.h"

#include "live/page.h"
#include "tool/tool.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POINTS 800 /* that a chart draws; of more the extremes are kept */
#define WIDTH 1000.0
#define HEIGHT 230.0
#define MOST ((uint64_t)1 << 63) /* of an axis, which has steps beyond that */

enum figure { RESERVED, LIVE, OUTSIDE, FIGURES };

static const struct {
    const char *name, *class;
} figures[FIGURES] = {{"Reserved", "reserved"}, {"Live", "live"}, {"Outside the pool", "outside"}};

struct point {
    double seconds;
    uint64_t values[FIGURES];
};

struct mark {
    double seconds;
    bool bad;
    char words[128];
};

struct series {
    struct point *points;
    size_t count;
    struct mark *marks;
    size_t mark_count;
    unsigned shown; /* one bit for each figure that it has */
    uint64_t limit; /* 0: none */
    bool backwards; /* times are counted from the end */
    bool steps;     /* a value holds until the next one */
};

static void *grown(void *list, size_t count, size_t each) {
    void *memory = realloc(list, (count + 1) * each);
    if (!memory)
        fail(STATUS_OWN_FAILURE, "memory", strerror(ENOMEM));
    return memory;
}

static struct point *add_point(struct series *series, double seconds) {
    series->points = grown(series->points, series->count, sizeof *series->points);
    series->points[series->count] = (struct point){.seconds = seconds};
    return &series->points[series->count++];
}

static struct mark *add_mark(struct series *series, double seconds, bool bad) {
    series->marks = grown(series->marks, series->mark_count, sizeof *series->marks);
    series->marks[series->mark_count] = (struct mark){.seconds = seconds, .bad = bad};
    return &series->marks[series->mark_count++];
}

/* ---- sources ---- */

static void read_reports(struct series *series, const struct html_process *of, int ordinal) {
    series->shown = 1u << RESERVED | 1u << LIVE;
    for (size_t i = 0; i < of->count; i++) {
        const struct stats_device *device = html_find(of->sheets[i], ordinal);
        double seconds = (double)of->sheets[i]->process.uptime_ns / 1e9;
        struct report_derived derived;
        if (!device)
            continue;
        report_derive(device, &derived);
        struct point *point = add_point(series, seconds);
        point->values[RESERVED] = device->reserved.current;
        point->values[LIVE] = device->requested.current;
        point->values[OUTSIDE] = derived.outside.current;
        series->shown |= derived.outside.current ? 1u << OUTSIDE : 0;
        series->limit = device->limit_bytes;
        if (of->sheets[i]->head.oom && of->sheets[i]->oom.device == ordinal)
            snprintf(add_mark(series, seconds, true)->words, sizeof series->marks->words,
                     "out of memory: %s was asked for", SIZE(of->sheets[i]->oom.requested));
    }
}

/**
 * Returns the tick behind which the recorder has every event of large blocks that the figures
 * contain, 0: has all, and UINT64_MAX: not even the last ones. A ring that came round has lost
 * older events, and an event that is being written is not there.
 */
static uint64_t complete_behind(const struct sheet *sheet, const struct page_moment *moment) {
    uint64_t behind = 0, first[FLIGHT_RINGS] = {0}, last[FLIGHT_RINGS] = {0};
    for (size_t i = 0; i < sheet->event_count;
         i++) { /* of each ring in the order of their numbers */
        const struct page_event *event = &sheet->events[i];
        if (event->number > moment->events[event->ring])
            continue;
        if (event->number != last[event->ring] + 1)
            first[event->ring] = event->coarse_ns;
        last[event->ring] = event->number;
    }
    for (unsigned ring = 1; ring < FLIGHT_RINGS; ring++) { /* the first has no large blocks */
        if (last[ring] != moment->events[ring])
            return UINT64_MAX;
        behind = first[ring] > behind ? first[ring] : behind;
    }
    return behind;
}

static void mark_event(struct series *series, const struct page_event *event, double seconds) {
    bool bad = event->kind == FLIGHT_OOM || event->kind == FLIGHT_GROW_REFUSED ||
               event->kind == FLIGHT_LIMIT_REFUSED;
    char *words = add_mark(series, seconds, bad)->words;
    size_t room = sizeof series->marks->words;
    int used = snprintf(words, room, "%s", page_event_words(event->kind));
    if (event->bytes && used > 0 && (size_t)used < room)
        used += snprintf(words + used, room - (size_t)used, ", %s", SIZE(event->bytes));
    if (event->duration_ns && used > 0 && (size_t)used < room)
        snprintf(words + used, room - (size_t)used, ", %s us", COUNT(event->duration_ns / 1000));
}

/** Takes an event back: returns what was live before it. */
static uint64_t before(uint64_t live, const struct page_event *event) {
    return event->kind == FLIGHT_ALLOCATE ? less(live, event->bytes)
           : event->kind == FLIGHT_FREE   ? live + event->bytes
                                          : live;
}

/**
 * Adds the points of the events of one tick of the coarse clock, from the last to the first.
 * Returns what was live before them. The order of what several threads did in a tick is not known:
 * only the sum of it is drawn.
 */
static uint64_t add_tick(struct series *series, const struct page_event *events, size_t count,
                         double read_ns, uint64_t live) {
    bool several = false;
    uint64_t came = 0, went = 0;
    for (size_t i = 0; i < count; i++) {
        several |= events[i].ring != events[0].ring;
        came += events[i].kind == FLIGHT_ALLOCATE ? events[i].bytes : 0;
        went += events[i].kind == FLIGHT_FREE ? events[i].bytes : 0;
    }
    for (size_t i = count; i > 0; i = several ? 0 : i - 1) {
        double seconds = ((double)events[i - 1].coarse_ns - read_ns) / 1e9;
        add_point(series, seconds)->values[LIVE] = live; /* from there on */
        live = several ? less(live + went, came) : before(live, &events[i - 1]);
        add_point(series, seconds)->values[LIVE] = live; /* until there */
    }
    return live;
}

static int by_order(const void *a, const void *b) {
    const struct page_event *x = a, *y = b;
    if (x->coarse_ns != y->coarse_ns)
        return x->coarse_ns > y->coarse_ns ? 1 : -1;
    if (x->ring != y->ring)
        return x->ring > y->ring ? 1 : -1;
    return (x->number > y->number) - (x->number < y->number);
}

/** Keeps the events of a device's large blocks that its figures contain, and marks the others
 * that they contain. */
static size_t sort_events(struct series *series, const struct sheet *sheet, size_t at,
                          struct page_event *blocks) {
    const struct page_moment *moment = &sheet->moments[at];
    uint64_t behind = complete_behind(sheet, moment);
    size_t count = 0;
    for (size_t i = 0; i < sheet->event_count; i++) {
        const struct page_event *event = &sheet->events[i];
        bool block = event->kind == FLIGHT_ALLOCATE || event->kind == FLIGHT_FREE;
        if (event->device != (unsigned)sheet->devices[at].ordinal ||
            event->number > moment->events[event->ring] ||
            (block ? event->coarse_ns : event->time_ns) <= behind)
            continue;
        if (block)
            blocks[count++] = *event;
        else
            mark_event(series, event, ((double)event->time_ns - (double)moment->read_ns) / 1e9);
    }
    if (count > 0)
        qsort(blocks, count, sizeof *blocks, by_order);
    return count;
}

/* What is live is known of one moment, and the large blocks that came and went before: so is
 * what was live then. */
static void read_recorder(struct series *series, const struct sheet *sheet, int ordinal) {
    const struct stats_device *device = html_find(sheet, ordinal);
    size_t at = (size_t)(device - sheet->devices);
    double read_ns = (double)sheet->moments[at].read_ns;
    uint64_t live = device->requested.current;
    struct page_event *blocks = grown(NULL, sheet->event_count, sizeof *blocks);
    size_t count = sort_events(series, sheet, at, blocks);
    series->shown = 1u << LIVE;
    series->backwards = series->steps = true;
    series->limit = device->limit_bytes;
    add_point(series, 0)->values[LIVE] = live;
    for (size_t first; count > 0; count = first) { /* from the end to the beginning */
        first = count - 1;
        while (first > 0 && blocks[first - 1].coarse_ns == blocks[first].coarse_ns)
            first--;
        live = add_tick(series, blocks + first, count - first, read_ns, live);
    }
    for (size_t i = 0, k = series->count; i + 1 < k; i++) {
        struct point swapped = series->points[i];
        series->points[i] = series->points[--k];
        series->points[k] = swapped;
    }
    free(blocks);
}

/* ---- drawing ---- */

/* Of each stretch the first, the lowest, the highest of what is live. */
static void thin(struct series *series) {
    size_t stretch = series->count / (POINTS / 2) + 1, kept = 0;
    if (series->count <= POINTS)
        return;
    for (size_t from = 0; from < series->count; from += stretch) {
        size_t low = from, high = from;
        for (size_t i = from; i < from + stretch && i < series->count; i++) {
            uint64_t value = series->points[i].values[LIVE];
            low = value < series->points[low].values[LIVE] ? i : low;
            high = value > series->points[high].values[LIVE] ? i : high;
        }
        struct point first = series->points[low < high ? low : high];
        struct point second = series->points[low < high ? high : low];
        series->points[kept++] = first; /* stretches are of two or more */
        series->points[kept++] = second;
    }
    series->count = kept;
}

struct frame {
    FILE *out;
    double begin, end; /* seconds */
    uint64_t top;      /* bytes */
};

static double across(const struct frame *frame, double seconds) {
    return frame->end > frame->begin ? (seconds - frame->begin) / (frame->end - frame->begin) : 0;
}

static double up(const struct frame *frame, uint64_t bytes) {
    return (double)bytes / (double)frame->top;
}

static struct frame frame_of(FILE *out, const struct series *series) {
    uint64_t most = 1;
    for (size_t i = 0; i < series->count; i++)
        for (unsigned k = 0; k < FIGURES; k++)
            if (series->shown >> k & 1 && series->points[i].values[k] > most)
                most = series->points[i].values[k];
    /* a limit that is far away would press everything to the ground */
    if (series->limit > most && series->limit / 5 < most / 4)
        most = series->limit;
    most = most < MOST ? most : MOST;
    uint64_t step = html_step(most);
    return (struct frame){out, series->points[0].seconds, series->points[series->count - 1].seconds,
                          (most + step - 1) / step * step};
}

static void draw_grid(const struct frame *frame) {
    for (uint64_t bytes = 0; bytes <= frame->top; bytes += html_step(frame->top))
        fprintf(frame->out, "<line class=\"%s\" x1=\"0\" x2=\"1000\" y1=\"%.2f\" y2=\"%.2f\"/>",
                bytes == 0 ? "axis" : "grid", HEIGHT * (1 - up(frame, bytes)),
                HEIGHT * (1 - up(frame, bytes)));
}

static void draw_path(const struct frame *frame, const struct series *series, unsigned figure,
                      bool filled) {
    FILE *out = frame->out;
    fprintf(out, "<path class=\"%s%s\" d=\"", filled ? "area-" : "line line-",
            figures[figure].class);
    if (filled)
        fprintf(out, "M0 %.0f", HEIGHT);
    for (size_t i = 0; i < series->count; i++)
        fprintf(out, "%s%.2f %.2f", i || filled ? "L" : "M",
                WIDTH * across(frame, series->points[i].seconds),
                HEIGHT * (1 - up(frame, series->points[i].values[figure])));
    fputs(filled ? "L1000 230Z\"/>" : "\"/>", out);
}

static void draw_marks(const struct frame *frame, const struct series *series) {
    FILE *out = frame->out;
    if (series->limit && series->limit <= frame->top)
        fprintf(out,
                "<line class=\"limit\" x1=\"0\" x2=\"1000\" y1=\"%.2f\" "
                "y2=\"%.2f\"><title>limit: %s</title></line>",
                HEIGHT * (1 - up(frame, series->limit)), HEIGHT * (1 - up(frame, series->limit)),
                SIZE(series->limit));
    for (size_t i = 0; i < series->mark_count; i++) {
        double x = WIDTH * across(frame, series->marks[i].seconds);
        if (x < 0 || x > WIDTH)
            continue;
        fprintf(out, "<line class=\"mark%s\" x1=\"%.2f\" x2=\"%.2f\" y1=\"0\" y2=\"230\"/>",
                series->marks[i].bad ? " bad" : "", x, x);
        fprintf(out, "<line class=\"mark-hit\" x1=\"%.2f\" x2=\"%.2f\" y1=\"0\" y2=\"230\"><title>",
                x, x);
        html_text(out, series->marks[i].words);
        fputs("</title></line>", out);
    }
}

/** Writes when a point was, in the unit of `longest`. */
static void write_when(FILE *out, const struct series *series, double seconds, double longest) {
    char label[HTML_LABEL];
    if (series->backwards && seconds > -1e-6) {
        fputs("now", out);
        return;
    }
    html_time_like(label, fabs(seconds), fabs(longest));
    fprintf(out, series->backwards ? "%s before" : "%s", label);
}

/** The figures under the pointer: numbers, and words of this file's. */
static void write_points(FILE *out, const struct frame *frame, const struct series *series) {
    fputs(" data-points='{\"at\":[", out);
    for (size_t i = 0; i < series->count; i++)
        fprintf(out, "%s%.4f", i ? "," : "", across(frame, series->points[i].seconds));
    fputs("],\"when\":[", out);
    for (size_t i = 0; i < series->count; i++) {
        fputs(i ? ",\"" : "\"", out);
        write_when(out, series, series->points[i].seconds, series->points[i].seconds);
        fputs(series->backwards ? "\"" : " after its start\"", out);
    }
    fputs("],\"series\":[", out);
    for (unsigned k = 0, written = 0; k < FIGURES; k++) {
        if (!(series->shown >> k & 1))
            continue;
        fprintf(out, "%s{\"name\":\"%s\",\"values\":[", written++ ? "," : "", figures[k].name);
        for (size_t i = 0; i < series->count; i++)
            fprintf(out, "%s%llu", i ? "," : "", (unsigned long long)series->points[i].values[k]);
        fputs("]}", out);
    }
    fputs("]}'", out);
}

static void write_axes(const struct frame *frame, const struct series *series) {
    FILE *out = frame->out;
    fputs("<div class=\"x\">", out);
    for (unsigned i = 0; i <= 4; i++) {
        double seconds = frame->begin + (frame->end - frame->begin) * i / 4;
        fprintf(out, "<span style=\"left:%u%%\"%s>", i * 25, i % 2 ? " class=\"minor\"" : "");
        write_when(out, series, seconds, series->backwards ? frame->begin : frame->end);
        fputs("</span>", out);
    }
    fputs("</div>", out);
}

static void write_key(FILE *out, const struct frame *frame, const struct series *series) {
    fputs("<ul class=\"key\">", out);
    for (unsigned k = 0; k < FIGURES; k++)
        if (series->shown >> k & 1)
            fprintf(out, "<li><i class=\"stroke line-%s\"></i>%s", figures[k].class,
                    figures[k].name);
    if (series->limit && series->limit <= frame->top)
        fprintf(out, "<li><i class=\"stroke limit\"></i>Limit");
    bool good = false, bad = false;
    for (size_t i = 0; i < series->mark_count; i++) {
        good |= !series->marks[i].bad;
        bad |= series->marks[i].bad;
    }
    fputs(good ? "<li><i class=\"stroke mark\"></i>slow or rare events" : "", out);
    fputs(bad ? "<li><i class=\"stroke mark bad\"></i>memory refused" : "", out);
    fputs("</ul>\n", out);
}

static void draw(FILE *out, const char *title, const char *hint, struct series *series) {
    thin(series);
    struct frame frame = frame_of(out, series);
    fprintf(out,
            "<section class=\"part\"><h3>%s</h3><p class=\"hint\">%s</p>\n<div class=\"chart\"",
            title, hint);
    write_points(out, &frame, series);
    fputs("><div class=\"y\">", out);
    for (uint64_t bytes = 0; bytes <= frame.top; bytes += html_step(frame.top)) {
        char label[HTML_LABEL];
        fprintf(out, "<span style=\"bottom:%.2f%%\">%s</span>", 100 * up(&frame, bytes),
                html_size(label, bytes));
    }
    fprintf(out,
            "</div><div class=\"plot\"><svg viewBox=\"0 0 1000 230\" preserveAspectRatio=\"none\" "
            "role=\"img\" aria-label=\"%s\">",
            title);
    draw_grid(&frame);
    for (unsigned k = 0; k < FIGURES; k++) {
        if (series->shown >> k & 1 && k != OUTSIDE)
            draw_path(&frame, series, k, true);
        if (series->shown >> k & 1)
            draw_path(&frame, series, k, false);
    }
    draw_marks(&frame, series);
    fputs("</svg></div>", out);
    write_axes(&frame, series);
    fputs("</div>", out);
    write_key(out, &frame, series);
    fputs("</section>\n", out);
    free(series->points);
    free(series->marks);
}

void html_over_time(FILE *out, const struct html_process *of, int ordinal) {
    const struct sheet *newest = of->sheets[of->count - 1];
    struct series reports = {0}, recorder = {0};
    read_reports(&reports, of, ordinal);
    if (reports.count > 1) {
        draw(out, "Memory over time", "As the reports say, from the start of the process.",
             &reports);
    } else {
        free(reports.points);
        free(reports.marks);
    }
    if (newest->page && html_find(newest, ordinal)) {
        read_recorder(&recorder, newest, ordinal);
        if (recorder.count > 2)
            draw(out, "The last moments",
                 "What was live, by the large blocks that the flight recorder has. What several "
                 "threads "
                 "did within a few milliseconds is one step.",
                 &recorder);
        else
            free(recorder.points), free(recorder.marks);
    } else if (reports.count <= 1) {
        fputs(
            "<section class=\"part\"><h3>Memory over time</h3><p class=\"none\">One report is one "
            "moment. GPUCACHE_REPORT_INTERVAL makes several, and a running process has a flight "
            "recorder.</p></section>\n",
            out);
    }
}
