/*
 * An OOM in words: what was asked, what there was, who holds it, why it did not fit, what would
 * help.
 *
 * The cause is worked out from the books alone, in the order of a doctor's questions: could it ever
 * fit? would it have fitted in what lay idle? is it the limit? is it somebody else? What is left is
 * the program's own live memory, and then no setting helps, which is said as plainly. Room is what
 * could still be taken from the driver: what the limit leaves, or what the device has, whichever is
 * less.
 */
#include "report/emitter.h"

#include <string.h>

#define VERDICT_LINES 8
#define NAMED_SIZES 5
#define MUCH(total) ((total) / 10) /* held by others: more than contexts and the driver take */

enum cause { TOO_LARGE, REFUSED, PENDING, FRAGMENTED, LIMITED, OUTSIDE_POOL, OTHERS, LIVE };

struct situation {
    const struct report_oom *oom;
    const struct stats_device *device;
    struct report_derived derived;
    bool device_known; /* what the device has and has free */
    uint64_t others;   /* held by other processes and by contexts, if device_known */
    uint64_t left;     /* of the limit, if there is one */
    uint64_t room;
    bool limit_binds; /* the limit, not the device, decides the room */
};

static void assess(struct situation *now) {
    const struct report_oom *oom = now->oom;
    uint64_t taken = now->device->reserved.current + now->derived.outside.current;
    now->device_known = oom->device_total != 0;
    now->others = less(less(oom->device_total, oom->device_free), taken);
    now->left = less(oom->limit, taken);
    now->limit_binds = oom->limit != 0 && (!now->device_known || now->left <= oom->device_free);
    now->room = now->limit_binds ? now->left : now->device_known ? oom->device_free : 0;
}

static enum cause find_cause(const struct situation *now) {
    const struct stats_device *device = now->device;
    uint64_t requested = now->oom->requested;
    uint64_t within_reach = now->room + now->derived.idle;
    if (now->device_known && requested > now->oom->device_total)
        return TOO_LARGE;
    if (now->device_known && now->room >= requested)
        return REFUSED;
    if (within_reach >= requested && now->derived.idle != 0)
        return now->room + device->ready_bytes < requested ? PENDING : FRAGMENTED;
    if (now->limit_binds)
        return LIMITED;
    if (now->device_known && now->others >= MUCH(now->oom->device_total) &&
        within_reach + now->others >= requested && now->others >= now->derived.outside.current)
        return OTHERS;
    if (now->derived.outside.current > device->allocated.current &&
        within_reach + now->derived.outside.current >= requested)
        return OUTSIDE_POOL;
    return LIVE;
}

/** Names the option that sets the limit, with a value under which the request would have fitted. */
static void say_limit_help(struct lines *lines, const struct situation *now) {
    const struct report_oom *oom = now->oom;
    uint64_t needed = now->device->allocated.current + now->derived.outside.current;
    if (__builtin_add_overflow(needed, oom->requested, &needed) ||
        (now->device_known && needed > less(oom->device_total, now->others))) {
        lines_start(lines, "No setting helps: all of it together is more than there is");
        return;
    }
    const uint64_t mib = 1 << 20;
    uint64_t hundredths =
        oom->device_total == 0
            ? 0
            : (uint64_t)(((unsigned __int128)needed * 100 + oom->device_total - 1) /
                         oom->device_total);
    switch (options_limit_source(oom->device, oom->device_total)) {
    case OPTION_MEMORY_LIMIT:
        lines_start(lines, "Most likely to help: GPUCACHE_MEMORY_LIMIT=%lluM or more",
                    (unsigned long long)(needed / mib + (needed % mib != 0)));
        break;
    case OPTION_MEMORY_FRACTION:
        lines_start(lines, "Most likely to help: GPUCACHE_MEMORY_FRACTION=%s or more",
                    RATIO((double)hundredths / 100));
        break;
    default:
        lines_start(lines, "Most likely to help: a limit of %s or more", SIZE(needed));
        break;
    }
}

