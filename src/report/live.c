/*
 * Writes what is live: the bytes, the number of allocations, and the sizes that hold most bytes.
 *
 * Sizes with the same text are counted together: `3 x 2.00 MiB, 1 x 2.00 MiB` would look like an
 * error. The JSON has exact sizes. Takes no lock and allocates nothing.
 */
#include "report/emitter.h"

#include <string.h>

/** Sizes with the same text. */
struct group {
    char size[LINES_VALUE];
    uint64_t count;
    uint64_t bytes; /* of all allocations together */
};

static void add(struct group *groups, size_t *count, const struct stats_live *live) {
    char size[LINES_VALUE] = "";
    size_t at = 0;
    lines_size(size, live->bytes);
    while (at < *count && strcmp(groups[at].size, size) != 0)
        at++;
    if (at == *count) {
        groups[(*count)++] = (struct group){.count = 0};
        memcpy(groups[at].size, size, sizeof size);
    }
    groups[at].count += live->count;
    groups[at].bytes += live->bytes * live->count;
}

/** Removes the group that holds the most bytes from the list, and returns it. */
static struct group take_largest(struct group *groups, size_t *count) {
    size_t largest = 0;
    for (size_t i = 1; i < *count; i++)
        if (groups[i].bytes > groups[largest].bytes)
            largest = i;
    struct group taken = groups[largest];
    groups[largest] = groups[--*count];
    return taken;
}

void live_write(struct lines *lines, const struct stats_device *device, unsigned most) {
    struct group groups[STATS_LIVE_SIZES];
    size_t count = 0;
    for (size_t i = 0; i < device->live_groups && i < STATS_LIVE_SIZES; i++)
        add(groups, &count, &device->live[i]);
    if (device->allocations.current == 0) {
        lines_start(lines, "Still live: nothing");
        return;
    }
    bool listed = count > 0 && device->allocations.current > 1;
    lines_start(lines, "Still live: %s in %s allocation%s%s", SIZE(device->requested.current),
                COUNT(device->allocations.current), device->allocations.current == 1 ? "" : "s",
                listed ? ":" : "");
    for (unsigned named = 0; listed && count > 0; named++) {
        struct group group = take_largest(groups, &count);
        if (named == most || !lines_item(lines, "%s x %s", COUNT(group.count), group.size)) {
            lines_item(lines, "...");
            return;
        }
    }
}
