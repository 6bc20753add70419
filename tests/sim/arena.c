/*
 * The devices' memory: a sparse memory file, mapped once, handed out in granules of 2 MiB.
 *
 * Each device counts its used bytes. A device has page tables, so an allocation fits if its bytes
 * fit in total. The addresses of all devices come from one file, sixteen times as large as the
 * devices, in which runs of granules are easy to find:
 *
 *     | directory | live run | free run | live run | free |   never used ...        |
 *       shared      read/write  no access, no pages          ^ frontier
 *
 * A free run has no access rights and no pages, so a use after free cannot go unnoticed. Free runs
 * are merged with their neighbours (both ends of a run have its length) and kept in bins by size,
 * the latest first. Addresses are reused at once, as a real driver's may be: the run freed last is
 * handed out next if the request fits there, in any device and context.
 *
 * Other processes map the file. Its directory has the length of each exported run, so the file's
 * descriptor and an offset are enough to import it.
 */
#include "driver.h"

#include <fcntl.h>
#include <stdatomic.h>
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
    uint32_t *length;          /* length of a free run, at its first and last granule; else 0 */
    uint32_t *next, *previous; /* neighbours in the bin, as first granules; 0: none */
    uint32_t bins[BINS];       /* runs of 2^i granules up to twice that */
    uint32_t latest;           /* first granule of the run freed last; 0: it is in use again */
    uint32_t latest_run;       /* free run that contains `latest`, unless behind the frontier */
};

static struct arena *arena;

static unsigned bin_of(uint32_t length) {
    return 31u - (unsigned)__builtin_clz(length);
}

