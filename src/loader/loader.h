/*
 * The loader module: how the library comes between a program and its driver.
 *
 *      dlsym.S   overrides dlsym and dlvsym
 *      next.c    finds the real dlsym and dlvsym in the symbol tables of the process
 *      route.c   chooses the answer of a look-up: the driver's entry, or its replacement
 *
 * The overrides can run in any thread, before libc is ready, and inside dlopen. This module
 * therefore takes no lock: all threads store the same values.
 */
#ifndef GPUCACHE_LOADER_LOADER_H
#define GPUCACHE_LOADER_LOADER_H

#include <stdbool.h>
#include <stdint.h>

/**
 * Returns whether two names are the same. Calls no libc function: strcmp() may not be bound yet.
 */
static inline bool loader_same(const char *a, const char *b) {
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

/**
 * The next dlsym and dlvsym behind this library in search order. loader_next_*: the next
 * definition. loader_versioned_*: the next definition that has a symbol version. NULL until
 * loader_find_next() has run. loader_find_next() ends the process if libc has no dlvsym.
 */
typedef void *loader_dlsym(void *handle, const char *name);
typedef void *loader_dlvsym(void *handle, const char *name, const char *version);
extern loader_dlsym *loader_next_dlsym, *loader_versioned_dlsym;
extern loader_dlvsym *loader_next_dlvsym, *loader_versioned_dlvsym;
void loader_find_next(void);

/** Calls loader_find_next() if no thread has. All four pointers are known after the call. */
static inline void loader_know_next(void) {
    if (!__atomic_load_n(&loader_next_dlsym, __ATOMIC_ACQUIRE))
        loader_find_next();
}

/** Returns the next definition of a function behind this library in search order, or NULL. */
void *loader_next(const char *name);

/** The overrides of dlsym.S: the exported ones, and those for callers that asked for a version. */
extern loader_dlsym loader_dlsym_entry, loader_dlsym_by_version;
extern loader_dlvsym loader_dlvsym_entry, loader_dlvsym_by_version;

/**
 * Returns the answer of a look-up of a name that begins with "cu", "nv" or "dl". If `answered` is
 * 0, the real function has to run for its real caller. `caller`: an address in the calling code.
 */
struct loader_answer {
    void *value;
    uintptr_t answered;
};
struct loader_answer loader_answer(void *handle, const char *name, const char *version,
                                   const void *caller);

/** Returns the answer of a look-up of the names dlsym and dlvsym, as loader_answer() does. */
struct loader_answer loader_answer_itself(void *handle, const char *name, const char *version,
                                          const void *caller);

/*
 * A symbol of another library that this library calls or replaces. Each module that replaces
 * symbols has a table of them.
 */
struct loader_entry {
    const char *symbol;
    int since;         /* CUDA version that brought the symbol: 11030 is 11.3; 0: not of CUDA */
    void **real;       /* where its real address is stored */
    void *replacement; /* NULL: the symbol is only called */
};

#define LOADER_SLOTS 512 /* of each hash table in route.c */

struct loader_table {
    const char *library;
    const struct loader_entry *entries;
    unsigned count; /* both tables together have fewer than LOADER_SLOTS */
    void *absent;   /* stored for symbols that the library lacks */
};

/*
 * The tables of the driver and of NVML: arrays of one element, which a higher folder defines with
 * LOADER_TABLE(driver) or LOADER_TABLE(nvml). The linker finds a table by its section. This folder
 * names no symbol of a higher one, and no code has to run before the first look-up.
 */
#define LOADER_TABLE(name) __attribute__((section("loader_" #name), used)) const struct loader_table
extern const struct loader_table loader_driver[] __asm__("__start_loader_driver")
    __attribute__((visibility("hidden")));
extern const struct loader_table loader_nvml[] __asm__("__start_loader_nvml")
    __attribute__((visibility("hidden")));

/** Returns the replacement of a real entry of the driver, or `real` if the entry has none. */
void *loader_route(void *real);

/**
 * Finds the real entries of the driver, if libcuda is loaded. Returns false if it is not. Costs one
 * load after the first success.
 */
bool loader_find_driver(void);

/** Finds the real entries of NVML, as loader_find_driver() does. */
bool loader_find_nvml(void);

#endif