static void say_fragmentation_help(struct lines *lines, const struct situation *now) {
    const char *backend = now->device->backend;
    bool pages_work = *option_table[OPTION_BACKEND].planned == '\0';
    if (pages_work && backend && strcmp(backend, "pages") != 0)
        lines_start(lines, "Most likely to help: GPUCACHE_BACKEND=pages");
    else if (options()->budget_bytes != 0)
        lines_start(lines, "Most likely to help: GPUCACHE_BUDGET=0 (reuse before growing)");
    else
        lines_start(lines, "No setting helps: fewer different sizes would");
}

static void say_help(struct lines *lines, const struct situation *now, enum cause cause) {
    switch (cause) {
    case TOO_LARGE:
        lines_start(lines, "No setting helps: the device is smaller than the request");
        break;
    case REFUSED:
        lines_start(lines, "No setting helps: the driver refused what it has room for");
        break;
    case PENDING:
        lines_start(lines, "Freed memory was still in use by unfinished work");
        lines_start(lines, "Most likely to help: GPUCACHE_REUSE=sync (wait in every free)");
        break;
    case FRAGMENTED:
        say_fragmentation_help(lines, now);
        break;
    case LIMITED:
        say_limit_help(lines, now);
        break;
    case OTHERS:
        lines_start(lines, "Most likely to help: another device in CUDA_VISIBLE_DEVICES");
        break;
    case OUTSIDE_POOL:
        lines_start(lines, "No setting helps: the program itself can release what is outside");
        break;
    case LIVE:
        lines_start(lines, "No setting helps: the program's live memory fills the device");
        break;
    }
}

static void say_holders(struct lines *lines, const struct situation *now) {
    lines_start(lines, "Held: live %s", SIZE(now->device->allocated.current));
    lines_clause(lines, "idle %s", SIZE(now->derived.idle));
    lines_clause(lines, "outside the pool %s", SIZE(now->derived.outside.current));
    if (now->device_known)
        lines_start(lines, "Held by others: about %s (other processes, CUDA contexts)",
                    SIZE(now->others));
}

static void say_fragmentation(struct lines *lines, const struct situation *now, enum cause cause) {
    const char *verdict = cause == FRAGMENTED ? "Cause is fragmentation" : "Not fragmentation";
    if (now->derived.idle == 0)
        lines_start(lines, "%s: nothing lies idle", verdict);
    else
        lines_start(lines, "%s: largest free block %s of %s idle", verdict,
                    SIZE(now->derived.largest_free), SIZE(now->derived.idle));
}

static void say_live_sizes(struct lines *lines, const struct stats_device *device) {
    for (size_t i = 0; i < device->live_groups && i < STATS_LIVE_SIZES && i < NAMED_SIZES; i++) {
        const char *count = COUNT(device->live[i].count);
        const char *size = SIZE(device->live[i].bytes);
        if (i == 0)
            lines_start(lines, "Largest live: %s x %s", count, size);
        else
            lines_clause(lines, "%s x %s", count, size);
    }
}

void verdict_write(struct lines *lines, const struct report_oom *oom,
                   const struct stats_device *device) {
    struct situation now = {.oom = oom, .device = device};
    lines_init(lines, VERDICT_LINES, LINES_COLUMNS);
    if (device) {
        report_derive(device, &now.derived);
        assess(&now);
    }
    lines_start(lines, "gpucache: out of memory: device %d has no room for %s", oom->device,
                SIZE(oom->requested));
    if (oom->limit != 0)
        lines_clause(lines, device ? "limit %s with %s left" : "limit %s", SIZE(oom->limit),
                     SIZE(now.left));
    if (oom->device_total != 0)
        lines_clause(lines, "device %s with %s free", SIZE(oom->device_total),
                     SIZE(oom->device_free));
    if (!device)
        return;
    enum cause cause = find_cause(&now);
    say_holders(lines, &now);
    say_fragmentation(lines, &now, cause);
    say_help(lines, &now, cause);
    say_live_sizes(lines, device);
}
