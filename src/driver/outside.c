#include "driver/outside.h"

#include "driver/context.h"
#include "driver/entries.h"
#include "driver/mempool.h"
#include "pool/host.h"
#include "process/process.h"

#include <string.h>
#include <sys/mman.h>

/* --- the ledger: an open-addressed table, keys moved up on removal --- */

struct row {
    uint64_t key;
    uint64_t bytes, value;
    struct device *device;
    CUcontext context; /* whose end is its end; NULL: the process's */
    uint32_t holders;
    uint8_t space;
    uint8_t kind;
    bool used;
};

static struct row *rows;
static size_t row_count, row_room; /* room is a power of two */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t home(uint64_t key, unsigned space) {
    uint64_t hash = (key ^ (uint64_t)space << 60) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 20) & (row_room - 1);
}

static struct row *find(uint64_t key, unsigned space) {
    if (row_room == 0) {
        return NULL;
    }
    for (size_t i = home(key, space); rows[i].used; i = (i + 1) & (row_room - 1)) {
        if (rows[i].key == key && rows[i].space == space) {
            return &rows[i];
        }
    }
    return NULL;
}

static struct row *place(const struct row *row) {
    size_t i = home(row->key, row->space);
    while (rows[i].used) {
        i = (i + 1) & (row_room - 1);
    }
    rows[i] = *row;
    return &rows[i];
}

static bool make_room(void) {
    if (row_count * 2 < row_room) {
        return true;
    }
    size_t old_room = row_room;
    struct row *old = rows,
               *wider = host_map((old_room ? old_room * 2 : 1024) * sizeof *rows, 4096);
    if (!wider) {
        return false;
    }
    rows = wider;
    row_room = old_room ? old_room * 2 : 1024;
    for (size_t i = 0; i < old_room; i++) {
        if (old[i].used) {
            place(&old[i]);
        }
    }
    if (old) {
        munmap(old, old_room * sizeof *old);
    }
    return true;
}

static void remove_row(struct row *row) {
    size_t hole = (size_t)(row - rows);
    rows[hole].used = false;
    row_count--;
    for (size_t i = (hole + 1) & (row_room - 1); rows[i].used; i = (i + 1) & (row_room - 1)) {
        struct row moved = rows[i];
        rows[i].used = false;
        place(&moved);
    }
}

/* --- kinds: where each is booked, and whether it is the device's memory --- */

static enum outside_space space_of(enum outside_kind kind) {
    switch (kind) {
    case OUTSIDE_ARRAY:
        return OUTSIDE_ARRAYS;
    case OUTSIDE_VIRTUAL:
    case OUTSIDE_HANDLE_IMPORTED:
        return OUTSIDE_HANDLES;
    case OUTSIDE_PINNED_HOST:
        return OUTSIDE_HOST;
    case OUTSIDE_MAPPING:
        return OUTSIDE_RANGES;
    case OUTSIDE_NATIVE:
    case OUTSIDE_STREAM_ORDERED:
    case OUTSIDE_MANAGED:
    case OUTSIDE_IPC_IMPORTED:
        break;
    }
    return OUTSIDE_POINTER;
}

static bool is_charged(enum outside_kind kind) {
    switch (kind) {
    case OUTSIDE_NATIVE:
    case OUTSIDE_MANAGED:
    case OUTSIDE_VIRTUAL:
    case OUTSIDE_ARRAY:
        return true;
    case OUTSIDE_STREAM_ORDERED: /* by its pool, see mempool.h */
    case OUTSIDE_PINNED_HOST:
    case OUTSIDE_IPC_IMPORTED:
    case OUTSIDE_HANDLE_IMPORTED:
    case OUTSIDE_MAPPING:
        break;
    }
    return false;
}

static void book(struct device *device, enum outside_kind kind, int64_t change) {
    struct books *books = &device->outside;
    switch (kind) {
    case OUTSIDE_NATIVE:
        device_book(device, &books->requested, change);
        device_book(device, &books->allocated, change);
        device_book(device, &books->active, change);
        device_book(device, &books->reserved, change);
        device_book(device, &books->segments, change > 0 ? 1 : -1);
        device_book(device, &books->allocations, change > 0 ? 1 : -1);
        device_count(device, change > 0 ? &books->driver_allocs : &books->driver_frees);
        if (change > 0) {
            device_count(device, &books->cache_misses);
        }
        break;
    case OUTSIDE_MANAGED:
        device_book(device, &books->managed, change);
        break;
    case OUTSIDE_VIRTUAL:
        device_book(device, &books->virtual_memory, change);
        break;
    case OUTSIDE_ARRAY:
        device_book(device, &books->array, change);
        break;
    case OUTSIDE_PINNED_HOST:
        device_book(device, &books->pinned_host, change);
        break;
    case OUTSIDE_IPC_IMPORTED:
    case OUTSIDE_HANDLE_IMPORTED:
        device_book(device, &books->ipc_imported, change);
        break;
    case OUTSIDE_STREAM_ORDERED: /* its pool counts it */
    case OUTSIDE_MAPPING:
        break;
    }
}

