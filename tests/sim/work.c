/*
 * One piece of work, and how it runs.
 *
 * Copies, fills and kernels run in pieces of random length, so work of other streams runs between
 * them as on a device. The device memory of a copy or a fill is checked when a piece runs, not when
 * it is submitted. If the memory was freed, the context ends with CUDA_ERROR_ILLEGAL_ADDRESS, as
 * natively.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* Returns the length of the next piece: mostly all the rest, sometimes a part of it. */
static uint64_t piece(uint64_t rest) {
    uint64_t draw = sim_random();

    return rest > 1 && draw % 4 == 0 ? 1 + (draw >> 8) % (rest - 1) : rest;
}

static size_t span(size_t pitch, size_t slice, size_t width, size_t height, size_t depth) {
    return width + (height - 1) * pitch + (depth - 1) * slice;
}

/*
 * Between devices the driver copies without peer access too, but mapped memory only by
 * cuMemcpyPeer. It never copies freed memory.
 */
static bool side_allowed(const struct copy *copy, const struct side *side,
                         struct context *context) {
    size_t bytes = span(side->pitch, side->slice, copy->width, copy->height, copy->depth);

    if (!side->checked || range_accessible(context, side->address, bytes))
        return true;
    const struct range *range = range_find(side->address);
    while (copy->peer && range && range->kind == RANGE_MAPPED &&
           side->address + bytes > range->base + range->size)
        range = range_find(range->base + range->size); /* mapped neighbours count as one piece */
    return range && range->device != context->device->ordinal &&
           (copy->peer || range->kind != RANGE_MAPPED) &&
           side->address + bytes <= range->base + range->size;
}

static enum verdict run_copy(struct work *work, struct context *context) {
    const struct copy *copy = &work->copy;
    uint64_t total = (uint64_t)copy->width * copy->height * copy->depth;

    if (total == 0)
        return DONE;
    if (!side_allowed(copy, &copy->to, context) || !side_allowed(copy, &copy->from, context))
        return FAULT;
    for (uint64_t rest = piece(total - work->progress); rest;) {
        uint64_t row = work->progress / copy->width, x = work->progress % copy->width;
        uint64_t y = row % copy->height, z = row / copy->height;
        size_t count = copy->width - x < rest ? copy->width - x : rest;
        memmove((void *)(copy->to.address + z * copy->to.slice + y * copy->to.pitch + x),
                (void *)(copy->from.address + z * copy->from.slice + y * copy->from.pitch + x),
                count);
        work->progress += count;
        rest -= count;
    }
    return work->progress == total ? DONE : MORE;
}

static void fill(unsigned char *to, size_t count, uint32_t value, unsigned element) {
    if (count >= element)
        memcpy(to, &value, element);
    for (size_t done = element, next; done < count;
         done += next) { /* doubles the length each time */
        next = done < count - done ? done : count - done;
        memcpy(to + done, to, next);
    }
}

static enum verdict run_set(struct work *work, struct context *context) {
    const struct set *set = &work->set;
    uint64_t elements = set->width / set->element, total = elements * set->height;

    if (total == 0)
        return DONE;
    if (!range_accessible(context, set->address, span(set->pitch, 0, set->width, set->height, 1)))
        return FAULT;
    for (uint64_t rest = piece(total - work->progress); rest;) {
        uint64_t y = work->progress / elements, x = work->progress % elements;
        uint64_t count = elements - x < rest ? elements - x : rest;
        fill((unsigned char *)(set->address + y * set->pitch + x * set->element),
             count * set->element, set->value, set->element);
        work->progress += count;
        rest -= count;
    }
    return work->progress == total ? DONE : MORE;
}

/* Runs a host function on a thread of its own, as the driver does. */
static void *run_call(void *argument) {
    const struct host_call *call = argument;

    pthread_mutex_lock(&sim.lock);
    thread_self()->in_callback = true;
    pthread_mutex_unlock(&sim.lock);
    if (call->callback)
        call->callback(call->stream, CUDA_SUCCESS, call->data);
    else
        call->function(call->data);
    return NULL;
}

