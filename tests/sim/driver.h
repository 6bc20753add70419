/*
 * Declarations that the files of the simulated driver share.
 *
 * One lock guards all state. An exported entry is one line. The ENTRY macros below enter the
 * driver, evaluate one expression under the lock, and leave. Entering counts the call, applies
 * injected faults, checks initialisation, context and capture, and runs a little queued work. No
 * function of these files takes the lock itself or calls an exported cu* symbol: with LD_PRELOAD
 * such a call would reach another library.
 *
 * | file      | subject                           | file      | subject                          |
 * | --------- | --------------------------------- | --------- | -------------------------------- |
 * | gate.c    | entry, return, start and end      | range.c   | the object that holds an address |
 * | entries.c | cuGetProcAddress and the table    | arena.c   | the devices' memory, in granules |
 * | options.c | the environment                   | heap.c    | blocks in the devices' memory    |
 * | object.c  | handles                           | memory.c  | cuMemAlloc, cuMemFree, pinned    |
 * | device.c  | devices, errors in words          | pool.c    | stream-ordered memory            |
 * | context.c | contexts, threads' stacks of them | vmm.c     | virtual memory                   |
 * | stream.c  | streams                           | ipc.c     | legacy IPC                       |
 * | event.c   | events of streams and contexts    | array.c   | arrays, mipmaps                  |
 * | queue.c   | the scheduler                     | pointer.c | queries of addresses             |
 * | work.c    | one piece of work                 | capture.c | streams into graphs              |
 * | kernel.c  | modules, functions, launches      | graph.c   | graphs                           |
 * | copy.c    | copies and fills                  | green.c   | green contexts                   |
 */
#ifndef GPUCACHE_TESTS_SIM_DRIVER_H
#define GPUCACHE_TESTS_SIM_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL
#include "driver/table/cuda_abi.h"

#include "sim.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GRANULE (2 * MIB)
#define MAX_DEVICES 72
#define MAX_PEERS 32
#define MAX_PARAMS 64
#define CONTEXT_STACK 64

