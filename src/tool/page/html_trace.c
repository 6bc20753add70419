/*
 * Writes a trace into the HTML page of `gpucache report --html`. Each block has its size, address
 * and stack, and the times of its allocation and its free. page_trace.js reads the format that the
 * comment below the includes describes.
 */
#include "tool/page/html.h"

#include "report/holders.h"
#include "tool/common/tool.h"

#include <search.h>
#include <stdlib.h>

/*
 * The JSON object of a trace:
 *
 *      {"name", "pid", "rank", "host", "began",      the process; `began` in seconds since 1970
 *       "front_ns", "end_ns", "dropped", "running",  times count from `began`
 *       "marks", "moments", "frames", "stacks",
 *       "devices": [{"device", "name", "total_bytes", "groups", "reserved", "events"}]}
 *
 *      front_ns  the first time from which the trace has all events
 *      dropped   number of events that the trace no longer has
 *      running   whether the process has not ended
 *      frames    by number, the frames of `stacks`: the texts of the frame's functions, innermost
 *                first: inlined ones and the function that contains them
 *      marks     [ns, text]
 *      moments   [ns of the end, device or -1, kind, bytes, duration in ns], without growth of the
 *                pool
 *      stacks    by number, the stacks of the allocations: numbers of frames, innermost first. An
 *                empty stack, such as number 0, is left out
 *      groups    [bytes, stack]: a requested size and the stack that requested it
 *      reserved  [ns, bytes]
 *      events    base64 of numbers of 7 bits a byte, the lowest first; bit 7: more follows
 *
 * The numbers of an event:
 *
 *      1. nanoseconds since the event before it << 1 | whether it is a free
 *      2. of an allocation its group; of a free how many allocations ago the block came, from 1
 *      3. of an allocation: units of 512 bytes from the address of the one before it (zigzag)
 *
 * Blocks that are live when the trace begins are allocations at `front_ns`.
 */

#define UNIT 512

/** A size that one stack requested. */
struct group {
    uint64_t bytes;
    uint32_t stack;
    uint32_t number;
};

/** The output for one device of a trace. */
struct device_output {
    const struct trace_file *file;
    unsigned device;
    struct json_put *to;
    struct trace_live_set live_set;
    void *groups;   /* a tree (tsearch) of struct group */
    uint8_t *bytes; /* the encoded events */
    size_t used;
    uint64_t at_ns, unit; /* time of the last event, address of the last allocation in units */
    uint64_t blocks;      /* allocations so far */
    uint32_t group_count;
};

/** Returns nanoseconds since the start of the process, or 0 for an earlier time. */
static uint64_t since_start(const struct trace_file *file, uint64_t time_ns) {
    return minus_or_zero(time_ns, file->header->started_ns);
}

static void put_pair(struct json_put *to, uint64_t first, uint64_t second) {
    json_put_open(to, '[');
    json_put_u64(to, first);
    json_put_u64(to, second);
    json_put_close(to, ']');
}

/* ---- events ---- */

static void put_number(struct device_output *of, uint64_t number) {
    for (; number >= 128; number >>= 7)
        *APPEND(of->bytes, of->used) = (uint8_t)(number | 128);
    *APPEND(of->bytes, of->used) = (uint8_t)number;
}

static int compare_groups(const void *a, const void *b) {
    const struct group *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return (x->stack > y->stack) - (x->stack < y->stack);
}

/** Returns the number of a group. Writes a new group into the open array "groups". */
static uint32_t group_of(struct device_output *of, uint64_t bytes, uint32_t stack) {
    struct group wanted = {bytes, stack, of->group_count};
    struct group **found = tfind(&wanted, &of->groups, compare_groups);
    if (found)
        return (*found)->number;
    struct group *made = checked(malloc(sizeof *made));
    *made = wanted;
    checked(tsearch(made, &of->groups, compare_groups));
    put_pair(of->to, bytes, stack);
    return of->group_count++;
}

static void put_time(struct device_output *of, const struct trace_event *event, bool frees) {
    bool carried = event->flags & TRACE_CARRIED;
    uint64_t at = since_start(of->file, carried ? of->file->front_ns : event->time_ns);
    at = at > of->at_ns ? at : of->at_ns;
    put_number(of, (at - of->at_ns) << 1 | frees);
    of->at_ns = at;
}

