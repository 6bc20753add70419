/* Memory of the tool. These functions end the process with a message if memory is missing. */
#ifndef GPUCACHE_REPLAY_MEMORY_H
#define GPUCACHE_REPLAY_MEMORY_H

#include <stddef.h>

#define MEMORY_MISSING 125 /* exit status; STATUS_OWN_FAILURE of the tool */

/** Returns `memory`. Ends the process if `memory` is NULL: an allocation has failed. */
void *checked(void *memory) __attribute__((returns_nonnull));

/** Appends an element of zeros to a list, and points to it. `list` and `count` are variables.
 * Nothing else may enlarge the list: it has space for the next power of two of elements. */
#define APPEND(list, count) ((list) = grown((list), (count), sizeof *(list)), &(list)[(count)++])
void *grown(void *list, size_t count, size_t each) __attribute__((returns_nonnull));

#endif
