/*
 * Handles: objects in slabs whose memory keeps its type for ever.
 *
 * A program may pass a handle that it destroyed long ago, and the driver answers with an error
 * code. The memory of a destroyed object is reused only for an object of the same kind; `live`
 * tells them apart. Free objects are reused last in, first out, so a handle's value returns soon,
 * as natively.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *must(void *memory) {
    if (!memory) {
        fputs("sim: out of host memory\n", stderr);
        abort();
    }
    return memory;
}

static struct object *grow(struct slab *slab) {
    if (slab->count == slab->capacity) {
        slab->capacity = slab->capacity ? 2 * slab->capacity : 64;
        slab->all = must(realloc(slab->all, slab->capacity * sizeof(*slab->all)));
    }
    struct object *object = must(calloc(1, slab->size));
    object->slab = slab;
    object->serial = slab->count;
    slab->all[slab->count++] = object;
    return object;
}

void *slab_get(struct slab *slab) {
    struct object *object = slab->free;

    if (object)
        slab->free = object->next;
    else
        object = grow(slab);
    unsigned serial = object->serial;
    memset(object, 0, slab->size);
    object->slab = slab;
    object->serial = serial;
    object->live = true;
    return object;
}

void slab_put(struct slab *slab, void *handle) {
    struct object *object = handle;

    object->live = false;
    object->next = slab->free;
    slab->free = object;
}
