/*
 * Call sites: every different stack that has asked a device for memory, once, with what it holds.
 *
 * A site is found by the words of its stack: return addresses, and for Python the code and the place in it. They are
 * looked for without a lock. A new one is resolved when it is made, while what it names is still there: addresses to
 * files and offsets, code objects to files and lines. It stays for good.
 */
#ifndef GPUCACHE_STACKS_SITE_H
#define GPUCACHE_STACKS_SITE_H

#include "process/options.h" /* OPTIONS_MAX_STACK */
#include "stacks/python.h"
#include "stacks/unwind.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SITE_NONE 0 /* numbers begin at 1 */

/** A stack as it was captured. Frames of the interpreter at the outer end of the native ones are not in it where
 * there are lines of Python. */
struct site_stack {
    unsigned native_count, python_count;
    unsigned native_walked; /* with those that stand behind and are not part of it */
    uint64_t native[OPTIONS_MAX_STACK + UNWIND_OWN];
    struct python_frame python[OPTIONS_MAX_STACK];
};

struct site_frame {
    const char *file; /* of Python; NULL: a native one */
    union {
        const char *function;
        uint64_t offset; /* in the module, or an address where there is none */
    };
    uint32_t line; /* or number of the module */
};

struct site {
    _Atomic uint64_t hash; /* of none any more: a module of it has been closed */
    int32_t device;
    uint16_t native_count, python_count;
    const uint64_t *native;
    const struct python_frame *python;
    const struct site_frame *frames; /* as many as both; NULL: nothing is known of them */
    uint32_t next;                   /* of the same slot */
    /* holding.c, under the device's lock: */
    _Atomic uint64_t live_bytes, live_count, total_bytes, total_count;
    _Atomic uint64_t saved_bytes, saved_count, saved_at; /* live at that peak of the device */
    _Atomic uint64_t since_ns, byte_ns_low, byte_ns_high;
};

/** Room for so many sites. False without host memory. */
bool site_start(uint32_t most);

/** Before a stack is captured: addresses in modules that have been closed meanwhile mean something else now. */
void site_look_for_closed(void);

/** The number of the stack's site. Where there is no room, that of the device's site without frames. */
uint32_t site_of(int device, const struct site_stack *stack);

struct site *site_at(uint32_t number);
uint32_t site_count(void); /* numbers 1 to this */
uint64_t site_lost(void);  /* captures that found no room */

#endif
