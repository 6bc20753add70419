#include "driver/reuse/pinned.h"

#include "base/cgroup.h"
#include "base/lock.h"
#include "base/print.h"
#include "base/program.h"
#include "driver/context/context.h"
#include "driver/context/current.h"
#include "driver/context/device_pool.h"
#include "driver/state/address_map.h"
#include "driver/state/capture.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "options/options.h"
#include "pool/pool.h"
#include "tuning/tuning.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#define BOUND_SHARE 16                 /* bound on kept bytes: memory_bytes() divided by this */
#define BOUND_MOST ((uint64_t)4 << 30) /* largest bound on kept bytes */
#define BLOCKS_MOST 4096
#define UNTAKEN_MOST 1024  /* requests after which a block that none of them took goes back */
#define FREES_PER_CHECK 16 /* kept frees from one check of the oldest block to the next */
#define BUCKETS 512

struct pinned {
    void *host;
    size_t bytes;
    unsigned kind;
    struct pool *pool; /* pool whose epoch tells when the work on the block has completed */
    uint64_t stamp;    /* epoch of the free */
    uint64_t freed_at; /* value of `requests` at the free */
    struct pinned *newer, *older; /* in the list of all blocks */
    struct pinned *newer_in_bucket, *older_in_bucket;
};

/*
 * Hash buckets by size and kind. Most blocks of a bucket are equal, so the newest and the oldest
 * equal block are near its ends.
 */
static struct bucket { struct pinned *newest, *oldest; } buckets[BUCKETS];

static struct pinned *newest, *oldest;
static struct address_map kept_by_address;           /* all kept blocks by address */
static _Atomic uint64_t kept_blocks, requests, ends; /* `ends`: contexts that have ended so far */
static uint64_t kept_bytes, frees;                   /* `frees`: frees so far that kept a block */
static struct host_freelist freelist = {.object_bytes = sizeof(struct pinned)};
/* Protects all variables above but `requests`. Atomic ones are also read without the lock. */
static struct lock lock = LOCK_INITIALIZER(PINNED);

/* The memory controller of cgroups, in versions 2 and 1 (base/cgroup.h). */
static const struct hierarchy {
    const char *controller, *root, *limit;
} hierarchies[] = {{"", "/sys/fs/cgroup", "/memory.max"},
                   {"memory", "/sys/fs/cgroup/memory", "/memory.limit_in_bytes"}};

/* Returns the least of `least` and the limits of a cgroup and of all above it, up to the root. A
 * file that does not exist is no limit: in a container only the root may exist. Lock held. */
static uint64_t least_limit(const struct hierarchy *in, const char *cgroup, size_t length,
                            uint64_t least) {
    static char path[PATH_MAX];
    for (;;) {
        char text[24] = "";
        struct print out;
        print_init(&out, -1, path, sizeof path);
        print_str(&out, in->root);
        print_bytes(&out, cgroup, length);
        print_str(&out, in->limit);
        program_read_file(print_end(&out), text, sizeof text - 1);
        uint64_t limit = strtoull(text, NULL, 10); /* 0: no such file, or "max" */
        least = limit > 0 && limit < least ? limit : least;
        if (length == 0)
            return least;
        while (cgroup[--length] != '/' && length > 0) {
        }
    }
}

/* Returns the bytes of the machine, or of the process's memory cgroup if that has fewer. The texts
 * are static, under the lock: the thread of a free may have the smallest stack, of 16 KiB. */
static uint64_t memory_bytes(void) {
    static char lines[4096];
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    int saved = errno;
    lines[program_read_file("/proc/self/cgroup", lines, sizeof lines - 1)] = '\0';
    for (unsigned i = 0; i < sizeof hierarchies / sizeof *hierarchies; i++) {
        size_t length;
        const char *cgroup = cgroup_find(lines, hierarchies[i].controller, &length);
        bytes = least_limit(&hierarchies[i], cgroup, length, bytes);
    }
    errno = saved;
    return bytes;
}

/* Bound on kept bytes. 0: learn_bound() has not run. Constant afterwards, and read without lock. */
static _Atomic uint64_t bound;

/* Sets `bound` at the first free of pinned memory. Call with no lock held. */
static void learn_bound(void) {
    if (atomic_load_explicit(&bound, memory_order_relaxed) != 0)
        return;
    lock_acquire(&lock);
    uint64_t share = memory_bytes() / BOUND_SHARE;
    atomic_store_explicit(&bound, share > BOUND_MOST ? BOUND_MOST : share, memory_order_relaxed);
    lock_release(&lock);
}

/*
 * Returns the pool whose events tell when a block's work has completed. NULL: no block may be kept,
 * because an option forbids it, context events are missing, the current context has no pool, or the
 * process has several contexts or a view. Work of any context may use pinned memory, and an event
 * covers one context only.
 */
