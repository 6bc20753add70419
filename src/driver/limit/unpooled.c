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
#include "stacks/requester.h"
#include "stats/holders.h"
#include "trace/trace.h"

/* not listed: the driver is being asked to free the memory */
static struct ledger_row *being_freed;
static struct unpooled_call *calls; /* allocations in progress: no row yet */

/*
 * Records in the trace that unpooled memory was allocated (`comes`) or freed. `left` is the bytes
 * of this kind that the device has from now on.
 */
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

/*
 * Reports an allocation or a free. The flight recorder gets large blocks that the pool did not
 * serve, and a trace gets all unpooled memory. May run with or without the lock.
 */
static void report_row(enum flight_kind moment, const struct ledger_row *row) {
    if (row->kind == UNPOOLED_NATIVE && row->bytes > FLIGHT_LARGE) {
        flight_block(moment, (unsigned)row->device->ordinal, row->key, row->bytes);
    }
    if (trace_on()) {
        record(moment == FLIGHT_ALLOCATE, row,
               unpooled_kind_bytes((enum unpooled_kind)row->kind, row->device));
    }
}

/* --- state of a row; lock held --- */

static void add_being_freed(struct ledger_row *row) {
    row->next = being_freed;
    being_freed = row;
}

static void remove_being_freed(struct ledger_row *row) {
    for (struct ledger_row **at = &being_freed; *at; at = &(*at)->next) {
        if (*at == row) {
            *at = row->next;
            break;
        }
    }
}

/*
 * Moves a row without holders to the list `dead`, and drops the holder of the memory that it maps.
 * Does nothing while a holder or a free in progress remains.
 */
static void collect_if_unheld(struct ledger_row *row, struct ledger_row **dead) {
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
        collect_if_unheld(memory, dead);
    }
}

/*
 * Ends a row whose memory is gone. Frees in progress still refer to the row, so it stays in
 * `being_freed` until the last of them ends.
 */
static void end_row(struct ledger_row *row, struct ledger_row **dead) {
    row->left_at = trace_on() ? trace_clock() : 0;
    row->holders = 0;
    row->over = true;
    if (row->listed && row->leaving > 0) {
        ledger_remove(row);
        add_being_freed(row);
    }
    collect_if_unheld(row, dead);
}

/*
 * Ends the listed row of a key that the driver has given out again: its memory was freed unnoticed.
 * A handle is only unlisted: the program may have released it while its memory is still mapped.
 */
static void end_row_of_reused_key(uint64_t key, unsigned space, struct ledger_row **dead) {
    struct ledger_row *old = ledger_find(key, space);
    if (old && space == UNPOOLED_HANDLES) {
        ledger_remove(old);
    } else if (old) {
        end_row(old, dead);
    }
}

