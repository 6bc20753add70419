#include "driver/observe/oom_snapshot.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/program.h"
#include "driver/context/device_pool.h"
#include "driver/limit/unpooled.h"
#include "driver/observe/block_stacks.h"
#include "driver/state/device.h"
#include "heap/host.h"
#include "options/options.h"
#include "pool/pool.h"
#include "process/ending.h"
#include "report/file.h"
#include "report/memory_snapshot.h"
#include "trace/trace.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NO_WRITER 0      /* `writer` before the first out-of-memory error */
#define WRITTEN (-1)     /* `writer` after the snapshot was written, or failed */
#define WAIT_STEPS 10000 /* of WAIT_NS each: 10 s */
#define WAIT_NS 1000000
#define FILLS_MOST 8       /* further fills of an incomplete list, while other threads allocate */
#define EVENTS_MOST 200000 /* events of a trace; browsers fail beyond some 600 000 */
#define BUFFER 65536

/* NO_WRITER, then the thread (gettid) that writes the snapshot, then WRITTEN. */
static _Atomic int writer = NO_WRITER;

/* State of the snapshot. Only the writer thread uses it. It is too large for a small stack. */
static struct {
    struct pickle_writer pickle;
    struct memory_snapshot format;
    struct print out;
    const struct stats_stacks *stacks;
    uint32_t *places; /* by number of a stack: memo index of its frames in the pickle, or 0 */
    uint32_t place_count;
    uint32_t no_stack, no_block; /* memo indices of the texts that say why there are no frames */
    int devices;
    struct memory_list lists[STATS_MAX_DEVICES + 1]; /* by ordinal; then pinned memory */
    struct trace_last *events;
    size_t event_count;
    char names[STATS_MAX_DEVICES + 1][24]; /* keys, which must stay valid */
    char path[OPTIONS_PATH + 32];
    char option[OPTIONS_PATH + 64]; /* name and value */
    char buffer[BUFFER];
} snapshot;

/* --- frames --- */

/* Writes a text instead of frames, or a reference to it if the memo index *place is set. */
static void write_words(uint32_t *place, const char *words) {
    if (!pickle_again(&snapshot.pickle, *place)) {
        memory_snapshot_words(&snapshot.pickle, words);
        *place = pickle_remember(&snapshot.pickle);
    }
}

/* Writes the frames of a stack, or a reference if the pickle has these frames already. */
static void write_stack(void *unused, uint32_t stack) {
    (void)unused;
    struct pickle_writer *to = &snapshot.pickle;
    const struct stats_stacks *stacks = snapshot.stacks;
    struct stats_frame frame;
    if (stack >= snapshot.place_count || !stacks->frame(stacks->of, stack, 0, &frame)) {
        write_words(&snapshot.no_stack, stacks
                                            ? "gpucache: no stack is known"
                                            : "gpucache: GPUCACHE_STACKS=16 records who allocated");
        return;
    }
    if (pickle_again(to, snapshot.places[stack]))
        return;
    pickle_list(to);
    for (unsigned i = 0; stacks->frame(stacks->of, stack, i, &frame); i++)
        memory_snapshot_frame(to, &frame);
    pickle_close(to);
    snapshot.places[stack] = pickle_remember(to);
}

static void write_no_stack(void *unused) {
    (void)unused;
    write_words(&snapshot.no_block, "gpucache: free");
}

/* Prepares the writing of stacks. Without host memory, no block gets a stack. */
static void begin_stacks(void) {
    snapshot.stacks = stats_stacks();
    uint32_t count = snapshot.stacks ? stacks_count() + 1 : 0;
    snapshot.places = count > 0 ? host_map(count * sizeof *snapshot.places, 4096) : NULL;
    snapshot.place_count = snapshot.places ? count : 0;
    snapshot.format = (struct memory_snapshot){&snapshot.pickle, write_stack, write_no_stack, NULL};
}

static void end_stacks(void) {
    host_unmap(snapshot.places, snapshot.place_count * sizeof *snapshot.places);
}

/* --- lists --- */

/* Fills a list with the memory of a device, or with all pinned host memory if `device` is NULL. */
static void fill(const struct device *device, struct memory_list *list) {
    list->block_count = list->segment_count = 0;
    if (!device) {
        unpooled_list(UNPOOLED_PINNED_HOST, NULL, list);
        return;
    }
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next)
        if (!p->unused)
            pool_list_memory(p->pool, list);
    unpooled_list(UNPOOLED_NATIVE, device, list);
}

static void free_list(struct memory_list *list) {
    host_unmap(list->blocks, list->block_capacity * sizeof *list->blocks);
    host_unmap(list->segments, list->segment_capacity * sizeof *list->segments);
}

