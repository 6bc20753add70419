/*
 * Writes the entries of a snapshot: converts the events of a trace to the viewer's entries.
 */
#include "heap/page.h"
#include "tool/trace/snapshot.h"

/* Bound of snapshot.covered: a damaged file may list the same segments many times. */
#define COVERED_MOST ((uint64_t)8 << 40)

/* ---- entries of the trace ---- */

int64_t snapshot_time_us(const struct snapshot *of, uint64_t ns) {
    return (int64_t)((ns + of->file->header->real_ns) / 1000);
}

/** Writes an entry for an event. A carried event only updates the view. */
static void write_entry(struct snapshot *to, const char *action, const struct trace_event *event,
                        uint64_t bytes, uint32_t stack) {
    bool oom = event->kind == TRACE_MOMENT_OOM;
    if (event >= to->file->events + to->file->carried)
        memory_snapshot_entry(&to->format,
                              &(struct memory_entry){action, oom ? "device_free" : "addr",
                                                     oom ? event->detail : event->address, bytes,
                                                     snapshot_time_us(to, event->time_ns), stack});
}

/* ---- pages ---- */

/** Adds the pages of an address range to `shown`, or removes them. */
static void cover(struct view *of, uint64_t address, uint64_t bytes, bool covered) {
    struct trace_event page = {.kind = covered ? TRACE_MAP : TRACE_UNMAP, .bytes = PAGE_BYTES};
    for (uint64_t at = 0; at < bytes; at += PAGE_BYTES) {
        page.address = address + at;
        trace_live_set_apply(&of->shown, &page);
    }
}

static void change_page(struct snapshot *to, struct view *of, const struct trace_event *event) {
    bool comes = event->kind == TRACE_MAP;
    if (!comes && !trace_live_set_at(&of->mapped, TRACE_PAGES, event->address))
        return;
    trace_live_set_apply(&of->mapped, event);
    cover(of, event->address, PAGE_BYTES, comes);
    write_entry(to, comes ? "segment_map" : "segment_unmap", event, PAGE_BYTES,
                comes ? event->stack : 0);
}

/* ---- blocks and segments ---- */

/** Returns whether a block lies in segments and pages that are shown. A block without a pool must
 * begin at a segment of its own. */
static bool is_covered(const struct view *of, const struct trace_event *block) {
    uint64_t bytes = block->value > 0 ? block->value : 1;
    if (block->space == 0)
        return trace_live_set_at(&of->shown, TRACE_SEGMENTS, block->address) != NULL;
    for (uint64_t at = block->address & ~(PAGE_BYTES - 1); at < block->address + bytes;
         at += PAGE_BYTES)
        if (!trace_live_set_at(&of->shown, TRACE_PAGES, at))
            return false;
    return true;
}

static void allocate(struct snapshot *to, struct view *of, const struct trace_event *event) {
    if (!is_covered(of, event)) {
        of->left_out++;
        return;
    }
    trace_live_set_apply(&of->shown, event);
    write_entry(to, "alloc", event, event->value, event->stack);
}

static void free_block(struct snapshot *to, struct view *of, const struct trace_event *event) {
    const struct trace_event *block = trace_live_set_at(&of->shown, TRACE_BLOCKS, event->address);
    if (!block)
        return;
    uint32_t stack = block->stack; /* a free has the stack of the allocation, as in PyTorch */
    trace_live_set_apply(&of->shown, event);
    write_entry(to, "free_requested", event, event->value, stack);
    write_entry(to, "free_completed", event, event->value, stack);
}

/**
 * Adds or removes a segment. Ignores growth by pages (address 0) and segments beyond COVERED_MOST.
 */
static void change_segment(struct snapshot *to, struct view *of, const struct trace_event *event) {
    bool comes = event->kind == TRACE_MOMENT_GROW;
    const struct trace_event *there = trace_live_set_at(&of->shown, TRACE_SEGMENTS, event->address);
    const struct trace_event *meant = comes ? event : there;
    if (event->address == 0 || !meant)
        return;
    uint64_t covers = meant->space != 0 ? meant->bytes : 0;
    if (comes && covers > COVERED_MOST - to->covered)
        return;
    to->covered += comes ? covers : -covers;
    trace_live_set_apply(&of->shown, event);
    cover(of, event->address, covers, comes);
    write_entry(to, comes ? "segment_alloc" : "segment_free", event, event->bytes, event->stack);
}

static void show(struct snapshot *to, struct view *of, const struct trace_event *event) {
    switch (event->kind) {
    case TRACE_ALLOCATE:
        allocate(to, of, event);
        break;
    case TRACE_FREE:
        free_block(to, of, event);
        break;
    case TRACE_MAP:
    case TRACE_UNMAP:
        change_page(to, of, event);
        break;
    case TRACE_MOMENT_GROW:
    case TRACE_MOMENT_GIVE_BACK:
        change_segment(to, of, event);
        break;
    case TRACE_MOMENT_OOM:
        write_entry(to, "oom", event, event->bytes, event->stack);
        break;
    default:
        break;
    }
}

void snapshot_trace(struct snapshot *to, unsigned device) {
    pickle_list(&to->pickle);
    for (size_t i = 0; i < to->file->count; i++)
        if (to->file->events[i].device == device)
            show(to, &to->views[device], &to->file->events[i]);
    pickle_close(&to->pickle);
}
