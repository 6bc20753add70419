/*
 * The table of sites (site.h). `lock`, the lock of the sites, protects all writes. Readers need no
 * lock. Invariant: a site is complete before its slot or `count` leads to it.
 */
#include "stacks/site.h"

#include "base/likely.h"
#include "base/lock.h"
#include "heap/host.h"
#include "stacks/module.h"
#include "stacks/text.h"

#include <string.h>

#define SLOTS 16384 /* a power of two */
#define REMAINDERS 4096

static struct lock lock = LOCK_INITIALIZER(STACKS);
static struct site *sites;
static _Atomic uint32_t *slots;
static uint32_t capacity;
static _Atomic uint32_t count;
static _Atomic uint64_t lost;
static _Atomic uint64_t closings;
/* hashes of frames that were walked but are not part of a stack */
static _Atomic uint64_t remainders[REMAINDERS];
static const struct site_stack nothing; /* without frames */

bool site_start(uint32_t most) {
    capacity = most;
    sites = host_map(((size_t)most + 1) * sizeof *sites, 4096);
    slots = host_map(SLOTS * sizeof *slots, 4096);
    atomic_store(&closings, module_closings());
    return sites && slots;
}

struct site *site_at(uint32_t number) {
    return &sites[number];
}

uint32_t site_count(void) {
    return atomic_load_explicit(&count, memory_order_acquire);
}

uint64_t site_lost(void) {
    return atomic_load_explicit(&lost, memory_order_relaxed);
}

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static uint64_t hash_of(int device, const struct site_stack *stack) {
    uint64_t hash = mix(UINT64_C(0x6770756361636865), (uint64_t)device);
    for (unsigned i = 0; i < stack->native_count; i++)
        hash = mix(hash, stack->native[i]);
    for (unsigned i = 0; i < stack->python_count; i++) {
        const struct python_frame *frame = &stack->python[i];
        hash = mix(mix(hash, frame->code), (uint64_t)frame->offset << 32 | frame->check);
    }
    return hash;
}

static bool matches(const struct site *site, uint64_t hash, int device,
                    const struct site_stack *stack) {
    return atomic_load_explicit(&site->hash, memory_order_relaxed) == hash &&
           site->device == device && site->native_count == stack->native_count &&
           site->python_count == stack->python_count &&
           memcmp(site->native, stack->native, stack->native_count * sizeof *stack->native) == 0 &&
           memcmp(site->python, stack->python, stack->python_count * sizeof *stack->python) == 0;
}

static uint32_t search(uint64_t hash, int device, const struct site_stack *stack) {
    uint32_t at = atomic_load_explicit(&slots[hash >> 40 & (SLOTS - 1)], memory_order_acquire);
    while (at != SITE_NONE && !matches(&sites[at], hash, device, stack))
        at = sites[at].next;
    return at;
}

/* --- a new site --- */

static void resolve_native(uint64_t address, struct site_frame *frame) {
    struct module_place place;
    *frame = (struct site_frame){.offset = address, .line = MODULE_NONE};
    /* the return address of a call at a module's end lies behind the module */
    if (module_place_of(address - 1, &place)) {
        module_watch(&place);
        frame->line = module_number(&place);
        frame->offset = frame->line != MODULE_NONE ? address - place.bias : address;
    }
}

static void resolve_python(const struct python_frame *from, struct site_frame *frame) {
    struct python_line line;
    bool known = python_line(from, &line);
    *frame = (struct site_frame){.file = known ? line.file : "?", .function = "?"};
    if (known) {
        frame->function = line.function;
        frame->line = line.line;
    }
}

