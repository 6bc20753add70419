/*
 * A memory snapshot of PyTorch's as JSON, read by gpucache replay.
 */
#include "histories.h"

#include "replay/plain.h"

int fuzz_one(const uint8_t *data, size_t size) {
    struct plain values;
    char why[HISTORY_WHY] = "", *copy = malloc(size + 1);
    FUZZ_CHECK(copy);
    memcpy(copy, data, size);
    copy[size] = '\0';
    int r = json_read(copy, size, SIZE_MAX, &values, why, sizeof why);
    FUZZ_CHECK(r == 0 || (r == -EINVAL && why[0] != '\0'));
    plain_free(&values);
    free(copy);
    fuzz_read_histories(data, size);
    return 0;
}
