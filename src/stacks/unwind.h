/*
 * The native frames of the calling thread's stack.
 *
 * libunwind's unw_backtrace() takes 0.15 to 0.3 us for 16 frames, because it caches how each return
 * address unwinds. libc's backtrace() takes some 5 us. Frame pointers do not help: most programs
 * are built without them. libunwind is opened with RTLD_LOCAL. It exports the names of the unwinder
 * that C++ exceptions use, and must not replace that unwinder.
 *
 * libunwind never drops an address from its cache, not even in unw_flush_cache(). If a library is
 * closed and another one is loaded at its addresses, libunwind would use the wrong unwind data and
 * crash. The process therefore changes to backtrace() once a module that stacks lead through has
 * been closed. It also changes if any library was closed and stacks have been lost, because the
 * frames of lost stacks are not known.
 *
 * The first backtrace() of a process loads libgcc and allocates. unwind_start() therefore makes the
 * first call.
 */
#ifndef GPUCACHE_STACKS_UNWIND_H
#define GPUCACHE_STACKS_UNWIND_H

#include "stacks/stacks.h"

/** Chooses the unwinder: libunwind if it can be opened, otherwise backtrace(). */
void unwind_start(stacks_look_up *look_up);

/** Returns the unwinder's name: "libunwind" or "backtrace"; "none" before unwind_start(). */
const char *unwind_name(void);

/**
 * Changes to backtrace() for good. Called when a module that stacks lead through was closed, and
 * when any library was closed after stacks were lost.
 */
void unwind_distrust(void);

#define UNWIND_OWN 8 /* innermost frames that may belong to this library */

/**
 * Stores the return addresses of up to `most` callers of this library, innermost first, and returns
 * their number. `frames` has memory for most + UNWIND_OWN addresses. *walked is the number of
 * stored addresses that the unwinder walked, including those beyond `most`.
 */
unsigned unwind(uint64_t *frames, unsigned most, unsigned *walked);

#endif
