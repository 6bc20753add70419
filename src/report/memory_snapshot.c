/*
 * Writes frames, segments, blocks and trace entries for PyTorch's viewer (memory_snapshot.h).
 */
#include "report/memory_snapshot.h"

#include "base/sort.h"

#include <string.h>

/* ---- frames ---- */

static void write_frame(struct pickle_writer *to, const char *file, unsigned line,
                        const char *name) {
    pickle_dict(to);
    pickle_key(to, "filename");
    pickle_text(to, file);
    pickle_key(to, "line");
    pickle_int(to, line);
    pickle_key(to, "name");
    pickle_text(to, name);
    pickle_close(to);
}

/** Writes module and offset as the name of a frame without a function name. */
static void write_unnamed_frame(struct pickle_writer *to, const struct stats_frame *frame) {
    char name[1152];
    struct print out;
    const char *file = frame->file, *slash = file ? strrchr(file, '/') : NULL;
    print_init(&out, -1, name, sizeof name);
    print_format(&out, "%s%s0x", slash ? slash + 1 : file ? file : "", file ? "+" : "");
    print_hex(&out, frame->offset);
    write_frame(to, file ? file : "??", 0, print_end(&out));
}

void memory_snapshot_frame(struct pickle_writer *to, const struct stats_frame *frame) {
    if (frame->function)
        write_frame(to, frame->file ? frame->file : "??", frame->line, frame->function);
    else
        write_unnamed_frame(to, frame);
}

void memory_snapshot_words(struct pickle_writer *to, const char *words) {
    pickle_list(to);
    write_frame(to, "", 0, words);
    pickle_close(to);
}

/* ---- segments ---- */

/** Joins adjacent segments of VMM pages. */
static void join_pages(struct memory_list *list) {
    struct memory_segment *all = list->segments;
    size_t kept = 0;
    for (size_t i = 0; i < list->segment_count; i++) {
        struct memory_segment *last = kept > 0 ? &all[kept - 1] : NULL;
        if (last && last->pages && all[i].pages && last->address + last->bytes == all[i].address)
            last->bytes += all[i].bytes;
        else
            all[kept++] = all[i];
    }
    list->segment_count = kept;
}

/** Writes a block, or free memory if `block` is NULL. */
static void write_block(const struct memory_snapshot *snapshot, uint64_t address, uint64_t bytes,
                        const struct memory_block *block) {
    struct pickle_writer *to = snapshot->pickle;
    pickle_dict(to);
    pickle_key(to, "address");
    pickle_int(to, (int64_t)address);
    pickle_key(to, "size");
    pickle_int(to, (int64_t)bytes);
    pickle_key(to, "requested_size");
    pickle_int(to, (int64_t)(block ? block->requested : 0));
    pickle_key(to, "state");
    pickle_word(to, block ? "active_allocated" : "inactive");
    pickle_key(to, "frames");
    if (block)
        snapshot->frames(snapshot->with, block->stack);
    else
        snapshot->no_frames(snapshot->with);
    pickle_close(to);
}

/**
 * Writes the memory of a segment without gaps: the `count` blocks in it, and free memory between.
 */
static void write_blocks(const struct memory_snapshot *to, const struct memory_segment *segment,
                         const struct memory_block *blocks, size_t count) {
    uint64_t at = segment->address, end = at + segment->bytes;
    pickle_list(to->pickle);
    for (size_t i = 0; i < count; i++) {
        if (blocks[i].address > at)
            write_block(to, at, blocks[i].address - at, NULL);
        write_block(to, blocks[i].address, blocks[i].bytes, &blocks[i]);
        at = blocks[i].address + blocks[i].bytes;
    }
    if (at < end)
        write_block(to, at, end - at, NULL);
    pickle_close(to->pickle);
}

static void write_segment(const struct memory_snapshot *snapshot, unsigned device,
                          const struct memory_segment *segment, const struct memory_block *blocks,
                          size_t count) {
    struct pickle_writer *to = snapshot->pickle;
    uint64_t allocated = 0, requested = 0;
    for (size_t i = 0; i < count; i++) {
        allocated += blocks[i].bytes;
        requested += blocks[i].requested;
    }
    pickle_dict(to);
#define FIELD(name, value) pickle_key(to, name), pickle_int(to, (int64_t)(value))
    FIELD("device", device);
    FIELD("address", segment->address);
    FIELD("total_size", segment->bytes);
    FIELD("allocated_size", allocated);
    FIELD("active_size", allocated);
    FIELD("requested_size", requested);
    FIELD("stream", 0);
#undef FIELD
    pickle_key(to, "segment_type");
    pickle_word(to, "large");
    pickle_key(to, "segment_pool_id");
    pickle_pair(to, 0, 0);
    pickle_key(to, "is_expandable");
    pickle_bool(to, segment->pages);
    pickle_key(to, "frames");
    snapshot->frames(snapshot->with, segment->stack);
    pickle_key(to, "blocks");
    write_blocks(snapshot, segment, blocks, count);
    pickle_close(to);
}

void memory_snapshot_sort(struct memory_list *list) {
    sort_by_key(list->blocks, list->block_count, sizeof *list->blocks);
    sort_by_key(list->segments, list->segment_count, sizeof *list->segments);
    join_pages(list);
}

void memory_snapshot_segments(const struct memory_snapshot *to, unsigned device,
                              const struct memory_list *list) {
    const struct memory_block *blocks = list->blocks;
    size_t at = 0;
    for (size_t i = 0; i < list->segment_count; i++) {
        const struct memory_segment *segment = &list->segments[i];
        while (at < list->block_count && blocks[at].address < segment->address)
            at++;
        size_t first = at;
        while (at < list->block_count && blocks[at].address < segment->address + segment->bytes)
            at++;
        write_segment(to, device, segment, blocks + first, at - first);
    }
}

/* ---- trace entries and settings ---- */

void memory_snapshot_entry(const struct memory_snapshot *to, const struct memory_entry *entry) {
    struct pickle_writer *pickle = to->pickle;
    pickle_dict(pickle);
    pickle_key(pickle, "action");
    pickle_word(pickle, entry->action);
    pickle_key(pickle, entry->address_key);
    pickle_int(pickle, (int64_t)entry->address);
    pickle_key(pickle, "size");
    pickle_int(pickle, (int64_t)entry->bytes);
    pickle_key(pickle, "stream");
    pickle_int(pickle, 0);
    pickle_key(pickle, "time_us");
    pickle_int(pickle, entry->time_us);
    pickle_key(pickle, "frames");
    to->frames(to->with, entry->stack);
    pickle_close(pickle);
}

void memory_snapshot_settings(struct pickle_writer *to, const char *version) {
    pickle_dict(to);
    pickle_key(to, "allocator");
    pickle_text(to, "libgpucache");
    pickle_key(to, "version");
    pickle_text(to, version);
}
