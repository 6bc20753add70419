#include "driver/context.h"

#include "driver/capture.h"
#include "driver/deferred.h"
#include "driver/ipc.h"
#include "driver/mempool.h"
#include "driver/outside.h"
#include "driver/pinned.h"
#include "driver/retry.h"
#include "driver/shutdown.h"
#include "pool/host.h"
#include "pool/pool.h"
#include "process/log.h"
#include "process/options.h"
#include "process/process.h"
#include "report/report.h"

#include <pthread.h>
#include <string.h>

#define CONTEXTS_MAX 512

static struct context contexts[CONTEXTS_MAX];
static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned alive; /* contexts, without green ones */
static _Atomic unsigned views; /* green ones */

_Thread_local struct context_last context_last __attribute__((tls_model("initial-exec")));
_Atomic uint64_t context_generation = 1;

/* Called after what there is to doubt: a thread that reads the new generation sees that as well. */
void context_doubt(void) {
    atomic_fetch_add(&context_generation, 1);
}

/* --- the registry; its lock is held --- */

static struct context *find(CUcontext handle) {
    for (unsigned i = 0; i < CONTEXTS_MAX; i++) {
        if (contexts[i].handle == handle) {
            return &contexts[i];
        }
    }
    return NULL;
}

static struct context *note(CUcontext handle) {
    struct context *context = find(handle);
    if (!context && (context = find(NULL)) != NULL) {
        *context = (struct context){.handle = handle};
        atomic_fetch_add(&alive, 1);
        context_doubt();
    }
    return context;
}

static void forget(struct context *context) {
    if (!context->stands_for) {
        ipc_forget(context->handle);
        outside_forget(context->handle);
        struct device *device = context->primary ? device_used(context->ordinal) : NULL;
        if (device || (!context->primary && atomic_load(&alive) == 1)) {
            mempool_doubt(device);
        }
    }
    capture_forget(context->handle);
    if (context->pool) {
        deferred_forget(context->pool);
        pinned_forget(context->pool);
        struct stats_device books = {0};
        pool_read(context->pool, &books);
        pool_forget(context->pool);
        device_pooled(context->device, -(int64_t)books.reserved.current);
        device_refund(context->device, books.reserved.current);
        for (struct device_pool *p = atomic_load(&context->device->pools); p; p = p->next) {
            p->idle |= p->pool == context->pool;
        }
    }
    atomic_fetch_sub(context->stands_for ? &views : &alive, 1);
    context->handle = NULL;
    context->pool = NULL;
    context->stands_for = NULL;
    context_doubt();
}

static bool is_primary(CUcontext handle, CUdevice device) {
    unsigned flags;
    int active = 0;
    CUcontext primary = NULL;
    if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || !active ||
        REAL(cuDevicePrimaryCtxRetain)(&primary, device) != CUDA_SUCCESS) {
        return false;
    }
    if (HAS(cuDevicePrimaryCtxRelease_v2)) {
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
    } else {
        REAL(cuDevicePrimaryCtxRelease)(device);
    }
    return primary == handle;
}

static enum pool_reuse reuse_of_options(void) {
    switch (options()->reuse) {
    case REUSE_WAIT:
        return POOL_WAIT;
    case REUSE_SYNC:
        return POOL_SYNC;
    case REUSE_BARRIER:
        break;
    }
    return POOL_BARRIER;
}

/* A pool for the device: that of a context that ended, else a new one. */
static struct pool *pool_for(struct device *device, struct backend *backend) {
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        if (p->idle) {
            p->idle = false;
            pool_rebind(p->pool, backend);
            return p->pool;
        }
    }
    struct pool_config config = {.reuse = reuse_of_options()};
    if (options()->budget_bytes != OPTIONS_AUTOMATIC) {
        config.budget = options()->budget_bytes + 1; /* 0 means automatic to the pool */
    }
    struct device_pool *entry = host_map(sizeof *entry, 4096);
    struct pool *pool = pool_create(backend, &config);
    if (!entry || !pool) {
        return NULL;
    }
    entry->pool = pool;
    entry->next = atomic_load(&device->pools);
    atomic_store(&device->pools, entry);
    return pool;
}

