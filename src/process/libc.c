/*
 * Finds the next definitions of libc functions in a constructor: the program's first call may come
 * from a signal handler, or between vfork and exec, where a look-up is impossible. A call before
 * the constructor, by a sanitizer's runtime or another library's constructor, looks them up itself.
 * No lock: all threads store the same values.
 */
#include "process/libc.h"

#include "loader/loader.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>

static struct libc next;
static atomic_bool known;

__attribute__((constructor)) static void find(void) {
#define LIBC(name, result, parameters)                                                             \
    __atomic_store_n((void **)&next.next_##name, loader_next(#name), __ATOMIC_RELAXED);
#include "process/libc.def"
#undef LIBC
    dlerror(); /* clears the errors of functions that this libc lacks: the program did not ask */
    atomic_store_explicit(&known, true, memory_order_release);
}

const struct libc *libc_next(void) {
    if (!atomic_load_explicit(&known, memory_order_acquire))
        find();
    return &next;
}
