/* Ends the process when memory is missing (memory.h). */
#include "replay/memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *checked(void *memory) {
    if (!memory) {
        fprintf(stderr, "gpucache: memory: %s\n", strerror(ENOMEM));
        exit(MEMORY_MISSING);
    }
    return memory;
}

void *grown(void *list, size_t count, size_t each) {
    bool is_full = (count & (count - 1)) == 0; /* no element, or a power of two of them */
    char *memory = is_full ? checked(realloc(list, (count ? 2 * count : 1) * each)) : list;
    memset(memory + count * each, 0, each);
    return memory;
}
