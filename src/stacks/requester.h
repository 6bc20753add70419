/*
 * Finds the requester of memory: the module whose code called a hook. The CUDA runtime's shared
 * object (libcudart) is passed over: its caller is the requester.
 *
 *      requester_here()  <-  hook  <-  libcudart.so  <-  libnccl.so     the requester is libnccl.so
 *      ~~~~~~~~~~~~ passed over ~~~~~~~~~~~~~~~~~~~
 *
 * An unwinder finds the frames at the first call. A table keeps, for each return address, either
 * the distance to the next frame or the number of the requester. Later calls from the same place
 * read the table: a few loads per frame. dlclose() empties the table, because another module may be
 * loaded at the same addresses.
 */
#ifndef GPUCACHE_STACKS_REQUESTER_H
#define GPUCACHE_STACKS_REQUESTER_H

#include "stacks/stacks.h"
#include "stats/requesters.h"

/** Starts the search for requesters. Called once, before any allocation. */
void requester_start(stacks_look_up *look_up);

/**
 * Returns the number of the requester of the current hook, below REQUESTERS. Called with no lock
 * held. Keeps errno.
 */
unsigned requester_here(void);

/** Returns the file name of a requester, which never changes, or NULL beyond the last number. */
const char *requester_name(unsigned number);

/** Empties the table of return addresses, before and after a module is closed. */
void requester_forget(void);

#endif
