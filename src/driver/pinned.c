#include "driver/pinned.h"

#include "driver/capture.h"
#include "driver/context.h"
#include "driver/entries.h"
#include "driver/spans.h"
#include "pool/host.h"
#include "pool/pool.h"
#include "process/options.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#define BOUND_SHARE 16                 /* kept at most: this part of the machine's memory, */
#define BOUND_MOST ((uint64_t)4 << 30) /* and no more than this */
#define BLOCKS_MOST 4096

struct pinned {
    void *host;
    size_t bytes;
    unsigned kind;
    struct pool *pool; /* whose epoch says when it has finished */
    uint64_t stamp;
    struct pinned *next;
};

static struct pinned *kept;      /* the one freed last comes first */
static struct spans kept_places; /* the same by address */
static _Atomic uint64_t kept_blocks;
static uint64_t kept_bytes;
static struct host_slab slab = {.object_bytes = sizeof(struct pinned)};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t bound(void) {
    static uint64_t bytes;
    if (bytes == 0) {
        uint64_t share =
            (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / BOUND_SHARE;
        bytes = share > BOUND_MOST ? BOUND_MOST : share;
    }
    return bytes;
}

/* Takes the block at *at out of the list; lock held. */
static void remove_at(struct pinned **at) {
    struct pinned *gone = *at;
    *at = gone->next;
    spans_remove(&kept_places, spans_find(&kept_places, (uintptr_t)gone->host, gone));
    kept_bytes -= gone->bytes;
    atomic_fetch_sub(&kept_blocks, 1);
    host_slab_put(&slab, gone);
}

/*
 * One event of one context tells when a block has finished. Work of another context may reach pinned memory too, so blocks are
 * kept only while there is none; nor without context events, nor where every free has to wait.
 */
static struct pool *sole_pool(void) {
    struct pool *pool =
        options()->pinned && options()->reuse != REUSE_SYNC ? context_whole_pool() : NULL;
    return pool && pool_backend(pool)->has_events ? pool : NULL;
}

void *pinned_take(size_t bytes, unsigned kind) {
    if (atomic_load_explicit(&kept_blocks, memory_order_relaxed) == 0) {
        return NULL;
    }
    void *host = NULL;
    struct pool *pool = sole_pool();
    pthread_mutex_lock(&lock);
    for (struct pinned **at = &kept; pool && *at; at = &(*at)->next) {
        const struct pinned *p = *at;
        if (p->bytes == bytes && p->kind == kind && p->pool == pool &&
            pool_has_finished(pool, p->stamp)) {
            host = p->host;
            remove_at(at);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return host;
}

bool pinned_keep(void *host, size_t bytes, unsigned kind) {
    struct pool *pool = sole_pool();
    if (!pool || bytes > bound() / 4 || pool_broken(pool)) {
        return false;
    }
    pthread_mutex_lock(&lock);
    bool fits = kept_bytes + bytes <= bound() && kept_blocks < BLOCKS_MOST;
    struct pinned *p = fits ? host_slab_get(&slab) : NULL;
    if (p && !spans_add(&kept_places, (uintptr_t)host, p)) {
        host_slab_put(&slab, p);
        p = NULL;
    }
    if (p) {
        *p = (struct pinned){host, bytes, kind, pool, pool_stamp_in_free(pool), kept};
        kept = p;
        kept_bytes += bytes;
        atomic_fetch_add(&kept_blocks, 1);
    }
    pthread_mutex_unlock(&lock);
    return p != NULL;
}

bool pinned_has(const void *host) {
    if (atomic_load_explicit(&kept_blocks, memory_order_relaxed) == 0) {
        return false;
    }
    pthread_mutex_lock(&lock);
    const struct pinned *p = spans_before(&kept_places, (uintptr_t)host);
    bool found = p && (uintptr_t)host - (uintptr_t)p->host < p->bytes;
    pthread_mutex_unlock(&lock);
    return found;
}

/* One that has finished, of a context with nothing under way. */
static void *take_idle(void) {
    void *host = NULL;
    pthread_mutex_lock(&lock);
    for (struct pinned **at = &kept; *at; at = &(*at)->next) {
        if (pool_has_finished((*at)->pool, (*at)->stamp) && pool_is_idle((*at)->pool)) {
            host = (*at)->host;
            remove_at(at);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return host;
}

int pinned_release(bool *any) {
    for (void *host; (host = take_idle()) != NULL; *any = true) {
        CUstreamCaptureMode mode = capture_relax();
        REAL(cuMemFreeHost)(host);
        capture_restore(mode);
    }
    return atomic_load(&kept_blocks) > 0 ? -EBUSY : 0;
}

void pinned_forget(const struct pool *pool) {
    pthread_mutex_lock(&lock);
    for (struct pinned **at = &kept; *at;) {
        if ((*at)->pool == pool) {
            remove_at(at);
        } else {
            at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&lock);
}
