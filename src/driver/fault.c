/*
 * Faults that the program learns of from a copy, a fill or a query.
 *
 * From then on the driver answers every call with that fault. A free or an allocation that the pool
 * answers does not ask the driver, so what the driver said here is remembered. Each replacement is
 * the call and one comparison of its result; all are made from the NOTICED rows of the table.
 * Those of RETRIED rows, launches among them, are made so too (retry.c).
 */
#include "driver/context.h"
#include "driver/entries.h"

#define NOTICED(symbol, since, parameters, arguments)                                              \
    CUresult hook_##symbol parameters {                                                            \
        return context_notice(REAL(symbol) arguments);                                             \
    }
#include "driver/entry_points.def"