static void say_hello(const struct segments *backend) {
    int version = 0;
    REAL(cuDriverGetVersion)(&version);
    report_set_driver_version(version);
    log_info("device %d: %s, driver %d.%d, backend %s, %s", backend->device->ordinal,
             backend->device->name, version / 1000, version % 1000 / 10, backend->backend.ops->name,
             backend->backend.has_events ? "context events"
                                         : "no context events: frees synchronise");
}

/* Gives the current context its pool. */
static void open_pool(struct context *context) {
    struct device *device = device_current();
    if (!device) {
        return;
    }
    struct segments *backend = context->backend;
    if (!backend && !(backend = host_map(sizeof *backend, 4096))) {
        return;
    }
    context->backend = backend;
    if (segments_start(backend, context->handle, device) != 0) {
        return;
    }
    context->device = device;
    if (!context->primary && is_primary(context->handle, device->ordinal)) {
        context->primary = true;
        context->ordinal = device->ordinal;
    }
    context->pool = pool_for(device, &backend->backend);
    if (context->pool) {
        say_hello(backend);
    }
}

/* A green context's memory is its device's primary context's, which has to be current to get a
 * pool. */
static struct pool *pool_behind(struct context *view) {
    struct context *primary = view->stands_for;
    if (!primary->pool) {
        CUcontext popped;
        if (REAL(cuCtxPushCurrent_v2)(primary->handle) != CUDA_SUCCESS) {
            return NULL;
        }
        open_pool(primary);
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    return primary->pool;
}

/* --- asked by the other files of this room --- */

/* Whether a thread may go by what it knows: it could switch to no other context unseen, and the
 * driver, whose end nobody announces, is not about to end. */
static bool only_one(void) {
    return atomic_load(&alive) == 1 && atomic_load(&views) == 0 && !atomic_load(&shutdown_begun);
}

/* The driver has just said that `handle` is current. `generation` was read before only_one() is
 * asked: whatever makes that untrue moves it afterwards. */
static struct pool *remember(CUcontext handle, struct pool *pool, uint64_t generation) {
    context_last = (struct context_last){only_one() ? generation : 0, pool, handle, generation};
    return pool;
}

__attribute__((noinline)) struct pool *context_find_pool(void) {
    CUcontext handle = NULL;
    uint64_t generation = atomic_load(&context_generation);
    bool current = REAL(cuCtxGetCurrent)(&handle) == CUDA_SUCCESS && handle;
    if (current && handle == context_last.handle && generation == context_last.generation) {
        return remember(handle, context_last.pool, generation);
    }
    if (!process_ready() || options()->disable || !current) {
        return NULL;
    }
    pthread_mutex_lock(&registry);
    struct context *context = note(handle);
    struct pool *pool = NULL;
    if (context && context->stands_for) {
        pool = pool_behind(context);
    } else if (context) {
        if (!context->pool) {
            open_pool(context);
        }
        pool = context->pool;
    }
    if (pool) {
        remember(handle, pool, atomic_load(&context_generation));
    }
    pthread_mutex_unlock(&registry);
    return pool;
}

struct pool *context_whole_pool(void) {
    return atomic_load(&alive) == 1 && atomic_load(&views) == 0 ? context_pool() : NULL;
}

int context_release_idle(struct device *device) {
    int result = 0;
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        int r = p->idle ? 0 : pool_trim(p->pool, true);
        result = r != 0 ? r : result;
    }
    return result;
}

struct device *context_device_of(struct pool *pool) {
    return ((struct segments *)pool_backend(pool))->device;
}

CUresult context_broken(struct pool *pool) {
    return pool ? (CUresult)pool_broken(pool) : CUDA_SUCCESS;
}

unsigned context_count(void) {
    return atomic_load(&alive);
}

void context_forked(void) {
    context_doubt();
    atomic_fetch_add(&capture_unusual, 1);
}

struct pool *context_pool_of(CUcontext handle, CUgreenCtx green) {
    struct pool *pool = NULL;
    pthread_mutex_lock(&registry);
    for (unsigned i = 0; i < CONTEXTS_MAX && !pool; i++) {
        const struct context *context = &contexts[i];
        bool meant = green ? context->green == green || (context->primary && context->pool)
                           : context->handle == handle;
        if (context->handle && meant) {
            pool = context->stands_for ? context->stands_for->pool : context->pool;
        }
    }
    pthread_mutex_unlock(&registry);
    return pool;
}

