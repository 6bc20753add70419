/* Defines the table of real entries. Each one first finds the driver, then calls its entry. */
#include "driver/table/entries.h"

#include "loader/loader.h"

/* Every entry returns a CUresult, and a function without parameters ignores its arguments. One
 * function can therefore stand for all entries. */
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
