/*
 * Names of addresses in files, from their symbols and debug information, by libdw where the tool
 * was built with it.
 */
#ifndef GPUCACHE_TOOL_SYMBOLS_H
#define GPUCACHE_TOOL_SYMBOLS_H

#include <stdint.h>

struct stats_frame;
struct symbols;

/** NULL: names are not found by this build. */
struct symbols *symbols_open(void);
void symbols_close(struct symbols *symbols);

/** Says once, on stderr, that this build cannot find names, if one of these frames has none. */
void symbols_say_missing(const struct stats_frame *frames, unsigned count);

struct symbol {
    const char *function, *file; /* file NULL: not known; kept until symbols_close() */
    unsigned line;               /* 0: not known */
};

/**
 * Finds the functions at an offset of a file, as its own addresses count: innermost first those
 * that the compiler inlined there, last the one that the symbol table has. Returns their number,
 * and 0 if they are not known; also where the file is not the one of that build id any more (if
 * that is not empty), which is said once. The list is kept until symbols_close().
 */
unsigned symbols_find(struct symbols *symbols, const char *path, const char *build_id,
                      uint64_t offset, const struct symbol **list);

#endif
