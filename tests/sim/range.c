/*
 * Finds the object that holds an address.
 *
 * Device memory, pinned memory and mapped memory of the driver are ranges. No two ranges overlap,
 * and one tree holds them in order of address. The tree is a treap: its depth does not depend on
 * the order of insertion. An address outside all ranges is not the driver's. Reserved addresses, in
 * which mapped ranges lie, have a second tree.
 */
#include "driver.h"

static struct slab range_slab = SLAB(struct range);
static struct range *memory, *reservations;
static uint32_t priority_state = 2463534242u;
static unsigned long long next_buffer_id;

/* This generator is not the scheduler's: the tree's shape must not change the schedule. */
static uint32_t draw(void) {
    priority_state ^= priority_state << 13;
    priority_state ^= priority_state >> 17;
    priority_state ^= priority_state << 5;
    return priority_state;
}

/* Splits `tree` into what lies below `address` and the rest. */
static void split(struct range *tree, uintptr_t address, struct range **below,
                  struct range **rest) {
    if (!tree) {
        *below = *rest = NULL;
    } else if (tree->base < address) {
        *below = tree;
        split(tree->right, address, &tree->right, rest);
    } else {
        *rest = tree;
        split(tree->left, address, below, &tree->left);
    }
}

static struct range *join(struct range *low, struct range *high) {
    if (!low || !high)
        return low ? low : high;
    if (low->priority > high->priority) {
        low->right = join(low->right, high);
        return low;
    }
    high->left = join(low, high->left);
    return high;
}

static struct range *find(struct range *root, uintptr_t address) {
    for (struct range *range = root; range;)
        if (address < range->base)
            range = range->left;
        else if (address - range->base < range->size)
            return range;
        else
            range = range->right;
    return NULL;
}

struct range *range_find(uintptr_t address) {
    return find(memory, address);
}

struct range *reservation_find(uintptr_t address) {
    return find(reservations, address);
}

static struct range *after(struct range *root, uintptr_t address) {
    struct range *found = NULL;

    for (struct range *range = root; range;) {
        if (range->base >= address) {
            found = range;
            range = range->left;
        } else {
            range = range->right;
        }
    }
    return found;
}

struct range *range_after(uintptr_t address) {
    return after(memory, address);
}

struct range *reservation_after(uintptr_t address) {
    return after(reservations, address);
}

bool range_overlaps(uintptr_t base, size_t size) {
    struct range *next = range_after(base);

    return range_find(base) || (next && next->base - base < size);
}

static struct range **root_of(enum range_kind kind) {
    return kind == RANGE_RESERVED ? &reservations : &memory;
}

struct range *range_add(uintptr_t base, size_t size, enum range_kind kind, struct context *context,
                        int device) {
    struct range *range = slab_get(&range_slab);
    struct range *below, *above;

    range->base = base;
    range->size = size;
    range->kind = kind;
    range->context = context;
    range->device = device;
    range->priority = draw();
    range->id = ++next_buffer_id;
    range->sync_memops = range_is_device(range);
    split(*root_of(kind), base, &below, &above);
    *root_of(kind) = join(join(below, range), above);
    if (context) {
        range->next = context->ranges;
        if (range->next)
            range->next->previous = range;
        context->ranges = range;
    }
    return range;
}

void range_remove(struct range *range) {
    struct range *below, *above, *rest;

    split(*root_of(range->kind), range->base, &below, &rest);
    split(rest, range->base + 1, &rest, &above);
    *root_of(range->kind) = join(below, above);
    if (range->context) {
        if (range->next)
            range->next->previous = range->previous;
        if (range->previous)
            range->previous->next = range->next;
        else
            range->context->ranges = range->next;
    }
    slab_put(&range_slab, range);
}

bool range_is_device(const struct range *range) {
    return range->kind != RANGE_HOST && range->kind != RANGE_REGISTERED;
}

static bool accessible(struct context *context, const struct range *range) {
    uint32_t bit = device_mask(context->device->ordinal);

    switch (range->kind) {
    case RANGE_HOST:
    case RANGE_REGISTERED:
    case RANGE_MANAGED:
        return true;
    case RANGE_MAPPED:
        return (range->access & bit) != 0;
    case RANGE_POOL:
        return range->device == context->device->ordinal || (range->pool->accessible & bit);
    default:
        return range->device == context->device->ordinal ||
               (range->context && context_peer(context, range->context));
    }
}

bool range_accessible(struct context *context, uintptr_t address, size_t size) {
    while (size) {
        const struct range *range = range_find(address);
        if (!range || !accessible(context, range))
            return false;
        size_t here = range->base + range->size - address;
        if (here >= size)
            return true;
        address += here;
        size -= here;
    }
    return true;
}
