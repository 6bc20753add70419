/*
 * The scheduler: which queued work may run, and when it does.
 *
 * Every stream has a queue, first in, first out. Every piece of work has a number: the order of
 * submission. All ordering rules compare these numbers:
 *
 * | head of a queue                | may not run while                                            |
 * | ------------------------------ | ------------------------------------------------------------ |
 * | any                            | it waits for an event that has not completed                 |
 * | any                            | an older context barrier is not passed                       |
 * | legacy stream                  | an older piece waits in a blocking stream                    |
 * | blocking stream                | an older piece waits in the legacy stream                    |
 * | queue of a context's events    | older work of the context, in any stream, is not finished    |
 *
 * Frees, context events and synchronisation ask whether all work of a context up to number n is
 * finished. Each context has a list of its unfinished work in order of submission, so the oldest
 * entry answers. A peer copy stands in the lists of all contexts that it touches.
 *
 * A seeded generator chooses among the heads that may run. Work runs inside calls: a little on
 * entry to any call, and as much as necessary inside a call that waits. Kernels that spin are
 * called again and again. If all work that may run spins, a waiting thread releases the lock and
 * waits until other threads submit work, or until HANG_MS is over.
 *
 * A program may also wait for the device without calling the driver: on a flag that a kernel or a
 * host function sets. For that case a thread runs the queues when no call came for IDLE_MS.
 */
#include "driver.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CERTAIN_HANG_MS 300
#define POLL_NS 200000

static struct slab item_slab = SLAB(struct item);
static struct slab marker_slab = SLAB(struct marker);
static struct stream **busy; /* streams with queued work */
static int busy_count, busy_room;
static uint64_t sequence;
static unsigned blocked; /* waiting threads that found nothing to run */
static bool idle_thread;

/* ---- markers --------------------------------------------------------------------------------- */

struct marker *marker_new(void) {
    struct marker *marker = slab_get(&marker_slab);

    marker->refs = 1;
    return marker;
}

struct marker *marker_ref(struct marker *marker) {
    if (marker)
        marker->refs++;
    return marker;
}

void marker_unref(struct marker *marker) {
    if (marker && --marker->refs == 0)
        slab_put(&marker_slab, marker);
}

/* ---- queues ---------------------------------------------------------------------------------- */

/* xorshift64*: the whole schedule comes from this one state. */
uint64_t sim_random(void) {
    if (sim.random == 0)
        sim.random = 0x9E3779B97F4A7C15u;
    sim.random ^= sim.random >> 12;
    sim.random ^= sim.random << 25;
    sim.random ^= sim.random >> 27;
    return (sim.random * 0x2545F4914F6CDD1Du) >> 16;
}

static void set_busy(struct stream *stream) {
    if (busy_count == busy_room) {
        busy_room = busy_room ? 2 * busy_room : 64;
        busy = realloc(busy, (size_t)busy_room * sizeof(struct stream *));
        if (!busy)
            abort();
    }
    stream->slot = busy_count;
    busy[busy_count++] = stream;
}

static void set_idle(struct stream *stream) {
    busy[stream->slot] = busy[--busy_count];
    busy[stream->slot]->slot = stream->slot;
    stream->slot = -1;
}

static void link_add(struct link *link, struct item *item, struct context *context) {
    link->item = item;
    link->context = context;
    link->next = NULL;
    link->previous = context->newest;
    if (context->newest)
        context->newest->next = link;
    else
        context->oldest = link;
    context->newest = link;
}

static void link_remove(struct link *link) {
    struct context *context = link->context;

    if (!context)
        return;
    if (link->next)
        link->next->previous = link->previous;
    else
        context->newest = link->previous;
    if (link->previous)
        link->previous->next = link->next;
    else
        context->oldest = link->next;
    link->context = NULL;
}

static void *idle_run(void *unused);

