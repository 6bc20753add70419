#include "driver/limit/unpooled.h"

#include "driver/context/context.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/ledger.h"
#include "driver/limit/oom_retry.h"
#include "driver/limit/room.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "live/flight.h"
#include "process/helper.h"
#include "process/process.h"
#include "stats/holders.h"
#include "trace/trace.h"

static struct ledger_row *away;     /* neither listed nor settled: the driver is being asked */
static struct unpooled_call *calls; /* under way: nothing entered yet */
/* Records in the trace that unpooled memory came or went. `left`: bytes of its kind that the device
 * has from now on. */
static void record(bool comes, const struct ledger_row *row, uint64_t left) {
    unsigned device = (unsigned)row->device->ordinal;
    uint64_t left_at = row->left_at ? row->left_at : trace_clock();
    if (row->kind == UNPOOLED_NATIVE) {
        trace_native(device, row->key, row->bytes, comes ? 0 : left_at,
                     comes ? trace_stack(stats_stacks(), row->stack) : 0);
    } else if (row->kind != UNPOOLED_MAPPING) {
        trace_write(&(struct trace_entry){.ticks = trace_clock(),
                                          .address = row->key,
                                          .bytes = row->bytes,
                                          .value = row->kind,
                                          .detail = left,
                                          .kind = comes ? TRACE_OUTSIDE_TAKE : TRACE_OUTSIDE_LEAVE,
                                          .device = device});
    }
}

static struct host_slab slab = {.object_bytes = sizeof(struct ledger_row)};
static struct lock lock = LOCK_INITIALIZER(OUTSIDE);

/* The flight recorder has the large blocks that the pool did not serve as well, and a trace all that
 * passes by. */
static void show(enum flight_kind moment, const struct ledger_row *row) {
    if (row->kind == UNPOOLED_NATIVE && row->bytes > FLIGHT_LARGE) {
        flight_block(moment, (unsigned)row->device->ordinal, row->key, row->bytes);
    }
    if (trace_on()) {
        record(moment == FLIGHT_ALLOCATE, row,
               unpooled_kind_bytes((enum unpooled_kind)row->kind, row->device));
    }
}

/* --- rows that come and go; lock held --- */

static void be_away(struct ledger_row *row) {
    row->next = away;
    away = row;
}

static void be_back(struct ledger_row *row) {
    for (struct ledger_row **at = &away; *at; at = &(*at)->next) {
        if (*at == row) {
            *at = row->next;
            break;
        }
    }
}

/* Puts a row that nobody keeps on the list of those to be settled. */
static void let_go(struct ledger_row *row, struct ledger_row **dead) {
    if (row->holders > 0 || row->leaving > 0) {
        return;
    }
    if (row->listed) {
        ledger_remove(row);
    }
    row->next = *dead;
    *dead = row;
    struct ledger_row *memory = row->memory;
    if (memory) {
        memory->holders--;
        let_go(memory, dead);
    }
}

/* What the row stands for is gone, whoever has still to hear of it. */
static void end(struct ledger_row *row, struct ledger_row **dead) {
    row->left_at = trace_on() ? trace_clock() : 0;
    row->holders = 0;
    row->over = true;
    if (row->listed && row->leaving > 0) {
        ledger_remove(row);
        be_away(row);
    }
    let_go(row, dead);
}

/*
 * The driver has given out what is listed already: the old row's memory is gone, and nobody has told us. But a handle whose number comes
 * back may have been released while its memory is still mapped.
 */
static void make_way(uint64_t key, unsigned space, struct ledger_row **dead) {
    struct ledger_row *old = ledger_find(key, space);
    if (old && space == UNPOOLED_HANDLES) {
        ledger_remove(old);
    } else if (old) {
        end(old, dead);
    }
}

/* After the lock has been let go of. */
static void settle(struct ledger_row *dead) {
    for (const struct ledger_row *left = dead; left; left = left->next) {
        enum unpooled_kind kind = (enum unpooled_kind)left->kind;
        if (kind == UNPOOLED_STREAM_ORDERED) {
            driver_pool_left((struct driver_pool *)left->value, left->bytes);
            show(FLIGHT_FREE, left);
            continue;
        }
        unpooled_kind_book(kind, left->device, -(int64_t)left->bytes);
        show(FLIGHT_FREE, left);
        if (unpooled_kind_is_charged(kind)) {
            device_refund(left->device, left->bytes);
        }
    }
    if (!dead) {
        return;
    }
    lock_acquire(&lock);
    while (dead) {
        struct ledger_row *next = dead->next;
        host_slab_put(&slab, dead);
        dead = next;
    }
    lock_release(&lock);
}

