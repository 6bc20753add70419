/*
 * Writes a report as JSON: one object on one line, by the schema of docs/report-schema.json.
 *
 * Values have the names of fields.def, with three exceptions. Nanoseconds are written as seconds.
 * Unpooled memory stands in "outside_bytes". The largest free block and the number of free blocks
 * stand in "fragmentation", with the ratios.
 * walk.c calls the functions through json_emitter. Takes no lock and allocates nothing.
 */
#include "report/emitter.h"

#include "base/program.h"
#include "report/holders.h"

#include <string.h>

#define FRAME_TEXT 1280

static void key(struct emitter *emitter, const char *name) {
    json_put_key(&emitter->json, name);
}

static void open_bracket(struct emitter *emitter, char bracket) {
    json_put_open(&emitter->json, bracket);
}

static void close_bracket(struct emitter *emitter, char bracket) {
    json_put_close(&emitter->json, bracket);
}

static void number(struct emitter *emitter, const char *name, uint64_t value) {
    json_put_named_u64(&emitter->json, name, value);
}

static void number_or_null(struct emitter *emitter, const char *name, uint64_t value, bool known) {
    key(emitter, name);
    json_put_u64_or_null(&emitter->json, value, known);
}

static void integer(struct emitter *emitter, const char *name, int64_t value) {
    json_put_named_i64(&emitter->json, name, value);
}

static void string(struct emitter *emitter, const char *name, const char *value) {
    json_put_named_text(&emitter->json, name, value);
}

static void boolean(struct emitter *emitter, const char *name, bool value) {
    json_put_named_bool(&emitter->json, name, value);
}

static void real(struct emitter *emitter, const char *name, double value) {
    key(emitter, name);
    json_put_double(&emitter->json, value, 6);
}

static void seconds(struct emitter *emitter, const char *name, uint64_t nanoseconds) {
    key(emitter, name);
    json_put_seconds(&emitter->json, nanoseconds);
}

static void strings(struct emitter *emitter, const char *name, const char *const *texts,
                    size_t count) {
    key(emitter, name);
    open_bracket(emitter, '[');
    for (size_t i = 0; i < count; i++)
        json_put_text(&emitter->json, texts[i]);
    close_bracket(emitter, ']');
}

static void emit_oom(struct emitter *emitter) {
    const struct report_oom *oom = emitter->head->oom;
    const struct lines *verdict = emitter->head->verdict;
    bool known = oom->device_total != 0;
    const char *texts[LINES_MAX];
    for (size_t i = 0; i < verdict->count; i++)
        texts[i] = verdict->text[i];
    key(emitter, "oom");
    open_bracket(emitter, '{');
    integer(emitter, "device", oom->device);
    number(emitter, "requested_bytes", oom->requested);
    number_or_null(emitter, "limit_bytes", oom->limit, oom->limit != 0);
    number_or_null(emitter, "device_free_bytes", oom->device_free, known);
    number_or_null(emitter, "device_total_bytes", oom->device_total, known);
    strings(emitter, "verdict", texts, verdict->count);
    close_bracket(emitter, '}');
}

/** Writes how stacks are recorded: their depth, unwinder and losses. */
static void emit_stacks(struct emitter *emitter) {
    const struct stats_stacks *stacks = emitter->head->stacks;
    struct stats_recording recording = stacks->recording(stacks->of);
    char version[16] = "";
    struct print out;
    print_init(&out, -1, version, sizeof version);
    print_format(&out, "%u.%u", stacks->python >> 8, stacks->python & 255);
    key(emitter, "stacks");
    open_bracket(emitter, '{');
    number(emitter, "frames", stacks->frames);
    string(emitter, "unwinder", recording.unwinder);
    string(emitter, "python", stacks->python != 0 ? print_end(&out) : NULL);
    number(emitter, "lost_stacks", recording.lost_stacks);
    number(emitter, "lost_blocks", recording.lost_blocks);
    close_bracket(emitter, '}');
}

