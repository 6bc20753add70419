/*
 * Converts the records of a trace, sorted by time, to a consistent list (trace_file.h).
 *
 * Records up to the front (the time of the newest dropped record) only show what was live then.
 * Records may be missing, because a thread was killed before it wrote one, or because more objects
 * were live than the file could keep. The conversion adds the missing events, so that readers need
 * not check whether the object that an event ends is live. "Object" means a block, a segment or a
 * page.
 */
#include "heap/page.h"
#include "tool/common/tool.h"
#include "tool/trace/trace_file.h"

#include <stdlib.h>
#include <string.h>

/** The state of one pass over the records. */
struct pass {
    struct trace_live_set live_set;
    struct trace_live_set ended;      /* objects that have ended after the front, by address */
    struct trace_live_set contexts;   /* ended after the front; the address is their space */
    struct trace_event *out, *before; /* the list, and carried events to put before it */
    size_t count, before_count;
    uint64_t front_ns;
    uint64_t failed_lookups; /* look-ups of objects that were not live */
    uint64_t pages_added;    /* pages whose begin was added, because only their end is known */
};

/* Bounds for damaged files, in which every record may end all possible objects. */
#define FAILED_LOOKUPS_MOST ((uint64_t)1 << 26)
#define PAGES_ADDED_MOST ((uint64_t)1 << 20) /* 2 TiB of pages */

/**
 * Keeps the address of an object that ends, for is_too_late(). A trace without a front does not
 * need it.
 */
static void note_end(struct pass *pass, const struct trace_event *event) {
    struct trace_event note = {.address = event->address, .bytes = event->bytes};
    enum trace_sort sort = trace_sort_of(event);
    if (sort != TRACE_SORTS && event->kind == trace_sorts[sort].ends && pass->front_ns != 0) {
        note.kind = trace_sorts[sort].begins;
        trace_live_set_apply(&pass->ended, &note);
    }
    if (event->kind == TRACE_CONTEXT_END && pass->front_ns != 0) {
        note = (struct trace_event){.kind = TRACE_ALLOCATE, .address = event->space};
        trace_live_set_apply(&pass->contexts, &note);
    }
}

/** Applies an event to the live set, and adds it to the list unless it is older than the front. */
static void apply_event(struct pass *pass, const struct trace_event *event) {
    trace_live_set_apply(&pass->live_set, event);
    if (event->time_ns > pass->front_ns) {
        *APPEND(pass->out, pass->count) = *event;
        note_end(pass, event);
    }
}

/** Adds the end of an object, at the time of another event that implies the end. */
static void end_object(struct pass *pass, const struct trace_event *begun, enum trace_kind kind,
                       const struct trace_event *cause) {
    struct trace_event end = *begun;
    end.kind = (uint8_t)kind;
    end.flags = 0;
    end.time_ns = cause->time_ns;
    end.place = cause->place;
    end.thread = cause->thread;
    end.detail = kind == TRACE_MOMENT_GIVE_BACK ? cause->detail : 0;
    end.value = kind == TRACE_FREE ? begun->value : 0;
    apply_event(pass, &end);
}

/** Begins an object. If one is live at the address, its end was not written (equal times, or a
 * killed thread) and is added first. */
static void begin(struct pass *pass, enum trace_sort sort, const struct trace_event *event) {
    const struct trace_event *there = trace_live_set_at(&pass->live_set, sort, event->address);
    if (there) {
        struct trace_event begun = *there;
        end_object(pass, &begun, trace_sorts[sort].ends, event);
    }
    apply_event(pass, event);
}

/** Returns whether the event cannot end an object that was live at the front: its context, or an
 * object at its address, has ended since. Missing records cause this. */
static bool is_too_late(const struct pass *pass, enum trace_sort sort,
                        const struct trace_event *event) {
    return trace_live_set_at(&pass->ended, sort, event->address) ||
           trace_live_set_at(&pass->contexts, TRACE_BLOCKS, event->space);
}

/** Ends one object. If no object is live at the address, and one may have been live at the front,
 * adds a carried event for it: the record of its begin was dropped. */
static void end(struct pass *pass, enum trace_sort sort, const struct trace_event *event) {
    const struct trace_event *begun = trace_live_set_at(&pass->live_set, sort, event->address);
    bool there = begun != NULL;
    bool other = there && sort == TRACE_BLOCKS && event->life != 0 && event->life != begun->life;
    bool forgotten = !there && pass->front_ns != 0 && event->time_ns > pass->front_ns &&
                     !is_too_late(pass, sort, event);
    if (other || (!there && !forgotten))
        return; /* ended already with its context, or when another object began there */
    if (!there) {
        struct trace_event made = *event;
        made.kind = trace_sorts[sort].begins;
        made.flags = TRACE_CARRIED;
        made.time_ns = pass->front_ns;
        made.detail = 0;
        *APPEND(pass->before, pass->before_count) = made;
    }
    apply_event(pass, event);
}

static void unmap(struct pass *pass, const struct trace_event *event) {
    for (uint64_t at = 0; at < event->bytes && pass->failed_lookups < FAILED_LOOKUPS_MOST;
         at += PAGE_BYTES) {
        struct trace_event page = *event;
        page.address += at;
        page.bytes = PAGE_BYTES;
        bool there = trace_live_set_at(&pass->live_set, TRACE_PAGES, page.address) != NULL;
        pass->failed_lookups += !there;
        if (there || pass->pages_added < PAGES_ADDED_MOST) {
            size_t before = pass->before_count;
            end(pass, TRACE_PAGES, &page);
            pass->pages_added += pass->before_count - before;
        }
    }
}

