/*
 * Loaded modules that recorded stacks lead through. An address becomes a file, an offset in the
 * file and a build id, which stay meaningful after the process has ended.
 *
 * No function here waits for the loader while the caller holds a lock: a dlopen() in another thread
 * may be waiting for that lock.
 */
#ifndef GPUCACHE_STACKS_MODULE_H
#define GPUCACHE_STACKS_MODULE_H

#include "stacks/stacks.h"

#define MODULES 1024
#define MODULE_NONE UINT32_MAX
#define MODULE_BUILD_ID 41

/** The addresses of a loaded module. */
struct module_place {
    uint64_t start, end;
    uint64_t bias; /* address in memory minus address in the file */
    const char *path;
    bool is_program;
};

void module_start(stacks_look_up *look_up);

/** Finds the module that covers an address. Returns false if there is none. */
bool module_place_of(uint64_t address, struct module_place *place);

/**
 * Returns the module's number, which never changes, or MODULE_NONE if the table is full. The lock
 * of the sites is held.
 */
uint32_t module_number(const struct module_place *place);

/**
 * Watches a module, because a stack leads through it: module_forget_closed() reports when it has
 * been closed. The lock of the sites is held.
 */
void module_watch(const struct module_place *place);

/** Returns how many modules the process has closed so far. */
uint64_t module_closings(void);

/** The watched modules that are still open at their address. */
struct module_open {
    uint32_t count; /* watched modules that were checked */
    uint64_t is_open[MODULES / 64];
};
void module_find_open(struct module_open *open);

/**
 * Calls forget() once for each watched module that is not in `open`, or whose identity is unknown.
 * Another module may already lie at its addresses. The lock of the sites is held. Returns true if
 * there was such a module, or if not all modules could be watched.
 */
bool module_forget_closed(const struct module_open *open,
                          void (*forget)(uint64_t start, uint64_t end));

/** A module's file. module_info() returns NULL beyond the last number. */
struct module_info {
    const char *path;
    char build_id[MODULE_BUILD_ID]; /* in hexadecimal; empty if the file has none */
};
const struct module_info *module_info(uint32_t number);

#endif
