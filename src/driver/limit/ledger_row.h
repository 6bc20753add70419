/*
 * The life of a row of the ledger, from the driver's answer to the end of its memory.
 *
 *   | state       | in the table | holders    | leaving    | ends when                           |
 *   | ----------- | ------------ | ---------- | ---------- | ----------------------------------- |
 *   | live        | yes          | at least 1 | any number | its last holder is released         |
 *   | being freed | no           | 0          | at least 1 | the driver has answered the free    |
 *   | over        | no           | 0          | at least 1 | all frees in progress have returned |
 *   | dead        | no           | 0          | 0          | ledger_rows_free()                  |
 *
 * A holder is the program's own key, or a mapping of the memory. The lock OUTSIDE protects all
 * rows: callers hold it, except for ledger_rows_free(). Invariant: a row is counted from its entry
 * until it is dead. Only unpooled.c calls these functions.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_LEDGER_ROW_H
#define GPUCACHE_DRIVER_LIMIT_LEDGER_ROW_H

#include "driver/limit/ledger.h"
#include "process/lock.h"

extern struct lock ledger_lock;

/**
 * Adds a row with one holder, and counts it before the lock is released: no other thread subtracts
 * the row before it was added. Moves an older row of the key to `dead`, whose memory was freed
 * unnoticed. Returns false without host memory.
 */
bool ledger_row_enter(const struct ledger_row *as, struct ledger_row **dead);

/** Releases one holder, while the driver is asked to free it. Removes a row without holders from
 * the table. */
void ledger_row_begin_release(struct ledger_row *row);

/** Ends a release. With `left`, the driver has freed the memory; else restores the holder. Moves
 * rows that are over to `dead`. */
void ledger_row_end_release(struct ledger_row *row, bool left, struct ledger_row **dead);

/**
 * Moves a row without holders to the list `dead`, and drops the holder of the memory that it maps.
 * Does nothing while a holder or a free in progress remains.
 */
void ledger_row_collect(struct ledger_row *row, struct ledger_row **dead);

/** Ends the row of memory that is gone, in the table or not. Frees in progress may still refer to
 * the row: the last of them moves it to `dead`. */
void ledger_row_end(struct ledger_row *row, struct ledger_row **dead);

/** Returns the first row that is being freed. The next ones follow in `next`. */
struct ledger_row *ledger_rows_being_freed(void);

/** Uncounts, refunds and frees the rows of `dead`. Call with no lock held. */
void ledger_rows_free(struct ledger_row *dead);

#endif
