/* Ends the process when memory is missing (memory.h). */
#include "replay/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_FAILURE 125 /* STATUS_OWN_FAILURE of tool/common/tool.h */

void *checked(void *memory) {
    if (!memory) {
        fprintf(stderr, "gpucache: memory: %s\n", strerror(ENOMEM));
        exit(OWN_FAILURE);
    }
    return memory;
}

void *grown(void *list, size_t from, size_t to, size_t each) {
    char *memory = checked(realloc(list, to * each));
    memset(memory + from * each, 0, (to - from) * each);
    return memory;
}

void *grown_for_one(void *list, size_t count, size_t *capacity, size_t each) {
    if (count < *capacity)
        return list;
    *capacity = *capacity ? 2 * *capacity : 64;
    return checked(realloc(list, *capacity * each));
}
