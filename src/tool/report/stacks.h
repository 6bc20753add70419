/*
 * The call stacks of a report from a file, or of a live page. The library writes them
 * (stats/holders.h); the command adds the names of native functions (symbols.c).
 */
#ifndef GPUCACHE_TOOL_REPORT_STACKS_H
#define GPUCACHE_TOOL_REPORT_STACKS_H

#include "base/print.h"
#include "replay/plain.h"
#include "stats/holders.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STACKS_FRAME_TEXT 1280 /* bytes of a frame's text; a page names frames by it (html.h) */

/* A call stack of the report. */
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
    struct stats_stacks view;         /* the stacks as the library's own reports read them */
    struct stats_recording recording; /* with a text of its own, or NULL */
    struct stack_frames *stacks;      /* number 1 first */
    struct stack_row *rows;
    struct stack_device *devices;
    struct stack_module *modules;
    size_t stack_count, row_count, device_count, module_count;
};

/** Reads the stacks of a report. Returns NULL if it has none. Free the result with
 * parsed_stacks_free(). */
struct parsed_stacks *parsed_stacks_read(const struct plain_value *report);

struct page;

/** Returns the stacks that hold most on a live page, without peaks and totals. Their names are not
 * resolved. Returns NULL if stacks are not recorded. Freed with parsed_stacks_free(). */
struct parsed_stacks *parsed_stacks_of_page(const struct page *page);
void parsed_stacks_free(struct parsed_stacks *stacks);

/** Copies a text of a frame. The other functions free a frame's texts, and a stack's frames. */
char *stack_text(const char *text);
void stack_frame_free(const struct stats_frame *frame);
void stack_frames_free(struct stack_frames *stack);

struct symbol {
    const char *function, *file; /* file NULL: unknown; never freed */
    unsigned line;               /* 0: unknown */
};

/**
 * Finds the functions at an offset in a file, in the file's own addresses, from symbols and debug
 * information. The list has the inlined functions, innermost first, and last the function of the
 * symbol table. It is never freed, because gpucache top looks up the same addresses again and
 * again. Returns the number of functions, or 0 in three cases, and prints the last two once:
 *
 *   - the functions are unknown
 *   - the file now has another build ID than `build_id`, unless that is empty
 *   - this build has no libdw
 */
unsigned symbols_find(const char *path, const char *build_id, uint64_t offset,
                      const struct symbol **list);

/** Replaces a native frame, in a file of that build id, by the functions at its address: the
 * inlined ones, and the one that contains them. Changes nothing if they are not known. */
void stack_frames_resolve(struct stack_frames *stack, unsigned at, const char *build_id);

/** Adds the stack of a holder or of a live size (its member "frames"), and returns its number. */
uint32_t parsed_stacks_add(struct parsed_stacks *stacks, const struct plain_value *holder);

/** Looks up the names of native frames, and merges stacks of equal names. With `brief`, drops
 * native frames of stacks with lines of Python, as the text does: names in large libraries take
 * seconds. */
void parsed_stacks_resolve(struct parsed_stacks *stacks, bool brief);

/** Compares stacks by names and lines, and frames without a name by their address. */
int stack_frames_compare(const struct stack_frames *a, const struct stack_frames *b);

enum folded { FOLDED_NOT, FOLDED_BYTE_SECONDS, FOLDED_PEAK, FOLDED_LIVE };

/** Writes the holders of a device for flame graph tools: the frames from the outermost on, a blank,
 * the weight. Each line begins with `root`, if it is not empty. */
void parsed_stacks_fold(const struct parsed_stacks *stacks, int device, enum folded weight,
                        const char *root, struct print *out);

#endif
