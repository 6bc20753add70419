/*
 * Moves a row of the ledger through its states, from the driver's answer to the end of its memory.
 *
 *   | state       | in the table | holders    | frees      | ends when                           |
 *   | ----------- | ------------ | ---------- | ---------- | ----------------------------------- |
 *   | live        | yes          | at least 1 | any number | its last holder is released         |
 *   | unmapped    | yes          | 0          | at least 1 | the driver has answered the release |
 *   | being freed | no           | 0          | at least 1 | the driver has answered the free    |
 *   | ended       | no           | 0          | at least 1 | all frees in progress have returned |
 *   | dead        | no           | 0          | 0          | ledger_rows_free()                  |
 *
 * A holder is the program's own key, or a mapping of the memory. `frees` counts frees in progress.
 * Unmapped: the last mapping of a handle ended while the handle was being released.
 * A live row of a mapped handle leaves the table if the driver gives the handle out again. The lock
 * LEDGER protects all rows. Callers hold it, except of ledger_rows_free(). Invariant: a row is
 * counted from its entry until ledger_rows_free(). Only unpooled.c calls these functions.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_LEDGER_ROW_H
#define GPUCACHE_DRIVER_LIMIT_LEDGER_ROW_H

#include "base/lock.h"
#include "driver/limit/ledger.h"

extern struct lock ledger_lock;

/**
 * Adds a copy of `as` with one holder, and counts it under the lock: no other thread can subtract
 * the row earlier. If an older row has the key, its memory was freed unnoticed: moves that row to
 * `dead`. Returns false without host memory.
 */
bool ledger_row_enter(const struct ledger_row *as, struct ledger_row **dead);

/** Releases one holder, before the driver is asked to free the memory. Removes a row without
 * holders from the table. */
void ledger_row_begin_release(struct ledger_row *row);

/** Ends a release. `freed`: the driver has freed the memory. Without `freed`, restores the holder.
 * Moves rows that are dead to `dead`. */
void ledger_row_end_release(struct ledger_row *row, bool freed, struct ledger_row **dead);

/**
 * Moves a row without holders to the list `dead`, and drops the holder of the memory that it maps.
 * Does nothing while a holder or a free in progress remains.
 */
void ledger_row_collect(struct ledger_row *row, struct ledger_row **dead);

/** Ends the row of memory that does not exist any more, in the table or not. If frees in progress
 * refer to the row, the last of them moves it to `dead`. */
void ledger_row_end(struct ledger_row *row, struct ledger_row **dead);

/** Returns the first row that is being freed. `next` links the others. */
struct ledger_row *ledger_rows_being_freed(void);

/** Uncounts, refunds and frees the rows of `dead`. Call without the lock LEDGER, and without any
 * lock that comes after it. */
void ledger_rows_free(struct ledger_row *dead);

#endif
