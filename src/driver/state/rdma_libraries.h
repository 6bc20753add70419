/*
 * Libraries that register memory with network cards.
 *
 * That goes through the kernel and passes by the driver's entries: nobody tells us which memory is registered, nor
 * when it no longer is. Of memory in pages that is refused by some of them, or goes allocation by allocation, which blocks
 * there are not. So where one of them is loaded when a device is first used its memory comes in segments, unless pages
 * are asked for. What comes later, or is linked into the program itself, is not found.
 */
#ifndef GPUCACHE_DRIVER_STATE_RDMA_LIBRARIES_H
#define GPUCACHE_DRIVER_STATE_RDMA_LIBRARIES_H

#define RDMA_CARDS "/sys/class/infiniband"

/** Which one is loaded, or will be since there is something in the folder of the network cards, as a reason for segments; or
 * NULL. Keeps errno. */
const char *rdma_libraries_loaded(const char *cards);

#endif
