/*
 * Records the call stacks of live blocks, and gives them to reports (stacks.h). `view` and `depth`
 * are written once, before allocations call this file. Locks: those of site.c, live_blocks.c and
 * site_bytes.c.
 */
#include "stacks/stacks.h"

#include "base/libraries.h"
#include "base/log.h"
#include "options/options.h"
#include "stacks/live_blocks.h"
#include "stacks/module.h"
#include "stacks/python.h"
#include "stacks/requester.h"
#include "stacks/site.h"
#include "stacks/unwind.h"
#include "stats/stats.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#define SIZES 1024 /* rows of the table of live sizes */

struct requester_row *(*stacks_requesters)(int device);
struct stacks_bounds stacks_bounds = {.sites = 32768, .blocks_of_part = 16384};

static unsigned depth;
static struct stats_stacks view;
static bool started;

/* --- for reports --- */

static struct stats_recording recording(const void *of) {
    (void)of;
    return (struct stats_recording){unwind_name(), site_lost(), live_blocks_lost()};
}

static struct stats_held held(const void *of, int device) {
    (void)of;
    return site_bytes_of_device(device);
}

static bool next(const void *of, int device, uint32_t *at, struct stats_holder *holder) {
    (void)of;
    while (*at < site_count()) {
        if (site_at(++*at)->device == device) {
            site_bytes_read(*at, holder);
            if (holder->total.count > 0) /* without one, all allocations of the site failed */
                return true;
        }
    }
    return false;
}

static bool frame(const void *of, uint32_t stack, unsigned index, struct stats_frame *out) {
    (void)of;
    const struct site *site = stack > 0 && stack <= site_count() ? site_at(stack) : NULL;
    if (!site || index >= (unsigned)site->native_count + site->python_count)
        return false;
    const struct site_frame *from = &site->frames[index];
    if (from->file) {
        *out = (struct stats_frame){
            .function = from->function, .file = from->file, .line = from->line, .python = true};
    } else {
        const struct module_info *module = module_info(from->line);
        *out = (struct stats_frame){.file = module ? module->path : NULL, .offset = from->offset};
    }
    return true;
}

static bool module(const void *of, uint32_t index, const char **path, const char **build_id) {
    (void)of;
    const struct module_info *info = module_info(index);
    if (info) {
        *path = info->path;
        *build_id = info->build_id;
    }
    return info != NULL;
}

const struct stats_stacks *stacks_view(void) {
    return started ? &view : NULL;
}

/* --- start --- */

bool stacks_start(unsigned frames, stacks_look_up *look_up) {
    module_start(look_up); /* again: unit tests start no requester */
    if (!site_start(stacks_bounds.sites)) {
        log_warn("GPUCACHE_STACKS: no memory of the host for it; call stacks are not recorded");
        return false;
    }
    unwind_start(look_up);
    python_start(look_up);
    dlerror(); /* the program must not find an error that it did not cause */
    live_blocks_start(stacks_bounds.blocks_of_part);
    site_bytes_start();
    depth = frames < OPTIONS_MAX_STACK ? frames : OPTIONS_MAX_STACK;
    view = (struct stats_stacks){.frames = depth,
                                 .python = python_version(),
                                 .recording = recording,
                                 .held = held,
                                 .next = next,
                                 .frame = frame,
                                 .module = module};
    started = true;
    return true;
}

/* --- capturing --- */

/* Captures the thread's stack. Drops native frames from the Python interpreter outwards. */
static void capture(struct site_stack *stack) {
    site_hide_closed_modules();
    libraries_begin_reading(); /* the unwinder may ask the loader for a module */
    stack->native_count = unwind(stack->native, depth, &stack->native_walked);
    libraries_end_reading();
    stack->python_count = python_frames(stack->python, depth);
    for (unsigned i = 0; stack->python_count > 0 && i < stack->native_count; i++)
        if (python_has(stack->native[i]))
            stack->native_count = i;
}

uint32_t stacks_here(int device) {
    int saved = errno, cancel;
    struct site_stack stack;
    /* a CUDA call is no cancellation point */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    capture(&stack);
    pthread_setcancelstate(cancel, &cancel);
    uint32_t site = site_of(device, &stack);
    errno = saved;
    return site;
}

/* Returns the row in which a block counts for its requester, or NULL. */
static struct requester_row *row_of(const struct stacks_block *block) {
    struct requester_row *rows = block->requester && stacks_requesters
                                     ? stacks_requesters(site_at(block->site)->device)
                                     : NULL;
    return rows ? &rows[block->requester - 1] : NULL;
}