/** Writes an allocation, or a free of a live block. Ignores a free of another block. */
static void put_event(struct device_output *of, const struct trace_event *event) {
    if (event->kind == TRACE_ALLOCATE) {
        uint64_t unit = event->address / UNIT;
        uint64_t moved = unit - of->unit;
        struct trace_event block = *event;
        uint32_t known = trace_callers_stacks(of->file->callers);
        put_time(of, event, false);
        put_number(of, group_of(of, event->bytes, event->stack < known ? event->stack : 0));
        put_number(of, moved << 1 ^ (moved >> 63 ? UINT64_MAX : 0));
        of->unit = unit;
        block.place = ++of->blocks; /* here the number of the allocation, which the free reads */
        trace_live_set_apply(&of->live_set, &block);
    } else if (event->kind == TRACE_FREE) {
        const struct trace_event *block =
            trace_live_set_at(&of->live_set, TRACE_BLOCKS, event->address);
        if (!block)
            return;
        put_time(of, event, true);
        put_number(of, of->blocks - block->place + 1);
        trace_live_set_apply(&of->live_set, event);
    }
}

static void print_base64(struct print *out, const uint8_t *bytes, size_t count) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        uint32_t word = (uint32_t)bytes[i] << 16;
        word |= i + 1 < count ? (uint32_t)bytes[i + 1] << 8 : 0;
        word |= i + 2 < count ? bytes[i + 2] : 0;
        print_char(out, digits[word >> 18]);
        print_char(out, digits[word >> 12 & 63]);
        print_char(out, i + 1 < count ? digits[word >> 6 & 63] : '=');
        print_char(out, i + 2 < count ? digits[word & 63] : '=');
    }
}

/* ---- a device ---- */

/** Writes the reserved bytes of the device, which are metric 0 (trace_metric()). */
static void put_reserved(struct device_output *of) {
    const struct trace_file *file = of->file;
    json_put_named_open(of->to, "reserved", '[');
    put_pair(of->to, since_start(file, file->front_ns), file->before[of->device][0]);
    for (size_t i = file->carried; i < file->count; i++) {
        const struct trace_event *event = &file->events[i];
        if (event->device == of->device && trace_metric(event->kind, event->value) == 0 &&
            !(event->flags & TRACE_CARRIED))
            put_pair(of->to, since_start(file, event->time_ns), event->detail);
    }
    json_put_close(of->to, ']');
}

static void put_device(const struct trace_file *file, unsigned device, struct json_put *to) {
    const struct trace_device *is = &file->header->devices[device];
    struct device_output of = {.file = file, .device = device, .to = to};
    json_put_line(to);
    json_put_open(to, '{');
    json_put_named_u64(to, "device", device);
    json_put_named_text(to, "name", is->name);
    json_put_named_u64(to, "total_bytes", is->total_bytes);
    json_put_named_open(to, "groups", '[');
    for (size_t i = 0; i < file->count; i++)
        if (file->events[i].device == device)
            put_event(&of, &file->events[i]);
    json_put_close(to, ']');
    put_reserved(&of);
    json_put_key(to, "events");
    json_put_raw(to);
    print_char(to->out, '"');
    print_base64(to->out, of.bytes, of.used);
    print_char(to->out, '"');
    json_put_close(to, '}');
    tdestroy(of.groups, free);
    trace_live_set_free(&of.live_set);
    free(of.bytes);
}

static void put_devices(const struct trace_file *file, struct json_put *to) {
    bool used[STATS_MAX_DEVICES] = {false};
    for (size_t i = 0; i < file->count; i++)
        if (file->events[i].device < STATS_MAX_DEVICES)
            used[file->events[i].device] = true;
    json_put_named_open(to, "devices", '[');
    for (unsigned device = 0; device < STATS_MAX_DEVICES; device++)
        if (used[device])
            put_device(file, device, to);
    json_put_close(to, ']');
}

/* ---- stacks ---- */

/** Opens the value of a key that is a number. */
static void put_numbered(struct json_put *to, uint32_t number) {
    json_put_line(to);
    json_put_number_key(to, number);
    json_put_open(to, '[');
}

/** Returns flags by number of a stack: whether an allocation has it. */
static bool *stacks_in_use(const struct trace_file *file) {
    uint32_t count = trace_callers_stacks(file->callers);
    bool *used = checked(calloc((size_t)count + 1, sizeof *used));
    for (size_t i = 0; i < file->count; i++)
        if (file->events[i].kind == TRACE_ALLOCATE && file->events[i].stack < count)
            used[file->events[i].stack] = true;
    return used;
}

