#include "driver/limit/unpooled.h"

#include "driver/context/context.h"
#include "driver/context/fault.h"
#include "driver/limit/charge.h"
#include "driver/limit/ledger_row.h"
#include "driver/limit/oom_retry.h"
#include "driver/table/entries.h"
#include "process/helper.h"
#include "process/process.h"
#include "stacks/requester.h"

static struct unpooled_call *calls; /* from unpooled_begin() to unpooled_end(); under LEDGER */

/* --- allocating --- */

/* Returns the context whose end frees memory of this kind: the current one. NULL: memory of this
 * kind belongs to the process. */
static CUcontext context_of(enum unpooled_kind kind) {
    bool ends = unpooled_kind_space(kind) != UNPOOLED_HANDLES;
    return ends ? context_current_resolved() : NULL;
}

bool unpooled_enter(enum unpooled_kind kind, struct device *device, CUcontext context,
                    uint64_t bytes, uint64_t key, uint64_t value) {
    if (!device)
        return false;
    struct ledger_row *dead = NULL;
    struct ledger_row row = {.key = key,
                             .bytes = bytes,
                             .value = value,
                             .device = device,
                             .context = context,
                             .requester = (uint8_t)requester_here(),
                             .kind = (uint8_t)kind,
                             .space = (uint8_t)unpooled_kind_space(kind)};
    lock_acquire(&ledger_lock);
    bool entered = ledger_row_enter(&row, &dead);
    lock_release(&ledger_lock);
    ledger_rows_free(dead);
    return entered;
}

/* Charges `bytes`. Until unpooled_end(), other threads whose requests were refused wait for this
 * request. */
static bool charge_in_flight(struct device *device, uint64_t bytes) {
    in_flight_enter(&device->in_flight);
    bool charged = device_charge_or_trim(device, bytes);
    if (!charged)
        in_flight_leave(&device->in_flight);
    return charged;
}

/* Charges `bytes` if the kind is charged, and retries after a refusal of the limit. Returns false,
 * with nothing charged, if the limit refuses. */
static bool charge_or_retry(enum unpooled_kind kind, struct device *device, uint64_t bytes) {
    if (!unpooled_kind_is_charged(kind) || charge_in_flight(device, bytes))
        return true;
    struct oom_retry oom_retry = {0};
    while (oom_retry_at_limit(device, bytes, &oom_retry)) {
        if (charge_in_flight(device, bytes)) {
            device_count(device, &device->unpooled.oom_retries);
            return true;
        }
    }
    return false;
}

bool unpooled_begin(struct unpooled_call *call, enum unpooled_kind kind, struct device *device,
                    uint64_t bytes) {
    *call = (struct unpooled_call){.kind = kind, .device = device, .bytes = bytes};
    if (!device)
        return true;
    if (!charge_or_retry(kind, device, bytes))
        return false;
    call->context = context_of(kind);
    call->requester = requester_here();
    lock_acquire(&ledger_lock);
    call->next = calls;
    calls = call;
    lock_release(&ledger_lock);
    return true;
}

CUresult unpooled_end(struct unpooled_call *call, CUresult answer, uint64_t key, uint64_t value) {
    if (!call->device)
        return fault_notice(answer);
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
    if (answer == CUDA_SUCCESS && row.space == UNPOOLED_POINTER)
        context_address_given(key, call->bytes);
    lock_acquire(&ledger_lock);
    struct unpooled_call **at = &calls;
    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    bool entered = answer == CUDA_SUCCESS && !call->ended && ledger_row_enter(&row, &dead);
    lock_release(&ledger_lock);
    ledger_rows_free(dead);
    if (!entered && unpooled_kind_is_charged(call->kind))
        device_uncharge(call->device, call->bytes);
    if (unpooled_kind_is_charged(call->kind))
        in_flight_leave(&call->device->in_flight);
    /* The caller counts refusals of native memory, and host memory is not the device's. */
    if (answer == CUDA_ERROR_OUT_OF_MEMORY && unpooled_kind_is_charged(call->kind) &&
        call->kind != UNPOOLED_NATIVE)
        device_count_oom(call->device, false);
    helper_start_requested();
    return fault_notice(answer);
}

/* --- freeing --- */

/* Argument of release_if_in(). */
struct release_state {
    uint64_t from, end; /* addresses */
    struct ledger_row *freeing;
};

static void release_if_in(struct ledger_row *row, void *with) {
    struct release_state *state = with;
    if (row->space == UNPOOLED_RANGES && row->key >= state->from && row->key < state->end) {
        ledger_row_begin_release(row);
        row->next_in_call = state->freeing;
        state->freeing = row;
    }
}

struct ledger_row *unpooled_free_begin(enum unpooled_space space, uint64_t key, uint64_t bytes) {
    struct ledger_row *freeing = NULL, *row;
    if (!process_is_started())
        return NULL;
    lock_acquire(&ledger_lock);
    uint64_t at = key;
    for (; (row = ledger_find(at, space)) != NULL; at += row->bytes) {
        ledger_row_begin_release(row);
        if (bytes == 0) {
            freeing = row;
            break;
        }
        /* A mapping has only one holder, so its row has now left the table. No other free can find
         * the row and use its next_in_call. */
        row->next_in_call = freeing;
        freeing = row;
        if (row->bytes == 0 || at + row->bytes - key >= bytes)
            break;
    }
    if (bytes > 0 && !row) { /* no row at `at`: the driver still unmaps the rest of the range */
        struct release_state rest = {at, key + bytes, freeing};
        ledger_each(release_if_in, &rest);
        freeing = rest.freeing;
    }
    lock_release(&ledger_lock);
    return freeing;
}

