/*
 * Explains an OOM: the request, the free memory, its holders, the cause, and a setting that helps.
 *
 * find_cause() decides from the counters alone. Causes, in the order of the tests:
 *
 *   | cause      | test                                                            |
 *   | ---------- | --------------------------------------------------------------- |
 *   | TOO_LARGE  | the device is smaller than the request                          |
 *   | REFUSED    | the driver had the memory and refused                           |
 *   | PENDING    | available plus idle memory is enough, only with pending memory  |
 *   | FRAGMENTED | available plus idle memory is enough, without pending memory    |
 *   | LIMITED    | the limit leaves no more than the driver has free               |
 *   | OTHERS     | other processes hold enough                                     |
 *   | UNPOOLED   | unpooled memory is enough, and exceeds live memory              |
 *   | LIVE       | otherwise: the program's live memory fills the device           |
 *
 * Advice names only settings that the counters show to help.
 */
#include "tuning/tuning.h" /* before lines.h (in emitter.h), which has another COUNT */

#include "heap/page.h"
#include "report/emitter.h"

#include <string.h>

#define VERDICT_LINES 7
#define NAMED_SIZES 5
#define MUCH(total) ((total) / 10) /* fewer bytes of others may be contexts and the driver alone */
#define MIB (UINT64_C(1) << 20)

enum cause { TOO_LARGE, REFUSED, PENDING, FRAGMENTED, LIMITED, UNPOOLED, OTHERS, LIVE };

struct situation {
    const struct report_oom *oom;
    const struct stats_device *device;
    const struct segment_map *map;
    struct report_derived derived;
    bool device_known;    /* total and free bytes of the device are known */
    uint64_t held;        /* bytes of this process, everything counted */
    uint64_t others;      /* bytes of other processes and of contexts, if device_known */
    uint64_t below_limit; /* bytes below the limit, if there is one */
    uint64_t available;   /* the lesser of `below_limit` and the device's free bytes */
    uint64_t growth;      /* bytes by which the pool would have had to grow for the request */
    bool limit_binds;     /* the limit decides `available`, not the device */
};

