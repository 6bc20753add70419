/*
 * What is loaded, as far as stacks lead through it: an address becomes a file, an offset in it and its build id, which
 * mean the same after the process has ended.
 *
 * Nothing here waits for the loader: dlopen() in another thread may be waiting for what the caller holds.
 */
#ifndef GPUCACHE_STACKS_MODULE_H
#define GPUCACHE_STACKS_MODULE_H

#include "stacks/stacks.h"

#define MODULES 1024
#define MODULE_NONE UINT32_MAX
#define MODULE_BUILD_ID 41

/** Where a module lies. */
struct module_place {
    uint64_t start, end;
    uint64_t bias; /* address minus this: what the file calls it */
    const char *path;
    bool is_program;
};

void module_start(stacks_look_up *look_up);

/** The module that covers an address. */
bool module_place_of(uint64_t address, struct module_place *place);

/** Its number, which stays; MODULE_NONE: there is no room for it. With the lock of sites. */
uint32_t module_number(const struct module_place *place);

/** A stack leads through it: whether it is closed is to be known. With the lock of sites. */
void module_watch(const struct module_place *place);

/** How many have been closed so far, by anybody. */
uint64_t module_closings(void);

/** Which of those that are watched are still where they were. */
struct module_open {
    uint32_t count; /* that were asked for */
    uint64_t is_open[MODULES / 64];
};
void module_find_open(struct module_open *open);

/**
 * Hands out each one that was not open, or of which that cannot be told; once. Another one may lie there now. With the lock of sites.
 * True if there was one.
 */
bool module_forget_closed(const struct module_open *open,
                          void (*forget)(uint64_t start, uint64_t end));

/** Of a number; NULL beyond the last one. */
struct module_info {
    const char *path;
    char build_id[MODULE_BUILD_ID]; /* in hexadecimal; empty: it has none */
};
const struct module_info *module_info(uint32_t number);

#endif