void context_each(void (*visit)(struct context *context, void *with), void *with) {
    pthread_mutex_lock(&registry);
    for (unsigned i = 0; i < CONTEXTS_MAX; i++) {
        if (contexts[i].handle && contexts[i].pool) {
            visit(&contexts[i], with);
        }
    }
    pthread_mutex_unlock(&registry);
}

void context_fault(CUresult code) {
    /* Errors that end a context for good: every later call answers with them, natively. */
    bool deadly =
        (code >= CUDA_ERROR_ILLEGAL_ADDRESS && code <= CUDA_ERROR_LAUNCH_TIMEOUT &&
         code != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) ||
        (code >= CUDA_ERROR_ASSERT && code <= CUDA_ERROR_LAUNCH_FAILED &&
         code != CUDA_ERROR_TOO_MANY_PEERS && code != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED &&
         code != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) ||
        code == CUDA_ERROR_ECC_UNCORRECTABLE || code == CUDA_ERROR_NVLINK_UNCORRECTABLE;
    struct pool *pool = deadly ? context_pool() : NULL;
    /* An event's query may tell of another context than the current one. */
    struct backend *backend = pool ? pool_backend(pool) : NULL;
    if (pool && backend->ops->health(backend) != 0) {
        pool_break(pool, (int)code);
    }
}

/* --- the hooks --- */

/* After a call that may have changed what is current on this thread, whatever it has answered. */
static CUresult unsure(CUresult r) {
    context_last.sure = 0;
    return r;
}

static CUresult created(CUresult r, CUcontext *ctx) {
    unsure(r);
    if (r == CUDA_SUCCESS && process_ready()) {
        pthread_mutex_lock(&registry);
        note(*ctx);
        pthread_mutex_unlock(&registry);
    }
    return r;
}

static CUresult destroyed(CUresult r, CUcontext ctx) {
    unsure(r);
    if (r == CUDA_SUCCESS && ctx) {
        pthread_mutex_lock(&registry);
        struct context *context = find(ctx);
        if (context) {
            forget(context);
        }
        pthread_mutex_unlock(&registry);
    }
    return r;
}

/* After a release or reset of a primary context: its memory is gone, unless somebody still holds
 * it. */
static CUresult primary_let_go(CUresult r, CUdevice ordinal, bool reset) {
    unsigned flags;
    int active = 0;
    if (r != CUDA_SUCCESS || atomic_load(&process_state) != PROCESS_STARTED) {
        return r;
    }
    if (!reset) {
        REAL(cuDevicePrimaryCtxGetState)(ordinal, &flags, &active);
    }
    if (active) {
        return r;
    }
    pthread_mutex_lock(&registry);
    for (unsigned i = 0; i < CONTEXTS_MAX; i++) {
        struct context *context = &contexts[i];
        if (context->handle && context->primary && context->ordinal == ordinal) {
            forget(context);
        }
    }
    pthread_mutex_unlock(&registry);
    return r;
}

