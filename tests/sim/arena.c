/*
 * A device's memory: a sparse memory file, mapped once, handed out in granules of 2 MiB.
 *
 * How much memory is used and where it lies are two questions here. The first is a counter: a
 * device has page tables, so whatever fits in total fits. The second is answered from a file
 * sixteen times as large as the device, in which runs of granules are never hard to find:
 *
 *     | directory | live run | free run | live run | free |   never used ...        |
 *       shared      read/write  no access, no pages          ^ frontier
 *
 * A free run has no access rights and no pages, so a use after free cannot go unnoticed. Free runs
 * are merged with their neighbours (both ends of a run know its length) and kept in bins by size,
 * the latest first: like the real driver's, addresses come back soon.
 *
 * The file is what other processes map. Its directory says how long an exported run is, so that
 * the file's descriptor and an offset are enough to import it.
 */
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROOM 16 /* addresses per byte of memory */
#define BINS 32

struct arena {
    int fd;
    uintptr_t base;
    uint32_t granules, frontier;
    uint32_t *length;          /* of a free run, at its first and its last granule; else 0 */
    uint32_t *next, *previous; /* in its bin, by first granule; 0 ends */
    uint32_t bins[BINS];       /* runs of 2^i granules up to twice that */
};

static unsigned bin_of(uint32_t length) {
    return 31u - (unsigned)__builtin_clz(length);
}

static void *sparse(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

uintptr_t reserve_addresses(size_t size, size_t alignment) {
    void *room =
        mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return 0;
    uintptr_t start = (uintptr_t)room, base = round_up(start, alignment);
    if (base > start)
        munmap(room, base - start);
    if (start + alignment > base)
        munmap((void *)(base + size), start + alignment - base);
    return base;
}

static size_t table_size(const struct arena *arena) {
    return round_up(((size_t)arena->granules + 1) * sizeof(uint32_t), 4096);
}

static bool set_up(struct arena *arena, size_t size) {
    arena->granules = (uint32_t)(size / GRANULE);
    arena->fd = memfd_create("simulated GPU", MFD_CLOEXEC);
    if (arena->fd < 0 || ftruncate(arena->fd, (off_t)size) != 0)
        return false;
    arena->base = reserve_addresses(size, GRANULE);
    if (!arena->base)
        return false;
    if (mmap((void *)arena->base, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
             arena->fd, 0) == MAP_FAILED)
        return false;
    arena->length = sparse(table_size(arena));
    arena->next = sparse(table_size(arena));
    arena->previous = sparse(table_size(arena));
    if (!arena->length || !arena->next || !arena->previous)
        return false;
    size_t directory = round_up(table_size(arena), GRANULE);
    arena->frontier = (uint32_t)(directory / GRANULE);
    return mprotect((void *)arena->base, directory, PROT_READ | PROT_WRITE) == 0;
}

static struct arena *arena_of(struct device *device) {
    if (device->arena)
        return device->arena;
    struct arena *arena = calloc(1, sizeof(*arena));
    if (!arena || !set_up(arena, (device->total + GRANULE) * ROOM)) {
        perror("sim: cannot reserve the device's memory");
        abort();
    }
    device->arena = arena;
    return arena;
}

void arena_release(struct device *device) {
    struct arena *arena = device->arena;

    if (!arena)
        return;
    munmap((void *)arena->base, (size_t)arena->granules * GRANULE);
    munmap(arena->length, table_size(arena));
    munmap(arena->next, table_size(arena));
    munmap(arena->previous, table_size(arena));
    close(arena->fd);
    free(arena);
    device->arena = NULL;
}

static void bin_add(struct arena *arena, uint32_t first, uint32_t length) {
    uint32_t *head = &arena->bins[bin_of(length)];

    arena->length[first] = arena->length[first + length - 1] = length;
    arena->previous[first] = 0;
    arena->next[first] = *head;
    if (*head)
        arena->previous[*head] = first;
    *head = first;
}

static uint32_t bin_remove(struct arena *arena, uint32_t first) {
    uint32_t length = arena->length[first];
    uint32_t next = arena->next[first], previous = arena->previous[first];

    if (next)
        arena->previous[next] = previous;
    if (previous)
        arena->next[previous] = next;
    else
        arena->bins[bin_of(length)] = next;
    arena->length[first] = arena->length[first + length - 1] = 0;
    return length;
}

/* Any run of a larger bin will do; in its own bin a few are tried. */
static uint32_t find_run(const struct arena *arena, uint32_t length) {
    unsigned bin = bin_of(length);
    uint32_t run = arena->bins[bin];

    for (int tries = 8; run && tries; run = arena->next[run], tries--)
        if (arena->length[run] >= length)
            return run;
    for (bin++; bin < BINS; bin++)
        if (arena->bins[bin])
            return arena->bins[bin];
    return 0;
}

uintptr_t arena_take(struct device *device, size_t granules) {
    struct arena *arena = arena_of(device);
    uint32_t length = (uint32_t)granules, first = 0;

    if (granules > arena->granules)
        return 0;
    first = find_run(arena, length);
    if (first) {
        uint32_t found = bin_remove(arena, first);
        if (found > length)
            bin_add(arena, first + length, found - length);
    } else if (arena->granules - arena->frontier >= length) {
        first = arena->frontier;
        arena->frontier += length;
    } else {
        return 0;
    }
    return arena->base + (uintptr_t)first * GRANULE;
}

void arena_open(uintptr_t base, size_t granules) {
    mprotect((void *)base, granules * GRANULE, PROT_READ | PROT_WRITE);
}

void arena_give(struct device *device, uintptr_t base, size_t granules) {
    struct arena *arena = arena_of(device);
    uint32_t first = (uint32_t)((base - arena->base) / GRANULE);
    uint32_t length = (uint32_t)granules;

    madvise((void *)base, granules * GRANULE, MADV_REMOVE);
    mprotect((void *)base, granules * GRANULE, PROT_NONE);
    uint32_t after = arena->length[first + length] ? first + length : 0;
    uint32_t before = arena->length[first - 1] ? first - arena->length[first - 1] : 0;
    if (after)
        length += bin_remove(arena, after);
    if (before) {
        length += bin_remove(arena, before);
        first = before;
    }
    if (first + length == arena->frontier)
        arena->frontier = first;
    else
        bin_add(arena, first, length);
}

/* Another process may still map it: the bytes stay, the addresses are never used again. */
void arena_retire(uintptr_t base, size_t granules) {
    mprotect((void *)base, granules * GRANULE, PROT_NONE);
}

int arena_fd(struct device *device) {
    return arena_of(device)->fd;
}

uintptr_t arena_base(struct device *device) {
    return arena_of(device)->base;
}

uint64_t arena_offset(struct device *device, uintptr_t address) {
    return address - arena_of(device)->base;
}

bool device_charge(struct device *device, size_t bytes) {
    size_t taken = device->used + device->occupied;

    if (taken > device->total || bytes > device->total - taken)
        return false;
    device->used += bytes;
    return true;
}

void device_discharge(struct device *device, size_t bytes) {
    device->used -= bytes;
}

SIM_EXPORT void sim_occupy(int device, uint64_t bytes) {
    pthread_mutex_lock(&sim.lock);
    if (device_of(device))
        sim.devices[device].occupied = round_up(bytes, GRANULE);
    pthread_mutex_unlock(&sim.lock);
}

SIM_EXPORT uint64_t sim_used_memory(int device) {
    pthread_mutex_lock(&sim.lock);
    uint64_t used = device_of(device) ? sim.devices[device].used : 0;
    pthread_mutex_unlock(&sim.lock);
    return used;
}
