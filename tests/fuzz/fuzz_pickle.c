/*
 * A memory snapshot of PyTorch's as a pickle, read by gpucache replay.
 */
#include "histories.h"

#include "replay/plain.h"

int fuzz_one(const uint8_t *data, size_t size) {
    struct plain pickle;
    char why[HISTORY_WHY] = "";
    int r = pickle_read((const char *)data, size, SIZE_MAX, &pickle, why, sizeof why);
    FUZZ_CHECK(r == 0 || (r == -EINVAL && why[0] != '\0'));
    plain_free(&pickle);
    fuzz_read_histories(data, size);
    return 0;
}
