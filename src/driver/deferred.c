#include "driver/deferred.h"

#include "driver/capture.h"
#include "driver/entries.h"
#include "pool/host.h"
#include "pool/pool.h"

#include <pthread.h>

struct deferred {
    const struct pool *pool;
    CUdeviceptr dptr;
    CUevent event;
    struct deferred *next;
};

_Atomic unsigned deferred_count;
static struct deferred *first, **last = &first;
static struct host_slab slab = {.object_bytes = sizeof(struct deferred)};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

CUresult deferred_add(const struct pool *pool, CUdeviceptr dptr, CUstream stream,
                      CUresult (*record)(CUevent, CUstream)) {
    CUevent event;
    CUresult r = REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING);
    if (r == CUDA_SUCCESS && (r = record(event, stream)) != CUDA_SUCCESS) {
        REAL(cuEventDestroy_v2)(event);
    }
    if (r != CUDA_SUCCESS) {
        return r;
    }
    pthread_mutex_lock(&lock);
    struct deferred *deferred = host_slab_get(&slab);
    if (deferred) {
        *deferred = (struct deferred){.pool = pool, .dptr = dptr, .event = event};
        *last = deferred;
        last = &deferred->next;
        atomic_fetch_add(&deferred_count, 1);
        atomic_fetch_add(&capture_unusual, 1);
    }
    pthread_mutex_unlock(&lock);
    return deferred ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool deferred_look(CUdeviceptr dptr) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (const struct deferred *d = first; d && !found; d = d->next) {
        found = d->dptr == dptr;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Takes the entry at *at out of the list; lock held. */
static void remove_at(struct deferred **at) {
    struct deferred *gone = *at;
    *at = gone->next;
    if (last == &gone->next) {
        last = at;
    }
    host_slab_put(&slab, gone);
    atomic_fetch_sub(&deferred_count, 1);
    atomic_fetch_sub(&capture_unusual, 1);
}

void deferred_pass_by(void) {
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

void deferred_forget(const struct pool *pool) {
    pthread_mutex_lock(&lock);
    for (struct deferred **at = &first; *at;) {
        if ((*at)->pool == pool) {
            remove_at(at);
        } else {
            at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&lock);
}

/*
 * The oldest ones, as long as they are due: a stream that is far behind only delays others' memory, never the program. Work may have
 * been submitted since the stream's event was recorded, so nothing about this free is on time.
 */
void deferred_poll(void) {
    CUstreamCaptureMode mode = capture_relax();
    pthread_mutex_lock(&lock);
    while (first && !pool_backend((struct pool *)first->pool)->quiet &&
           REAL(cuEventQuery)(first->event) != CUDA_ERROR_NOT_READY) {
        REAL(cuEventDestroy_v2)(first->event);
        pool_free_late(first->dptr);
        remove_at(&first);
    }
    pthread_mutex_unlock(&lock);
    capture_restore(mode);
}
