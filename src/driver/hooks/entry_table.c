/*
 * The replaced entries of the driver: the exported functions, and the table that routes a program's
 * look-ups (loader/loader.h). Both are generated from entry_points.def, so they always agree. Takes
 * no lock: only entries_forked() writes, in the only thread of a forked child.
 */
#include "driver/hooks/hook.h"
#include "loader/loader.h"

/* Targets of the exported functions: the hooks, or the driver's entries in a forked child. */
static struct real_entries front_targets = {
#define ENTRY(symbol, since, parameters, arguments, effect, test) .real_##symbol = hook_##symbol,
#include "driver/table/entry_points.def"
};

/* The exported functions. A FAST entry exports its hook, without the jump through front_targets. */
#define FAST(symbol, since, parameters, arguments, effect, test)
#define ENTRY(symbol, since, parameters, arguments, effect, test)                                  \
    HOOK(front_##symbol, parameters, NOTHING, front_targets.real_##symbol arguments, answer)
#include "driver/table/entry_points.def"

/* Sends the exported functions to the driver. FAST hooks check for the forked child themselves. */
void entries_forked(void) {
    front_targets = real_entries;
}

static const struct loader_entry entries[] = {
#define FAST(symbol, since, parameters, arguments, effect, test)                                   \
    {#symbol, since, (void **)&real_entries.real_##symbol, (void *)hook_##symbol},
#define ENTRY(symbol, since, parameters, arguments, effect, test)                                  \
    {#symbol, since, (void **)&real_entries.real_##symbol, (void *)front_##symbol},
#define CALLED(symbol, since, parameters, arguments)                                               \
    {#symbol, since, (void **)&real_entries.real_##symbol, NULL},
#include "driver/table/entry_points.def"
};

_Static_assert(sizeof entries / sizeof *entries <= LOADER_SLOTS / 2,
               "a look-up ends at a free slot");

static LOADER_TABLE(driver) driver = {"libcuda.so.1", entries, sizeof entries / sizeof *entries,
                                      (void *)entry_absent};