static void *sparse(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

uintptr_t reserve_addresses(size_t size, size_t alignment) {
    void *mapping =
        mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return 0;
    uintptr_t start = (uintptr_t)mapping, base = round_up(start, alignment);
    if (base > start)
        munmap(mapping, base - start);
    if (start + alignment > base)
        munmap((void *)(base + size), start + alignment - base);
    return base;
}

static size_t table_size(void) {
    return round_up(((size_t)arena->granules + 1) * sizeof(uint32_t), 4096);
}

static bool set_up(size_t size) {
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
    arena->length = sparse(table_size());
    arena->next = sparse(table_size());
    arena->previous = sparse(table_size());
    if (!arena->length || !arena->next || !arena->previous)
        return false;
    size_t directory = round_up(table_size(), GRANULE);
    arena->frontier = (uint32_t)(directory / GRANULE);
    return mprotect((void *)arena->base, directory, PROT_READ | PROT_WRITE) == 0;
}

static void need_arena(void) {
    size_t total = 0;

    if (arena)
        return;
    for (int i = 0; i < sim.options.devices; i++)
        total += sim.devices[i].total + GRANULE;
    arena = calloc(1, sizeof(*arena));
    if (!arena || !set_up(total * ROOM)) {
        perror("sim: cannot reserve the devices' memory");
        abort();
    }
}

void arena_release(void) {
    if (!arena)
        return;
    munmap((void *)arena->base, (size_t)arena->granules * GRANULE);
    munmap(arena->length, table_size());
    munmap(arena->next, table_size());
    munmap(arena->previous, table_size());
    close(arena->fd);
    free(arena);
    arena = NULL;
}

static void bin_add(uint32_t first, uint32_t length) {
    uint32_t *head = &arena->bins[bin_of(length)];

    arena->length[first] = arena->length[first + length - 1] = length;
    arena->previous[first] = 0;
    arena->next[first] = *head;
    if (*head)
        arena->previous[*head] = first;
    *head = first;
}

static uint32_t bin_remove(uint32_t first) {
    uint32_t length = arena->length[first];
    uint32_t next = arena->next[first], previous = arena->previous[first];

    if (next)
        arena->previous[next] = previous;
    if (previous)
        arena->next[previous] = next;
    else
        arena->bins[bin_of(length)] = next;
    arena->length[first] = arena->length[first + length - 1] = 0;
    if (first == arena->latest_run)
        arena->latest = 0;
    return length;
}

/* Returns a free run of at least `length` granules, or 0. Tries a few runs of the bin of that
 * length, then takes any run of a larger bin. */
static uint32_t find_run(uint32_t length) {
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

/* Takes `length` granules at `first` out of a free run. The granules before and behind them stay
 * free. */
static uint32_t take_from(uint32_t run, uint32_t first, uint32_t length) {
    uint32_t end = run + bin_remove(run);

    if (first > run)
        bin_add(run, first - run);
    if (end > first + length)
        bin_add(first + length, end - first - length);
    return first;
}

static uint32_t take_from_frontier(uint32_t first, uint32_t length) {
    if (arena->granules - first < length)
        return 0;
    if (first > arena->frontier)
        bin_add(arena->frontier, first - arena->frontier);
    arena->frontier = first + length;
    if (arena->latest >= first)
        arena->latest = 0;
    return first;
}

/* Takes granules at `latest` if enough are free there. Else returns 0. */
static uint32_t take_latest(uint32_t length) {
    uint32_t first = arena->latest, run = arena->latest_run;

    if (!first)
        return 0;
    if (first >= arena->frontier)
        return take_from_frontier(first, length);
    return run + arena->length[run] - first >= length ? take_from(run, first, length) : 0;
}

uintptr_t arena_take(size_t granules) {
    need_arena();
    if (granules > arena->granules)
        return 0;
    uint32_t length = (uint32_t)granules, first = take_latest(length);
    if (!first && (first = find_run(length)))
        take_from(first, first, length);
    if (!first)
        first = take_from_frontier(arena->frontier, length);
    return first ? arena->base + (uintptr_t)first * GRANULE : 0;
}

void arena_open(uintptr_t base, size_t granules) {
    mprotect((void *)base, granules * GRANULE, PROT_READ | PROT_WRITE);
}

void arena_give(uintptr_t base, size_t granules) {
    uint32_t first = (uint32_t)((base - arena->base) / GRANULE), latest = first;
    uint32_t length = (uint32_t)granules;

    madvise((void *)base, granules * GRANULE, MADV_REMOVE);
    mprotect((void *)base, granules * GRANULE, PROT_NONE);
    uint32_t after = arena->length[first + length] ? first + length : 0;
    uint32_t before = arena->length[first - 1] ? first - arena->length[first - 1] : 0;
    if (after)
        length += bin_remove(after);
    if (before) {
        length += bin_remove(before);
        first = before;
    }
    if (first + length == arena->frontier)
        arena->frontier = first;
    else
        bin_add(first, length);
    arena->latest = latest;
    arena->latest_run = first;
}

/* Retires granules that another process may still map: the bytes stay, and the addresses are
 * never used again. */
void arena_retire(uintptr_t base, size_t granules) {
    mprotect((void *)base, granules * GRANULE, PROT_NONE);
}

int arena_fd(void) {
    need_arena();
    return arena->fd;
}

uintptr_t arena_base(void) {
    return arena->base;
}

uint64_t arena_offset(uintptr_t address) {
    return address - arena->base;
}

/* Bytes in use of each device by all processes, in the file that GPUCACHE_SIM_SHARED names. Other
 * processes write it at any time. NULL: only this process uses the devices. */
static _Atomic(size_t) *everybody;

static void share(void) {
    size_t bytes = MAX_DEVICES * sizeof(*everybody);
    int fd = *sim.options.shared && !everybody
                 ? open(sim.options.shared, O_RDWR | O_CREAT | O_CLOEXEC, 0600)
                 : -1;

    if (fd < 0)
        return;
    void *mapped = ftruncate(fd, (off_t)bytes) == 0
                       ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                       : MAP_FAILED;
    everybody = mapped == MAP_FAILED ? NULL : mapped;
    close(fd);
}

__attribute__((destructor)) static void give_back_shared(void) {
    for (int i = 0; everybody && !sim.forked && i < MAX_DEVICES; i++)
        everybody[i] -= sim.devices[i].used;
    everybody = NULL;
}

size_t device_taken(const struct device *device) {
    share();
    return device->occupied + (everybody ? everybody[device->ordinal] : device->used);
}

size_t device_most(const struct device *device) {
    size_t limit = sim.options.hard_limit;

    return limit > 0 && limit < device->total ? limit : device->total;
}

bool device_charge(struct device *device, size_t bytes) {
    size_t taken, most = device_most(device);

    do {
        taken = device_taken(device);
        if (taken > most || bytes > most - taken)
            return false;
        taken -= device->occupied;
    } while (everybody &&
             !atomic_compare_exchange_weak(&everybody[device->ordinal], &taken, taken + bytes));
    device->used += bytes;
    return true;
}

void device_discharge(struct device *device, size_t bytes) {
    device->used -= bytes;
    if (everybody)
        everybody[device->ordinal] -= bytes;
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