/* Makes the arrays of a list twice as large as its counts. Returns 0 or -ENOMEM. */
static int enlarge(struct memory_list *list) {
    struct memory_list fresh = {.block_capacity = 2 * list->block_count + 128,
                                .segment_capacity = 2 * list->segment_count + 128};
    free_list(list);
    fresh.blocks = host_map(fresh.block_capacity * sizeof *fresh.blocks, 4096);
    fresh.segments = host_map(fresh.segment_capacity * sizeof *fresh.segments, 4096);
    *list = fresh;
    if (fresh.blocks && fresh.segments)
        return 0;
    list->block_capacity = fresh.blocks ? fresh.block_capacity : 0;
    list->segment_capacity = fresh.segments ? fresh.segment_capacity : 0;
    return -ENOMEM;
}

/* Does fill() until the list is complete. Returns 0. Returns -ENOMEM without host memory, or if the
 * list is incomplete after FILLS_MOST more tries, because other threads allocate. */
static int make_list(const struct device *device, struct memory_list *list) {
    int r = 0;
    *list = (struct memory_list){0};
    fill(device, list);
    for (unsigned i = 0; i < FILLS_MOST && r == 0 && !memory_list_is_complete(list); i++) {
        r = enlarge(list);
        fill(device, list);
    }
    return memory_list_is_complete(list) ? r : -ENOMEM;
}

/* Makes the lists of all devices, then that of pinned memory. Returns 0 or -ENOMEM. */
static int make_lists(void) {
    int r = 0;
    for (int i = 0; i <= snapshot.devices && r == 0; i++) {
        const struct device *device = i < snapshot.devices ? device_used(i) : NULL;
        struct memory_list *list = &snapshot.lists[i];
        if (device || i == snapshot.devices) {
            r = make_list(device, list);
            list->block_count = r == 0 ? list->block_count : 0;
        }
        for (size_t k = 0; stack_recording_is_on() && k < list->block_count; k++)
            list->blocks[k].stack = stacks_of(list->blocks[k].address);
        if (r == 0)
            memory_snapshot_sort(list);
    }
    return r;
}

/* --- the last events --- */

/* Reads the last events of the trace. Without host memory, the snapshot has no events. */
static void begin_events(void) {
    snapshot.events = trace_on() ? host_map(EVENTS_MOST * sizeof *snapshot.events, 4096) : NULL;
    snapshot.event_count = snapshot.events ? trace_read_last(snapshot.events, EVENTS_MOST) : 0;
}

static void end_events(void) {
    host_unmap(snapshot.events, EVENTS_MOST * sizeof *snapshot.events);
}

/* Returns whether a block lies in a segment of a list that memory_snapshot_sort() has sorted. */
static bool lies_in(const struct memory_list *list, const struct trace_last *block) {
    size_t low = 0, high = list->segment_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (list->segments[middle].address <= block->address)
            low = middle + 1;
        else
            high = middle;
    }
    const struct memory_segment *segment = low > 0 ? &list->segments[low - 1] : NULL;
    return segment && block->address - segment->address < segment->bytes &&
           block->bytes <= segment->bytes - (block->address - segment->address);
}

static void write_event(const struct trace_last *event, const char *action) {
    memory_snapshot_entry(&snapshot.format, &(struct memory_entry){.action = action,
                                                                   .address_key = "addr",
                                                                   .address = event->address,
                                                                   .bytes = event->bytes,
                                                                   .time_us = event->time_us,
                                                                   .stack = event->stack});
}

/*
 * Writes the events of a device. Leaves out blocks whose segment does not exist any more: the
 * viewer replays the events from the end, and fails at a block outside all segments.
 */
static void write_events(int ordinal) {
    for (size_t i = 0; i < snapshot.event_count; i++) {
        const struct trace_last *event = &snapshot.events[i];
        if (event->device == ordinal && lies_in(&snapshot.lists[ordinal], event)) {
            write_event(event, event->is_free ? "free_requested" : "alloc");
            if (event->is_free)
                write_event(event, "free_completed");
        }
    }
}

/* Writes the out-of-memory error, with a time that is not before the last event. */
static void write_oom(const struct report_oom *oom, uint32_t stack) {
    int64_t now = (int64_t)(program_time_ns() / 1000);
    int64_t last = snapshot.event_count > 0 ? snapshot.events[snapshot.event_count - 1].time_us : 0;
    memory_snapshot_entry(&snapshot.format,
                          &(struct memory_entry){.action = "oom",
                                                 .address_key = "device_free",
                                                 .address = oom->device_free,
                                                 .bytes = oom->requested,
                                                 .time_us = now > last ? now : last,
                                                 .stack = stack});
}

/* --- the parts of the snapshot --- */

static void write_traces(const struct report_oom *oom, uint32_t stack) {
    pickle_list(&snapshot.pickle);
    for (int i = 0; i <= snapshot.devices; i++) {
        pickle_list(&snapshot.pickle);
        write_events(i);
        if (i == oom->device)
            write_oom(oom, stack);
        pickle_close(&snapshot.pickle);
    }
    pickle_close(&snapshot.pickle);
}

