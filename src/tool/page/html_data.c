/*
 * Writes the data of a page: the reports unchanged, and the names and notes that the tool adds.
 */
#include "tool/page/html.h"

#include "live/page.h"
#include "report/holders.h"
#include "tool/common/tool.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the flight recorder ---- */

/** Writes an event. Times count from the start of the process, because a script's numbers hold
 * nanoseconds since 1970 only roughly. */
static void put_event(struct json_put *to, const struct parsed_report *report,
                      const struct page_event *event) {
    uint64_t began = report->page->started_ns;
    json_put_line(to);
    json_put_open(to, '[');
    json_put_u64(to, event->number);
    json_put_u64(to, minus_or_zero(event->coarse_ns, began));
    json_put_u64(to, minus_or_zero(event->time_ns, began));
    json_put_u64(to, event->ring);
    json_put_i64(to, event->device == FLIGHT_NO_DEVICE ? -1 : (int)event->device);
    json_put_u64(to, event->kind);
    json_put_u64(to, event->bytes);
    json_put_u64(to, event->address);
    json_put_u64(to, event->thread);
    json_put_u64(to, event->duration_ns);
    json_put_close(to, ']');
}

static void put_moment(struct json_put *to, const struct parsed_report *report, size_t at) {
    const struct page_moment *moment = &report->devices[at].moment;
    json_put_open(to, '{');
    json_put_named_i64(to, "device", report->devices[at].stats.ordinal);
    json_put_named_u64(to, "read_ns", minus_or_zero(moment->read_ns, report->page->started_ns));
    json_put_named_open(to, "events", '[');
    for (unsigned ring = 0; ring < FLIGHT_RINGS; ring++)
        json_put_u64(to, moment->events[ring]);
    json_put_close(to, ']');
    json_put_close(to, '}');
}

static void put_kinds(struct json_put *to) {
    static const struct {
        unsigned kind;
        const char *role;
    } roles[] = {
        {FLIGHT_ALLOCATE, "allocate"},     {FLIGHT_FREE, "free"},
        {FLIGHT_OOM, "refused"},           {FLIGHT_GROW_REFUSED, "refused"},
        {FLIGHT_LIMIT_REFUSED, "refused"},
    };
    json_put_named_open(to, "kinds", '{');
#define FLIGHT(number, kind, words) json_put_named_text(to, #number, words);
#include "live/flight.def"
#undef FLIGHT
    json_put_close(to, '}');
    json_put_named_open(to, "roles", '{');
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        json_put_number_key(to, roles[i].kind);
        json_put_text(to, roles[i].role);
    }
    json_put_close(to, '}');
}

static void put_recorder(struct json_put *to, const struct parsed_report *report) {
    json_put_named_open(to, "recorder", '{');
    json_put_key(to, "began");
    json_put_seconds(to, page_real_ns(report->page, report->page->started_ns));
    json_put_named_open(to, "moments", '[');
    for (size_t i = 0; i < report->device_count; i++)
        put_moment(to, report, i);
    json_put_close(to, ']');
    json_put_named_open(to, "events", '[');
    for (size_t i = 0; i < report->event_count; i++)
        put_event(to, report, &report->events[i]);
    json_put_close(to, ']');
    json_put_close(to, '}');
}

/* ---- frames ---- */

enum { IS_OWN = 1, IS_PYTHON = 2, IS_ENTRY = 4 };

static int compare_texts(const void *a, const void *b) {
    return strcmp(a, b);
}

/** Writes the full text of a frame, its short text and its bits (html.h), unless `seen` has it. */
static void put_frame_once(struct json_put *to, const struct stats_frame *frame, void **seen) {
    char text[STACKS_FRAME_TEXT];
    struct print words;
    print_init(&words, -1, text, sizeof text);
    holders_print_frame(&words, frame, false);
    print_end(&words);
    if (tfind(text, seen, compare_texts))
        return;
    checked(tsearch(checked(strdup(text)), seen, compare_texts));
    json_put_line(to);
    json_put_named_open(to, text, '[');
    print_init(&words, -1, text, sizeof text);
    holders_print_short(&words, frame);
    json_put_text(to, print_end(&words));
    json_put_u64(to, (holders_frame_is_own(frame) ? IS_OWN : 0u) |
                         (frame->python ? IS_PYTHON : 0u) |
                         (holders_frame_is_entry(frame) ? IS_ENTRY : 0u));
    json_put_close(to, ']');
}

static void put_frames_of_trace(struct json_put *to, const struct trace_file *file, void **seen) {
    const struct stats_frame *frame;
    for (uint32_t i = 0; i < trace_callers_frames(file->callers); i++)
        for (unsigned k = 0; (frame = trace_callers_frame(file->callers, i, k)) != NULL; k++)
            put_frame_once(to, frame, seen);
}

static void put_frames(struct json_put *to, const struct html *page) {
    const struct parsed_reports *reports = page->reports;
    void *seen = NULL;
    json_put_named_open(to, "frames", '{');
    for (size_t i = 0; i < page->trace_count; i++)
        put_frames_of_trace(to, &page->traces[i], &seen);
    for (size_t i = 0; i < reports->count; i++) {
        const struct parsed_stacks *stacks = reports->list[i]->stacks;
        for (size_t k = 0; stacks && k < stacks->stack_count; k++)
            for (unsigned n = 0; n < stacks->stacks[k].count; n++)
                put_frame_once(to, &stacks->stacks[k].frames[n], &seen);
    }
    json_put_close(to, '}');
    tdestroy(seen, free);
}

/* ---- the object ---- */

static void put_extra(struct json_put *to, const struct parsed_report *report) {
    char name[TOOL_PROGRAM_NAME];
    tool_program_name(&report->program, name);
    json_put_line(to);
    json_put_open(to, '{');
    json_put_named_text(to, "name", name);
    json_put_named_text(to, "note", report->note);
    json_put_named_text(to, "sizes_note", report->sizes_note);
    json_put_named_text(to, "state", report->page ? page_state_words(report->page) : NULL);
    if (report->page)
        put_recorder(to, report);
    else
        json_put_named_text(to, "recorder", NULL);
    json_put_close(to, '}');
}

void html_print_data(const struct html *page, struct print *out) {
    const struct parsed_reports *reports = page->reports;
    struct json_put to = json_put_to(out);
    json_put_open(&to, '{');
    json_put_named_open(&to, "written", '{');
    json_put_named_text(&to, "version", GPUCACHE_VERSION);
    json_put_named_u64(&to, "time_unix", (uint64_t)time(NULL));
    json_put_close(&to, '}');
    json_put_named_open(&to, "reports", '[');
    for (size_t i = 0; i < reports->count; i++) {
        json_put_line(&to);
        json_put_raw(&to);
        parsed_report_print(reports->list[i], REPORT_JSON, out);
    }
    json_put_close(&to, ']');
    json_put_named_open(&to, "extras", '[');
    for (size_t i = 0; i < reports->count; i++)
        put_extra(&to, reports->list[i]);
    json_put_close(&to, ']');
    put_frames(&to, page);
    put_kinds(&to);
    json_put_named_open(&to, "traces", '[');
    for (size_t i = 0; i < page->trace_count; i++) {
        json_put_line(&to);
        html_put_trace(&page->traces[i], &to);
    }
    json_put_close(&to, ']');
    json_put_close(&to, '}');
    print_char(out, '\n');
}
