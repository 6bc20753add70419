/*
 * Rows of allocations (traces as CSV, rows without times, RMM's log), read by gpucache replay.
 */
#include "histories.h"

int fuzz_one(const uint8_t *data, size_t size) {
    fuzz_read_histories(data, size);
    return 0;
}
