#include "driver/entries.h"

#include "loader/loader.h"

/* Every entry returns a CUresult, and a callee without parameters ignores its arguments: one
 * function stands for all. */
CUresult CUDAAPI entry_absent(void) {
    return CUDA_ERROR_NOT_INITIALIZED;
}

#define FIRST(function, entry, parameters, arguments)                                              \
    static CUresult CUDAAPI function parameters {                                                  \
        return loader_find_driver() ? (entry)arguments : CUDA_ERROR_NOT_INITIALIZED;               \
    }
#define ENTRY(symbol, since, parameters, arguments, effect, test)                                  \
    FIRST(first_##symbol, real_entries.real_##symbol, parameters, arguments)
#define CALLED(symbol, since, parameters, arguments)                                               \
    FIRST(first_##symbol, real_entries.real_##symbol, parameters, arguments)
#include "driver/entry_points.def"

struct real_entries real_entries = {
#define ENTRY(symbol, since, parameters, arguments, effect, test) .real_##symbol = first_##symbol,
#define CALLED(symbol, since, parameters, arguments) .real_##symbol = first_##symbol,
#include "driver/entry_points.def"
};

/* Where the exported entries lead. */
static struct real_entries led_to = {
#define ENTRY(symbol, since, parameters, arguments, effect, test) .real_##symbol = hook_##symbol,
#include "driver/entry_points.def"
};

#define FAST(symbol, since, parameters, arguments, effect, test)
#define ENTRY(symbol, since, parameters, arguments, effect, test)                                  \
    CUresult CUDAAPI front_##symbol parameters {                                                   \
        return led_to.real_##symbol arguments;                                                     \
    }
#include "driver/entry_points.def"

void entries_forked(void) {
    led_to = real_entries;
}

static const struct loader_entry entries[] = {
#define FAST(symbol, since, parameters, arguments, effect, test)                                   \
    {#symbol, since, (void **)&real_entries.real_##symbol, (void *)hook_##symbol},
#define ENTRY(symbol, since, parameters, arguments, effect, test)                                  \
    {#symbol, since, (void **)&real_entries.real_##symbol, (void *)front_##symbol},
#define CALLED(symbol, since, parameters, arguments)                                               \
    {#symbol, since, (void **)&real_entries.real_##symbol, NULL},
#include "driver/entry_points.def"
};

_Static_assert(sizeof entries / sizeof *entries <= LOADER_SLOTS / 2,
               "a look-up ends at a free slot");

const struct loader_table loader_driver = {"libcuda.so.1", entries,
                                           sizeof entries / sizeof *entries, (void *)entry_absent};