/** Writes the stacks of the allocations. Sets the flags of their frames in `frames`. */
static void put_stacks(const struct trace_file *file, bool *frames, struct json_put *to) {
    bool *used = stacks_in_use(file);
    json_put_named_open(to, "stacks", '{');
    for (uint32_t i = 1; i < trace_callers_stacks(file->callers); i++) {
        unsigned count = 0;
        const uint32_t *numbers = used[i] ? trace_callers_stack(file->callers, i, &count) : NULL;
        if (count == 0)
            continue;
        put_numbered(to, i);
        for (unsigned k = 0; k < count; k++) {
            json_put_u64(to, numbers[k]);
            if (numbers[k] < trace_callers_frames(file->callers))
                frames[numbers[k]] = true;
        }
        json_put_close(to, ']');
    }
    json_put_close(to, '}');
    free(used);
}

static void put_frames(const struct trace_file *file, const bool *used, struct json_put *to) {
    const struct stats_frame *frame;
    json_put_named_open(to, "frames", '{');
    for (uint32_t i = 0; i < trace_callers_frames(file->callers); i++) {
        if (!used[i])
            continue;
        put_numbered(to, i);
        for (unsigned k = 0; (frame = trace_callers_frame(file->callers, i, k)) != NULL; k++) {
            struct print words = PRINT_TEXT(STACKS_FRAME_TEXT);
            holders_print_frame(&words, frame, false);
            json_put_text(to, print_end(&words));
        }
        json_put_close(to, ']');
    }
    json_put_close(to, '}');
}

/* ---- the object ---- */

static bool is_growth(unsigned kind) {
    return kind == TRACE_MOMENT_GROW || kind == TRACE_MOMENT_GIVE_BACK;
}

static void put_marks(const struct trace_file *file, struct json_put *to) {
    json_put_named_open(to, "marks", '[');
    for (size_t i = file->carried; i < file->count; i++) {
        const struct trace_event *event = &file->events[i];
        if (event->kind != TRACE_MARK || !event->text)
            continue;
        json_put_open(to, '[');
        json_put_u64(to, since_start(file, event->time_ns));
        json_put_text(to, event->text);
        json_put_close(to, ']');
    }
    json_put_close(to, ']');
}

static void put_moments(const struct trace_file *file, struct json_put *to) {
    json_put_named_open(to, "moments", '[');
    for (size_t i = file->carried; i < file->count; i++) {
        const struct trace_event *event = &file->events[i];
        if (event->kind < TRACE_MOMENTS || is_growth(event->kind))
            continue;
        json_put_line(to);
        json_put_open(to, '[');
        json_put_u64(to, since_start(file, event->time_ns));
        json_put_i64(to, event->device == TRACE_NO_DEVICE ? -1 : (int)event->device);
        json_put_u64(to, event->kind - TRACE_MOMENTS);
        json_put_u64(to, event->bytes);
        json_put_u64(to, event->value);
        json_put_close(to, ']');
    }
    json_put_close(to, ']');
}

static void put_process(const struct trace_file *file, struct json_put *to) {
    const struct trace_header *header = file->header;
    json_put_named_text(to, "name", header->name);
    json_put_named_text(to, "host", header->host);
    json_put_named_i64(to, "pid", header->who.pid);
    json_put_key(to, "rank");
    json_put_u64_or_null(to, (uint64_t)header->rank, header->rank >= 0);
    json_put_key(to, "began");
    json_put_seconds(to, header->started_ns + header->real_ns);
}

void html_put_trace(const struct trace_file *file, struct json_put *to) {
    json_put_open(to, '{');
    put_process(file, to);
    json_put_named_u64(to, "front_ns", since_start(file, file->front_ns));
    json_put_named_u64(to, "end_ns", since_start(file, file->end_ns));
    json_put_named_u64(to, "dropped", file->dropped);
    json_put_named_bool(to, "running", file->running);
    put_marks(file, to);
    put_moments(file, to);
    bool *frames = checked(calloc((size_t)trace_callers_frames(file->callers) + 1, sizeof *frames));
    put_stacks(file, frames, to);
    put_frames(file, frames, to);
    free(frames);
    put_devices(file, to);
    json_put_close(to, '}');
}