static inline size_t round_up(size_t value, size_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* ---- entries --------------------------------------------------------------------------------- */

enum entry {
#define SIM_ENTRY(name, since, stream, symbol) ENTRY_##symbol,
#include "sim_entries.def"
#undef SIM_ENTRY
    ENTRY_COUNT
};

enum stream_variant { LEGACY, PTDS, PTSZ };

struct entry_row {
    const char *name; /* as cuGetProcAddress knows it */
    int since;        /* CUDA version that introduced this variant */
    enum stream_variant stream;
    const char *symbol; /* as the dynamic linker knows it */
    void (*address)(void);
};

extern const struct entry_row entry_table[ENTRY_COUNT];

int entry_find(const char *symbol); /* index, or -1 */

/* ---- gate ------------------------------------------------------------------------------------ */

enum gate {
    ANYTIME = 0,          /* even before cuInit */
    INITIALISED = 1 << 0, /* after cuInit */
    CURRENT = 1 << 1,     /* with a healthy current context */
    UNSAFE = 1 << 2,      /* forbidden while a stream is captured, see capture_forbids */
    HELD_UP = 1 << 3,     /* waits while another thread is inside cuMemFree on the context */
    QUIET = 1 << 4,       /* the call runs no queued work */
    CONTEXT = INITIALISED | CURRENT,
    SUBMIT = CONTEXT | HELD_UP,
    ALLOCATE = CONTEXT | HELD_UP | UNSAFE, /* or frees */
};

CUresult sim_enter(enum entry at, unsigned gate);
CUresult sim_leave(CUresult result);

#define SIM_EXPORT __attribute__((visibility("default")))

#define SIM_BODY(symbol, gate, expression)                                                         \
    {                                                                                              \
        CUresult sim_result = sim_enter(ENTRY_##symbol, gate);                                     \
        return sim_result != CUDA_SUCCESS ? sim_result : sim_leave(expression);                    \
    }

/* ENTRY(cuMemFree_v2, (CUdeviceptr p), ALLOCATE, memory_free(p)) */
#define ENTRY(symbol, parameters, gate, expression)                                                \
    SIM_EXPORT CUresult symbol parameters SIM_BODY(symbol, gate, expression)

/* The same body under two names; in the second a NULL stream is the thread's own. */
#define SIM_ENTRY_PAIR(symbol, twin, parameters, gate, expression)                                 \
    SIM_EXPORT CUresult symbol parameters {                                                        \
        const bool per_thread = false;                                                             \
        (void)per_thread;                                                                          \
        SIM_BODY(symbol, gate, expression)                                                         \
    }                                                                                              \
    SIM_EXPORT CUresult twin parameters {                                                          \
        const bool per_thread = true;                                                              \
        (void)per_thread;                                                                          \
        SIM_BODY(twin, gate, expression)                                                           \
    }
#define ENTRY_PTDS(symbol, parameters, gate, expression)                                           \
    SIM_ENTRY_PAIR(symbol, symbol##_ptds, parameters, gate, expression)
#define ENTRY_PTSZ(symbol, parameters, gate, expression)                                           \
    SIM_ENTRY_PAIR(symbol, symbol##_ptsz, parameters, gate, expression)

/* ---- objects --------------------------------------------------------------------------------- */

/*
 * Handles are pointers to objects whose memory keeps its type for ever: a slab never gives memory
 * back, so a stale handle meets a dead object of the right type and is recognised by `live`.
 */
struct object {
    struct slab *slab;   /* whose object this is */
    struct object *next; /* in the slab's free list */
    bool live;
    unsigned serial; /* running number in its slab */
};

struct slab {
    size_t size; /* of one object, struct object first */
    struct object *free;
    struct object **all;
    unsigned count, capacity;
};

#define SLAB(type)                                                                                 \
    { .size = sizeof(type) }
void *slab_get(struct slab *slab); /* zeroed but for its head; never NULL */
void slab_put(struct slab *slab, void *object);

static inline bool is_live(const void *handle, const struct slab *slab) {
    const struct object *object = handle;

    return object && object->slab == slab && object->live;
}

/* ---- ranges: who holds an address ------------------------------------------------------------ */

enum range_kind {
    RANGE_DEVICE = 1, /* cuMemAlloc */
    RANGE_POOL,       /* cuMemAllocAsync */
    RANGE_MANAGED,
    RANGE_HOST,       /* cuMemHostAlloc */
    RANGE_REGISTERED, /* cuMemHostRegister */
    RANGE_IPC,        /* opened from another process */
    RANGE_MAPPED,     /* cuMemMap */
    RANGE_ARRAY,      /* an array's bytes; not the program's to see */
    RANGE_RESERVED,   /* addresses without memory, in a tree of their own */
};

struct range {
    struct object object;
    uintptr_t base;
    size_t size; /* as asked for */
    enum range_kind kind;
    int device;
    struct context *context;    /* NULL for mapped memory */
    struct range *left, *right; /* tree by address; no two ranges overlap */
    uint32_t priority;
    struct range *previous, *next; /* among the ranges of one context */
    unsigned long long id;         /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
    unsigned flags;                /* of the host entries */
    bool sync_memops, exported;
    bool freeing;        /* a cuMemFreeAsync is queued, ... */
    bool returning;      /* ... and has been carried out */
    bool graph_owned;    /* lives as long as a graph that allocates it */
    struct heap *heap;   /* device and pool memory: where it came from */
    struct chunk *chunk; /* the small block's page, NULL for a run of granules */
    struct pool *pool;
    struct physical *physical; /* mapped memory: what is mapped ... */
    size_t offset;             /* ... from where */
    uint32_t access;           /* mapped memory: one bit per device */
    unsigned opens;            /* IPC: how often this handle was opened */
    bool of_pool;              /* IPC: a block of a pool, closed by a free */
    struct {                   /* IPC: the exporter's memory */
        int pid, fd;
        uint64_t offset;
        unsigned long long id;
    } origin;
};

struct range *range_find(uintptr_t address);
struct range *reservation_find(uintptr_t address);
struct range *range_after(uintptr_t address); /* the first with base >= address, or NULL */
struct range *reservation_after(uintptr_t address);
bool range_overlaps(uintptr_t base, size_t size);
struct range *range_add(uintptr_t base, size_t size, enum range_kind kind, struct context *context,
                        int device);
void range_remove(struct range *range);
bool range_is_device(const struct range *range); /* device memory, as against pinned host's */
/* May work of `context` touch all of these bytes? Managed and pinned memory included. */
bool range_accessible(struct context *context, uintptr_t address, size_t size);

/* ---- a device's memory ----------------------------------------------------------------------- */

struct device {
    int ordinal;
    size_t total;
    size_t used;     /* charged, in whole granules */
    size_t occupied; /* by other processes, as sim_occupy() says */
    struct context *primary;
    unsigned primary_refs, primary_flags;
    struct pool *default_pool, *pool;
    struct pool *graph_pool; /* NULL until a graph allocates */
};

bool device_charge(struct device *device, size_t bytes); /* false: out of memory */
size_t device_taken(const struct device *device);        /* charged by all processes */
size_t device_most(const struct device *device);         /* that may be charged */
void device_discharge(struct device *device, size_t bytes);
struct device *device_of(int ordinal); /* NULL if there is none */

/* The bit of a device in a set. Two devices 32 apart share one: no test gives access among so many.
 */
static inline uint32_t device_mask(int ordinal) {
    return (uint32_t)1 << ordinal % 32;
}

/* Runs of granules. Addresses, not memory: the arena is much larger than the devices. */
uintptr_t arena_take(size_t granules); /* 0: no addresses left */
void arena_give(uintptr_t base, size_t granules);
void arena_retire(uintptr_t base, size_t granules); /* never reused */
int arena_fd(void);
uint64_t arena_offset(uintptr_t address);
uintptr_t arena_base(void);
/* Gives the CPU, which acts as the device, access to granules at `base`. */
void arena_open(uintptr_t base, size_t granules);
void arena_release(void);
uintptr_t reserve_addresses(size_t size, size_t alignment); /* without access; 0: failed */

/* Blocks: small ones 512 bytes apart in granules, large ones in granules of their own. */
struct heap {
    struct device *device;
    bool charged; /* granules count against the device one by one */
    struct chunk *chunks;
};

struct range *heap_take(struct heap *heap, size_t size, enum range_kind kind,
                        struct context *context); /* NULL: out of memory */
void heap_give(struct range *range);              /* also removes the range */

/* ---- contexts -------------------------------------------------------------------------------- */

struct context {
    struct object object;
    struct device *device;
    bool primary;
    bool alive;             /* a primary context outlives its death as a handle */
    bool ending;            /* a thread is destroying it and waits for its work */
    unsigned stacked, pins; /* entries on threads' stacks; calls and green handles that need it */
    unsigned flags, api_version;
    unsigned users; /* references: of its creation, and of each cuCtxAttach() */
    unsigned long long id;
    struct heap heap;
    struct range *ranges;
    struct stream *streams, *last_stream; /* in order of creation */
    struct stream *legacy;
    struct stream *marks;                    /* hidden: context events complete here */
    struct marker *latest_mark;              /* of the newest context event */
    struct link *oldest, *newest;            /* unfinished work, in order of submission */
    struct barrier *barriers, *last_barrier; /* those whose marker is not done */
    uint64_t barriers_issued, barriers_passed;
    unsigned frees_waiting; /* threads inside cuMemFree */
    struct context *peers[MAX_PEERS];
    unsigned peer_count;
    size_t limits[CU_LIMIT_MAX];
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
    size_t own_bytes;       /* what the driver took for itself */
    bool local_taken;       /* local memory among it */
    struct green *green;    /* a view of a green context, */
    struct context *behind; /* and of this primary one, whose memory it has */
};

extern struct slab context_slab;
struct context *context_current(void);           /* the thread's, or NULL; may be a dead one */
CUresult context_check(struct context *context); /* valid, alive, without fault */
/* Itself; a green context's primary one: whose memory it is. NULL of NULL. */
struct context *context_owner(struct context *context);
CUresult context_create(struct context **context, struct device *device, struct context *behind,
                        unsigned api_version);
CUresult context_start(struct context *context, unsigned flags); /* a dead primary one, anew */
void context_destroy(struct context *context); /* the handle stays while it is current somewhere */
void context_settle(struct context *context);  /* frees it if it is dead and unused */
void context_thread_ends(void);
CUresult context_wait(struct context *context); /* for all work submitted so far */
bool context_peer(struct context *context, struct context *other);
void context_forget_all(void);
CUresult primary_retain(struct device *device);
CUresult primary_release(struct device *device);

/* Memory that the driver takes for itself; a context's goes with it. */
CUresult own_take(struct context *context, size_t bytes);
void own_give(struct context *context, size_t bytes);
CUresult own_take_local(struct context *context); /* at a launch */

/* ---- threads --------------------------------------------------------------------------------- */

struct thread {
    uint64_t generation; /* of the driver's life that the rest belongs to */
    uint64_t id;
    struct context *stack[CONTEXT_STACK];
    unsigned depth;
    CUstreamCaptureMode capture_mode;
    bool in_callback;
    bool exempt;                        /* its calls are not made to fail */
    unsigned ends;                      /* rounds of destructors that have run at its end */
    uint64_t switches;                  /* state of its generator of switches */
    struct context *own_stream_context; /* the last per-thread stream looked up */
    struct stream *own_stream;
};

struct thread *thread_self(void);
void thread_watch_end(void); /* the end of the thread releases the contexts on its stack */

/* ---- streams, events, work ------------------------------------------------------------------- */

/* Something that happens once: an event's recording. Counted references. */
struct marker {
    struct object object;
    unsigned refs;
    bool done;
    uint64_t when; /* simulated microseconds */
};

struct marker *marker_new(void);
struct marker *marker_ref(struct marker *marker);
void marker_unref(struct marker *marker);

struct barrier {
    struct barrier *next;
    struct marker *marker;
};

enum work_kind {
    WORK_NOTHING, /* a place in the queue: event records and waits */
    WORK_KERNEL,
    WORK_COPY,
    WORK_SET,
    WORK_HOST,
    WORK_WAIT_VALUE,
    WORK_WRITE_VALUE,
    WORK_FREE, /* cuMemFreeAsync */
    WORK_GRAPH,
};

/* One side of a copy: rows of bytes somewhere. */
struct side {
    uintptr_t address;
    size_t pitch, slice;
    bool checked; /* device memory: must be accessible when the copy runs */
};

struct copy {
    struct side to, from;
    size_t width, height, depth; /* bytes, rows, slices */
    void *staging;               /* owned copy of a pageable source */
    bool peer;                   /* the driver's own peer copy: needs no peer access */
};

struct set {
    uintptr_t address;
    size_t pitch, width, height; /* bytes, bytes, rows */
    uint32_t value;
    unsigned element; /* bytes */
};

struct kernel_call {
    struct function *function;
    struct sim_launch launch;
    unsigned char *arguments; /* owned */
};

struct host_call {
    CUhostFn function;
    CUstreamCallback callback; /* instead of function */
    CUstream stream;
    void *data;
};

struct value_call {
    uintptr_t address;
    uint64_t value;
    unsigned flags;
    unsigned size; /* 4 or 8 */
};

struct work {
    enum work_kind kind;
    uint64_t progress;
    union {
        struct copy copy;
        struct set set;
        struct kernel_call kernel;
        struct host_call host;
        struct value_call value;
        uintptr_t free_address;
        struct graph_run *run;
    };
};

enum verdict { DONE, SPIN, MORE, FAULT };

enum verdict work_run(struct work *work, struct context *context);
bool copy_describe(struct copy *copy, const CUDA_MEMCPY3D *from); /* false: makes no sense */
void work_dispose(struct work *work);                             /* frees what it owns */
struct work work_clone(const struct work *work);                  /* with copies of what it owns */
void copy_touches(const struct copy *copy, struct context *own, struct context *others[2]);

/* A place in a context's list of unfinished work. */
struct link {
    struct link *previous, *next;
    struct context *context;
    struct item *item;
};

/* Own context, a green one's primary, then those whose memory a peer copy touches. */
#define LINKS 4

/* A piece of work in a stream's queue. */
struct item {
    struct object object;
    struct item *next;
    struct stream *stream;
    uint64_t sequence; /* order of submission, over all contexts */
    uint64_t barrier;  /* the context barriers issued before it */
    struct link links[LINKS];
    struct marker *waits, *signals;
    struct work work;
    bool running;
    bool held; /* barriers were in front of it at its submission */
};

struct stream {
    struct object object;
    struct context *context;
    struct stream *previous, *next; /* in the context's list */
    unsigned flags;
    int priority;
    unsigned long long id;
    bool blocking;  /* ordered with the legacy stream */
    bool doomed;    /* destroyed; its queue still runs empty */
    uint64_t owner; /* the thread, if this is its per-thread stream */
    struct item *head, *tail;
    int slot;     /* in the scheduler's list of busy streams, or -1 */
    unsigned lag; /* 0..3: how often the scheduler passes it over */
    struct capture *capture;
    struct node **tips; /* captured nodes that the next one depends on */
    size_t tip_count;
    bool capture_origin;
    struct green *green;
};

struct event {
    struct object object;
    struct context *context;
    unsigned flags;
    struct marker *marker; /* the last record, NULL before the first */
    uint64_t capture_id;   /* recorded inside this capture, else 0 */
    struct node **tips;
    size_t tip_count;
};

extern struct slab stream_slab, event_slab;
CUresult stream_resolve(CUstream handle, bool per_thread, struct stream **stream);
struct stream *stream_new(struct context *context, unsigned flags, int priority);
void stream_free(struct stream *stream); /* its queue is empty */
CUresult stream_wait_all(struct stream *stream);
CUresult event_check(CUevent handle, struct event **event);
void event_forget_context(const struct context *context);
void event_copy_barriers(struct context *to, const struct context *from);
CUresult context_record(CUcontext context, CUevent event);
CUresult context_wait_event(CUcontext context, CUevent event);

/*
 * Hands work to a stream: queues it, or adds it to the graph if the stream is being captured.
 * Takes over what the work owns, also on failure.
 */
CUresult submit(struct stream *stream, struct work work);
CUresult submit_and_wait(struct stream *stream, struct work work);

/* Queues, knowing that the stream is not captured. */
struct item *queue_push(struct stream *stream, struct work work);
void queue_touch(struct item *item, struct context *other); /* also work of another context */
void queue_drop(struct stream *stream); /* forgets its work; markers become done */
bool queue_step(void);                  /* false: nothing can run, or all of it spins */
void queue_stroll(void);                /* what happens on the way into a call */

/*
 * Completes the records in idle streams of the context that stood behind a barrier which is passed
 * now: on a GPU they are complete at the first query after that (tests/gpu/facts_held.cu, section
 * after).
 */
void queue_complete_records(struct context *context);
uint64_t queue_sequence(void); /* of the latest submission */
bool stream_is_idle(const struct stream *stream, uint64_t up_to);
bool context_is_idle(const struct context *context, uint64_t up_to);
void queue_reset(void);

struct waiting {
    struct marker *marker;   /* this, */
    struct stream *stream;   /* or all of this, */
    struct context *context; /* or of this; of the marker, whose it is */
    uint64_t up_to;
};
void queue_wait(const struct waiting *waiting);
void queue_hold_up(const struct context *context);   /* until no thread frees on it */
void queue_await_end(const struct context *context); /* until no thread is destroying it */

/* ---- kernels --------------------------------------------------------------------------------- */

struct function {
    struct object object;
    char *name;
    sim_kernel kernel;
    unsigned nparams;
    size_t sizes[MAX_PARAMS];
    size_t bytes; /* all parameters, each aligned to its size */
    struct module *module;
};

void kernel_forget_all(void);
void kernel_forget_context(const struct context *context);
/* Checks a launch and copies its arguments. */
CUresult kernel_call_make(struct kernel_call *call, CUfunction function, const unsigned grid[3],
                          const unsigned block[3], unsigned shared, void **params, void **extra);
enum verdict kernel_run(struct kernel_call *call, struct context *context, uint64_t *progress);

/* ---- pools ----------------------------------------------------------------------------------- */

struct pool {
    struct object object;
    struct device *device;
    struct heap heap;
    CUmemPoolProps props;
    bool is_default, destroyed;
    bool imported;  /* another process's: only its blocks can be imported */
    bool of_graphs; /* trimmed by cuDeviceGraphMemTrim alone */
    unsigned blocks;
    uint64_t reserved, reserved_high, used, used_high, threshold;
    int follow_events, opportunistic, internal_dependencies;
    uint32_t accessible; /* one bit per device */
};

CUresult pool_free(struct range *range); /* now: the queue got there */
CUresult pool_allocate(struct pool *pool, size_t size, uintptr_t *out);
bool pool_book(struct pool *pool, size_t size);             /* false: the device has no more */
struct range *pool_address(struct pool *pool, size_t size); /* a block that is not booked */
struct pool *pool_of_graphs(struct device *device);
bool pool_is_imported(CUmemoryPool handle);
CUresult pool_free_behind_all(struct range *range); /* behind all work submitted so far */
void pool_unbook(struct range *range);              /* at submission of its free */
void pool_trim(struct device *device);              /* at every synchronisation */
struct pool *pool_default(struct device *device);
void pool_forget_all(void);

/* ---- virtual memory -------------------------------------------------------------------------- */

const CUmemAllocationProp *physical_prop(const struct physical *physical);
void vmm_forget_all(void);
void array_forget_all(void);
/* The address of an array, its pitch and the size of its slices; 0 if it is none. */
uintptr_t array_address(CUarray handle, size_t *pitch, size_t *slice);
CUresult memory_release(struct range *range); /* gives any kind of range back */
/* Does the same when the work of its context has finished, unless the context's end released it
 * before. */
CUresult memory_release_behind(struct range *range);

/* Memory of cuMemAlloc that cuMemFreeAsync has freed returns only after a wait for the device's
 * work (tests/gpu/facts_release.cu). */
void memory_wait_for_return(struct range *range);
void memory_take_back(const struct device *device);

/* ---- captures and graphs --------------------------------------------------------------------- */

struct capture;
struct node;
struct graph;

bool capture_forbids(void); /* and invalidates the captures that a forbidden call destroys */
CUresult capture_context_call(struct context *context); /* record, wait, synchronise: 900 or 0 */
CUresult capture_stream_call(struct stream *stream);    /* synchronise, query */
CUresult capture_event_call(struct event *event);       /* the same of an event */
CUresult capture_submit(struct stream *stream, struct work work);
CUresult capture_implicit(struct stream *stream); /* 906 for the legacy stream during a capture */
CUresult capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event, bool *handled);
CUresult capture_allocate(struct stream *stream, size_t size, struct pool *pool, CUdeviceptr *out);
CUresult capture_free(struct stream *stream, CUdeviceptr address);
void capture_forget_stream(struct stream *stream);
void capture_reset(void);
enum verdict graph_run_step(struct graph_run *run, struct context *context);
void graph_run_free(struct graph_run *run);
void graph_forget_all(void);
struct green;
void green_forget_all(void);

/* ---- the driver ------------------------------------------------------------------------------ */

struct options {
    int devices, driver_version;
    size_t memory, hard_limit;
    uint64_t seed;
    unsigned eager;
    bool peer, vmm, pools;
    unsigned idle_ms, hang_ms;
    unsigned switching, switch_us;                   /* percent of the calls, and for how long */
    size_t context_bytes, module_bytes, local_bytes; /* what the driver takes for itself */
    size_t misalign;
    bool events_go;
    char counts[512], fail[1024], shared[512];
};

void options_read(struct options *options);

struct driver {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* work progressed or was submitted, somebody may go on */
    bool initialised, down, forked, registered;
    uint64_t generation;
    struct options options;
    struct device devices[MAX_DEVICES];
    uint64_t next_id;
    uint64_t random; /* state of the scheduler's generator */
    uint64_t calls;
    uint64_t call_counts[ENTRY_COUNT];
    const char *call;         /* the symbol of the latest call of any thread */
    uint64_t pending;         /* items in queues */
    uint64_t progress;        /* changes whenever work was submitted or went on */
    uint64_t sleeps_until_us; /* a kernel does, which ends by itself */
    uint64_t clock;           /* simulated microseconds */
    unsigned waiters;         /* threads inside queue_wait or held up */
    bool shared;              /* memory is shared with another process, which may change it */
    CUresult fault;           /* of a kernel: every later call of any context returns it */
};

extern struct driver sim;

uint64_t sim_random(void);
void gate_reset(void);

#endif
