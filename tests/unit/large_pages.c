#include "large_pages.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

int __real_getpagesize(void);
int __real_madvise(void *at, size_t bytes, int advice);
void *__real_mmap64(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
int __wrap_getpagesize(void);
int __wrap_madvise(void *at, size_t bytes, int advice);
void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int file, off_t offset);

static size_t large; /* bytes of a simulated host page; 0: no simulation */

void large_pages_start(size_t bytes) {
    large = bytes;
}

void large_pages_end(void) {
    large = 0;
}

static size_t whole_pages(size_t bytes) {
    return (bytes + large - 1) / large * large;
}

int __wrap_getpagesize(void) {
    return large ? (int)large : __real_getpagesize();
}

int __wrap_madvise(void *at, size_t bytes, int advice) {
    if (!large)
        return __real_madvise(at, bytes, advice);
    if ((uintptr_t)at % large != 0) {
        errno = EINVAL;
        return -1;
    }
    return __real_madvise(at, whole_pages(bytes), advice);
}

void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    if (!large)
        return __real_mmap64(at, bytes, protection, flags, file, offset);
    if (offset % large != 0 || (flags & MAP_FIXED && (uintptr_t)at % large != 0)) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    bytes = whole_pages(bytes);
    if (flags & MAP_FIXED)
        return __real_mmap64(at, bytes, protection, flags, file, offset);
    char *raw = __real_mmap64(at, bytes + large, protection, flags, file, offset);
    if (raw == MAP_FAILED)
        return raw;
    return (char *)whole_pages((uintptr_t)raw); /* the memory in front and behind stays unused */
}