static struct pool *sole_pool(void) {
    struct pool *pool =
        options()->pinned && options()->reuse != REUSE_SYNC ? context_whole_pool() : NULL;
    return pool && pool_backend(pool)->has_events ? pool : NULL;
}

/* Frees a block by the driver, in relaxed mode: captures may be in progress. */
static void driver_free(void *host) {
    CUstreamCaptureMode mode = capture_relax();
    REAL(cuMemFreeHost)(host);
    capture_restore(mode);
}

/* --- the lists; lock held --- */

/* Returns the bucket of size and kind, from bits 32 to 40 of a multiplicative hash. */
static struct bucket *bucket_of(size_t bytes, unsigned kind) {
    return &buckets[((bytes ^ (uint64_t)kind << 20) * 0x9e3779b97f4a7c15u >> 32) % BUCKETS];
}

/* Adds a copy of `fresh` to all lists. Returns false without host memory. */
static bool add(const struct pinned *fresh) {
    struct pinned *p = host_freelist_get(&freelist);
    if (!p || !address_map_add(&kept_by_address, (uintptr_t)fresh->host, p)) {
        if (p)
            host_freelist_put(&freelist, p);
        return false;
    }
    struct bucket *bucket = bucket_of(fresh->bytes, fresh->kind);
    *p = *fresh;
    p->older = newest;
    *(newest ? &newest->newer : &oldest) = p;
    newest = p;
    p->older_in_bucket = bucket->newest;
    *(bucket->newest ? &bucket->newest->newer_in_bucket : &bucket->oldest) = p;
    bucket->newest = p;
    kept_bytes += p->bytes;
    atomic_fetch_add(&kept_blocks, 1);
    return true;
}

/* Removes a block from all lists, and returns its address. */
static void *take_out(struct pinned *p) {
    struct bucket *bucket = bucket_of(p->bytes, p->kind);
    void *host = p->host;
    *(p->newer ? &p->newer->older : &newest) = p->older;
    *(p->older ? &p->older->newer : &oldest) = p->newer;
    *(p->newer_in_bucket ? &p->newer_in_bucket->older_in_bucket : &bucket->newest) =
        p->older_in_bucket;
    *(p->older_in_bucket ? &p->older_in_bucket->newer_in_bucket : &bucket->oldest) =
        p->newer_in_bucket;
    address_map_remove(&kept_by_address, address_map_find(&kept_by_address, (uintptr_t)host, p));
    kept_bytes -= p->bytes;
    atomic_fetch_sub(&kept_blocks, 1);
    host_freelist_put(&freelist, p);
    return host;
}

/*
 * Returns a block of the same size, kind and pool whose work has completed: the one freed last,
 * else the one freed first. NULL: there is none, or the work of both is pending.
 */
static struct pinned *find_equal(const struct pinned *request) {
    const struct bucket *bucket = bucket_of(request->bytes, request->kind);
    for (int from_end = 0; from_end < 2; from_end++) {
        struct pinned *p = from_end ? bucket->oldest : bucket->newest;
        while (p &&
               (p->bytes != request->bytes || p->kind != request->kind || p->pool != request->pool))
            p = from_end ? p->newer_in_bucket : p->older_in_bucket;
        if (!p || pool_has_finished(p->pool, p->stamp))
            return p;
    }
    return NULL;
}

/* --- handing out and keeping --- */

void *pinned_take(size_t bytes, unsigned kind) {
    atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed);
    if (atomic_load_explicit(&kept_blocks, memory_order_relaxed) == 0)
        return NULL;
    struct pinned request = {.bytes = bytes, .kind = kind, .pool = sole_pool()};
    if (!request.pool || pool_broken(request.pool))
        return NULL; /* after a fault the driver refuses the request */
    lock_acquire(&lock);
    struct pinned *p = find_equal(&request);
    void *host = p ? take_out(p) : NULL;
    lock_release(&lock);
    return host;
}

/* Returns whether all work submitted before the free of `freed` has completed. Queries up to
 * QUERIES_MOST times. Call in that free, with the lock. */
static bool is_idle(const struct pinned *freed) {
    bool idle = false;
    for (unsigned i = 0; i < QUERIES_MOST && !idle; i++)
        idle = pool_has_finished(freed->pool, freed->stamp);
    return idle;
}

/* Returns whether `bytes` more stay within the bounds. Call with the lock. */
static bool fits(size_t bytes) {
    return kept_bytes + bytes <= bound && kept_blocks < BLOCKS_MOST;
}

/*
 * Frees the oldest blocks until the block `freed` fits the bounds. If the oldest block suffices and
 * its work has completed, frees it at once. The driver then waits for the same work as in a native
 * free of `freed`. Otherwise frees blocks only while the context is idle. Returns false if `freed`
 * itself must go to the driver. Call with no lock held.
 */
