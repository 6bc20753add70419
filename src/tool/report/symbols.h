/*
 * Finds the names of addresses in files, from symbols and debug information. Uses libdw, if the
 * build found libdw.
 */
#ifndef GPUCACHE_TOOL_REPORT_SYMBOLS_H
#define GPUCACHE_TOOL_REPORT_SYMBOLS_H

#include <stdint.h>

struct stats_frame;
struct symbols;

/** Starts a session. Returns NULL if this build has no libdw. */
struct symbols *symbols_open(void);
void symbols_close(struct symbols *symbols);

/** Prints once to stderr that this build cannot find names, if one of the frames has no name. */
void symbols_say_missing(const struct stats_frame *frames, unsigned count);

struct symbol {
    const char *function, *file; /* file NULL: unknown; valid until symbols_close() */
    unsigned line;               /* 0: unknown */
};

/**
 * Finds the functions at an offset in a file, in the file's own addresses. The list has the inlined
 * functions, innermost first, and last the function of the symbol table. It is valid until
 * symbols_close(). Returns the number of functions, or 0 if they are unknown. Returns 0 also if the
 * file now has another build ID than `build_id` (unless that is empty), and prints that once.
 */
unsigned symbols_find(struct symbols *symbols, const char *path, const char *build_id,
                      uint64_t offset, const struct symbol **list);

#endif
