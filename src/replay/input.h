/*
 * Reads files with the allocations of a program, in these formats:
 *
 *   | format                                 | file                                           |
 *   | -------------------------------------- | ---------------------------------------------- |
 *   | time_us,thread,op,id,bytes             | tests/data/traces; `# period` begins a period  |
 *   | a ID BYTES, f ID                       | one event a line, without times                |
 *   | Thread,Time,Action,Pointer,Size,Stream | RMM's log, with times of the day or in seconds |
 *   | a pickle of protocol 2 to 5            | PyTorch's memory snapshot                      |
 *   | JSON that begins with {                | PyTorch's memory snapshot                      |
 *
 * Each may be packed with xz or zstd, if the tool was built with these libraries.
 */
#ifndef GPUCACHE_REPLAY_INPUT_H
#define GPUCACHE_REPLAY_INPUT_H

#include "replay/history.h"

/** The contents of a file, unpacked. A NUL follows, which `count` does not include. */
struct input {
    char *bytes;
    size_t count;
    /* Of a packed file, which may claim any size: bound of `count`, and of the memory of values.
     * SIZE_MAX for other files. */
    size_t most;
};

/**
 * Reads and unpacks a file; `-` is the standard input. Returns 0, or a negative errno and `why`.
 */
int input_read(const char *path, struct input *input, char why[HISTORY_WHY]);
void input_free(struct input *input);

/**
 * Converts a file to histories. Returns 0, or a negative errno and histories->why. The caller frees
 * the histories in both cases.
 */
int input_histories(const struct input *input, struct histories *histories);

/* The readers of the formats, each in its own file. They return 0, -EINVAL, or -EFBIG if the values
 * of a snapshot take more than `most` bytes. After an error histories->why is set. */
bool rows_are_known(const struct input *input);
int rows_read(const struct input *input, struct histories *histories);
int snapshot_read(const struct input *input, struct histories *histories);

#endif