/* `again`: the block was counted before, and its free failed. */
static void count(const struct stacks_block *block, bool again) {
    struct requester_row *row = row_of(block);
    site_bytes_add(block->site, block->bytes, again);
    if (row)
        requester_add(row, block->bytes);
}

static void uncount(const struct stacks_block *block) {
    struct requester_row *row = row_of(block);
    site_bytes_remove(block->site, block->bytes);
    if (row)
        requester_subtract(row, block->bytes);
}

void stacks_add(uint32_t stack, uint64_t address, uint64_t bytes, bool small) {
    int saved = errno;
    struct stacks_block block = {address, bytes, stack,
                                 small ? (uint8_t)(requester_here() + 1) : 0},
                        replaced;
    if (stack != SITE_NONE && live_blocks_add(&block, &replaced)) {
        if (replaced.site != SITE_NONE)
            uncount(&replaced);
        count(&block, false);
    }
    errno = saved;
}

bool stacks_remove(uint64_t address, struct stacks_block *block) {
    if (!live_blocks_remove(address, block))
        return false;
    uncount(block);
    return true;
}

void stacks_restore(const struct stacks_block *block) {
    struct stacks_block replaced;
    if (live_blocks_add(block, &replaced) && replaced.site == SITE_NONE)
        count(block, true);
}

uint32_t stacks_of(uint64_t address) {
    struct stacks_block block;
    return live_blocks_find(address, &block) ? block.site : 0;
}

uint32_t stacks_count(void) {
    return site_count();
}

void stacks_remove_if(bool (*gone)(uint64_t address, const void *with), const void *with) {
    struct stacks_block block;
    uint64_t at = 0;
    while (live_blocks_remove_if(gone, with, &at, &block))
        uncount(&block);
}

void stacks_reset_peak(int device) {
    site_bytes_reset_peak(device);
}

/* --- live sizes --- */

/* The rows of `live` in a report: live sizes with the sites that allocated them. One reader at a
 * time fills the table (`busy`). Blocks that change during the call may be missed. */
static struct sizes {
    atomic_bool busy;
    int device;
    unsigned used;
    struct size_row {
        struct stats_live live;
        uint32_t stack;
    } rows[SIZES];
} sizes;

/* Adds a live block to the row of its size and site. Ignores it if the table is full. */
static void add_block(const struct stacks_block *block, void *with) {
    struct sizes *to = with;
    if (site_at(block->site)->device != to->device)
        return;
    uint64_t hash =
        (block->bytes ^ (uint64_t)block->site << 40) * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    for (unsigned i = 0; i < SIZES; i++) {
        struct size_row *row = &to->rows[(hash + i) % SIZES];
        if (row->live.count == 0 && to->used++ >= SIZES - 1)
            return; /* more rows than a report can list */
        if (row->live.count == 0 ||
            (row->live.bytes == block->bytes && row->stack == block->site)) {
            *row = (struct size_row){{block->bytes, row->live.count + 1}, block->site};
            return;
        }
    }
}

/* Inserts a row into the list, which is sorted by bytes, largest first. */
static void insert_row(struct stats_device *stats, const struct size_row *row) {
    size_t at = stats->live_groups;
    uint64_t bytes = row->live.bytes * row->live.count;
    while (at > 0 && bytes > stats->live[at - 1].bytes * stats->live[at - 1].count)
        at--;
    if (at >= STATS_LIVE_SIZES)
        return;
    size_t moved =
        stats->live_groups < STATS_LIVE_SIZES ? stats->live_groups : STATS_LIVE_SIZES - 1;
    memmove(&stats->live[at + 1], &stats->live[at], (moved - at) * sizeof *stats->live);
    memmove(&stats->live_stacks[at + 1], &stats->live_stacks[at],
            (moved - at) * sizeof *stats->live_stacks);
    stats->live[at] = row->live;
    stats->live_stacks[at] = row->stack;
    stats->live_groups = moved + 1;
}

bool stacks_read_live(int device, struct stats_device *stats) {
    if (!stacks_view() || live_blocks_lost() > 0 || atomic_exchange(&sizes.busy, true))
        return false;
    memset(sizes.rows, 0, sizeof sizes.rows);
    sizes.used = 0;
    sizes.device = device;
    live_blocks_each(add_block, &sizes);
    stats->live_groups = 0;
    for (unsigned i = 0; i < SIZES; i++)
        if (sizes.rows[i].live.count > 0)
            insert_row(stats, &sizes.rows[i]);
    atomic_store(&sizes.busy, false);
    return true;
}
