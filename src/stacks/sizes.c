/*
 * Live sizes with the call sites that allocated them: the rows of `live` in a report. One reader at
 * a time fills the table (`busy`). Blocks that change meanwhile may be missed.
 */
#include "stacks/live_blocks.h"
#include "stacks/site.h"
#include "stats/stats.h"

#include <string.h>

#define ROWS 1024

static struct sizes {
    atomic_bool busy;
    int device;
    unsigned used;
    struct row {
        struct stats_live live;
        uint32_t stack;
    } rows[ROWS];
} sizes;

/* Adds a live block to the row of its size and site. Ignores it if the table is full. */
static void add_block(const struct stacks_block *block, void *with) {
    struct sizes *to = with;
    if (site_at(block->site)->device != to->device)
        return;
    uint64_t hash =
        (block->bytes ^ (uint64_t)block->site << 40) * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    for (unsigned i = 0; i < ROWS; i++) {
        struct row *row = &to->rows[(hash + i) % ROWS];
        if (row->live.count == 0 && to->used++ >= ROWS - 1)
            return; /* more rows than a report can list */
        if (row->live.count == 0 ||
            (row->live.bytes == block->bytes && row->stack == block->site)) {
            *row = (struct row){{block->bytes, row->live.count + 1}, block->site};
            return;
        }
    }
}

/* Inserts a row into the list, which is sorted by bytes, largest first. */
static void insert_row(struct stats_device *stats, const struct row *row) {
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
    for (unsigned i = 0; i < ROWS; i++)
        if (sizes.rows[i].live.count > 0)
            insert_row(stats, &sizes.rows[i]);
    atomic_store(&sizes.busy, false);
    return true;
}
