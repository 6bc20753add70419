/*
 * The call stacks of a report that was read from a file: what the library wrote (stats/holders.h), with the names that
 * it left to be found (symbols.h).
 */
#ifndef GPUCACHE_TOOL_STACKS_H
#define GPUCACHE_TOOL_STACKS_H

#include "process/print.h"
#include "stats/holders.h"
#include "tool/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One of the report. */
struct stack_frames {
    struct stats_frame *frames; /* with texts of their own */
    unsigned count;
};

struct stack_row {
    int device;
    struct stats_holder holder;
};

struct stack_device {
    int device;
    struct stats_held held;
};

struct stack_module {
    char *path, *build_id;
};

struct parsed_stacks {
    struct stats_stacks view;
    char *unwinder;
    uint64_t lost_stacks, lost_blocks;
    struct stack_frames *stacks; /* number 1 first */
    struct stack_row *rows;
    struct stack_device *devices;
    struct stack_module *modules;
    size_t stack_count, row_count, device_count, module_count;
};

/** Those of a report; NULL: it has none. Freed with parsed_stacks_free(). */
struct parsed_stacks *parsed_stacks_read(const struct json *report);
void parsed_stacks_free(struct parsed_stacks *stacks);

/** As reports read them. */
const struct stats_stacks *parsed_stacks_view(const struct parsed_stacks *stacks);

/** A text of a frame's, and their end. */
char *stack_text(const char *text, size_t length);
void stack_frame_free(const struct stats_frame *frame);

/** Returns the frame that holders_print_frame() has written in full, with texts of its own: traces
 * have such texts. */
struct stats_frame stack_frame_read(const char *text);

struct symbols;

/** Replaces a native frame, which lies in a file of that build id, by the functions there: those
 * that were inlined, and the one that holds them. Changes nothing where they are not known. */
void stack_frames_resolve(struct stack_frames *stack, unsigned at, struct symbols *symbols,
                          const char *build_id);

/** Adds the stack of a holder or of a live size (its member "frames"), and returns its number. */
uint32_t parsed_stacks_add(struct parsed_stacks *stacks, const struct json *holder);

/** Looks for the names of native frames, and makes stacks of equal names one. `brief`: where there are lines of Python
 * native frames are left out, as the text does; names in large libraries take seconds. */
void parsed_stacks_resolve(struct parsed_stacks *stacks, bool brief);

/** By names and lines; without a name, by where it lies. */
int stack_frames_compare(const struct stack_frames *a, const struct stack_frames *b);

/** Says which stacks of a device held more at its peak, or less, than in the report before; both resolved alike. Nothing where one has none. */
void parsed_stacks_print_changes(const struct parsed_stacks *before,
                                 const struct parsed_stacks *after, int device, struct print *out);

enum folded { FOLDED_NOT, FOLDED_BYTE_SECONDS, FOLDED_PEAK, FOLDED_LIVE };

/** Writes the holders of a device as flame graph tools read them: frames from the outermost on, a blank, the weight.
 * `root` stands in front of each, if it is not empty. */
void parsed_stacks_fold(const struct parsed_stacks *stacks, int device, enum folded weight,
                        const char *root, struct print *out);

#endif