CUresult unpooled_free_end(struct ledger_row *row, CUresult answer) {
    struct ledger_row *dead = NULL;
    if (!row)
        return fault_notice(answer);
    lock_acquire(&ledger_lock);
    for (struct ledger_row *next; row; row = next) {
        next = row->next_in_call;
        row->next_in_call = NULL;
        ledger_row_end_release(row, answer == CUDA_SUCCESS, &dead);
    }
    lock_release(&ledger_lock);
    ledger_rows_free(dead);
    return fault_notice(answer);
}

void unpooled_free(enum unpooled_space space, uint64_t key) {
    unpooled_free_end(unpooled_free_begin(space, key, 0), CUDA_SUCCESS);
}

/* Argument of end_if_of(). */
struct end_state {
    CUcontext context;
    struct ledger_row *dead;
};

static void end_if_of(struct ledger_row *row, void *with) {
    struct end_state *state = with;
    if (row->context == state->context)
        ledger_row_end(row, &state->dead);
}

void unpooled_forget(const struct context *context) {
    struct end_state state = {.context = context->handle};
    lock_acquire(&ledger_lock);
    for (struct unpooled_call *call = calls; call; call = call->next)
        call->ended |= call->context == context->handle;
    for (struct ledger_row *row = ledger_rows_being_freed(); row; row = row->next)
        row->ended |= row->context == context->handle;
    ledger_each(end_if_of, &state);
    lock_release(&ledger_lock);
    ledger_rows_free(state.dead);
}

/* --- lists --- */

/* Argument of list_if_requested(). */
struct list_request {
    enum unpooled_kind kind;
    const struct device *device; /* NULL: all */
    struct memory_list *to;
};

static void list_if_requested(struct ledger_row *row, void *with) {
    const struct list_request *request = with;
    if (row->kind == request->kind && (!request->device || row->device == request->device)) {
        memory_list_add_segment(request->to,
                                (struct memory_segment){row->key, row->bytes, 0, false});
        memory_list_add_block(request->to,
                              (struct memory_block){row->key, row->bytes, row->bytes, row->stack});
    }
}

void unpooled_list(enum unpooled_kind kind, const struct device *device, struct memory_list *to) {
    struct list_request request = {kind, device, to};
    lock_acquire(&ledger_lock);
    ledger_each(list_if_requested, &request);
    for (struct ledger_row *row = ledger_rows_being_freed(); row; row = row->next)
        list_if_requested(row, &request);
    lock_release(&ledger_lock);
}

/* --- handles and mappings --- */

struct ledger_row *unpooled_hold(uint64_t handle) {
    if (!process_is_started())
        return NULL;
    lock_acquire(&ledger_lock);
    struct ledger_row *row = ledger_find(handle, UNPOOLED_HANDLES);
    if (row)
        row->holders++;
    lock_release(&ledger_lock);
    return row;
}

void unpooled_mapped(CUresult answer, struct ledger_row *memory, uint64_t offset, uint64_t key,
                     uint64_t bytes) {
    struct ledger_row *dead = NULL;
    if (!memory)
        return;
    struct ledger_row row = {.key = key,
                             .bytes = bytes,
                             .device = memory->device,
                             .memory = memory,
                             .kind = UNPOOLED_MAPPING,
                             .space = UNPOOLED_RANGES};
    lock_acquire(&ledger_lock);
    /* The size of imported memory is unknown: counts up to the end of the furthest mapping. */
    if (answer == CUDA_SUCCESS && memory->kind == UNPOOLED_HANDLE_IMPORTED &&
        memory->bytes < offset + bytes) {
        unpooled_kind_count(UNPOOLED_HANDLE_IMPORTED, memory->device,
                            (int64_t)(offset + bytes - memory->bytes));
        memory->bytes = offset + bytes;
    }
    if (answer != CUDA_SUCCESS || !ledger_row_enter(&row, &dead)) {
        memory->holders--;
        ledger_row_collect(memory, &dead);
    }
    lock_release(&ledger_lock);
    ledger_rows_free(dead);
}

struct unpooled_entry unpooled_find(enum unpooled_space space, uint64_t key) {
    struct unpooled_entry entry = {0};
    if (!process_is_started())
        return entry;
    lock_acquire(&ledger_lock);
    const struct ledger_row *row = ledger_find(key, space);
    for (const struct ledger_row *freeing = ledger_rows_being_freed(); freeing && !row;
         freeing = freeing->next)
        row = freeing->key == key && freeing->space == space && !freeing->ended ? freeing : NULL;
    if (row)
        entry = (struct unpooled_entry){row->bytes, row->value};
    lock_release(&ledger_lock);
    return entry;
}
