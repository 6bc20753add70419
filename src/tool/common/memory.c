/*
 * Allocates memory for the commands. A failed allocation ends the process with a message.
 */
#include "tool/common/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void *checked(void *memory) {
    if (!memory)
        fail(STATUS_OWN_FAILURE, "memory", strerror(ENOMEM));
    return memory;
}

void *grown(void *list, size_t from, size_t to, size_t each) {
    char *memory = checked(realloc(list, to * each));
    memset(memory + from * each, 0, (to - from) * each);
    return memory;
}
