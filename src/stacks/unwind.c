/* Chooses and calls the unwinder (unwind.h). Takes no lock: `chosen` and its name are atomic. */
#include "stacks/unwind.h"

#include "base/log.h"
#include "stacks/module.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

typedef int unwinder(void **frames, int most);

static unwinder *_Atomic chosen;
static const char *_Atomic chosen_name = "none";
/* this library; empty in unit tests, where it is part of the program */
static struct module_place own;

const char *unwind_name(void) {
    return chosen_name;
}

void unwind_start(stacks_look_up *look_up) {
    void *frames[4], *library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? look_up(library, "unw_backtrace") : NULL;
    unwinder *by_libunwind;
    memcpy(&by_libunwind, &found, sizeof by_libunwind);
    chosen = found ? by_libunwind : backtrace;
    chosen_name = found ? "libunwind" : "backtrace";
    if (!found) {
        log_warn("GPUCACHE_STACKS: libunwind.so.8 is not there; libc's backtrace() is used, which "
                 "takes some 5 us "
                 "for each allocation instead of 0.3 (package libunwind8)");
    }
    chosen(frames, sizeof frames / sizeof *frames);
    /* backtrace() loads libgcc on its first call */
    backtrace(frames, sizeof frames / sizeof *frames);
    if (!module_place_of((uintptr_t)unwind_start, &own) || own.is_program)
        own = (struct module_place){0};
}

void unwind_distrust(void) {
    if (chosen != backtrace) {
        chosen = backtrace;
        chosen_name = "backtrace";
        log_once(LOG_LEVEL_WARN, "GPUCACHE_STACKS: a library was closed that call stacks led "
                                 "through; libc's backtrace() is used from now on, which takes "
                                 "some 5 us for each allocation");
    }
}

unsigned unwind(uint64_t *frames, unsigned most, unsigned *walked) {
    _Static_assert(sizeof(void *) == sizeof(uint64_t), "a frame is an address");
    unwinder *unwind_with = atomic_load_explicit(&chosen, memory_order_relaxed);
    int found = unwind_with((void **)frames, (int)(most + UNWIND_OWN));
    unsigned count = found > 0 ? (unsigned)found : 0, first = 0;
    if (own.end != 0)
        while (first < count && frames[first] >= own.start && frames[first] < own.end)
            first++;
    *walked = count - first;
    memmove(frames, frames + first, *walked * sizeof *frames);
    count = *walked > most ? most : *walked;
    while (count > 0 && frames[count - 1] == 0) /* the outermost frame may have the address 0 */
        count--;
    return count;
}