/* Releases the driver's lock during a host function, which may take locks that callers of the
 * driver hold. */
static enum verdict run_host(struct host_call *call) {
    pthread_t thread;

    pthread_mutex_unlock(&sim.lock);
    if (pthread_create(&thread, NULL, run_call, call) != 0)
        abort();
    pthread_join(thread, NULL);
    pthread_mutex_lock(&sim.lock);
    return DONE;
}

static bool value_reached(const struct value_call *call, uint64_t now) {
    switch (call->flags & 3u) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return call->size == 4 ? (int32_t)(now - call->value) >= 0
                               : (int64_t)(now - call->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == call->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & call->value) != 0;
    default:
        return call->size == 4 ? (uint32_t) ~(now | call->value) != 0 : ~(now | call->value) != 0;
    }
}

static enum verdict run_value(const struct work *work, struct context *context) {
    const struct value_call *call = &work->value;

    if (!range_accessible(context, call->address, call->size))
        return FAULT;
    if (work->kind == WORK_WRITE_VALUE) {
        if (call->size == 4)
            __atomic_store_n((uint32_t *)call->address, (uint32_t)call->value, __ATOMIC_SEQ_CST);
        else
            __atomic_store_n((uint64_t *)call->address, call->value, __ATOMIC_SEQ_CST);
        return DONE;
    }
    uint64_t now = call->size == 4 ? __atomic_load_n((uint32_t *)call->address, __ATOMIC_SEQ_CST)
                                   : __atomic_load_n((uint64_t *)call->address, __ATOMIC_SEQ_CST);
    return value_reached(call, now) ? DONE : SPIN;
}

static enum verdict run_free(uintptr_t address) {
    struct range *range = range_find(address);

    if (range && range->base == address && range->freeing) {
        if (range->kind == RANGE_DEVICE)
            memory_wait_for_return(range);
        else
            memory_release(range);
    }
    return DONE;
}

enum verdict work_run(struct work *work, struct context *context) {
    switch (work->kind) {
    case WORK_KERNEL:
        return kernel_run(&work->kernel, context, &work->progress);
    case WORK_COPY:
        return run_copy(work, context);
    case WORK_SET:
        return run_set(work, context);
    case WORK_HOST:
        return run_host(&work->host);
    case WORK_WAIT_VALUE:
    case WORK_WRITE_VALUE:
        return run_value(work, context);
    case WORK_FREE:
        return run_free(work->free_address);
    case WORK_GRAPH:
        return graph_run_step(work->run, context);
    default:
        return DONE;
    }
}

void work_dispose(struct work *work) {
    if (work->kind == WORK_KERNEL)
        free(work->kernel.arguments);
    else if (work->kind == WORK_COPY)
        free(work->copy.staging);
    else if (work->kind == WORK_GRAPH)
        graph_run_free(work->run);
    work->kind = WORK_NOTHING;
}

static void *duplicate(const void *bytes, size_t size) {
    void *copy = bytes && size ? malloc(size) : NULL;

    return copy ? memcpy(copy, bytes, size) : NULL;
}

struct work work_clone(const struct work *work) {
    struct work clone = *work;

    if (work->kind == WORK_KERNEL)
        clone.kernel.arguments = duplicate(work->kernel.arguments, work->kernel.function->bytes);
    return clone;
}

/* The contexts, other than the stream's own, whose memory a copy reads or writes. */
void copy_touches(const struct copy *copy, struct context *own, struct context *others[2]) {
    const struct side *sides[2] = {&copy->to, &copy->from};

    for (int i = 0; i < 2; i++) {
        const struct range *range = sides[i]->checked ? range_find(sides[i]->address) : NULL;
        struct context *context = range ? range->context : NULL;
        bool counts = context && context != own && (i == 0 || context != others[0]);
        others[i] = counts ? context : NULL;
    }
}
