/*
 * What a trace knows to be there by its own records: segments, pages, and blocks that no pool served. Few,
 * and they come and go slowly; the blocks of pools are the pools' to know.
 */
#ifndef GPUCACHE_TRACE_THINGS_H
#define GPUCACHE_TRACE_THINGS_H

#include <stdbool.h>
#include <stdint.h>

enum things_sort { THINGS_SEGMENT = 1, THINGS_PAGE, THINGS_BLOCK };

/* The caller's lock protects all of them. Addresses are multiples of 4 at least. */

/** It is there since `ticks`. */
void things_add(enum things_sort sort, uint64_t address, uint64_t space, uint64_t ticks);

/** It has gone; not one that came later. */
void things_remove(enum things_sort sort, uint64_t address, uint64_t ticks);

/** All of a space have gone. */
void things_end(uint64_t space);

/** Whether what came at that time is there; true where that is not known. */
bool things_has(enum things_sort sort, uint64_t address, uint64_t ticks);

#endif
