#include "base/sort.h"

#include <stdint.h>
#include <string.h>

static uint64_t key_at(const char *base, size_t bytes, size_t at) {
    uint64_t key;
    memcpy(&key, base + at * bytes, sizeof key);
    return key;
}

static void swap(char *base, size_t bytes, size_t a, size_t b) {
    char spare[SORT_MOST];
    memcpy(spare, base + a * bytes, bytes);
    memcpy(base + a * bytes, base + b * bytes, bytes);
    memcpy(base + b * bytes, spare, bytes);
}

void sort_sift(void *base, size_t count, size_t bytes, size_t at) {
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && key_at(base, bytes, child + 1) > key_at(base, bytes, child))
            child++;
        if (key_at(base, bytes, at) >= key_at(base, bytes, child))
            return;
        swap(base, bytes, at, child);
    }
}

void sort_by_key(void *base, size_t count, size_t bytes) {
    for (size_t i = count / 2; i > 0; i--)
        sort_sift(base, count, bytes, i - 1);
    for (size_t last = count; last > 1; last--) {
        swap(base, bytes, 0, last - 1);
        sort_sift(base, last - 1, bytes, 0);
    }
}