static void write_options(void) {
    struct print out;
    pickle_list(&snapshot.pickle);
    for (int id = 0; id < OPTION_COUNT; id++) {
        print_init(&out, -1, snapshot.option, sizeof snapshot.option);
        print_format(&out, "%s=%s", option_table[id].name, options_text((enum option_id)id));
        pickle_text(&snapshot.pickle, print_end(&out));
    }
    pickle_close(&snapshot.pickle);
}

static void write_settings(void) {
    struct pickle_writer *to = &snapshot.pickle;
    memory_snapshot_settings(to, GPUCACHE_VERSION);
    for (int i = 0; i <= snapshot.devices; i++) {
        const struct device *device = i < snapshot.devices ? device_used(i) : NULL;
        struct print out;
        print_init(&out, -1, snapshot.names[i], sizeof snapshot.names[i]);
        print_format(&out, "device %d", i);
        pickle_key(to, print_end(&out));
        pickle_text(to, i == snapshot.devices            ? "pinned host memory"
                        : !device                        ? "not used"
                        : atomic_load(&device->uses_vmm) ? "pages"
                                                         : "segments");
    }
    pickle_key(to, "options");
    write_options();
    pickle_close(to);
}

static void write_all(const struct report_oom *oom, uint32_t stack) {
    struct pickle_writer *to = &snapshot.pickle;
    pickle_begin(to, &snapshot.out, false);
    pickle_dict(to);
    pickle_key(to, "device_traces");
    write_traces(oom, stack);
    pickle_key(to, "segments");
    pickle_list(to);
    for (int i = 0; i <= snapshot.devices; i++)
        memory_snapshot_segments(&snapshot.format, (unsigned)i, &snapshot.lists[i]);
    pickle_close(to);
    pickle_key(to, "allocator_settings");
    write_settings();
    pickle_key(to, "external_annotations");
    pickle_list(to);
    pickle_close(to);
    pickle_close(to);
    pickle_end(to);
}

/* Makes the snapshot and writes it to `fd`. Returns 0 or a negative errno. */
static int make_snapshot(int fd, const struct report_oom *oom) {
    uint32_t stack = stack_recording_is_on() ? stacks_here(oom->device) : 0;
    snapshot.devices = stats_device_count();
    begin_stacks();
    begin_events();
    int r = make_lists();
    if (r == 0) {
        print_init(&snapshot.out, fd, snapshot.buffer, sizeof snapshot.buffer);
        write_all(oom, stack);
        r = print_flush(&snapshot.out);
    }
    for (int i = 0; i <= snapshot.devices; i++)
        free_list(&snapshot.lists[i]);
    end_events();
    end_stacks();
    return r;
}

/* --- the file --- */

/* Logs the result of the snapshot: 0 or a negative errno. */
static void log_result(int r) {
    const char *why = r == -ENOMEM ? "no memory of the host for it" : file_error(r);
    char shown[FILE_SHOWN];
    if (r == 0) {
        log_warn("out of memory: memory snapshot written to %s", snapshot.path);
    } else {
        log_warn("GPUCACHE_OOM_SNAPSHOT=%s: %s; no memory snapshot is written",
                 file_shown(shown, options()->oom_snapshot_pattern),
                 why ? why : "cannot be written");
    }
}

/* Waits for the writer, for about 10 s at most. Does not wait if this thread is the writer. */
static void wait_for_writer(void) {
    int self = (int)syscall(SYS_gettid);
    for (unsigned i = 0; i < WAIT_STEPS; i++) {
        int now = atomic_load(&writer);
        if (now == WRITTEN || now == self)
            break;
        sleep_ns(WAIT_NS);
    }
}

void oom_snapshot_write(const struct report_oom *oom) {
    if (*options()->oom_snapshot_pattern == '\0')
        return;
    int saved_errno = errno, no_writer = NO_WRITER;
    if (atomic_compare_exchange_strong(&writer, &no_writer, (int)syscall(SYS_gettid))) {
        int fd = file_create(options()->oom_snapshot_pattern, snapshot.path, sizeof snapshot.path);
        int r = fd < 0 ? fd : make_snapshot(fd, oom);
        if (fd >= 0)
            file_close(fd, snapshot.path, r == 0);
        log_result(r);
        atomic_store(&writer, WRITTEN);
    } else {
        wait_for_writer();
    }
    errno = saved_errno;
}

void oom_snapshot_end(enum process_end how, int signal) {
    (void)signal;
    int saved_errno = errno;
    bool ends = how == PROCESS_EXITS || how == PROCESS_EXECS;
    if (ends && atomic_load(&writer) != NO_WRITER && ending_is_own_process())
        wait_for_writer();
    errno = saved_errno;
}