static void begin(struct emitter *emitter) {
    const struct report_process *of = emitter->head->process;
    const struct program *self = of->program;
    open_bracket(emitter, '{');
    string(emitter, "schema", "gpucache-report/1");
    string(emitter, "version", of->version);
    string(emitter, "reason", emitter->head->reason);
    number(emitter, "pid", (uint64_t)of->pid);
    number_or_null(emitter, "rank", (uint64_t)self->rank, self->rank >= 0);
    string(emitter, "host", self->host);
    strings(emitter, "command", self->arguments, self->argument_count);
    if (self->arguments_cut)
        boolean(emitter, "command_cut", true);
    seconds(emitter, "time_unix", of->time_ns);
    seconds(emitter, "uptime_seconds", of->uptime_ns);
    number_or_null(emitter, "driver_version", (uint64_t)emitter->head->driver_version,
                   emitter->head->driver_version > 0);
    number(emitter, "host_bytes", emitter->head->host_bytes);
    if (emitter->head->oom)
        emit_oom(emitter);
    if (emitter->head->stacks)
        emit_stacks(emitter);
    key(emitter, "devices");
    open_bracket(emitter, '[');
}

static void device_begin(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    open_bracket(emitter, '{');
    integer(emitter, "device", device->ordinal);
    string(emitter, "name", device->name);
    string(emitter, "uuid", device->uuid);
    number(emitter, "total_bytes", device->total_bytes);
    number_or_null(emitter, "limit_bytes", device->limit_bytes, device->limit_bytes != 0);
    string(emitter, "limit_source", device->limit_source);
    string(emitter, "backend", device->backend);
    string(emitter, "backend_reason", device->backend_reason);
    string(emitter, "reuse", device->reuse);
    boolean(emitter, "peaks_exact", device->peaks_exact);
    number(emitter, "peak_error_bytes", device->peaks_exact ? 0 : device->peak_error_bytes);
}

static void metric(struct emitter *emitter, const char *name, const char *label, bool bytes,
                   const struct stats_metric *metric, enum peak peak) {
    (void)label, (void)bytes, (void)peak;
    key(emitter, name);
    open_bracket(emitter, '{');
    number(emitter, "current", metric->current);
    number(emitter, "peak", metric->peak);
    number(emitter, "total", metric->total);
    number(emitter, "freed", metric->freed);
    close_bracket(emitter, '}');
}

static bool in_fragmentation(const char *name) {
    return strcmp(name, "largest_free_bytes") == 0 || strcmp(name, "free_blocks") == 0;
}

static void gauge(struct emitter *emitter, const char *name, uint64_t value) {
    if (!in_fragmentation(name))
        number(emitter, name, value);
}

static void counter(struct emitter *emitter, const char *name, uint64_t value) {
    size_t length = strlen(name);
    if (length < 3 || strcmp(name + length - 3, "_ns") != 0) {
        number(emitter, name, value);
        return;
    }
    char renamed[64];
    struct print out;
    print_init(&out, -1, renamed, sizeof renamed);
    print_bytes(&out, name, length - 3);
    print_str(&out, "_seconds");
    seconds(emitter, print_end(&out), value);
}

static void unpooled_begin(struct emitter *emitter) {
    key(emitter, "outside_bytes");
    open_bracket(emitter, '{');
}

static void unpooled_end(struct emitter *emitter) {
    close_bracket(emitter, '}');
}

static void emit_size_classes(struct emitter *emitter) {
    key(emitter, "size_classes");
    open_bracket(emitter, '[');
    for (size_t i = 0; i < STATS_SIZE_CLASSES; i++) {
        const struct stats_size_class *class = &emitter->device->size_classes[i];
        if (class->total == 0)
            continue;
        open_bracket(emitter, '{');
        number_or_null(emitter, "upper_bytes", UINT64_C(512) << i, i + 1 < STATS_SIZE_CLASSES);
        number(emitter, "live", class->live);
        number(emitter, "total", class->total);
        close_bracket(emitter, '}');
    }
    close_bracket(emitter, ']');
}

