#include "driver/context/active_contexts.h"

#include "driver/context/context.h"
#include "driver/table/entries.h"
#include "process/lock.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ROWS 512
#define WAKES_MOST 4

static struct row {
    CUcontext context;
    _Atomic uint64_t life; /* moves when the context ends; then its handle may come back */
    bool gone;
    unsigned threads; /* that it is current on, as far as they have told */
    unsigned wakes;
    uint64_t woke; /* in the order of `woken` */
    bool for_good;
} rows[ROWS];

static unsigned used;           /* rows that ever were */
static _Atomic(CUcontext) only; /* NULL: several are awake, or none */
static _Atomic unsigned
    may_sleep; /* contexts that are not awake for good; of no others it matters where they are current */
static bool unseen; /* all are, for good */
static _Atomic uint64_t woken,
    settled; /* how often a context has come or woken up; and which of them need not wait any more */
static struct lock lock = LOCK_INITIALIZER(AWAKE);

/* What was current on this thread last; it stays so while nothing is. */
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

static bool is_awake(const struct row *row) {
    return row->for_good || row->threads > 0;
}

static void update(void) {
    CUcontext now = NULL;
    unsigned count = 0, light = 0;
    for (unsigned i = 0; i < used; i++) {
        light += !rows[i].gone && !rows[i].for_good;
        if (!rows[i].gone && is_awake(&rows[i])) {
            now = rows[i].context;
            count++;
        }
    }
    atomic_store(&only, count == 1 && !unseen ? now : NULL);
    atomic_store(&may_sleep, light);
}

static void wake(struct row *row) {
    if (!is_awake(row)) {
        row->woke = atomic_fetch_add(&woken, 1) + 1;
        row->for_good = ++row->wakes >= WAKES_MOST;
    }
}

/* Whether the work in front of barriers may reach what this context reaches: another thread that has woken
 * it may still be waiting for that. */
static bool is_due(const struct row *row) {
    return (row ? row->woke : atomic_load(&woken)) > atomic_load(&settled);
}

/* --- contexts --- */

void active_contexts_add(CUcontext context) {
    lock_acquire(&lock);
    struct row *row = find(context);
    uint64_t woke = atomic_fetch_add(&woken, 1) + 1;
    if (row) {
        row->gone = false;
        row->woke = woke;
    } else if (used < ROWS) {
        rows[used++] = (struct row){.context = context, .for_good = true, .woke = woke};
    } else {
        unseen = true;
    }
    update();
    lock_release(&lock);
}

void active_contexts_remove(const struct context *context) {
    lock_acquire(&lock);
    struct row *row = find(context->handle);
    if (row) {
        row->gone = row->for_good = true;
        row->threads = 0;
        atomic_fetch_add(&row->life, 1);
    }
    update();
    lock_release(&lock);
}

void active_contexts_seen(CUcontext context) {
    lock_acquire(&lock);
    struct row *row = find(context);
    if (row && atomic_load(&row->life) == 0 && !unseen) {
        row->for_good = false;
    }
    update();
    lock_release(&lock);
}

/* --- what the program does with them --- */

bool active_contexts_switched(CUcontext now) {
    bool same = now == mine.context && mine.row && atomic_load(&mine.row->life) == mine.life;
    bool idle = atomic_load(&may_sleep) == 0 && atomic_load(&woken) == atomic_load(&settled);
    if (!now || same || idle) {
        return false;
    }
    lock_acquire(&lock);
    struct row *row = find(now), *before = mine.row;
    if (row) {
        wake(row);
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
        wake(row);
        row->for_good = true;
        update();
    }
    bool due = row && is_due(row);
    lock_release(&lock);
    return due;
}

bool active_contexts_all_stay(void) {
    lock_acquire(&lock);
    unseen = true;
    for (unsigned i = 0; i < used; i++) {
        wake(&rows[i]);
        rows[i].for_good = true;
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

/* Locked: whoever is being counted is no longer asleep to active_contexts_is_only(). */
uint64_t active_contexts_activations(void) {
    lock_acquire(&lock);
    uint64_t count = atomic_load(&woken);
    lock_release(&lock);
    return count;
}

void active_contexts_drained(uint64_t until) {
    uint64_t before = atomic_load(&settled);
    while (before < until && !atomic_compare_exchange_weak(&settled, &before, until)) {
    }
}

bool active_contexts_is_only(CUcontext context) {
    return atomic_load(&only) == context;
}
