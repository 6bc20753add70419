/*
 * Reads the flight recorder of a live page (live/flight.h): copies the rings to a list in order of
 * time. The process may write to the rings meanwhile.
 */
#include "live/page.h"
#include "tool/common/tool.h"
#include "tool/report/pages.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *page_event_words(unsigned kind) {
    static const char *const words[] = {
#define FLIGHT(number, kind, words) [number] = words,
#include "live/flight.def"
#undef FLIGHT
    };
    return kind < FLIGHT_KINDS && words[kind] ? words[kind] : "?";
}

/** Copies an event. Returns false if there is none, or if the process is writing it. */
static bool copy_event(struct page_event *to, const struct flight_event *from, unsigned ring) {
#define GET(field) atomic_load_explicit(&from->field, memory_order_relaxed)
    uint64_t number = GET(number), rest = GET(rest);
    *to = (struct page_event){.ring = ring,
                              .number = number,
                              .time_ns = GET(time_ns),
                              .address = GET(address),
                              .bytes = GET(bytes),
                              .duration_ns = GET(duration_ns),
                              .thread = (uint32_t)(rest >> 32),
                              .kind = (uint16_t)(rest >> 16),
                              .device = (uint16_t)rest};
    bool whole = number != 0 && GET(seal) == flight_seal(number, to->time_ns, to->address,
                                                         to->bytes, to->duration_ns, rest);
#undef GET
    if (ring != 0) { /* a large block: duration_ns moves it behind the thread's last slow event */
        to->coarse_ns = to->time_ns;
        to->time_ns += to->duration_ns;
        to->duration_ns = 0;
    }
    return whole;
}

const char page_event_head[] =
    "Time          Dev  Event                       Size          Address   Thread  Took";

static int compare(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

static int by_number(const void *a, const void *b) {
    const struct page_event *first = a, *second = b;
    return compare(first->number, second->number);
}

static int by_time(const void *a, const void *b) {
    const struct page_event *first = a, *second = b;
    int result = compare(first->time_ns, second->time_ns);
    result = result ? result : compare(first->ring, second->ring);
    return result ? result : by_number(a, b);
}

/** Corrects the times of one ring, so that times of large blocks increase with their numbers. The
 * coarse clock is constant for milliseconds, and threads that share a ring may write events in
 * another order than they read the clock. */
static void order_ring(struct page_event *events, size_t count) {
    qsort(events, count, sizeof *events, by_number);
    for (size_t i = 1; i < count && events[0].ring != 0; i++) {
        const struct page_event *last = &events[i - 1];
        if (events[i].time_ns < last->time_ns)
            events[i].time_ns = last->time_ns;
        if (events[i].coarse_ns < last->coarse_ns)
            events[i].coarse_ns = last->coarse_ns;
    }
}

struct page_event *page_events(const struct page *page, size_t *count) {
    struct page_event *events =
        checked(calloc((size_t)FLIGHT_RINGS * FLIGHT_EVENTS, sizeof *events));
    size_t found = 0;
    for (unsigned ring = 0; ring < FLIGHT_RINGS; ring++) {
        size_t first = found;
        for (unsigned i = 0; i < FLIGHT_EVENTS; i++)
            found += copy_event(&events[found], &page->live->rings[ring].events[i], ring);
        order_ring(events + first, found - first);
    }
    qsort(events, found, sizeof *events, by_time);
    *count = found;
    return events;
}

static void print_time(struct print *out, uint64_t real_ns) {
    time_t seconds = (time_t)(real_ns / 1000000000);
    struct tm day;
    char text[32] = "";
    if (localtime_r(&seconds, &day))
        strftime(text, sizeof text, "%H:%M:%S", &day);
    print_str(out, text);
    unsigned millis = (unsigned)(real_ns / 1000000 % 1000);
    print_format(out, ".%u%u%u", millis / 100, millis / 10 % 10, millis % 10);
}

void page_print_event(const struct page *page, struct print *out, const struct page_event *event) {
    print_time(out, page_real_ns(page, event->time_ns));
    print_str(out, "  ");
    print_cell(out, event->device == FLIGHT_NO_DEVICE ? "all" : COUNT(event->device), 3,
               PRINT_RIGHT);
    print_str(out, "  ");
    print_cell(out, page_event_words(event->kind), 21, PRINT_LEFT);
    print_cell(out, event->bytes ? SIZE(event->bytes) : "", 11, PRINT_RIGHT);
    struct print hex = PRINT_TEXT(LINES_VALUE);
    if (event->address) {
        print_str(&hex, "0x");
        print_hex(&hex, event->address);
    }
    print_cell(out, print_end(&hex), 17, PRINT_RIGHT);
    print_cell(out, COUNT(event->thread), 9, PRINT_RIGHT);
    if (event->duration_ns)
        print_format(out, "  %s us", COUNT(event->duration_ns / 1000));
    print_char(out, '\n');
}

/** Keeps the last `most` events of each kind in a list in order of time. Returns the new count. */
static size_t keep_last(struct page_event *events, size_t count, size_t most) {
    size_t slow = 0, blocks = 0, kept = count;
    for (size_t i = count; i > 0; i--) {
        size_t *seen = events[i - 1].ring == 0 ? &slow : &blocks;
        if ((*seen)++ < most)
            events[--kept] = events[i - 1];
    }
    memmove(events, events + kept, (count - kept) * sizeof *events);
    return count - kept;
}

void page_print_events(const struct page *page, struct print *out, size_t most) {
    size_t count;
    struct page_event *events = page_events(page, &count);
    count = keep_last(events, count, most);
    if (count > 0) {
        print_char(out, '\n');
        print_str(out, page_event_head);
        print_char(out, '\n');
    }
    for (size_t i = 0; i < count; i++)
        page_print_event(page, out, &events[i]);
    free(events);
}