/* Not REAL(symbol): inside these macros cuda.h's would turn it into another version. */
#define CREATES(symbol, parameters, arguments)                                                     \
    CUresult hook_##symbol parameters {                                                            \
        return created(RETRY_ON(device_used(device), real_entries.real_##symbol arguments), ctx);  \
    }
#define SWITCHES(symbol, parameters, arguments)                                                    \
    CUresult hook_##symbol parameters {                                                            \
        return unsure(real_entries.real_##symbol arguments);                                       \
    }

CREATES(cuCtxCreate, (CUcontext * ctx, unsigned int flags, CUdevice device), (ctx, flags, device))
CREATES(cuCtxCreate_v2, (CUcontext * ctx, unsigned int flags, CUdevice device),
        (ctx, flags, device))
CREATES(cuCtxCreate_v3,
        (CUcontext * ctx, CUexecAffinityParam *affinity, int count, unsigned int flags,
         CUdevice device),
        (ctx, affinity, count, flags, device))
CREATES(cuCtxCreate_v4,
        (CUcontext * ctx, CUctxCreateParams *params, unsigned int flags, CUdevice device),
        (ctx, params, flags, device))
CREATES(cuGLCtxCreate, (CUcontext * ctx, unsigned int flags, CUdevice device), (ctx, flags, device))
CREATES(cuGLCtxCreate_v2, (CUcontext * ctx, unsigned int flags, CUdevice device),
        (ctx, flags, device))
CREATES(cuVDPAUCtxCreate,
        (CUcontext * ctx, unsigned int flags, CUdevice device, uint32_t vdpau, void *vdpau_get),
        (ctx, flags, device, vdpau, vdpau_get))
CREATES(cuVDPAUCtxCreate_v2,
        (CUcontext * ctx, unsigned int flags, CUdevice device, uint32_t vdpau, void *vdpau_get),
        (ctx, flags, device, vdpau, vdpau_get))

SWITCHES(cuCtxSetCurrent, (CUcontext ctx), (ctx))
SWITCHES(cuCtxPushCurrent, (CUcontext ctx), (ctx))
SWITCHES(cuCtxPushCurrent_v2, (CUcontext ctx), (ctx))
SWITCHES(cuCtxPopCurrent, (CUcontext * ctx), (ctx))
SWITCHES(cuCtxPopCurrent_v2, (CUcontext * ctx), (ctx))
SWITCHES(cuCtxAttach, (CUcontext * ctx, unsigned int flags), (ctx, flags))

CUresult hook_cuCtxDestroy(CUcontext ctx) {
    return destroyed(REAL(cuCtxDestroy)(ctx), ctx);
}

CUresult hook_cuCtxDestroy_v2(CUcontext ctx) {
    return destroyed(REAL(cuCtxDestroy_v2)(ctx), ctx);
}

CUresult hook_cuCtxDetach(CUcontext ctx) {
    unsigned version;
    CUresult r = unsure(REAL(cuCtxDetach)(ctx));
    bool ended = r == CUDA_SUCCESS && REAL(cuCtxGetApiVersion)(ctx, &version) != CUDA_SUCCESS;
    if (ended) {
        destroyed(r, ctx);
    }
    return r;
}

CUresult hook_cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device) {
    CUresult r = RETRY_ON(device_used(device), REAL(cuDevicePrimaryCtxRetain)(ctx, device));
    if (r == CUDA_SUCCESS && process_ready()) {
        pthread_mutex_lock(&registry);
        struct context *context = note(*ctx);
        if (context) {
            context->primary = true;
            context->ordinal = device;
        }
        pthread_mutex_unlock(&registry);
    }
    return r;
}

CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device) {
    return primary_let_go(REAL(cuDevicePrimaryCtxRelease)(device), device, false);
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return primary_let_go(REAL(cuDevicePrimaryCtxRelease_v2)(device), device, false);
}

CUresult hook_cuDevicePrimaryCtxReset(CUdevice device) {
    return primary_let_go(REAL(cuDevicePrimaryCtxReset)(device), device, true);
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return primary_let_go(REAL(cuDevicePrimaryCtxReset_v2)(device), device, true);
}

CUresult hook_cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green) {
    CUresult r = REAL(cuCtxFromGreenCtx)(ctx, green);
    CUdevice device;
    CUcontext primary, popped;
    if (r != CUDA_SUCCESS || !process_ready() || REAL(cuCtxPushCurrent_v2)(*ctx) != CUDA_SUCCESS) {
        return r;
    }
    bool known = REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS;
    REAL(cuCtxPopCurrent_v2)(&popped);
    /* A green context keeps the primary one alive, so the retain below is given back at once. */
    if (known && REAL(cuDevicePrimaryCtxRetain)(&primary, device) == CUDA_SUCCESS) {
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
        pthread_mutex_lock(&registry);
        struct context *behind = note(primary), *view = find(*ctx);
        if (!view && behind && (view = find(NULL)) != NULL) {
            *view = (struct context){.handle = *ctx, .green = green, .stands_for = behind};
            atomic_fetch_add(&views, 1);
            context_doubt();
        }
        pthread_mutex_unlock(&registry);
    }
    return r;
}

CUresult hook_cuGreenCtxDestroy(CUgreenCtx green) {
    CUresult r = REAL(cuGreenCtxDestroy)(green);
    if (r == CUDA_SUCCESS) {
        pthread_mutex_lock(&registry);
        for (unsigned i = 0; i < CONTEXTS_MAX; i++) {
            if (contexts[i].handle && contexts[i].stands_for && contexts[i].green == green) {
                forget(&contexts[i]);
            }
        }
        pthread_mutex_unlock(&registry);
    }
    return r;
}
