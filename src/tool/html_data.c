/*
 * Writes the data of a page: the reports unchanged, and the names and notes that the tool adds.
 */
#include "tool/html.h"

#include "live/page.h"
#include "report/holders.h"
#include "tool/tool.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRAME 1280 /* bytes of a frame in a report (report/json.c) */

static void member(struct print *out, const char *separator, const char *name) {
    print_str(out, separator);
    print_json_string(out, name);
    print_char(out, ':');
}

/* ---- the flight recorder ---- */

/** Prints an event. Times count from the start of the process, because a script's numbers hold
 * nanoseconds since 1970 only roughly. */
static void print_event(struct print *out, const struct parsed_report *report,
                        const struct page_event *event) {
    uint64_t began = report->page->started_ns;
    print_format(out, "[%lu,%lu,%lu,%u,%d,%u,%lu,%lu,%u,%lu]", (unsigned long)event->number,
                 (unsigned long)less(event->coarse_ns, began),
                 (unsigned long)less(event->time_ns, began), event->ring,
                 event->device == FLIGHT_NO_DEVICE ? -1 : (int)event->device, event->kind,
                 (unsigned long)event->bytes, (unsigned long)event->address, event->thread,
                 (unsigned long)event->duration_ns);
}

static void print_moment(struct print *out, const struct parsed_report *report, size_t at) {
    const struct page_moment *moment = &report->moments[at];
    print_format(out, "{\"device\":%d,\"read_ns\":%lu,\"events\":[", report->devices[at].ordinal,
                 (unsigned long)less(moment->read_ns, report->page->started_ns));
    for (unsigned ring = 0; ring < FLIGHT_RINGS; ring++)
        print_format(out, "%s%lu", ring ? "," : "", (unsigned long)moment->events[ring]);
    print_str(out, "]}");
}

static void print_kinds(struct print *out) {
    static const struct {
        unsigned kind;
        const char *role; /* of events that the script treats differently */
    } roles[] = {
        {FLIGHT_ALLOCATE, "allocate"},     {FLIGHT_FREE, "free"},
        {FLIGHT_OOM, "refused"},           {FLIGHT_GROW_REFUSED, "refused"},
        {FLIGHT_LIMIT_REFUSED, "refused"},
    };
    const char *separator = "{";
#define FLIGHT(number, kind, words)                                                                \
    member(out, separator, #number);                                                               \
    print_json_string(out, words);                                                                 \
    separator = ",";
#include "live/flight.def"
#undef FLIGHT
    print_char(out, '}');
    member(out, ",", "roles");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        print_format(out, "%s\"%u\":", i ? "," : "{", roles[i].kind);
        print_json_string(out, roles[i].role);
    }
    print_str(out, "}");
}

static void print_recorder(struct print *out, const struct parsed_report *report) {
    print_str(out, "{\"began\":");
    print_seconds(out, page_real_ns(report->page, report->page->started_ns), 9);
    member(out, ",", "kinds");
    print_kinds(out);
    member(out, ",", "moments");
    for (size_t i = 0; i < report->device_count; i++) {
        print_char(out, i ? ',' : '[');
        print_moment(out, report, i);
    }
    print_str(out, report->device_count ? "]" : "[]");
    member(out, ",", "events");
    print_char(out, '[');
    for (size_t i = 0; i < report->event_count; i++) {
        print_str(out, i ? ",\n" : "");
        print_event(out, report, &report->events[i]);
    }
    print_str(out, "]}");
}

/* ---- frames ---- */

enum { IS_OWN = 1, IS_PYTHON = 2, IS_ENTRY = 4 };

static int compare_texts(const void *a, const void *b) {
    return strcmp(a, b);
}

/** Prints the full text of a frame, its short text and its bits (html.h), unless `seen` has it. */
static void print_once(struct print *out, const struct stats_frame *frame, void **seen) {
    char text[FRAME];
    struct print words;
    print_init(&words, -1, text, sizeof text);
    holders_print_frame(&words, frame, false);
    print_end(&words);
    if (tfind(text, seen, compare_texts))
        return;
    checked(tsearch(checked(strdup(text)), seen, compare_texts));
    print_json_string(out, text);
    print_init(&words, -1, text, sizeof text);
    holders_print_short(&words, frame);
    print_str(out, ":[");
    print_json_string(out, print_end(&words));
    print_format(out, ",%u],\n",
                 (holders_frame_is_own(frame) ? IS_OWN : 0) | (frame->python ? IS_PYTHON : 0) |
                     (holders_frame_is_entry(frame) ? IS_ENTRY : 0));
}

static void print_frames_of_trace(struct print *out, const struct trace_file *file, void **seen) {
    const struct stats_frame *frame;
    for (uint32_t i = 0; i < trace_callers_frames(file->callers); i++)
        for (unsigned k = 0; (frame = trace_callers_frame(file->callers, i, k)) != NULL; k++)
            print_once(out, frame, seen);
}

static void print_frames(struct print *out, const struct html *page) {
    const struct parsed_reports *reports = page->reports;
    void *seen = NULL;
    print_char(out, '{');
    for (size_t i = 0; i < page->trace_count; i++)
        print_frames_of_trace(out, &page->traces[i], &seen);
    for (size_t i = 0; i < reports->count; i++) {
        const struct parsed_stacks *stacks = reports->list[i]->stacks;
        for (size_t k = 0; stacks && k < stacks->stack_count; k++)
            for (unsigned n = 0; n < stacks->stacks[k].count; n++)
                print_once(out, &stacks->stacks[k].frames[n], &seen);
    }
    print_str(out, "\"\":[\"\",0]}");
    tdestroy(seen, free);
}

/* ---- the object ---- */

static void print_extra(struct print *out, const struct parsed_report *report) {
    char name[TOOL_PROGRAM_NAME];
    tool_program_name(&report->program, name);
    member(out, "{", "name");
    print_json_string(out, name);
    member(out, ",", "note");
    print_json_string(out, report->note);
    member(out, ",", "sizes_note");
    print_json_string(out, report->sizes_note);
    member(out, ",", "state");
    print_json_string(out, report->page ? page_state_words(report->page) : NULL);
    member(out, ",", "recorder");
    if (report->page)
        print_recorder(out, report);
    else
        print_str(out, "null");
    print_char(out, '}');
}

void html_print_data(const struct html *page, struct print *out) {
    const struct parsed_reports *reports = page->reports;
    print_format(out, "{\"written\":{\"version\":\"%s\",\"time_unix\":%lu},\n\"reports\":[",
                 GPUCACHE_VERSION, (unsigned long)time(NULL));
    for (size_t i = 0; i < reports->count; i++) {
        print_str(out, i ? "," : "");
        parsed_report_print(reports->list[i], REPORT_JSON, out);
    }
    print_str(out, "],\n\"extras\":[");
    for (size_t i = 0; i < reports->count; i++) {
        print_str(out, i ? ",\n" : "");
        print_extra(out, reports->list[i]);
    }
    print_str(out, "],\n\"frames\":");
    print_frames(out, page);
    print_str(out, ",\n\"traces\":[");
    for (size_t i = 0; i < page->trace_count; i++) {
        print_str(out, i ? ",\n" : "");
        html_print_trace(&page->traces[i], out);
    }
    print_str(out, "]}\n");
}