/* Signals of the program go to its own threads, as with a real driver. */
static void start_idle_thread(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;

    if (idle_thread || sim.options.idle_ms == 0)
        return;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    idle_thread = pthread_create(&thread, &attributes, idle_run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

struct item *queue_push(struct stream *stream, struct work work) {
    struct item *item = slab_get(&item_slab);
    struct context *context = stream->context;

    item->stream = stream;
    item->sequence = ++sequence;
    item->barrier = context->barriers_issued;
    item->held = context->barriers != NULL;
    item->work = work;
    link_add(&item->links[0], item, context);
    if (context->behind)
        queue_touch(item, context->behind);
    if (stream->tail)
        stream->tail->next = item;
    else
        stream->head = item;
    stream->tail = item;
    if (stream->slot < 0)
        set_busy(stream);
    sim.pending++;
    sim.progress++;
    start_idle_thread();
    return item;
}

void queue_touch(struct item *item, struct context *other) {
    struct link *link = &item->links[1];

    while (link->context && link->context != other)
        link++;
    if (!link->context)
        link_add(link, item, other);
}

static void item_finish(struct item *item) {
    struct stream *stream = item->stream;

    stream->head = item->next;
    if (!stream->head) {
        stream->tail = NULL;
        set_idle(stream);
    }
    for (int i = 0; i < LINKS; i++)
        link_remove(&item->links[i]);
    if (item->signals) {
        item->signals->done = true;
        item->signals->when = sim.clock;
        marker_unref(item->signals);
    }
    marker_unref(item->waits);
    work_dispose(&item->work);
    slab_put(&item_slab, item);
    sim.pending--;
    sim.progress++;
    if (stream->doomed && !stream->head)
        stream_free(stream);
}

void queue_drop(struct stream *stream) {
    while (stream->head) {
        /* Carries out a queued free: its memory counts as free already. */
        if (stream->head->work.kind == WORK_FREE)
            work_run(&stream->head->work, stream->context);
        item_finish(stream->head);
    }
}

uint64_t queue_sequence(void) {
    return sequence;
}

static bool older_in_blocking_stream(const struct context *context, uint64_t than) {
    for (const struct stream *stream = context->streams; stream; stream = stream->next)
        if (stream->blocking && stream != context->legacy && stream->head &&
            stream->head->sequence < than)
            return true;
    return false;
}

/*
 * Returns whether an item is an event's record that nothing in its own stream holds up: it stands
 * behind a barrier of its context, or in a blocking stream behind work of the null stream. Asking
 * the stream passes such a record over (measured: tests/gpu/facts_held.cu, sections idle and
 * legacy).
 */
static bool held_back_record(const struct item *item) {
    const struct stream *stream = item->stream;
    const struct context *context = stream->context;
    const struct item *legacy = context->legacy->head;
    return item->work.kind == WORK_NOTHING && !item->waits &&
           (item->barrier > context->barriers_passed ||
            (stream->blocking && stream != context->legacy && legacy &&
             legacy->sequence < item->sequence));
}

/* The legacy stream stands for all blocking streams of its context. */
bool stream_is_idle(const struct stream *stream, uint64_t up_to) {
    for (const struct item *item = stream->head; item && item->sequence <= up_to; item = item->next)
        if (!held_back_record(item))
            return false;
    return stream != stream->context->legacy ||
           !older_in_blocking_stream(stream->context, up_to + 1);
}

bool context_is_idle(const struct context *context, uint64_t up_to) {
    return !context->oldest || context->oldest->item->sequence > up_to;
}

/* ---- running --------------------------------------------------------------------------------- */

static void pass_barriers(struct context *context) {
    struct barrier *first;

    while ((first = context->barriers) && first->marker->done) {
        context->barriers = first->next;
        if (!first->next)
            context->last_barrier = NULL;
        marker_unref(first->marker);
        free(first);
        context->barriers_passed++;
    }
}

static bool may_run(const struct stream *stream) {
    const struct item *item = stream->head;
    struct context *context = stream->context;

    if (item->running)
        return false;
    if (sim.fault != CUDA_SUCCESS)
        return true;
    if (item->waits && !item->waits->done)
        return false;
    if (context->barriers)
        pass_barriers(context);
    if (item->barrier > context->barriers_passed)
        return false;
    if (stream == context->marks)
        return context->oldest == &item->links[0];
    if (stream == context->legacy)
        return !older_in_blocking_stream(context, item->sequence);
    const struct item *legacy = context->legacy->head;
    return !stream->blocking || !legacy || legacy->sequence > item->sequence;
}

/*
 * A record at the head of its stream that stood behind a barrier when it was made, and stands
 * behind nothing now.
 */
static bool is_released_record(const struct stream *stream) {
    const struct item *head = stream->head;
    return head && head->held && head->work.kind == WORK_NOTHING && !head->waits && may_run(stream);
}

void queue_complete_records(struct context *context) {
    for (struct stream *stream = context->streams, *next; stream; stream = next) {
        next = stream->next;
        while (is_released_record(stream)) {
            bool last = !stream->head->next; /* a destroyed stream ends with its last item */
            item_finish(stream->head);
            if (last)
                break;
        }
    }
}

/* Runs an item. After a fault only frees still run. */
static enum verdict run(struct item *item, struct context *context) {
    if (sim.fault != CUDA_SUCCESS && item->work.kind != WORK_FREE)
        return DONE;
    item->running = true;
    enum verdict verdict = work_run(&item->work, context);
    item->running = false;
    return verdict;
}

/* Runs one step of the stream's head. Returns whether it made progress. */
static bool step(struct stream *stream) {
    if (!may_run(stream))
        return false;
    struct item *item = stream->head;
    enum verdict verdict = run(item, stream->context);
    if (verdict == SPIN)
        return false;
    sim.clock++;
    sim.progress++;
    if (verdict == FAULT && sim.fault == CUDA_SUCCESS)
        sim.fault = CUDA_ERROR_ILLEGAL_ADDRESS;
    if (verdict != MORE)
        item_finish(item);
    if (sim.waiters)
        pthread_cond_broadcast(&sim.changed);
    return true;
}

/*
 * Chooses a stream and takes the first from there on that has something to do. A stream with a lag
 * is passed over in the first round more often than not: some work must come very late, or the
 * schedules are all alike.
 */
bool queue_step(void) {
    if (busy_count == 0)
        return false;
    uint64_t draw = sim_random();
    int start = (int)(draw % (unsigned)busy_count);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < busy_count; i++) {
            struct stream *stream = busy[(start + i) % busy_count];
            if (round == 0 && (draw >> (20 + i % 24)) % 4 < stream->lag)
                continue;
            if (step(stream))
                return true;
        }
    }
    return false;
}