static bool fill(struct site *site, const struct site_stack *stack) {
    unsigned frame_count = stack->native_count + stack->python_count;
    size_t native_bytes = stack->native_count * sizeof *stack->native;
    size_t python_bytes = stack->python_count * sizeof *stack->python;
    struct site_frame *frames = text_alloc(frame_count * sizeof *frames);
    uint64_t *native = text_alloc(native_bytes);
    struct python_frame *python = text_alloc(python_bytes);
    if (!frames || !native || !python)
        return false;
    memcpy(native, stack->native, native_bytes);
    memcpy(python, stack->python, python_bytes);
    for (unsigned i = 0; i < stack->native_count; i++)
        resolve_native(stack->native[i], &frames[i]);
    for (unsigned i = 0; i < stack->python_count; i++)
        resolve_python(&stack->python[i], &frames[stack->native_count + i]);
    site->frames = frames;
    site->native = native;
    site->python = python;
    site->native_count = (uint16_t)stack->native_count;
    site->python_count = (uint16_t)stack->python_count;
    return true;
}

/*
 * Adds a site. Returns SITE_NONE if the table is full. The last sixteenth of the table is kept for
 * sites without frames. The lock is held.
 */
static uint32_t add(uint64_t hash, int device, const struct site_stack *stack) {
    uint32_t number = atomic_load_explicit(&count, memory_order_relaxed) + 1;
    bool empty = stack->native_count + stack->python_count == 0;
    if (number > (empty ? capacity : capacity - capacity / 16))
        return SITE_NONE;
    struct site *site = &sites[number];
    _Atomic uint32_t *slot = &slots[hash >> 40 & (SLOTS - 1)];
    site->native = nothing.native;
    site->python = nothing.python;
    if (!empty && !fill(site, stack))
        return SITE_NONE;
    atomic_store_explicit(&site->hash, hash, memory_order_relaxed);
    site->device = device;
    site->next = atomic_load_explicit(slot, memory_order_relaxed);
    atomic_store_explicit(&count, number, memory_order_release);
    atomic_store_explicit(slot, number, memory_order_release);
    return number;
}

/* Watches the modules of frames that the unwinder walked beyond the recorded stack. */
static void watch_remainder(const struct site_stack *stack) {
    uint64_t hash = 0;
    struct module_place place;
    for (unsigned i = stack->native_count; i < stack->native_walked; i++)
        hash = mix(hash, stack->native[i]);
    _Atomic uint64_t *known = &remainders[hash >> 40 & (REMAINDERS - 1)];
    if (atomic_load_explicit(known, memory_order_relaxed) == hash)
        return;
    lock_acquire(&lock);
    for (unsigned i = stack->native_count; i < stack->native_walked; i++)
        if (module_place_of(stack->native[i] - 1, &place))
            module_watch(&place);
    lock_release(&lock);
    atomic_store_explicit(known, hash, memory_order_relaxed);
}

/* Makes all sites with a return address in a closed module unfindable. The lock is held. */
static void forget(uint64_t start, uint64_t end) {
    for (uint32_t number = 1; number <= count; number++) {
        for (unsigned i = 0; i < sites[number].native_count; i++) {
            uint64_t address = sites[number].native[i];
            if (address > start && address <= end) {
                atomic_store_explicit(&sites[number].hash, 0, memory_order_relaxed);
                break;
            }
        }
    }
}

void site_hide_closed_modules(void) {
    struct module_open open;
    uint64_t now = module_closings();
    if (likely(now == atomic_load_explicit(&closings, memory_order_acquire)))
        return;
    module_find_open(&open); /* takes a lock of the loader, which must not be taken inside `lock` */
    lock_acquire(&lock);
    if (module_forget_closed(&open, forget) || site_lost() > 0)
        unwind_distrust();
    atomic_store_explicit(&closings, now, memory_order_release);
    lock_release(&lock);
}

uint32_t site_of(int device, const struct site_stack *stack) {
    watch_remainder(stack);
    uint64_t hash = hash_of(device, stack);
    uint32_t number = search(hash, device, stack);
    if (likely(number != SITE_NONE))
        return number;
    lock_acquire(&lock);
    number = search(hash, device, stack);
    if (number == SITE_NONE)
        number = add(hash, device, stack);
    lock_release(&lock);
    if (number == SITE_NONE && stack->native_count + stack->python_count > 0) {
        atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed);
        return site_of(device, &nothing);
    }
    return number;
}
