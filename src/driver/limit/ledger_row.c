#include "driver/limit/ledger_row.h"

#include "driver/limit/driver_pools.h"
#include "driver/limit/unpooled_kind.h"
#include "heap/host.h"
#include "live/flight.h"
#include "stacks/requester.h"
#include "stats/holders.h"
#include "trace/trace.h"

struct lock ledger_lock = LOCK_INITIALIZER(LEDGER);
static struct host_freelist freelist = {.object_bytes = sizeof(struct ledger_row)};
static struct ledger_row *being_freed; /* rows without holders that calls in progress free */

/* --- reports --- */

/*
 * Records in the trace that unpooled memory was allocated (`is_new`) or freed. `total`: bytes of
 * this kind on the device from now on.
 */
static void record(bool is_new, const struct ledger_row *row, uint64_t total) {
    unsigned device = (unsigned)row->device->ordinal;
    uint64_t free_begun = row->free_begun ? row->free_begun : trace_clock();
    if (row->kind == UNPOOLED_NATIVE) {
        trace_native(device, row->key, row->bytes, is_new ? 0 : free_begun,
                     is_new ? trace_stack(stats_stacks(), row->stack) : 0);
    } else if (row->kind != UNPOOLED_MAPPING) {
        trace_write(
            &(struct trace_entry){.ticks = trace_clock(),
                                  .address = row->key,
                                  .bytes = row->bytes,
                                  .value = row->kind,
                                  .detail = total,
                                  .kind = is_new ? TRACE_UNPOOLED_TAKE : TRACE_UNPOOLED_LEAVE,
                                  .device = device});
    }
}

/*
 * Reports an allocation or a free. The flight recorder gets large blocks that the pool did not
 * serve, and a trace gets all unpooled memory. May run with or without the lock.
 */
static void report_row(enum flight_kind event, const struct ledger_row *row) {
    if (row->kind == UNPOOLED_NATIVE && row->bytes > FLIGHT_LARGE)
        flight_block(event, (unsigned)row->device->ordinal, row->key, row->bytes);
    if (trace_on()) {
        record(event == FLIGHT_ALLOCATE, row,
               unpooled_kind_bytes((enum unpooled_kind)row->kind, row->device));
    }
}

/* --- rows end --- */

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

void ledger_row_collect(struct ledger_row *row, struct ledger_row **dead) {
    if (row->holders > 0 || row->frees > 0)
        return;
    if (row->listed)
        ledger_remove(row);
    row->next = *dead;
    *dead = row;
    struct ledger_row *memory = row->memory;
    if (memory) {
        memory->holders--;
        ledger_row_collect(memory, dead);
    }
}

void ledger_row_end(struct ledger_row *row, struct ledger_row **dead) {
    row->free_begun = trace_on() ? trace_clock() : 0;
    row->holders = 0;
    row->ended = true;
    if (row->listed && row->frees > 0) {
        ledger_remove(row);
        add_being_freed(row);
    }
    ledger_row_collect(row, dead);
}

/*
 * Ends the listed row of a key that the driver has given out again: its memory was freed unnoticed.
 * Only removes the row of a handle from the table: its memory may still be mapped.
 */
static void end_row_of_reused_key(uint64_t key, unsigned space, struct ledger_row **dead) {
    struct ledger_row *old = ledger_find(key, space);
    if (old && space == UNPOOLED_HANDLES)
        ledger_remove(old);
    else if (old)
        ledger_row_end(old, dead);
}

void ledger_rows_free(struct ledger_row *dead) {
    for (const struct ledger_row *row = dead; row; row = row->next) {
        enum unpooled_kind kind = (enum unpooled_kind)row->kind;
        unpooled_kind_attribute(kind, row->device, row->requester, -(int64_t)row->bytes);
        if (kind == UNPOOLED_STREAM_ORDERED) {
            driver_pool_subtract((struct driver_pool *)row->value, row->bytes);
            report_row(FLIGHT_FREE, row);
            continue;
        }
        unpooled_kind_count(kind, row->device, -(int64_t)row->bytes);
        report_row(FLIGHT_FREE, row);
        if (unpooled_kind_is_charged(kind))
            device_refund(row->device, row->bytes);
    }
    if (!dead)
        return;
    lock_acquire(&ledger_lock);
    while (dead) {
        struct ledger_row *next = dead->next;
        host_freelist_put(&freelist, dead);
        dead = next;
    }
    lock_release(&ledger_lock);
}

/* --- rows begin --- */

bool ledger_row_enter(const struct ledger_row *as, struct ledger_row **dead) {
    end_row_of_reused_key(as->key, as->space, dead);
    struct ledger_row *row = host_freelist_get(&freelist);
    if (!row)
        return false;
    *row = *as;
    row->holders = 1;
    if (!ledger_add(row)) {
        host_freelist_put(&freelist, row);
        return false;
    }
    unpooled_kind_count((enum unpooled_kind)row->kind, row->device, (int64_t)row->bytes);
    unpooled_kind_attribute((enum unpooled_kind)row->kind, row->device, row->requester,
                            (int64_t)row->bytes);
    report_row(FLIGHT_ALLOCATE, row);
    return true;
}

/* --- releases --- */

void ledger_row_begin_release(struct ledger_row *row) {
    row->free_begun = trace_on() ? trace_clock() : 0;
    row->frees++;
    if (--row->holders == 0) {
        ledger_remove(row);
        add_being_freed(row);
    }
}

/* Restores the holder of a row that the driver has not freed. */
static void undo_release(struct ledger_row *row, struct ledger_row **dead) {
    if (row->ended)
        return;
    if (row->holders++ == 0 && !row->listed) {
        remove_being_freed(row);
        end_row_of_reused_key(row->key, row->space, dead);
        if (!ledger_add(row)) {
            row->holders = 0;
            add_being_freed(row);
        }
    }
}

void ledger_row_end_release(struct ledger_row *row, bool freed, struct ledger_row **dead) {
    row->frees--;
    if (!freed)
        undo_release(row, dead);
    if (row->holders == 0 && row->frees == 0)
        remove_being_freed(row);
    ledger_row_collect(row, dead);
}

struct ledger_row *ledger_rows_being_freed(void) {
    return being_freed;
}