static bool free_oldest_for(const struct pinned *freed) {
    for (bool freed_one = false;; freed_one = true) {
        void *host = NULL;
        lock_acquire(&lock);
        bool is_enough = fits(freed->bytes);
        if (!is_enough && oldest && pool_has_finished(oldest->pool, oldest->stamp) &&
            ((!freed_one && kept_bytes - oldest->bytes + freed->bytes <= bound) || is_idle(freed)))
            host = take_out(oldest);
        lock_release(&lock);
        if (!host)
            return is_enough;
        driver_free(host);
    }
}

/*
 * Frees blocks that UNTAKEN_MOST requests did not take, while the device is idle. Call with no lock
 * held.
 */
static void free_unrequested(const struct pinned *freed) {
    for (;;) {
        void *host = NULL;
        lock_acquire(&lock);
        if (oldest && freed->freed_at > oldest->freed_at + UNTAKEN_MOST && is_idle(freed))
            host = take_out(oldest);
        lock_release(&lock);
        if (!host)
            return;
        driver_free(host);
    }
}

static atomic_bool attribute_was_set;

void pinned_attribute_was_set(void) {
    atomic_store(&attribute_was_set, true);
}

/* Returns whether a block has the attributes of a new one. */
static bool is_as_new(const void *host) {
    int value = 1;
    return !atomic_load(&attribute_was_set) ||
           (REAL(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                        (CUdeviceptr)host) == CUDA_SUCCESS &&
            value == 0);
}

uint64_t pinned_ends(void) {
    return atomic_load(&ends);
}

bool pinned_keep(void *host, size_t bytes, unsigned kind, uint64_t ends_then) {
    struct pool *pool = sole_pool();
    if (!pool)
        return false;
    learn_bound();
    if (bytes > bound / 4 || pool_broken(pool) || !is_as_new(host))
        return false;
    struct pinned freed = {.host = host, .bytes = bytes, .kind = kind, .pool = pool};
    freed.stamp = pool_stamp_in_free(pool);
    freed.freed_at = atomic_load_explicit(&requests, memory_order_relaxed);
    if (!free_oldest_for(&freed))
        return false;
    lock_acquire(&lock);
    bool alive = atomic_load(&ends) == ends_then;
    bool kept = alive && fits(bytes) && add(&freed),
         check_oldest = kept && ++frees % FREES_PER_CHECK == 0;
    lock_release(&lock);
    if (check_oldest)
        free_unrequested(&freed);
    return kept;
}

bool pinned_has(const void *host) {
    if (atomic_load_explicit(&kept_blocks, memory_order_relaxed) == 0)
        return false;
    lock_acquire(&lock);
    const struct pinned *p = address_map_before(&kept_by_address, (uintptr_t)host);
    bool found = p && (uintptr_t)host - (uintptr_t)p->host < p->bytes;
    lock_release(&lock);
    return found;
}

/* --- giving back --- */

/* Returns the context of the oldest block, or NULL if none is kept. Lock held. */
static CUcontext context_of_oldest(void) {
    return oldest ? context_of_pool(oldest->pool) : NULL;
}

/*
 * Removes the oldest block from the lists, and returns its address, if its context is `context` and
 * idle. NULL otherwise.
 */
static void *take_oldest_if_idle(CUcontext context) {
    lock_acquire(&lock);
    bool idle = context && context_of_oldest() == context &&
                pool_has_finished(oldest->pool, oldest->stamp) && pool_work_is_done(oldest->pool);
    void *host = idle ? take_out(oldest) : NULL;
    lock_release(&lock);
    return host;
}

/*
 * Frees the oldest block, with its context made current: the thread may have another context or
 * none. Returns whether a block was freed. If the context has ended, the driver refuses the free.
 * Exception: the next primary context has the same handle (docs/design/known-gaps.md). Without the
 * current context, the free could hit memory that another thread got at the same address.
 */
static bool release_oldest(void) {
    lock_acquire(&lock);
    CUcontext context = context_of_oldest();
    lock_release(&lock);
    if (!context || current_push(context) != CUDA_SUCCESS)
        return false;
    void *host = take_oldest_if_idle(context);
    if (host)
        driver_free(host);
    current_pop();
    return host != NULL;
}

int pinned_release(bool *any) {
    while (release_oldest())
        *any = true;
    return atomic_load(&kept_blocks) > 0 ? -EBUSY : 0;
}

void pinned_forget(const struct context *context) {
    lock_acquire(&lock);
    atomic_fetch_add(&ends, 1);
    for (struct pinned *p = oldest, *next; p; p = next) {
        next = p->newer;
        if (p->pool == context->pool)
            take_out(p);
    }
    lock_release(&lock);
}