/* --- entering --- */

static CUcontext context_of(enum unpooled_kind kind) {
    CUcontext context = NULL;
    if (unpooled_kind_space(kind) != UNPOOLED_HANDLES && kind != UNPOOLED_MAPPING) {
        REAL(cuCtxGetCurrent)(&context);
    }
    return context;
}

/* Booked before anybody can find it, so that no figure is lowered before it was raised. */
static bool enter(const struct ledger_row *as, struct ledger_row **dead) {
    make_way(as->key, as->space, dead);
    struct ledger_row *row = host_slab_get(&slab);
    if (!row) {
        return false;
    }
    *row = *as;
    row->holders = 1;
    if (!ledger_add(row)) {
        host_slab_put(&slab, row);
        return false;
    }
    unpooled_kind_book((enum unpooled_kind)row->kind, row->device, (int64_t)row->bytes);
    show(FLIGHT_ALLOCATE, row);
    return true;
}

bool unpooled_enter(enum unpooled_kind kind, struct device *device, uint64_t bytes, uint64_t key,
                    uint64_t value) {
    if (!device) {
        return false;
    }
    struct ledger_row *dead = NULL;
    struct ledger_row row = {.key = key,
                             .bytes = bytes,
                             .value = value,
                             .device = device,
                             .context = context_of(kind),
                             .kind = (uint8_t)kind,
                             .space = (uint8_t)unpooled_kind_space(kind)};
    lock_acquire(&lock);
    bool entered = enter(&row, &dead);
    lock_release(&lock);
    settle(dead);
    return entered;
}

/* Until unpooled_end() others know that it may come back. */
static bool charge(struct device *device, uint64_t bytes) {
    in_flight_enter(&device->in_flight);
    bool allowed = device_charge(device, bytes);
    if (!allowed) {
        in_flight_leave(&device->in_flight);
    }
    return allowed;
}

static bool allowed(enum unpooled_kind kind, struct device *device, uint64_t bytes) {
    if (!unpooled_kind_is_charged(kind) || charge(device, bytes)) {
        return true;
    }
    struct oom_retry oom_retry = {0};
    while (oom_retry_at_limit(device, bytes, &oom_retry)) {
        if (charge(device, bytes)) {
            device_count(device, &device->outside.oom_retries);
            return true;
        }
    }
    return false;
}

bool unpooled_begin(struct unpooled_call *call, enum unpooled_kind kind, struct device *device,
                    uint64_t bytes) {
    *call = (struct unpooled_call){.kind = kind, .device = device, .bytes = bytes};
    if (!device) {
        return true;
    }
    if (!allowed(kind, device, bytes)) {
        if (kind != UNPOOLED_NATIVE) { /* of which its caller reports */
            device_count_oom(device, true);
        }
        return false;
    }
    call->context = context_of(kind);
    lock_acquire(&lock);
    call->next = calls;
    calls = call;
    lock_release(&lock);
    return true;
}

CUresult unpooled_end(struct unpooled_call *call, CUresult answer, uint64_t key, uint64_t value) {
    if (!call->device) {
        return answer;
    }
    struct ledger_row *dead = NULL;
    struct ledger_row row = {.key = key,
                             .bytes = call->bytes,
                             .value = value,
                             .device = call->device,
                             .context = call->context,
                             .stack = call->stack,
                             .kind = (uint8_t)call->kind,
                             .space = (uint8_t)unpooled_kind_space(call->kind)};
    if (answer == CUDA_SUCCESS && row.space == UNPOOLED_POINTER) {
        context_address_given(key, call->bytes);
    }
    lock_acquire(&lock);
    struct unpooled_call **at = &calls;
    while (*at != call) {
        at = &(*at)->next;
    }
    *at = call->next;
    bool entered = answer == CUDA_SUCCESS && !call->over && enter(&row, &dead);
    lock_release(&lock);
    settle(dead);
    if (!entered && unpooled_kind_is_charged(call->kind)) {
        device_uncharge(call->device, call->bytes);
    }
    if (unpooled_kind_is_charged(call->kind)) {
        in_flight_leave(&call->device->in_flight);
    }
    helper_start_wanted();
    return answer;
}

/* --- leaving --- */

static bool started(void) {
    return atomic_load(&process_state) == PROCESS_STARTED;
}

/* One holder less; lock held. */
static void begin_leaving(struct ledger_row *row) {
    row->left_at = trace_on() ? trace_clock() : 0;
    row->leaving++;
    if (--row->holders == 0) {
        ledger_remove(row);
        be_away(row);
    }
}

