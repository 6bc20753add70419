#include "driver/context/active_contexts.h"

#include "base/lock.h"
#include "driver/context/context.h"
#include "driver/table/entries.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ROWS 512
#define ACTIVATIONS_MOST 4

static struct row {
    CUcontext context;
    _Atomic uint64_t ended_count; /* contexts of this handle that ended: handles are reused */
    bool ended;                   /* the last context of the handle ended */
    unsigned threads;     /* threads whose newest context, as the hooks saw it, is this one */
    unsigned activations; /* how often the inactive context became active */
    uint64_t activation;  /* number of the last activation or addition, counted in `activated` */
    bool permanent;       /* active until the context ends, current on a thread or not */
} rows[ROWS];

/* The lock protects `rows` and these variables. Atomic ones are also read without the lock.
 * `drained` is written without it. */
static unsigned used;                    /* rows in use; a row is never removed */
static _Atomic(CUcontext) only;          /* the only active context; NULL: several or none */
static _Atomic unsigned transient_count; /* contexts that may become inactive */
static bool all_permanent;               /* `only` stays NULL; never cleared */
/* `activated`: additions and activations so far; the count is the number of the newest one.
 * `drained`: the barriers were drained for each number up to this one. */
static _Atomic uint64_t activated, drained;
static struct lock lock = LOCK_INITIALIZER(ACTIVE_CONTEXTS);

/* The context that active_contexts_switched() saw last on this thread. NULL does not replace it. */
static _Thread_local struct {
    CUcontext context;
    struct row *row;
    uint64_t ended_count; /* of `row` at that time; a larger one: the context has ended */
} seen __attribute__((tls_model("initial-exec")));

/* --- lock held --- */

static struct row *find(CUcontext context) {
    for (unsigned i = 0; i < used; i++)
        if (rows[i].context == context)
            return &rows[i];
    return NULL;
}

static bool is_active(const struct row *row) {
    return row->permanent || row->threads > 0;
}

/* Recomputes `only` and `transient_count`. */
static void update(void) {
    CUcontext now = NULL;
    unsigned count = 0, transient = 0;
    for (unsigned i = 0; i < used; i++) {
        transient += !rows[i].ended && !rows[i].permanent;
        if (!rows[i].ended && is_active(&rows[i])) {
            now = rows[i].context;
            count++;
        }
    }
    atomic_store(&only, count == 1 && !all_permanent ? now : NULL);
    atomic_store(&transient_count, transient);
}

/* Counts an activation if the context is inactive. The caller then makes the context active: raises
 * `threads` or sets `permanent`. */
static void activate(struct row *row) {
    if (!is_active(row)) {
        row->activation = atomic_fetch_add(&activated, 1) + 1;
        row->permanent = ++row->activations >= ACTIVATIONS_MOST;
    }
}

/* Returns whether a context's activation still needs a drain. Another thread that activated the
 * context may still be inside that drain. `row` NULL: returns whether any activation needs one. */
static bool is_due(const struct row *row) {
    return (row ? row->activation : atomic_load(&activated)) > atomic_load(&drained);
}

/* --- contexts --- */

void active_contexts_add(CUcontext context) {
    lock_acquire(&lock);
    struct row *row = find(context);
    uint64_t activation = atomic_fetch_add(&activated, 1) + 1;
    if (row) {
        row->ended = false;
        row->activation = activation;
    } else if (used < ROWS) {
        rows[used++] =
            (struct row){.context = context, .permanent = true, .activation = activation};
    } else {
        all_permanent = true;
    }
    update();
    lock_release(&lock);
}

void active_contexts_remove(const struct context *context) {
    lock_acquire(&lock);
    struct row *row = find(context->handle);
    if (row) {
        row->ended = row->permanent = true;
        row->threads = 0;
        atomic_fetch_add(&row->ended_count, 1);
    }
    update();
    lock_release(&lock);
}

void active_contexts_may_deactivate(CUcontext context) {
    lock_acquire(&lock);
    struct row *row = find(context);
    if (row && atomic_load(&row->ended_count) == 0 && !all_permanent)
        row->permanent = false;
    update();
    lock_release(&lock);
}

/* --- what the program does with contexts --- */

bool active_contexts_switched(CUcontext now) {
    bool same =
        now == seen.context && seen.row && atomic_load(&seen.row->ended_count) == seen.ended_count;
    /* If no context can be inactive and no drain is due, current contexts do not matter. */
    bool irrelevant =
        atomic_load(&transient_count) == 0 && atomic_load(&activated) == atomic_load(&drained);
    if (!now || same || irrelevant)
        return false;
    lock_acquire(&lock);
    struct row *row = find(now), *before = seen.row;
    if (row) {
        activate(row);
        row->threads++;
        if (before && atomic_load(&before->ended_count) == seen.ended_count)
            before->threads--;
        seen.context = now;
        seen.row = row;
        seen.ended_count = atomic_load(&row->ended_count);
        update();
    }
    bool due = is_due(row);
    lock_release(&lock);
    return due;
}

bool active_contexts_keep_current(void) {
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    lock_acquire(&lock);
    struct row *row = context ? find(context) : NULL;
    if (row) {
        activate(row);
        row->permanent = true;
        update();
    }
    bool due = row && is_due(row);
    lock_release(&lock);
    return due;
}

bool active_contexts_keep_all(void) {
    lock_acquire(&lock);
    all_permanent = true;
    for (unsigned i = 0; i < used; i++) {
        activate(&rows[i]);
        rows[i].permanent = true;
    }
    update();
    bool due = is_due(NULL);
    lock_release(&lock);
    return due;
}

bool active_contexts_is_due(CUcontext context) {
    lock_acquire(&lock);
    bool due = is_due(find(context));
    lock_release(&lock);
    return due;
}

/* Takes the lock, under which `activated` and `only` change: active_contexts_is_only() then sees
 * every activation in the result. */
uint64_t active_contexts_activations(void) {
    lock_acquire(&lock);
    uint64_t count = atomic_load(&activated);
    lock_release(&lock);
    return count;
}

void active_contexts_drained(uint64_t until) {
    uint64_t before = atomic_load(&drained);
    while (before < until && !atomic_compare_exchange_weak(&drained, &before, until)) {
    }
}

bool active_contexts_is_only(CUcontext context) {
    return atomic_load(&only) == context;
}
