/*
 * The table behind outside.c: its rows by what the program will hand back. Open addressing; rows move up when one is removed. The
 * caller holds the lock.
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
    CUcontext context;         /* whose end is its end; NULL: the process's */
    struct ledger_row *memory; /* of a mapping: what it maps, and keeps */
    struct ledger_row *next;   /* among those that have left the table while the driver is asked */
    struct ledger_row *with;   /* that the same call gives back */
    uint64_t left_at;          /* when it began to leave, if a trace is recorded */
    uint32_t stack;            /* that asked for it (stacks/stacks.h); 0: not known */
    uint32_t holders, leaving; /* leaving: calls under way that give one holder back */
    uint8_t space, kind;
    bool listed; /* in the table */
    bool over;   /* whatever the driver answers, it is gone */
};

struct ledger_row *ledger_find(uint64_t key, unsigned space);

/** False without host memory. */
bool ledger_add(struct ledger_row *row);
void ledger_remove(struct ledger_row *row);

/** Calls `visit` for every row; it may remove that one. */
void ledger_each(void (*visit)(struct ledger_row *row, void *with), void *with);

#endif