/* --- the room's door --- */

bool outside_begin(enum outside_kind kind, struct device *device, uint64_t bytes) {
    if (!device || !is_charged(kind) || device_charge(device, bytes)) {
        return true;
    }
    /* What lies idle in the pools makes room first. */
    context_release_idle(device);
    if (device_charge(device, bytes)) {
        device_count(device, &device->outside.oom_retries);
        return true;
    }
    device_count(device, &device->outside.limit_refusals);
    return false;
}

bool outside_make_room(CUresult answer, struct device *device) {
    if (answer != CUDA_ERROR_OUT_OF_MEMORY || !device || device_idle_bytes(device) == 0) {
        return false;
    }
    context_release_idle(device);
    device_count(device, &device->outside.oom_retries);
    return true;
}

bool outside_enter(enum outside_kind kind, struct device *device, uint64_t bytes, uint64_t key,
                   uint64_t value) {
    CUcontext context = NULL;
    if (space_of(kind) != OUTSIDE_HANDLES && kind != OUTSIDE_MAPPING) {
        REAL(cuCtxGetCurrent)(&context);
    }
    struct row row = {.key = key,
                      .bytes = bytes,
                      .value = value,
                      .device = device,
                      .context = context,
                      .holders = 1,
                      .kind = (uint8_t)kind,
                      .space = (uint8_t)space_of(kind),
                      .used = true};
    pthread_mutex_lock(&lock);
    bool entered = !find(key, row.space) && make_room();
    if (entered) {
        place(&row);
        row_count++;
    }
    pthread_mutex_unlock(&lock);
    if (entered) {
        book(device, kind, (int64_t)bytes);
    }
    return entered;
}

CUresult outside_end(CUresult answer, enum outside_kind kind, struct device *device, uint64_t bytes,
                     uint64_t key) {
    bool entered = device && answer == CUDA_SUCCESS && outside_enter(kind, device, bytes, key, 0);
    if (device && !entered && is_charged(kind)) {
        device_refund(device, bytes);
    }
    return answer;
}

void outside_grow(enum outside_space space, uint64_t key, uint64_t bytes) {
    struct row before = {0};
    pthread_mutex_lock(&lock);
    struct row *row = find(key, space);
    if (row && row->bytes < bytes) {
        before = *row;
        row->bytes = bytes;
    }
    pthread_mutex_unlock(&lock);
    if (before.used) {
        book(before.device, (enum outside_kind)before.kind, (int64_t)(bytes - before.bytes));
    }
}

static void settle(const struct row *left) {
    if (left->kind == OUTSIDE_STREAM_ORDERED) {
        mempool_left((struct mempool *)left->value, left->bytes);
        return;
    }
    book(left->device, (enum outside_kind)left->kind, -(int64_t)left->bytes);
    if (is_charged((enum outside_kind)left->kind)) {
        device_refund(left->device, left->bytes);
    }
}

void outside_leave(enum outside_space space, uint64_t key) {
    struct row left = {0};
    pthread_mutex_lock(&lock);
    struct row *row = find(key, space);
    if (row && --row->holders == 0) {
        left = *row;
        remove_row(row);
    }
    pthread_mutex_unlock(&lock);
    if (left.used) {
        settle(&left);
    }
}

void outside_forget(CUcontext context) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < row_room;) {
        if (rows[i].used && rows[i].context == context) {
            struct row left = rows[i];
            remove_row(&rows[i]); /* another row may have moved up into this place */
            settle(&left);
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&lock);
}

void outside_hold(enum outside_space space, uint64_t key) {
    pthread_mutex_lock(&lock);
    struct row *row = find(key, space);
    if (row) {
        row->holders++;
    }
    pthread_mutex_unlock(&lock);
}

struct outside_entry outside_find(enum outside_space space, uint64_t key) {
    struct outside_entry entry = {0};
    pthread_mutex_lock(&lock);
    const struct row *row = find(key, space);
    if (row) {
        entry = (struct outside_entry){row->bytes, row->value};
    }
    pthread_mutex_unlock(&lock);
    return entry;
}

struct device *outside_device(enum outside_space space, uint64_t key) {
    pthread_mutex_lock(&lock);
    const struct row *row = find(key, space);
    struct device *device = row ? row->device : NULL;
    pthread_mutex_unlock(&lock);
    return device;
}

void outside_set_value(enum outside_space space, uint64_t key, uint64_t value) {
    pthread_mutex_lock(&lock);
    struct row *row = find(key, space);
    if (row) {
        row->value = value;
    }
    pthread_mutex_unlock(&lock);
}
