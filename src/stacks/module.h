/*
 * Loaded modules that recorded stacks lead through. An address becomes a file, an offset in the
 * file and a build id, which stay meaningful after the process has ended.
 *
 * The lock of the sites may be held in functions that say so. With glibc 2.35 and later they do not
 * wait for the loader. Before, module_place_of() takes the lock of the loader's list, which no
 * thread holds while it runs code of a module: a dlopen() cannot wait for the caller's lock.
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

/** Returns how many modules the process has closed so far. Takes a lock of the loader. */
uint64_t module_closings(void);

/** The watched modules that are still open at their address. */
struct module_open {
    uint32_t count;                 /* watched modules that were checked */
    uint64_t is_open[MODULES / 64]; /* one bit for each of them */
};
/** Fills `open`. Takes a lock of the loader: the lock of the sites must not be held. */
void module_find_open(struct module_open *open);

/**
 * Calls forget() once for each watched module whose bit in `open` is not set: another module may
 * lie at its addresses. The lock of the sites is held. Returns true if forget() was called, or if
 * more than MODULES modules had to be watched.
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
