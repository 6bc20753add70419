/*
 * Assertions: check what comments promise, in builds with GPUCACHE_ASSERTIONS. These are debug
 * builds, the unit tests, and a second build of the library that some programs are tested under.
 *
 * The library may call neither abort() nor stdio (tests/unit/test_entries.c), so assert() of libc
 * cannot be used. A failed assertion prints one line and raises SIGABRT. No lock is needed.
 */
#ifndef GPUCACHE_BASE_ASSERT_H
#define GPUCACHE_BASE_ASSERT_H

#ifdef GPUCACHE_ASSERTIONS
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/** Prints the false condition and its position. Ends the process by SIGABRT. */
_Noreturn void assert_failed(const char *condition, const char *file, int line);

#define ASSERT(condition) ((condition) ? (void)0 : assert_failed(#condition, __FILE__, __LINE__))

/** Returns an address that no other running thread has. */
const void *assert_this_thread(void);

/** The thread that holds a lock. Only that thread writes it. */
struct holder {
    _Atomic(const void *) thread; /* assert_this_thread(), or NULL */
};

#define holder_set(holder)                                                                         \
    atomic_store_explicit(&(holder)->thread, assert_this_thread(), memory_order_relaxed)
#define holder_clear(holder) atomic_store_explicit(&(holder)->thread, NULL, memory_order_relaxed)

static inline bool holder_is_me(const struct holder *holder) {
    return atomic_load_explicit(&holder->thread, memory_order_relaxed) == assert_this_thread();
}
#else
#define ASSERT(condition) ((void)0)
#define holder_set(holder) ((void)0)
#define holder_clear(holder) ((void)0)
#endif

#endif
