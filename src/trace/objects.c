/* The table (objects.h): a hash table with linear probing, mapped at the first entry. */
#include "trace/objects.h"

#include "heap/host.h"

#include <stddef.h>

#define SLOTS ((size_t)1 << 18) /* 6 MiB of addresses; untouched pages take no memory */
#define MOST (SLOTS - SLOTS / 4)

struct object {
    uint64_t key; /* address and kind; 0: free */
    uint64_t space, ticks;
};

static struct object *objects;
static size_t count;
static bool incomplete; /* the table was full, or had no memory: an entry is missing */

static size_t first_slot_of(uint64_t key) {
    return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (SLOTS - 1);
}

static size_t slot_of(uint64_t key) {
    size_t at = first_slot_of(key);
    while (objects[at].key != 0 && objects[at].key != key)
        at = (at + 1) & (SLOTS - 1);
    return at;
}

void objects_add(enum object_kind kind, uint64_t address, uint64_t space, uint64_t ticks) {
    uint64_t key = address | kind;
    objects = objects ? objects : host_map(SLOTS * sizeof *objects, 4096);
    size_t at = objects ? slot_of(key) : 0;
    if (!objects || (objects[at].key == 0 && count >= MOST)) {
        incomplete = true;
        return;
    }
    count += objects[at].key == 0;
    objects[at] = (struct object){key, space, ticks};
}

/** Removes an entry and moves later entries of its probe sequence up, so that no gap hides them. */
static void remove_at(size_t at) {
    size_t next = at;
    count--;
    for (;;) {
        next = (next + 1) & (SLOTS - 1);
        if (objects[next].key == 0)
            break;
        size_t home = first_slot_of(objects[next].key);
        if (((next - home) & (SLOTS - 1)) >= ((next - at) & (SLOTS - 1))) {
            objects[at] = objects[next];
            at = next;
        }
    }
    objects[at].key = 0;
}

void objects_remove(enum object_kind kind, uint64_t address, uint64_t ticks) {
    size_t at = objects ? slot_of(address | kind) : 0;
    if (objects && objects[at].key != 0 && objects[at].ticks <= ticks)
        remove_at(at);
}

void objects_end(uint64_t space) {
    for (size_t at = 0; objects && count > 0 && at < SLOTS;)
        if (objects[at].key != 0 && objects[at].space == space)
            remove_at(at); /* does not advance: remove_at() may have moved an entry here */
        else
            at++;
}

bool objects_has(enum object_kind kind, uint64_t address, uint64_t ticks) {
    uint64_t key = address | kind;
    size_t at = objects ? slot_of(key) : 0;
    return incomplete || (objects && objects[at].key == key && objects[at].ticks == ticks);
}
