/*
 * The loader room: how this library comes between a program and its driver.
 *
 *      dlsym.S   the overrides of dlsym and dlvsym, which jump
 *      next.c    the functions they jump to, found in the process's own symbol tables
 *      route.c   which answer a look-up gets: the driver's entry, or the replacement that stands
 * for exactly that entry
 */
#ifndef GPUCACHE_LOADER_LOADER_H
#define GPUCACHE_LOADER_LOADER_H

#include <stdbool.h>
#include <stdint.h>

/** Whether two names are the same; without libc, whose strcmp() may not be bound yet. */
static inline bool loader_same(const char *a, const char *b) {
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

/** The next dlsym and dlvsym after ours in the order of the search: any, and those that have a
 * version. NULL until loader_find_next() ran. */
typedef void *loader_dlsym(void *handle, const char *name);
typedef void *loader_dlvsym(void *handle, const char *name, const char *version);
extern loader_dlsym *loader_next_dlsym, *loader_versioned_dlsym;
extern loader_dlvsym *loader_next_dlvsym, *loader_versioned_dlvsym;
void loader_find_next(void);

/** The next definition of a function behind ours in the order of the search; NULL if there is none. */
void *loader_next(const char *name);

/** Our own, as dlsym.S has them: the exported ones, and those for who asked for a version. */
extern loader_dlsym loader_dlsym_entry, loader_dlsym_by_version;
extern loader_dlvsym loader_dlvsym_entry, loader_dlvsym_by_version;

/** What a look-up answers: `value` if `answered`, else the real function is to be asked, by its
 * real caller. `caller`: an address in the code that asks. */
struct loader_answer {
    void *value;
    uintptr_t answered;
};
struct loader_answer loader_answer(void *handle, const char *name, const char *version,
                                   const void *caller);

/** The same for the names dlsym and dlvsym themselves. */
struct loader_answer loader_answer_itself(void *handle, const char *name, const char *version,
                                          const void *caller);

/* What is looked up in another library, and replaced there: each room above that stands in front of one
 * has such a table. */
struct loader_entry {
    const char *symbol;
    int since;
    void **real;       /* where its real address is kept */
    void *replacement; /* NULL: only called */
};

#define LOADER_SLOTS 512 /* of each table of look-ups */

struct loader_table {
    const char *library;
    const struct loader_entry *entries;
    unsigned count; /* of both tables together less than LOADER_SLOTS */
    void *absent;   /* stands for what the library lacks */
};

extern const struct loader_table loader_driver, loader_nvml; /* driver/table/entries.c, driver/hooks/nvml.c */

/** Our replacement of a real entry of the driver, or the entry itself when it is none that we
 * replace. */
void *loader_route(void *real);

/** Finds the driver's real entries, if libcuda is loaded. Cheap when done. False: there is no
 * driver in this process. */
bool loader_find_driver(void);

/** The same for NVML. */
bool loader_find_nvml(void);

#endif
