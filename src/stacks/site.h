/*
 * Call sites: one entry for each different stack that allocated on a device, with its live bytes.
 *
 * A site is found by the hash of its stack: return addresses, and for Python the code object and
 * the position in it. A look-up takes no lock. A new site is resolved at once, while its modules
 * and code objects exist: addresses to files and offsets, code objects to files and lines. The lock
 * of the sites is held meanwhile. A site is never removed.
 */
#ifndef GPUCACHE_STACKS_SITE_H
#define GPUCACHE_STACKS_SITE_H

#include "options/options.h" /* OPTIONS_MAX_STACK */
#include "stacks/python.h"
#include "stacks/unwind.h"
#include "stats/holders.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SITE_NONE 0 /* numbers begin at 1 */

/**
 * A captured stack. If there are Python frames, the native frames from the interpreter outwards are
 * left out.
 */
struct site_stack {
    unsigned native_count, python_count;
    unsigned native_walked; /* including walked frames that are not part of the stack */
    uint64_t native[OPTIONS_MAX_STACK + UNWIND_OWN];
    struct python_frame python[OPTIONS_MAX_STACK];
};

struct site_frame {
    const char *file; /* of a Python frame; NULL: a native frame */
    union {
        const char *function;
        uint64_t offset; /* in the module, or an address without a module */
    };
    uint32_t line; /* or the number of the module */
};

struct site {
    _Atomic uint64_t hash; /* 0: a look-up never finds the site, because a module was closed */
    int32_t device;
    uint16_t native_count, python_count;
    const uint64_t *native;
    const struct python_frame *python;
    /* native frames, then Python frames; NULL: no frames are known */
    const struct site_frame *frames;
    uint32_t next; /* the next site of the same slot */
    /* written by site_bytes.c, under the lock of the device: */
    _Atomic uint64_t live_bytes, live_count, total_bytes, total_count;
    _Atomic uint64_t saved_bytes, saved_count, saved_at; /* live at peak number saved_at */
    _Atomic uint64_t since_ns, byte_ns_low, byte_ns_high;
};

/** Reserves memory for `most` sites. Returns false without host memory. */
bool site_start(uint32_t most);

/**
 * Makes sites of closed modules unfindable. Runs before each capture of a stack: other code may now
 * lie at their addresses. Takes a lock of the loader, then the lock of the sites.
 */
void site_hide_closed_modules(void);

/**
 * Returns the number of the stack's site. If the table is full, returns the device's site without
 * frames, or SITE_NONE. Takes the lock of the sites if the stack is new.
 */
uint32_t site_of(int device, const struct site_stack *stack);

struct site *site_at(uint32_t number);
uint32_t site_count(void); /* sites have the numbers 1 to this */
uint64_t site_lost(void);  /* stacks that were recorded without frames */

/* The bytes of sites and devices (site_bytes.c). */

void site_bytes_start(void);

/**
 * Adds a block to its site. `again`: the block was removed before, and its free failed. The total
 * of the site then stays.
 */
void site_bytes_add(uint32_t site, uint64_t bytes, bool again);
void site_bytes_remove(uint32_t site, uint64_t bytes);
/** Makes the present live bytes of a device its peak. */
void site_bytes_reset_peak(int device);

/** Returns the live bytes and the peak of all sites of a device together. */
struct stats_held site_bytes_of_device(int device);
void site_bytes_read(uint32_t site, struct stats_holder *holder);

#endif
