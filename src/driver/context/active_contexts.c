#include "driver/context/active_contexts.h"

#include "driver/context/context.h"
#include "driver/table/entries.h"
#include "process/lock.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ROWS 512
#define ACTIVATIONS_MOST 4

static struct row {
    CUcontext context;
    _Atomic uint64_t life; /* contexts of this handle that ended: a handle may come back */
    bool gone;             /* the context ended, and no context of the handle came since */
    unsigned threads;      /* threads whose last seen current context this is */
    unsigned activations;  /* without the addition */
    uint64_t activation;   /* value of `activated` after the last activation or addition */
    bool permanent;        /* active until it ends, whatever the threads do */
} rows[ROWS];

/* The lock protects all of these. The atomic ones are also read, and `drained` written, without
 * it. */
static unsigned used;                    /* rows in use; a row is never removed */
static _Atomic(CUcontext) only;          /* the only active context; NULL: several or none */
static _Atomic unsigned transient_count; /* contexts that may become inactive */
static bool all_permanent;               /* for good: no context counts as the only active one */
/* Additions and activations so far, and how many of them need no drain any more. */
static _Atomic uint64_t activated, drained;
static struct lock lock = LOCK_INITIALIZER(AWAKE);

/* The context that this thread reported last. It stays when no context is current any more. */
static _Thread_local struct {
    CUcontext context;
    struct row *row;
    uint64_t life;
} mine __attribute__((tls_model("initial-exec")));

/* --- lock held --- */

static struct row *find(CUcontext context) {
    for (unsigned i = 0; i < used; i++) {
        if (rows[i].context == context) {
            return &rows[i];
        }
    }
    return NULL;
}

static bool is_active(const struct row *row) {
    return row->permanent || row->threads > 0;
}

/* Computes `only` and `transient_count` again. */
static void update(void) {
    CUcontext now = NULL;
    unsigned count = 0, transient = 0;
    for (unsigned i = 0; i < used; i++) {
        transient += !rows[i].gone && !rows[i].permanent;
        if (!rows[i].gone && is_active(&rows[i])) {
            now = rows[i].context;
            count++;
        }
    }
    atomic_store(&only, count == 1 && !all_permanent ? now : NULL);
    atomic_store(&transient_count, transient);
}

static void activate(struct row *row) {
    if (!is_active(row)) {
        row->activation = atomic_fetch_add(&activated, 1) + 1;
        row->permanent = ++row->activations >= ACTIVATIONS_MOST;
    }
}

/* Returns whether a context's activation still needs a drain. Another thread that activated the
 * context may still be inside that drain. Without a row (NULL): whether any activation needs
 * one. */
static bool is_due(const struct row *row) {
    return (row ? row->activation : atomic_load(&activated)) > atomic_load(&drained);
}

/* --- contexts --- */

void active_contexts_add(CUcontext context) {
    lock_acquire(&lock);
    struct row *row = find(context);
    uint64_t activation = atomic_fetch_add(&activated, 1) + 1;
    if (row) {
        row->gone = false;
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
        row->gone = row->permanent = true;
        row->threads = 0;
        atomic_fetch_add(&row->life, 1);
    }
    update();
    lock_release(&lock);
}

void active_contexts_seen(CUcontext context) {
    lock_acquire(&lock);
    struct row *row = find(context);
    if (row && atomic_load(&row->life) == 0 && !all_permanent) {
        row->permanent = false;
    }
    update();
    lock_release(&lock);
}

/* --- what the program does with contexts --- */

bool active_contexts_switched(CUcontext now) {
    bool same = now == mine.context && mine.row && atomic_load(&mine.row->life) == mine.life;
    /* No context can be inactive, and no drain is missing: current contexts do not matter. */
    bool idle =
        atomic_load(&transient_count) == 0 && atomic_load(&activated) == atomic_load(&drained);
    if (!now || same || idle) {
        return false;
    }
    lock_acquire(&lock);
    struct row *row = find(now), *before = mine.row;
    if (row) {
        activate(row);
        row->threads++;
        if (before && atomic_load(&before->life) == mine.life) {
            before->threads--;
        }
        mine.context = now;
        mine.row = row;
        mine.life = atomic_load(&row->life);
        update();
    }
    bool due = is_due(row);
    lock_release(&lock);
    return due;
}

bool active_contexts_stay(void) {
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

bool active_contexts_all_stay(void) {
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

/* Takes the lock, so that active_contexts_is_only() already sees every counted activation. */
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