struct ledger_row *unpooled_leave_begin(enum unpooled_space space, uint64_t key, uint64_t bytes) {
    struct ledger_row *leaving = NULL, *row;
    if (!started()) {
        return NULL;
    }
    lock_acquire(&lock);
    for (uint64_t at = key; (row = ledger_find(at, space)) != NULL; at += row->bytes) {
        begin_leaving(row);
        if (bytes == 0) {
            leaving = row;
            break;
        }
        row->with = leaving; /* nobody else can find it any more */
        leaving = row;
        if (row->bytes == 0 || at + row->bytes - key >= bytes) {
            break;
        }
    }
    lock_release(&lock);
    return leaving;
}

/* The driver has kept it after all; lock held. */
static void come_back(struct ledger_row *row, struct ledger_row **dead) {
    if (row->over) {
        return;
    }
    if (row->holders++ == 0 && !row->listed) {
        be_back(row);
        make_way(row->key, row->space, dead);
        if (!ledger_add(row)) {
            row->holders = 0;
            be_away(row);
        }
    }
}

void unpooled_leave_end(struct ledger_row *row, bool left) {
    struct ledger_row *dead = NULL;
    if (!row) {
        return;
    }
    lock_acquire(&lock);
    for (struct ledger_row *next; row; row = next) {
        next = row->with;
        row->with = NULL;
        row->leaving--;
        if (!left) {
            come_back(row, &dead);
        }
        if (row->holders == 0 && row->leaving == 0) {
            be_back(row);
        }
        let_go(row, &dead);
    }
    lock_release(&lock);
    settle(dead);
}

void unpooled_leave(enum unpooled_space space, uint64_t key) {
    unpooled_leave_end(unpooled_leave_begin(space, key, 0), true);
}

struct ended {
    CUcontext context;
    struct ledger_row *dead;
};

static void end_if_of(struct ledger_row *row, void *with) {
    struct ended *ended = with;
    if (row->context == ended->context) {
        end(row, &ended->dead);
    }
}

void unpooled_forget(const struct context *context) {
    struct ended ended = {.context = context->handle};
    lock_acquire(&lock);
    for (struct unpooled_call *call = calls; call; call = call->next) {
        call->over |= call->context == context->handle;
    }
    for (struct ledger_row *row = away; row; row = row->next) {
        row->over |= row->context == context->handle;
    }
    ledger_each(end_if_of, &ended);
    lock_release(&lock);
    settle(ended.dead);
}

/* --- handles and what is mapped of them --- */

struct ledger_row *unpooled_hold(uint64_t handle) {
    if (!started()) {
        return NULL;
    }
    lock_acquire(&lock);
    struct ledger_row *row = ledger_find(handle, UNPOOLED_HANDLES);
    if (row) {
        row->holders++;
    }
    lock_release(&lock);
    return row;
}

void unpooled_mapped(CUresult answer, struct ledger_row *memory, uint64_t offset, uint64_t key,
                     uint64_t bytes) {
    struct ledger_row *dead = NULL;
    if (!memory) {
        return;
    }
    struct ledger_row row = {.key = key,
                             .bytes = bytes,
                             .device = memory->device,
                             .memory = memory,
                             .kind = UNPOOLED_MAPPING,
                             .space = UNPOOLED_RANGES};
    lock_acquire(&lock);
    if (answer == CUDA_SUCCESS && memory->kind == UNPOOLED_HANDLE_IMPORTED &&
        memory->bytes < offset + bytes) {
        unpooled_kind_book(UNPOOLED_HANDLE_IMPORTED, memory->device,
                           (int64_t)(offset + bytes - memory->bytes));
        memory->bytes = offset + bytes;
    }
    if (answer != CUDA_SUCCESS || !enter(&row, &dead)) {
        memory->holders--;
        let_go(memory, &dead);
    }
    lock_release(&lock);
    settle(dead);
}

struct unpooled_entry unpooled_find(enum unpooled_space space, uint64_t key) {
    struct unpooled_entry entry = {0};
    if (!started()) {
        return entry;
    }
    lock_acquire(&lock);
    const struct ledger_row *row = ledger_find(key, space);
    for (const struct ledger_row *left = away; left && !row; left = left->next) {
        row = left->key == key && left->space == space && !left->over ? left : NULL;
    }
    if (row) {
        entry = (struct unpooled_entry){row->bytes, row->value};
    }
    lock_release(&lock);
    return entry;
}
