/*
 * Prints the call stacks that hold memory, for the text of a report, and single frames. The trace
 * and the tool print frames with it too. Takes no lock and allocates nothing.
 */
#ifndef GPUCACHE_REPORT_HOLDERS_H
#define GPUCACHE_REPORT_HOLDERS_H

#include "base/print.h"
#include "stats/holders.h"

#include <stdbool.h>

#define HOLDERS_NAMED 5 /* holders that a report names, at most */

/**
 * Prints `function (file:line)`, `file+0xoffset` or `0xaddress`. `brief`: files without folders.
 */
void holders_print_frame(struct print *out, const struct stats_frame *frame, bool brief);

/** Prints a frame for a short line: files without folders, C++ functions without return type and
 * template arguments. */
void holders_print_short(struct print *out, const struct stats_frame *frame);

/** Returns whether a frame is in a library that every allocation calls: CUDA's, or PyTorch's CUDA
 * library. */
bool holders_frame_is_entry(const struct stats_frame *frame);

/** Returns whether a frame is the program's own: not in an installed package, library or header of
 * Python, C++, CUDA or the system. Reports name other frames only if a stack has no own one. */
bool holders_frame_is_own(const struct stats_frame *frame);

/**
 * The frames of a stack that reports name:
 *
 *      1. only Python frames, if the stack has any
 *      2. of these, only the program's own frames, if there are any
 *      3. only frames outside the libraries that call the driver, if there are any
 */
struct holders_pick {
    bool python, own, beyond; /* rule 1, 2 or 3 applies */
};

/** Returns the rules that apply to a stack. */
struct holders_pick holders_pick_frames(const struct stats_stacks *stacks, uint32_t stack);

/** Returns whether reports name a frame of the stack that `pick` was made for. */
bool holders_frame_is_named(const struct holders_pick *pick, const struct stats_frame *frame);

/** Prints a stack: the innermost named frame on the line `first`, after a colon, and the others on
 * the line `second`. */
void holders_print_stack(const struct stats_stacks *stacks, uint32_t stack, struct print *first,
                         struct print *second);

/** Copies the holders of most live memory of a device, the largest first. Returns their number. */
unsigned holders_largest(const struct stats_stacks *stacks, int device,
                         struct stats_holder rows[HOLDERS_NAMED]);

/**
 * Prints the largest holders of a device at its peak and now; `now_only` leaves out the peak. Calls
 * line() with each line.
 */
void holders_write(const struct stats_stacks *stacks, int device, bool now_only,
                   void (*line)(void *with, struct print *text), void *with);

#endif
