/*
 * Makes the four requests whose path request_path.py counts, and marks each for callgrind.
 *
 *   miss        64 KiB, no cached block: a slab with free units serves the request
 *   first_free  its free, the first one of the thread
 *   growth      20 MB, no free memory: the pool grows
 *   large_free  its free
 */
#include "../programs/program.h"

#include <valgrind/callgrind.h>

#define SMALL ((size_t)64 << 10)
#define LARGE ((size_t)20 << 20)

/* Counts one call, and writes the counts as part `name` of callgrind's output. */
#define COUNT(name, call)                                                                          \
    do {                                                                                           \
        CALLGRIND_START_INSTRUMENTATION;                                                           \
        CUresult result = (call);                                                                  \
        CALLGRIND_STOP_INSTRUMENTATION;                                                            \
        CALLGRIND_DUMP_STATS_AT(name);                                                             \
        CHECK(result);                                                                             \
    } while (0)

int main(void) {
    CUdeviceptr first, small, large;
    begin();
    CHECK(cuMemAlloc(&first, SMALL + 1)); /* creates the slab of block `small` */
    COUNT("miss", cuMemAlloc(&small, SMALL));
    COUNT("first_free", cuMemFree(small));
    COUNT("growth", cuMemAlloc(&large, LARGE));
    COUNT("large_free", cuMemFree(large));
    CHECK(cuMemFree(first));
    return 0;
}
