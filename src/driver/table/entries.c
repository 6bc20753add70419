/* Defines the table of driver functions (entries.h). Each initial function calls the loader, which
 * writes the driver's entries to the table, and then the driver's entry. */
#include "driver/table/entries.h"

#include "loader/loader.h"

/* Every entry returns a CUresult, and a callee without parameters ignores the caller's arguments.
 * One function can therefore replace any entry. */
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
#include "driver/table/entry_points.def"

struct real_entries real_entries = {
#define ENTRY(symbol, since, parameters, arguments, effect, test) .real_##symbol = first_##symbol,
#define CALLED(symbol, since, parameters, arguments) .real_##symbol = first_##symbol,
#include "driver/table/entry_points.def"
};
