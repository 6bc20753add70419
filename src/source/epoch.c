/*
 * The events of a pool: closing epochs, queries, barriers, pins. epoch.h explains epochs.
 *
 * Invariant: `slots` lists the events in use, oldest first. A completed event is removed, unless a
 * thread waits for it. The caller of every function holds the pool's lock.
 */
#include "source/epoch.h"

#include <errno.h>
#include <stddef.h>

/* A variable whose address identifies the calling thread. */
static _Thread_local char this_thread __attribute__((tls_model("initial-exec")));

/* Returns event i of those in use, oldest first. */
static const struct epoch_event *event_at(const struct epochs *epochs, unsigned i) {
    return &epochs->events[epochs->slots[i]];
}

static const struct epoch_event *newest(const struct epochs *epochs) {
    return epochs->count > 0 ? event_at(epochs, epochs->count - 1) : NULL;
}

/* Makes stamps up to `number` safe. Called after its event has completed or has a barrier. */
static void raise_safe(struct epochs *epochs, uint64_t number) {
    if (number > atomic_load_explicit(&epochs->safe, memory_order_relaxed))
        atomic_store_explicit(&epochs->safe, number, memory_order_release);
}

void epochs_finish(struct epochs *epochs, uint64_t number) {
    if (number > epochs->finished)
        epochs->finished = number;
    raise_safe(epochs, number);
}

static void unlist(struct epochs *epochs, unsigned i) {
    epochs->events[epochs->slots[i]].in_use = false;
    for (epochs->count--; i < epochs->count; i++)
        epochs->slots[i] = epochs->slots[i + 1];
}

/* Removes the finished events that no thread waits for. */
static void drop_finished(struct epochs *epochs) {
    unsigned i = 0;
    while (i < epochs->count && event_at(epochs, i)->number <= epochs->finished)
        if (event_at(epochs, i)->waiters > 0)
            i++;
        else
            unlist(epochs, i);
}

/*
 * Returns the slot for the next event, or BACKEND_SLOTS if there is none.
 *
 *   1. A slot that is not in use.
 *   2. The slot of the newest event that no thread waits for: the new event captures the same work
 *      and more. Exception: an event recorded in a free is not replaced by an event recorded
 *      later, because no thread may wait for the latter.
 */
static unsigned next_slot(const struct epochs *epochs, bool in_free) {
    unsigned slot = 0, i = epochs->count;
    if (epochs->count < BACKEND_SLOTS) {
        while (epochs->events[slot].in_use)
            slot++;
        return slot;
    }
    while (i > 0 && event_at(epochs, i - 1)->waiters > 0)
        i--;
    return i == 0 || (event_at(epochs, i - 1)->recorder && !in_free) ? BACKEND_SLOTS
                                                                     : epochs->slots[i - 1];
}

/* Makes a recorded event the newest of `slots`, and removes an older event of its slot. */
static void list_newest(struct epochs *epochs, unsigned slot, uint64_t number, bool in_free) {
    for (unsigned i = 0; epochs->events[slot].in_use; i++)
        if (epochs->slots[i] == slot)
            unlist(epochs, i);
    epochs->events[slot] = (struct epoch_event){
        .number = number, .recorder = in_free ? &this_thread : NULL, .in_use = true};
    epochs->slots[epochs->count++] = (uint8_t)slot;
}

int epochs_close(struct epochs *epochs, struct backend *backend, bool in_free) {
    drop_finished(epochs);
    unsigned slot = next_slot(epochs, in_free);
    if (slot == BACKEND_SLOTS)
        return -EAGAIN;
    uint64_t number = atomic_fetch_add(&epochs->open, 1);
    int r = backend->ops->record(backend, slot);
    /* Some drivers have context events and refuse every record. After BACKEND_REFUSALS refusals
     * in a row the backend counts as one without context events. */
    if (r == -EIO && ++backend->refused >= BACKEND_REFUSALS)
        atomic_store(&backend->has_events, false);
    if (r != 0)
        return r; /* the event of the next epoch covers this one too */
    backend->refused = 0;
    epochs->application_recorded = epochs->application_recorded && !in_free;
    list_newest(epochs, slot, number, in_free);
    epochs->closed++;
    return 0;
}