/** Writes a frame as an object, without the members that are unknown. */
static void emit_frame(struct emitter *emitter, const struct stats_frame *frame, bool named) {
    const char *module = frame->function ? frame->module : frame->file;
    open_bracket(emitter, '{');
    if (module)
        string(emitter, "module", module);
    if (module || !frame->function)
        number(emitter, "offset", frame->offset);
    if (frame->function) {
        string(emitter, "function", frame->function);
        if (frame->file)
            string(emitter, "file", frame->file);
        if (frame->line != 0)
            number(emitter, "line", frame->line);
    }
    if (frame->python)
        boolean(emitter, "python", true);
    if (frame->inlined)
        boolean(emitter, "inlined", true);
    if (named)
        boolean(emitter, "named", true);
    close_bracket(emitter, '}');
}

static void emit_frames(struct emitter *emitter, uint32_t stack) {
    const struct stats_stacks *stacks = emitter->head->stacks;
    struct holders_pick pick = {0};
    struct stats_frame frame;
    if (stacks)
        pick = holders_pick_frames(stacks, stack);
    key(emitter, "frames");
    open_bracket(emitter, '[');
    for (unsigned i = 0; stacks && stacks->frame(stacks->of, stack, i, &frame); i++)
        emit_frame(emitter, &frame, holders_frame_is_named(&pick, &frame));
    close_bracket(emitter, ']');
}

/** Writes the frames of a stack, innermost first: as texts for people, and as objects. */
static void emit_stack(struct emitter *emitter, uint32_t stack) {
    const struct stats_stacks *stacks = emitter->head->stacks;
    struct stats_frame frame;
    key(emitter, "stack");
    open_bracket(emitter, '[');
    for (unsigned i = 0; stacks && stacks->frame(stacks->of, stack, i, &frame); i++) {
        char text[FRAME_TEXT];
        struct print out;
        print_init(&out, -1, text, sizeof text);
        holders_print_frame(&out, &frame, false);
        json_put_text(&emitter->json, print_end(&out));
    }
    close_bracket(emitter, ']');
    emit_frames(emitter, stack);
}

static void emit_share(struct emitter *emitter, const char *bytes, const char *count,
                       const struct stats_share *share) {
    number(emitter, bytes, share->bytes);
    number(emitter, count, share->count);
}

static void emit_holder(struct emitter *emitter, const struct stats_holder *holder) {
    char decimals[16];
    struct print out;
    open_bracket(emitter, '{');
    emit_share(emitter, "live_bytes", "live_count", &holder->held.live);
    emit_share(emitter, "peak_bytes", "peak_count", &holder->held.peak);
    emit_share(emitter, "total_bytes", "total_count", &holder->total);
    number(emitter, "byte_seconds", holder->byte_seconds);
    /* the nine decimals; the leading 1, which is not written, keeps their zeros */
    print_init(&out, -1, decimals, sizeof decimals);
    print_u64(&out, 1000000000 + (uint64_t)holder->byte_seconds_ns);
    print_char(emitter->out, '.');
    print_str(emitter->out, print_end(&out) + 1);
    emit_stack(emitter, holder->stack);
    close_bracket(emitter, '}');
}

static void emit_holders(struct emitter *emitter) {
    const struct stats_stacks *stacks = emitter->head->stacks;
    int device = emitter->device->ordinal;
    struct stats_held held = stacks->held(stacks->of, device);
    struct stats_holder holder;
    uint32_t at = 0;
    key(emitter, "held");
    open_bracket(emitter, '{');
    emit_share(emitter, "live_bytes", "live_count", &held.live);
    emit_share(emitter, "peak_bytes", "peak_count", &held.peak);
    close_bracket(emitter, '}');
    key(emitter, "holders");
    open_bracket(emitter, '[');
    while (stacks->next(stacks->of, device, &at, &holder))
        emit_holder(emitter, &holder);
    close_bracket(emitter, ']');
}

