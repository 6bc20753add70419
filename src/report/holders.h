/*
 * Who holds memory, in words: for the text of a report, and a frame as everybody writes it.
 */
#ifndef GPUCACHE_REPORT_HOLDERS_H
#define GPUCACHE_REPORT_HOLDERS_H

#include "process/print.h"
#include "stats/holders.h"

#include <stdbool.h>

/** `function (file:line)`, `file+0xoffset` or `0xaddress`; of files only the name if `brief`. */
void holders_print_frame(struct print *out, const struct stats_frame *frame, bool brief);

/** Prints a frame for a short line: files by name only, and functions of C++ without the type that
 * they return and without what stands in angle brackets. */
void holders_print_short(struct print *out, const struct stats_frame *frame);

/** Returns whether a frame is of a library that every allocation goes through: CUDA's, or
 * PyTorch's that calls it. */
bool holders_frame_is_entry(const struct stats_frame *frame);

/** Returns whether a frame is the program's own: of no installed package, library or header of
 * Python, C++, CUDA or the system. All reports name such frames, and others only where a stack
 * has none. */
bool holders_frame_is_own(const struct stats_frame *frame);

/** Decides which frames of a stack reports name: lines of Python where the stack has any; of those
 * the program's own where there are any; else all but those of libraries that call the driver. */
struct holders_pick {
    bool python, own, beyond;
};
struct holders_pick holders_pick_frames(const struct stats_stacks *stacks, uint32_t stack);

/** Returns whether reports name a frame of the stack that was picked from. */
bool holders_frame_is_named(const struct holders_pick *pick, const struct stats_frame *frame);

/** Prints a frame of those that holders_print_stack() names; `number` counts them, innermost
 * first, from 0. Returns false beyond the last one. */
bool holders_print_named(const struct stats_stacks *stacks, uint32_t stack, unsigned number,
                         struct print *out);

/** A stack: the innermost frame that is worth a look behind a colon on the line that is begun, others on one more. */
void holders_print_stack(const struct stats_stacks *stacks, uint32_t stack, struct print *first,
                         struct print *second);

/** The lines of a device: who held most at its peak, and who does now; `now_only`: not the former. Each is handed to `line`. */
void holders_write(const struct stats_stacks *stacks, int device, bool now_only,
                   void (*line)(void *with, struct print *text), void *with);

#endif