/* Uncounts, refunds and frees the rows of `dead`. Call with no lock held. */
static void uncount_and_free(struct ledger_row *dead) {
    for (const struct ledger_row *left = dead; left; left = left->next) {
        enum unpooled_kind kind = (enum unpooled_kind)left->kind;
        unpooled_kind_attribute(kind, left->device, left->requester, -(int64_t)left->bytes);
        if (kind == UNPOOLED_STREAM_ORDERED) {
            driver_pool_left((struct driver_pool *)left->value, left->bytes);
            report_row(FLIGHT_FREE, left);
            continue;
        }
        unpooled_kind_book(kind, left->device, -(int64_t)left->bytes);
        report_row(FLIGHT_FREE, left);
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

/* --- allocating --- */

/* Returns the current context if memory of this kind ends with its context, else NULL. */
static CUcontext context_of(enum unpooled_kind kind) {
    CUcontext context = NULL;
    if (unpooled_kind_space(kind) != UNPOOLED_HANDLES && kind != UNPOOLED_MAPPING) {
        REAL(cuCtxGetCurrent)(&context);
    }
    return context;
}

/*
 * Adds a row and counts it. Returns false without host memory. Counting precedes the release of the
 * lock, so no other thread subtracts the row before it was added. Lock held.
 */
static bool enter(const struct ledger_row *as, struct ledger_row **dead) {
    end_row_of_reused_key(as->key, as->space, dead);
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
    unpooled_kind_attribute((enum unpooled_kind)row->kind, row->device, row->requester,
                            (int64_t)row->bytes);
    report_row(FLIGHT_ALLOCATE, row);
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
                             .requester = (uint8_t)requester_here(),
                             .kind = (uint8_t)kind,
                             .space = (uint8_t)unpooled_kind_space(kind)};
    lock_acquire(&lock);
    bool entered = enter(&row, &dead);
    lock_release(&lock);
    uncount_and_free(dead);
    return entered;
}

/* Charges `bytes`. Until unpooled_end(), other threads see that this charge may be taken back. */
static bool charge_in_flight(struct device *device, uint64_t bytes) {
    in_flight_enter(&device->in_flight);
    bool is_allowed = device_charge(device, bytes);
    if (!is_allowed) {
        in_flight_leave(&device->in_flight);
    }
    return is_allowed;
}

/* Charges `bytes` if the kind is charged, and retries after a refusal of the limit. */
static bool is_allowed(enum unpooled_kind kind, struct device *device, uint64_t bytes) {
    if (!unpooled_kind_is_charged(kind) || charge_in_flight(device, bytes)) {
        return true;
    }
    struct oom_retry oom_retry = {0};
    while (oom_retry_at_limit(device, bytes, &oom_retry)) {
        if (charge_in_flight(device, bytes)) {
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
    if (!is_allowed(kind, device, bytes)) {
        if (kind != UNPOOLED_NATIVE) { /* the caller of NATIVE counts the refusal */
            device_count_oom(device, true);
        }
        return false;
    }
    call->context = context_of(kind);
    call->requester = requester_here();
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
                             .requester = (uint8_t)call->requester,
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
    uncount_and_free(dead);
    if (!entered && unpooled_kind_is_charged(call->kind)) {
        device_uncharge(call->device, call->bytes);
    }
    if (unpooled_kind_is_charged(call->kind)) {
        in_flight_leave(&call->device->in_flight);
    }
    helper_start_wanted();
    return answer;
}

/* --- freeing --- */

static bool started(void) {
    return atomic_load(&process_state) == PROCESS_STARTED;
}

/* Removes one holder while the driver is asked. Lock held. */
static void begin_release(struct ledger_row *row) {
    row->left_at = trace_on() ? trace_clock() : 0;
    row->leaving++;
    if (--row->holders == 0) {
        ledger_remove(row);
        add_being_freed(row);
    }
}

struct ledger_row *unpooled_leave_begin(enum unpooled_space space, uint64_t key, uint64_t bytes) {
    struct ledger_row *leaving = NULL, *row;
    if (!started()) {
        return NULL;
    }
    lock_acquire(&lock);
    for (uint64_t at = key; (row = ledger_find(at, space)) != NULL; at += row->bytes) {
        begin_release(row);
        if (bytes == 0) {
            leaving = row;
            break;
        }
        row->with = leaving; /* no other thread can find this row */
        leaving = row;
        if (row->bytes == 0 || at + row->bytes - key >= bytes) {
            break;
        }
    }
    lock_release(&lock);
    return leaving;
}

/* Restores the holder of a row that the driver has not freed. Lock held. */
static void undo_release(struct ledger_row *row, struct ledger_row **dead) {
    if (row->over) {
        return;
    }
    if (row->holders++ == 0 && !row->listed) {
        remove_being_freed(row);
        end_row_of_reused_key(row->key, row->space, dead);
        if (!ledger_add(row)) {
            row->holders = 0;
            add_being_freed(row);
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
            undo_release(row, &dead);
        }
        if (row->holders == 0 && row->leaving == 0) {
            remove_being_freed(row);
        }
        collect_if_unheld(row, &dead);
    }
    lock_release(&lock);
    uncount_and_free(dead);
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
        end_row(row, &ended->dead);
    }
}

void unpooled_forget(const struct context *context) {
    struct ended ended = {.context = context->handle};
    lock_acquire(&lock);
    for (struct unpooled_call *call = calls; call; call = call->next) {
        call->over |= call->context == context->handle;
    }
    for (struct ledger_row *row = being_freed; row; row = row->next) {
        row->over |= row->context == context->handle;
    }
    ledger_each(end_if_of, &ended);
    lock_release(&lock);
    uncount_and_free(ended.dead);
}

/* --- lists --- */

struct wanted {
    enum unpooled_kind kind;
    const struct device *device; /* NULL: all */
    struct memory_list *to;
};

static void list_if_wanted(struct ledger_row *row, void *with) {
    const struct wanted *wanted = with;
    if (row->kind == wanted->kind && (!wanted->device || row->device == wanted->device)) {
        memory_list_add_segment(wanted->to,
                                (struct memory_segment){row->key, row->bytes, 0, false});
        memory_list_add_block(wanted->to,
                              (struct memory_block){row->key, row->bytes, row->bytes, row->stack});
    }
}

void unpooled_list(enum unpooled_kind kind, const struct device *device, struct memory_list *to) {
    struct wanted wanted = {kind, device, to};
    lock_acquire(&lock);
    ledger_each(list_if_wanted, &wanted);
    for (struct ledger_row *row = being_freed; row; row = row->next) {
        list_if_wanted(row, &wanted);
    }
    lock_release(&lock);
}

/* --- handles and mappings --- */

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
        collect_if_unheld(memory, &dead);
    }
    lock_release(&lock);
    uncount_and_free(dead);
}

struct unpooled_entry unpooled_find(enum unpooled_space space, uint64_t key) {
    struct unpooled_entry entry = {0};
    if (!started()) {
        return entry;
    }
    lock_acquire(&lock);
    const struct ledger_row *row = ledger_find(key, space);
    for (const struct ledger_row *left = being_freed; left && !row; left = left->next) {
        row = left->key == key && left->space == space && !left->over ? left : NULL;
    }
    if (row) {
        entry = (struct unpooled_entry){row->bytes, row->value};
    }
    lock_release(&lock);
    return entry;
}
