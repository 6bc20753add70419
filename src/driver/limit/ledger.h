/*
 * Keeps the rows of the ledger in a hash table. The key of a row is the pointer, array or handle
 * that the program passes to free its memory. Keys are unique within a space. The table uses open
 * addressing. Callers (ledger_row.c, unpooled.c) hold the lock LEDGER. Invariant: at most half of
 * the table is in use, so each search ends.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_LEDGER_H
#define GPUCACHE_DRIVER_LIMIT_LEDGER_H

#include "driver/state/device.h"

#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>

struct ledger_row {
    uint64_t key, bytes, value;
    struct device *device;
    /* context whose end frees the memory; NULL: the memory belongs to the process */
    CUcontext context;
    /* of a mapping: row of the mapped memory, of which the mapping is a holder */
    struct ledger_row *memory;
    /* in the list of rows that are being freed, or of dead rows */
    struct ledger_row *next;
    struct ledger_row *next_in_call; /* next row that the same call frees */
    uint64_t free_begun;     /* trace clock at the begin of the free; 0: there was no trace */
    uint32_t stack;          /* call stack of the allocation (stacks/stacks.h); 0: unknown */
    uint32_t holders, frees; /* `frees`: calls in progress that release one holder each */
    uint8_t space, kind;
    uint8_t requester; /* stats/requesters.h */
    bool listed;       /* the row is in the table */
    bool ended;        /* the memory does not exist any more, whatever the driver answers */
};

/** Returns the row of a key, or NULL. */
struct ledger_row *ledger_find(uint64_t key, unsigned space);

/** Adds a row. Returns false without host memory. */
bool ledger_add(struct ledger_row *row);

/** Removes a listed row from the table. The caller keeps the row. */
void ledger_remove(struct ledger_row *row);

/** Calls `apply` for every row. `apply` may remove the row that it gets. */
void ledger_each(void (*apply)(struct ledger_row *row, void *with), void *with);

#endif
