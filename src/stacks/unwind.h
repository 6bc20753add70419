/*
 * The native frames of the calling thread's stack.
 *
 * libunwind's unw_backtrace() takes 0.15 to 0.3 us for 16 frames, because it remembers how each return address
 * unwinds; libc's backtrace() takes some 5 us. Programs are built without frame pointers, so these are no way. libunwind
 * is opened for this library alone (RTLD_LOCAL): it has the names of the unwinder that exceptions go by, and may not
 * take its place.
 *
 * What libunwind remembers of an address it never forgets, not even by unw_flush_cache(). Where another library lies
 * at the place of one that was closed, it would read memory by the wrong frames, and crash. So the process goes on with
 * backtrace() once a module that stacks lead through has been closed.
 *
 * The first backtrace() of a process opens libgcc, and allocates: so the first one is made at the start.
 */
#ifndef GPUCACHE_STACKS_UNWIND_H
#define GPUCACHE_STACKS_UNWIND_H

#include "stacks/stacks.h"

/** Chooses the unwinder. */
void unwind_start(stacks_look_up *look_up);

/** Its name: "libunwind" or "backtrace". */
const char *unwind_name(void);

/** A module that stacks lead through has been closed. */
void unwind_distrust(void);

#define UNWIND_OWN 8 /* frames of this library that may stand in front */

/** The return addresses of up to `most` callers of this library, innermost first; `frames` has room for UNWIND_OWN
 * more. *walked: with those beyond, which stand behind them. */
unsigned unwind(uint64_t *frames, unsigned most, unsigned *walked);

#endif
