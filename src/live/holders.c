/* Copies call stacks into a live page, with the frames that a report would name. */
#include "live/holders.h"

#include "report/holders.h"

#include <string.h>

_Static_assert(LIVE_HOLDERS == HOLDERS_NAMED, "rows are copied one by one");

/* Copies a string into a zeroed array of `size` bytes, and cuts it if it is longer. */
static void copy(char *to, size_t size, const char *from) {
    strncpy(to, from ? from : "", size - 1);
}

static void copy_build_id(struct live_frame *to, const struct stats_stacks *stacks,
                          const char *file) {
    const char *path, *build_id;
    for (uint32_t i = 0; stacks->module(stacks->of, i, &path, &build_id); i++)
        if (strcmp(path, file) == 0)
            copy(to->build_id, sizeof to->build_id, build_id);
}

static void copy_frames(struct live_holder *to, const struct stats_stacks *stacks, uint32_t stack) {
    struct holders_pick pick = holders_pick_frames(stacks, stack);
    struct stats_frame frame;
    for (unsigned i = 0; to->frames < LIVE_FRAMES && stacks->frame(stacks->of, stack, i, &frame);
         i++) {
        if (!holders_frame_is_named(&pick, &frame))
            continue;
        struct live_frame *copied = &to->frame[to->frames++];
        copy(copied->function, sizeof copied->function, frame.function);
        copy(copied->file, sizeof copied->file, frame.file);
        copied->offset = frame.offset;
        copied->line = frame.line;
        copied->python = frame.python;
        if (frame.file && !frame.function)
            copy_build_id(copied, stacks, frame.file);
    }
}

void live_copy_holders(struct live_holders *to, int device) {
    const struct stats_stacks *stacks = stats_stacks();
    struct stats_holder rows[HOLDERS_NAMED];
    memset(to, 0, sizeof *to);
    if (!stacks)
        return;
    struct stats_held held = stacks->held(stacks->of, device);
    to->recorded = 1;
    to->bytes = held.live.bytes;
    to->count = held.live.count;
    to->lost_blocks = stacks->recording(stacks->of).lost_blocks;
    to->rows = holders_largest(stacks, device, rows);
    for (uint32_t i = 0; i < to->rows; i++) {
        to->row[i].bytes = rows[i].held.live.bytes;
        to->row[i].count = rows[i].held.live.count;
        copy_frames(&to->row[i], stacks, rows[i].stack);
    }
}
