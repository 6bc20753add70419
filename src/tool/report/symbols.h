/*
 * Finds the names of addresses in files, from symbols and debug information. Uses libdw, if the
 * build found libdw.
 */
#ifndef GPUCACHE_TOOL_REPORT_SYMBOLS_H
#define GPUCACHE_TOOL_REPORT_SYMBOLS_H

#include <stdint.h>

struct symbol {
    const char *function, *file; /* file NULL: unknown; never freed */
    unsigned line;               /* 0: unknown */
};

/**
 * Finds the functions at an offset in a file, in the file's own addresses. The list has the inlined
 * functions, innermost first, and last the function of the symbol table. It is never freed, because
 * gpucache top looks up the same addresses again and again. Returns the number of functions, or 0
 * in three cases, and prints the last two of them once:
 *
 *   - the functions are unknown
 *   - the file now has another build ID than `build_id`, unless that is empty
 *   - this build has no libdw
 */
unsigned symbols_find(const char *path, const char *build_id, uint64_t offset,
                      const struct symbol **list);

#endif