/** Writes the modules of the frames: path and build ID. */
static void emit_modules(struct emitter *emitter) {
    const struct stats_stacks *stacks = emitter->head->stacks;
    const char *path, *build_id;
    key(emitter, "modules");
    open_bracket(emitter, '[');
    for (uint32_t i = 0; stacks->module(stacks->of, i, &path, &build_id); i++) {
        open_bracket(emitter, '{');
        string(emitter, "path", path);
        string(emitter, "build_id", *build_id ? build_id : NULL);
        close_bracket(emitter, '}');
    }
    close_bracket(emitter, ']');
}

static void emit_live(struct emitter *emitter) {
    key(emitter, "live");
    open_bracket(emitter, '[');
    for (size_t i = 0; i < emitter->device->live_groups && i < STATS_LIVE_SIZES; i++) {
        open_bracket(emitter, '{');
        number(emitter, "bytes", emitter->device->live[i].bytes);
        number(emitter, "count", emitter->device->live[i].count);
        emit_stack(emitter, emitter->device->live_stacks[i]);
        close_bracket(emitter, '}');
    }
    close_bracket(emitter, ']');
}

/** Writes the memory map. Pieces are arrays and not objects, because a map may have hundreds. */
static void emit_map(struct emitter *emitter) {
    static const char *const columns[] = {"address", "bytes", "live", "cached", "segments"};
    const struct segment_map *map = emitter->map;
    if (!map)
        return;
    key(emitter, "segment_map");
    open_bracket(emitter, '{');
    number(emitter, "merged_up_to_bytes", map->grain);
    strings(emitter, "columns", columns, sizeof columns / sizeof *columns);
    key(emitter, "pieces");
    open_bracket(emitter, '[');
    for (uint32_t i = 0; i < map->count; i++) {
        const struct segment_piece *piece = &map->pieces[i];
        json_put_raw(&emitter->json);
        print_format(emitter->out, "[%lu,%lu,%lu,%lu,%u]", (unsigned long)piece->address,
                     (unsigned long)segment_map_bytes(piece->units),
                     (unsigned long)segment_map_bytes(piece->live),
                     (unsigned long)segment_map_bytes(piece->cached), piece->segments);
    }
    close_bracket(emitter, ']');
    close_bracket(emitter, '}');
}

/** Writes memory by requester. The peak of memory without a requester is unknown. */
static void emit_requesters(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    key(emitter, "libraries");
    open_bracket(emitter, '[');
    for (size_t i = 0; i < device->requester_count; i++) {
        const struct stats_requester *row = &device->requesters[i];
        open_bracket(emitter, '{');
        string(emitter, "name", row->name);
        number(emitter, "current", row->current);
        number_or_null(emitter, "peak", row->peak, row->peak != STATS_NO_PEAK);
        close_bracket(emitter, '}');
    }
    close_bracket(emitter, ']');
}

static void device_end(struct emitter *emitter) {
    const struct report_derived *derived = &emitter->derived;
    key(emitter, "fragmentation");
    open_bracket(emitter, '{');
    real(emitter, "internal", derived->internal_fragmentation);
    real(emitter, "external", derived->external_fragmentation);
    number(emitter, "largest_free_bytes", derived->largest_free);
    number(emitter, "free_blocks", emitter->device->free_blocks);
    real(emitter, "peak_reserved_over_peak_requested", derived->peak_ratio);
    close_bracket(emitter, '}');
    emit_size_classes(emitter);
    emit_requesters(emitter);
    emit_live(emitter);
    if (emitter->head->stacks)
        emit_holders(emitter);
    emit_map(emitter);
    close_bracket(emitter, '}');
}

static void end(struct emitter *emitter) {
    close_bracket(emitter, ']');
    if (emitter->head->stacks)
        emit_modules(emitter);
    close_bracket(emitter, '}');
    print_char(emitter->out, '\n');
}

const struct emitter_kind json_emitter = {
    .begin = begin,
    .device_begin = device_begin,
    .metric = metric,
    .gauge = gauge,
    .counter = counter,
    .unpooled_begin = unpooled_begin,
    .unpooled_end = unpooled_end,
    .device_end = device_end,
    .end = end,
};