void epochs_poll(struct epochs *epochs, struct backend *backend) {
    for (unsigned i = 0; i < epochs->count; i++) {
        const struct epoch_event *event = event_at(epochs, i);
        if (event->number <= epochs->finished)
            continue;
        int r = backend->ops->query(backend, epochs->slots[i]);
        if (r == 0) {
            epochs_finish(epochs, event->number);
            continue;
        }
        epochs->failed_queries += r == -EBUSY;
        if (r != -EAGAIN && r != -EBUSY)
            epochs->broken = r;
        break;
    }
    drop_finished(epochs);
}

/* Returns the oldest event recorded in a free that covers `stamp`, or NULL. */
static const struct epoch_event *in_free_event(const struct epochs *epochs, uint64_t stamp) {
    for (unsigned i = 0; i < epochs->count; i++) {
        const struct epoch_event *event = event_at(epochs, i);
        if (event->recorder && event->number >= stamp)
            return event;
    }
    return NULL;
}

unsigned epochs_behind(const struct epochs *epochs, uint64_t stamp) {
    unsigned behind = 0;
    const struct epoch_event *first = in_free_event(epochs, stamp);
    for (unsigned i = 0; first && i < epochs->count; i++) {
        const struct epoch_event *event = event_at(epochs, i);
        behind += event->recorder && event->number > first->number;
    }
    return behind;
}

uint64_t epochs_latest_in_free(const struct epochs *epochs) {
    for (unsigned i = epochs->count; i-- > 0;) {
        const struct epoch_event *event = event_at(epochs, i);
        if (event->recorder)
            return event->number;
    }
    return 0;
}

uint64_t epochs_latest_own(const struct epochs *epochs) {
    for (unsigned i = epochs->count; i-- > 0;) {
        const struct epoch_event *event = event_at(epochs, i);
        if (event->recorder == &this_thread)
            return event->number;
    }
    return 0;
}

bool epochs_is_own(const struct epochs *epochs, unsigned slot) {
    return epochs->events[slot].recorder == &this_thread;
}

uint64_t epochs_latest(const struct epochs *epochs) {
    const struct epoch_event *event = newest(epochs);
    return event ? event->number : 0;
}

bool epochs_barrier_allowed(const struct epochs *epochs) {
    const struct epoch_event *event = newest(epochs);
    return event && event->recorder && !epochs->application_recorded;
}

int epochs_barrier(struct epochs *epochs, struct backend *backend) {
    if (!epochs_barrier_allowed(epochs))
        return -ENOENT;
    unsigned slot = epochs->slots[epochs->count - 1];
    int r = backend->ops->barrier(backend, slot);
    if (r == 0) {
        epochs->barriers++;
        raise_safe(epochs, epochs->events[slot].number);
    }
    return r;
}

/* Pins an event, as epochs_pin(). -ENOENT for NULL. */
static int pin(struct epochs *epochs, const struct epoch_event *event, unsigned *slot,
               uint64_t *number) {
    if (!event)
        return -ENOENT;
    *slot = (unsigned)(event - epochs->events);
    *number = event->number;
    epochs->events[*slot].waiters++;
    return 0;
}

int epochs_pin(struct epochs *epochs, uint64_t stamp, unsigned *slot, uint64_t *number) {
    return pin(epochs, in_free_event(epochs, stamp), slot, number);
}

int epochs_pin_latest(struct epochs *epochs, unsigned *slot, uint64_t *number) {
    return pin(epochs, newest(epochs), slot, number);
}

void epochs_unpin(struct epochs *epochs, unsigned slot, uint64_t number, int result) {
    epochs->events[slot].waiters--;
    if (result == 0)
        epochs_finish(epochs, number);
    else if (result > 0 && number > epochs->finished)
        epochs->broken = result;
    drop_finished(epochs);
}

void epochs_forget(struct epochs *epochs) {
    epochs_finish(epochs, atomic_fetch_add(&epochs->open, 1));
    drop_finished(epochs);
    epochs->application_recorded = false;
    epochs->broken = 0;
}