void queue_stroll(void) {
    if (sim.options.eager == 0)
        return;
    uint64_t draw = sim_random();
    if (draw % 100 >= sim.options.eager)
        return;
    for (uint64_t steps = 1 + (draw >> 32) % 3; steps && queue_step(); steps--)
        ;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static uint64_t now_ms(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static unsigned process_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    unsigned count = 0;

    if (!tasks)
        return ~0u;
    for (struct dirent *task; (task = readdir(tasks));)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* Returns whether nothing can change any more: all threads wait in pause_for(), no memory is shared
 * with another process, and no kernel sleeps. */
static bool hang_is_certain(void) {
    return !sim.shared && now_ms() * 1000 > sim.sleeps_until_us &&
           process_threads() == blocked + (idle_thread ? 1 : 0);
}

static void hang(const char *call) {
    fprintf(stderr, "sim: hang in %s\n", call);
    fflush(NULL);
    _exit(SIM_HANG_STATUS);
}

struct time_limit {
    uint64_t progress, since;
    bool certain; /* hang_is_certain() at the previous pause */
    const char *call;
};

/*
 * Releases the lock for a moment, or until something changed.
 *
 * One look does not make a hang certain: between the caller's last check and this one a thread may
 * have set a flag that a kernel spins on, and ended. The caller checks again between two pauses.
 */
static void pause_for(struct time_limit *limit) {
    struct timespec until;

    if (limit->progress != sim.progress || limit->since == 0) {
        limit->progress = sim.progress;
        limit->since = now_ms();
        limit->certain = false;
    }
    uint64_t waited = now_ms() - limit->since;
    blocked++;
    bool certain = waited >= CERTAIN_HANG_MS && hang_is_certain();
    if (waited >= sim.options.hang_ms || (certain && limit->certain))
        hang(limit->call);
    limit->certain = certain;
    sim.waiters++;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += POLL_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_clockwait(&sim.changed, &sim.lock, CLOCK_MONOTONIC, &until);
    sim.waiters--;
    blocked--;
}

/* Uses `stream_id`, because another thread may destroy the stream with its context. */
static bool over(const struct waiting *waiting, unsigned long long stream_id) {
    const struct stream *stream = waiting->stream;

    if (waiting->marker)
        return waiting->marker->done;
    if (stream)
        return !stream->object.live || stream->id != stream_id ||
               stream_is_idle(stream, waiting->up_to);
    return context_is_idle(waiting->context, waiting->up_to);
}

void queue_wait(const struct waiting *waiting) {
    struct time_limit limit = {.call = sim.call};
    struct context *context = waiting->stream ? waiting->stream->context : waiting->context;
    unsigned long long stream_id = waiting->stream ? waiting->stream->id : 0;

    context->pins++;
    while (!over(waiting, stream_id))
        if (!queue_step())
            pause_for(&limit);
    context->pins--;
    context_settle(context);
}

void queue_hold_up(const struct context *context) {
    struct time_limit limit = {.call = sim.call};

    while (context->frees_waiting)
        pause_for(&limit);
}

void queue_await_end(const struct context *context) {
    struct time_limit limit = {.call = sim.call};

    while (context && context->ending)
        pause_for(&limit);
}

/* Runs the queues for a program that waits outside the driver. */
static void *idle_run(void *unused) {
    uint64_t calls = 0;

    (void)unused;
    pthread_mutex_lock(&sim.lock);
    for (;;) {
        unsigned ms = sim.options.idle_ms ? sim.options.idle_ms : 1000;
        pthread_mutex_unlock(&sim.lock);
        nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
        pthread_mutex_lock(&sim.lock);
        if (sim.options.idle_ms == 0)
            continue;
        while (!sim.down && sim.pending && sim.calls == calls && sim.waiters == 0 && queue_step())
            ;
        calls = sim.calls;
    }
    return NULL;
}

void queue_reset(void) {
    while (busy_count)
        queue_drop(busy[0]);
    sequence = 0;
}

/* ---- control --------------------------------------------------------------------------------- */

SIM_EXPORT uint64_t sim_pending_work(void) {
    pthread_mutex_lock(&sim.lock);
    uint64_t pending = sim.pending;
    pthread_mutex_unlock(&sim.lock);
    return pending;
}

SIM_EXPORT unsigned sim_step(unsigned steps) {
    unsigned done = 0;

    pthread_mutex_lock(&sim.lock);
    while (done < steps && queue_step())
        done++;
    pthread_mutex_unlock(&sim.lock);
    return done;
}

SIM_EXPORT void sim_set_seed(uint64_t seed) {
    pthread_mutex_lock(&sim.lock);
    sim.random = seed;
    pthread_mutex_unlock(&sim.lock);
}

SIM_EXPORT void sim_set_eager(unsigned percent) {
    pthread_mutex_lock(&sim.lock);
    sim.options.eager = percent;
    pthread_mutex_unlock(&sim.lock);
}