static void assess(struct situation *now) {
    const struct report_oom *oom = now->oom;
    now->held = now->device->reserved.current + now->derived.unpooled.current;
    now->device_known = oom->device_total != 0;
    now->others = minus_or_zero(minus_or_zero(oom->device_total, oom->device_free), now->held);
    now->below_limit = minus_or_zero(oom->limit, now->held);
    now->limit_binds =
        oom->limit != 0 && (!now->device_known || now->below_limit <= oom->device_free);
    now->available = now->limit_binds ? now->below_limit : now->device_known ? oom->device_free : 0;
    now->growth = oom->requested > UINT64_MAX - PAGE_BYTES
                      ? oom->requested
                      : (oom->requested + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/** Returns the cause of the OOM: the first one whose test is true (see the head of the file). */
static enum cause find_cause(const struct situation *now) {
    const struct stats_device *device = now->device;
    uint64_t requested = now->oom->requested;
    uint64_t within_reach = now->available + now->derived.idle;
    if (now->device_known && requested > now->oom->device_total)
        return TOO_LARGE;
    if (now->device_known && now->available >= now->growth)
        return REFUSED;
    if (within_reach >= requested && now->derived.idle != 0)
        return now->available + device->ready_bytes < requested ? PENDING : FRAGMENTED;
    if (now->limit_binds)
        return LIMITED;
    if (now->device_known && now->others >= MUCH(now->oom->device_total) &&
        within_reach + now->others >= requested && now->others >= now->derived.unpooled.current)
        return OTHERS;
    if (now->derived.unpooled.current > device->allocated.current &&
        within_reach + now->derived.unpooled.current >= requested)
        return UNPOOLED;
    return LIVE;
}

/**
 * Writes the variable that sets the limit, with a value for which the request would have been
 * served; without a known variable, only the value. Returns the length of the text, or 0 if no
 * value of that variable would have helped.
 */
static size_t larger_limit(char words[LINES_COLUMNS + 1], const struct situation *now) {
    const struct report_oom *oom = now->oom;
    uint64_t needed;
    if (!now->limit_binds || !now->device_known || now->growth > oom->device_free ||
        __builtin_add_overflow(now->held, now->growth, &needed) || needed > oom->device_total)
        return 0;
    /* One hundredth more than needed, because rounding could make the exact value too small. */
    uint64_t hundredths = (uint64_t)((unsigned __int128)needed * 100 / oom->device_total) + 1;
    struct print out;
    print_init(&out, -1, words, LINES_COLUMNS + 1);
    const char *source = now->device->limit_source;
    bool share = source && strcmp(source, option_table[OPTION_MEMORY_FRACTION].name) == 0;
    if (share && hundredths <= 100)
        print_format(&out, "%s=%s", source, RATIO((double)hundredths / 100));
    else if (source && !share && strstr(source, "_MEMORY_LIMIT"))
        print_format(&out, "%s=%lluM", source,
                     (unsigned long long)(needed / MIB + (needed % MIB != 0)));
    else if (!share)
        print_format(&out, "a limit of %s", SIZE(needed + MIB));
    return strlen(print_end(&out));
}

/**
 * Returns a lower bound of the bytes that the pages backend could remap: whole handles in the free
 * memory between live blocks.
 */
static uint64_t remappable_bytes(const struct segment_map *map) {
    uint64_t handles = 0;
    for (uint32_t i = 0; i < map->count; i++) {
        uint64_t bytes = segment_map_bytes(map->pieces[i].units);
        if (map->pieces[i].live + map->pieces[i].cached == 0 && bytes >= VMM_HANDLE)
            handles += bytes / VMM_HANDLE - 1; /* both ends may lie in handles with live blocks */
    }
    return handles * VMM_HANDLE;
}

/**
 * Returns whether the idle memory would be enough with the pages backend. Whether the device
 * supports pages is unknown if the user chose segments.
 */
static bool pages_would_help(const struct situation *now, enum cause cause) {
    const char *reason = now->device->backend_reason;
    return cause == FRAGMENTED && reason && strcmp(reason, "GPUCACHE_BACKEND=segments") == 0 &&
           now->available + remappable_bytes(now->map) >= now->growth;
}

static void say_help(struct lines *lines, const struct situation *now, enum cause cause) {
    static const char *const why[] = {
        [TOO_LARGE] = "the device is smaller than the request",
        [REFUSED] = "the driver refused what it has room for",
        [PENDING] = "the work before the frees may not have ended",
        [FRAGMENTED] = "free memory lies between live blocks",
        [LIMITED] = "all of it together is more than there is",
        [UNPOOLED] = "the program itself can release what is outside",
        [OTHERS] = "nvidia-smi names the other processes",
        [LIVE] = "the program's live memory fills the device",
    };
    char limit[LINES_COLUMNS + 1];
    bool none = cause == TOO_LARGE || cause == REFUSED;
    bool larger = !none && larger_limit(limit, now) > 0;
    if (pages_would_help(now, cause)) {
        size_t max = lines->max;
        lines_start(lines, "Most likely to help: GPUCACHE_BACKEND=auto");
        lines->max = lines->count; /* the items must not take a new line */
        if (!larger || !lines_item(lines, "%s", limit))
            lines_item(lines, "which takes pages if it can");
        lines->max = max;
    } else if (larger) {
        lines_start(lines, "Most likely to help: %s or more", limit);
    } else {
        lines_start(lines, "No setting is known to help: %s", why[cause]);
    }
}

static void say_holders(struct lines *lines, const struct situation *now) {
    lines_start(lines, "Held: live %s", SIZE(now->device->allocated.current));
    lines_clause(lines, "idle %s", SIZE(now->derived.idle));
    lines_clause(lines, "outside %s", SIZE(now->derived.unpooled.current));
    if (now->device_known)
        lines_clause(lines, "others about %s", SIZE(now->others));
}

static void say_fragmentation(struct lines *lines, const struct situation *now, enum cause cause) {
    const char *verdict = cause == FRAGMENTED ? "Cause is fragmentation" : "Not fragmentation";
    if (now->derived.idle == 0)
        lines_start(lines, "%s: nothing lies idle", verdict);
    else if (cause == PENDING)
        lines_start(lines, "%s: %s of %s idle may still be in use", verdict,
                    SIZE(now->device->pending_bytes), SIZE(now->derived.idle));
    else if (cause == FRAGMENTED && now->derived.largest_free >= now->oom->requested)
        lines_start(lines, "%s: free blocks that fit serve small requests only", verdict);
    else
        lines_start(lines, "%s: largest free block %s of %s idle", verdict,
                    SIZE(now->derived.largest_free), SIZE(now->derived.idle));
}

/**
 * Lists the live memory. If the program's own memory is the cause, also names the option that shows
 * its call stacks.
 */
static void say_live(struct lines *lines, const struct situation *now, enum cause cause,
                     bool stacks) {
    static const char hint[] = "GPUCACHE_STACKS=16 says whose";
    bool own = cause == LIMITED || cause == LIVE;
    bool hinted = !stacks && own && now->device->allocations.current > 0;
    live_write(lines, now->device, NAMED_SIZES);
    if (hinted && !lines_item(lines, hint)) {
        lines->max++; /* the sentences below the table (text.c) get one line less */
        lines_start(lines, hint);
    }
}

void verdict_write(struct lines *lines, const struct report_oom *oom,
                   const struct stats_device *device, const struct segment_map *map, bool stacks) {
    struct situation now = {.oom = oom, .device = device, .map = map};
    lines_init(lines, VERDICT_LINES, LINES_COLUMNS);
    if (device) {
        report_derive(device, &now.derived);
        assess(&now);
    }
    lines_start(lines, "gpucache: out of memory: device %d has no room for %s", oom->device,
                SIZE(oom->requested));
    bool known = oom->device_total != 0;
    if (oom->limit != 0 && device)
        lines_start(lines, "Limit %s, left %s", SIZE(oom->limit), SIZE(now.below_limit));
    else if (oom->limit != 0)
        lines_start(lines, "Limit %s", SIZE(oom->limit));
    if (known && oom->limit != 0)
        lines_clause(lines, "device %s, free %s", SIZE(oom->device_total), SIZE(oom->device_free));
    else if (known)
        lines_start(lines, "Device %s, free %s", SIZE(oom->device_total), SIZE(oom->device_free));
    if (!device)
        return;
    enum cause cause = find_cause(&now);
    say_holders(lines, &now);
    say_fragmentation(lines, &now, cause);
    say_help(lines, &now, cause);
    say_live(lines, &now, cause, stacks);
}
