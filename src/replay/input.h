/*
 * Files that tell what a program allocated, in the formats that there are:
 *
 *      time_us,thread,op,id,bytes           as tests/data/traces has them; `# period` where a period begins
 *      a ID BYTES, f ID                     the same without times
 *      Thread,Time,Action,Pointer,Size,Stream     RMM's log, with times of the day or in seconds
 *      a pickle of protocol 2 to 5          PyTorch's memory snapshot
 *      { as JSON                            the same
 *
 * each also packed by xz or zstd, where the tool was built with these.
 */
#ifndef GPUCACHE_REPLAY_INPUT_H
#define GPUCACHE_REPLAY_INPUT_H

#include "replay/history.h"

/** A whole file, unpacked. Ended by a NUL that does not count. */
struct input {
    char *bytes;
    size_t count;
    size_t
        most; /* bytes that a file of this size may become; where it is packed, it may claim any */
};

/** 0, or a negative errno and `why`. `-` is the standard input. */
int input_read(const char *path, struct input *input, char why[HISTORY_WHY]);
void input_free(struct input *input);

/** 0, or a negative errno and histories->why. Histories are to be freed in any case. */
int input_histories(const struct input *input, struct histories *histories);

/* The formats, each from its own file. -EINVAL: why. */
bool rows_are_known(const struct input *input);
int rows_read(const struct input *input, struct histories *histories);
int snapshot_read(const struct input *input, struct histories *histories);

#endif