static void end_context(struct pass *pass, const struct trace_event *event) {
    for (enum trace_sort sort = 0; sort < TRACE_SORTS && pass->failed_lookups < FAILED_LOOKUPS_MOST;
         sort++) {
        size_t count;
        size_t all = pass->live_set.tables[sort].count;
        struct trace_event *list =
            trace_live_set_list(&pass->live_set, sort, &event->space, &count);
        pass->failed_lookups += all - count;
        for (size_t i = 0; i < count; i++)
            end_object(pass, &list[i], trace_sorts[sort].ends, event);
        free(list);
    }
    apply_event(pass, event);
}

static void complete_event(struct pass *pass, const struct trace_event *event) {
    enum trace_sort sort = trace_sort_of(event);
    if (event->kind == TRACE_CONTEXT_END)
        end_context(pass, event);
    else if (sort == TRACE_SORTS)
        apply_event(pass, event);
    else if (event->kind == trace_sorts[sort].begins)
        begin(pass, sort, event);
    else if (sort == TRACE_PAGES)
        unmap(pass, event);
    else
        end(pass, sort, event);
}

/** Sets a metric of a device to the value in an event before the front. */
static void keep_metric(struct trace_file *file, const struct trace_event *event) {
    unsigned metric = trace_metric(event->kind, event->value);
    if (metric < TRACE_METRICS && event->device < STATS_MAX_DEVICES)
        file->before[event->device][metric] = event->detail;
}

/** Sets the metrics to the values of the dropped records, which the header has. */
static void start_metrics(struct trace_file *file) {
    for (unsigned device = 0; device < STATS_MAX_DEVICES; device++)
        for (unsigned metric = 0; metric < TRACE_METRICS; metric++)
            file->before[device][metric] =
                atomic_load(&file->header->devices[device].before[metric].bytes);
}

/** Returns whether a record has a newer metric than the dropped records. */
static bool is_newer(const struct trace_header *header, const struct trace_event *event) {
    unsigned metric = trace_metric(event->kind, event->value);
    return metric < TRACE_METRICS && event->device < STATS_MAX_DEVICES &&
           event->time_ns >=
               trace_ns(header, atomic_load(&header->devices[event->device].before[metric].ticks));
}

/** Adds all live objects to the list of carried events. */
static void carry(struct pass *pass) {
    for (enum trace_sort sort = 0; sort < TRACE_SORTS; sort++) {
        size_t count;
        struct trace_event *list = trace_live_set_list(&pass->live_set, sort, NULL, &count);
        for (size_t j = 0; j < count; j++) {
            list[j].flags |= TRACE_CARRIED;
            *APPEND(pass->before, pass->before_count) = list[j];
        }
        free(list);
    }
}

static int by_order(const void *a, const void *b) {
    static const uint8_t order[] = {[TRACE_MAP] = 1, [TRACE_ALLOCATE] = 2};
    const struct trace_event *first = a, *second = b;
    unsigned one = first->kind < sizeof order ? order[first->kind] : 0;
    unsigned other = second->kind < sizeof order ? order[second->kind] : 0;
    if (one != other)
        return (int)one - (int)other;
    return (first->address > second->address) - (first->address < second->address);
}

/** Replaces the list of the file by that of the pass. */
static void replace_list(struct trace_file *file, struct pass *pass) {
    size_t count = pass->before_count + pass->count;
    struct trace_event *events = checked(malloc((count + 1) * sizeof *events));
    if (pass->before_count > 0) {
        qsort(pass->before, pass->before_count, sizeof *pass->before, by_order);
        memcpy(events, pass->before, pass->before_count * sizeof *events);
    }
    if (pass->count > 0)
        memcpy(events + pass->before_count, pass->out, pass->count * sizeof *events);
    free(pass->before);
    free(pass->out);
    free(file->events);
    trace_live_set_free(&pass->live_set);
    trace_live_set_free(&pass->ended);
    trace_live_set_free(&pass->contexts);
    file->events = events;
    file->count = count;
    file->carried = pass->before_count;
    file->front_ns = pass->front_ns;
    file->incredible |= pass->failed_lookups >= FAILED_LOOKUPS_MOST;
}

void trace_file_complete(struct trace_file *file) {
    uint64_t until = atomic_load(&file->header->dropped_until);
    struct pass pass = {.front_ns = until ? trace_ns(file->header, until) : 0};
    size_t i = 0;
    start_metrics(file);
    for (; i < file->count && file->events[i].time_ns <= pass.front_ns; i++) {
        if (is_newer(file->header, &file->events[i]))
            keep_metric(file, &file->events[i]);
        /* Skips dead objects, because the record of their end may be dropped. If that record is
         * there, end() adds the object. */
        if (!(file->events[i].flags & TRACE_DEAD))
            complete_event(&pass, &file->events[i]);
    }
    carry(&pass);
    for (; i < file->count; i++)
        complete_event(&pass, &file->events[i]);
    replace_list(file, &pass);
}

void trace_file_cut(struct trace_file *file, size_t last) {
    size_t events = file->count - file->carried;
    if (events <= last)
        return;
    size_t cut = file->count - last;
    struct pass pass = {.front_ns = file->events[cut - 1].time_ns};
    for (size_t i = 0; i < cut; i++) {
        trace_live_set_apply(&pass.live_set, &file->events[i]);
        if (i >= file->carried)
            keep_metric(file, &file->events[i]);
    }
    carry(&pass);
    for (size_t i = cut; i < file->count; i++)
        *APPEND(pass.out, pass.count) = file->events[i];
    file->dropped += events - last;
    replace_list(file, &pass);
}
