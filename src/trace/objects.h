/*
 * The table of live segments, pages and native blocks (blocks that no pool serves) of a trace.
 *
 * is_alive() in trace.c reads the table, to decide which records a reused chunk carries. Blocks of
 * pools are not in the table: the pool knows them. The ring's lock protects the table.
 */
#ifndef GPUCACHE_TRACE_OBJECTS_H
#define GPUCACHE_TRACE_OBJECTS_H

#include <stdbool.h>
#include <stdint.h>

enum object_kind { OBJECT_SEGMENT = 1, OBJECT_PAGE, OBJECT_BLOCK };

/*
 * The caller of every function below holds the ring's lock. Addresses are multiples of at least 4,
 * because the low bits of a key are the kind.
 */

/** Adds an entry that is live since `ticks`. If the table is full, the entry is lost. */
void objects_add(enum object_kind kind, uint64_t address, uint64_t space, uint64_t ticks);

/** Removes an entry, unless it was added after `ticks`. */
void objects_remove(enum object_kind kind, uint64_t address, uint64_t ticks);

/** Removes all entries of a space, because its context ended. */
void objects_end(uint64_t space);

/** Returns whether the entry added at `ticks` is live. Returns true once an entry was lost. */
bool objects_has(enum object_kind kind, uint64_t address, uint64_t ticks);

#endif
