/*
 * Made-up names of addresses (tool/report/stacks.h), with inlined functions: a target must not
 * open the files that its input names.
 */
#ifndef GPUCACHE_FUZZ_MADE_UP_SYMBOLS_H
#define GPUCACHE_FUZZ_MADE_UP_SYMBOLS_H

#include "tool/report/stacks.h"

#include <stddef.h>

unsigned symbols_find(const char *path, const char *build_id, uint64_t offset,
                      const struct symbol **list) {
    static const struct symbol known[] = {
        {"step", "train.c", 7}, {"operator new(unsigned long)", NULL, 0}, {"main", "main.c", 0}};
    (void)path, (void)build_id;
    *list = known;
    return (unsigned)(offset % 4);
}

#endif
