/*
 * The VMM page: 2 MiB of device memory, the smallest part that the driver maps.
 *
 * The driver gives cuMemAlloc memory and arrays whole pages too; small allocations share a page. A
 * slab is as long as a page. The page map, traces and messages between processes count in pages.
 */
#ifndef GPUCACHE_HEAP_PAGE_H
#define GPUCACHE_HEAP_PAGE_H

#include <stdint.h>

#define PAGE_SHIFT 21
#define PAGE_BYTES ((uint64_t)1 << PAGE_SHIFT)

#endif
