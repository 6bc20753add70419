/*
 * Functions of libc that the library overrides.
 *
 *      NEXT(sigaction)(...)      the next definition: another preloaded library's, or libc's
 *      front_sigaction(...)      the library's own, which the program calls; ELF name sigaction
 *
 * libc's calls of its own functions (exit, abort, posix_spawn, system) do not reach the library.
 */
#ifndef GPUCACHE_PROCESS_LIBC_H
#define GPUCACHE_PROCESS_LIBC_H

#include <signal.h>

typedef void libc_handler(int number);

struct libc {
#define LIBC(name, result, parameters) result(*next_##name) parameters;
#include "process/libc.def"
#undef LIBC
};

#define LIBC(name, result, parameters)                                                             \
    result front_##name parameters __asm__(#name) __attribute__((visibility("default")));
#include "process/libc.def"
#undef LIBC

/** Returns the next definitions; NULL for functions that this libc lacks. */
const struct libc *libc_next(void);

#define NEXT(name) (libc_next()->next_##name)

#endif
