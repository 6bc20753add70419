/*
 * Writes records to the thread's chunk, and the header of the trace (trace.h).
 *
 * `place` and `self` belong to one thread. The header's fields that change are atomic, except the
 * texts of `devices`. Invariant: objects.c
 *
 *  - gets an entry before the record of the begin is written: a scan of the ring never marks the
 *    record of a live object as dead
 *  - loses the entry before the record of the end is written: a scan after that record marks the
 *    record of the begin as dead
 */
#include "trace/trace.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/print.h"
#include "base/program.h"
#include "heap/page.h"
#include "live/place.h"
#include "options/options.h"
#include "report/file.h"
#include "trace/callers.h"
#include "trace/objects.h"
#include "trace/ring.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

atomic_bool trace_recording;

static struct trace_header *header;
static pid_t owner;           /* the process that opened the trace */
static atomic_bool cut_short; /* another process truncated the file */
/* Nanoseconds per tick, times 2^32. A copy of header->tick_ns, which other processes can change. */
static _Atomic uint64_t tick_ns;
static uint64_t first_ticks, first_ns;
static char path[OPTIONS_PATH];
static bool (*block_lives)(uint64_t address, uint64_t ticks);
/* Bytes of a device in all pools and in native blocks, which no pool serves (objects.h). */
static _Atomic uint64_t reserved[STATS_MAX_DEVICES];
static pthread_key_t thread_end_key;
static bool thread_end_works;

static _Thread_local struct ring_place place __attribute__((tls_model("initial-exec")));
static _Thread_local uint32_t self __attribute__((tls_model("initial-exec")));

/* ---- the clock ---- */

/* start_clock() spins for this time, which makes the first rate exact to a thousandth. */
#define FIRST_RATE_NS 200000

bool trace_has_ticks;

static void find_ticks(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d = 0;
    /* Invariant TSC: the counter has one rate in all states of the processor. */
    trace_has_ticks = __get_cpuid(0x80000007, &a, &b, &c, &d) && (d >> 8 & 1);
#endif
}

static void update_rate(void) {
    uint64_t ticks = trace_clock() - first_ticks;
    uint64_t ns = clock_ns(CLOCK_MONOTONIC) - first_ns;
    uint64_t rate = ticks > 0 ? (uint64_t)(((unsigned __int128)ns << 32) / ticks) : 0;
    if (rate > 0 && ns >= FIRST_RATE_NS) {
        atomic_store(&tick_ns, rate);
        atomic_store(&header->tick_ns, rate);
    }
}

static void start_clock(void) {
    find_ticks();
    header->first_ticks = first_ticks = trace_clock();
    header->first_ns = first_ns = clock_ns(CLOCK_MONOTONIC);
    uint64_t begun = clock_kernel_ns();
    while (atomic_load(&tick_ns) == 0 && clock_kernel_ns() - begun < 10 * FIRST_RATE_NS)
        update_rate();
    if (atomic_load(&tick_ns) == 0) { /* libfaketime has stopped libc's clock: counts ticks as ns */
        atomic_store(&tick_ns, (uint64_t)1 << 32);
        atomic_store(&header->tick_ns, (uint64_t)1 << 32);
    }
}

/* ---- writing ---- */

static void thread_end(void *unused) {
    (void)unused;
    if (trace_on())
        ring_leave(&place);
}

/** Takes a new chunk for the thread. Returns false if there is none. Takes the ring's lock. Keeps
 * errno. */
static __attribute__((noinline, cold)) bool take_chunk(void) {
    int saved_errno = errno;
    if (self == 0)
        self = (uint32_t)syscall(SYS_gettid);
    update_rate();
    bool taken = ring_take(&place, self);
    if (taken && thread_end_works)
        pthread_setspecific(thread_end_key, &place);
    errno = saved_errno;
    return taken;
}

/** Returns whether the thread has `count` adjacent slots. Takes a new chunk if needed: a TEXT
 * record continues the slot before it. */
static inline bool has_slots(unsigned count) {
    return __builtin_expect(place.left >= count, 1) || (take_chunk() && place.left >= count);
}

static inline void put(const uint64_t words[7], unsigned device, unsigned flags, unsigned kind) {
    trace_put(place.next++, words, device, flags, kind);
    place.left--;
}

struct trace_record *trace_slot(uint64_t *who) {
    if (!trace_on() || !has_slots(1))
        return NULL;
    *who = (uint64_t)self << 32;
    place.left--;
    return place.next++;
}

void trace_write(const struct trace_entry *entry) {
    if (!trace_on() || !has_slots(1))
        return;
    const uint64_t words[7] = {entry->ticks,
                               entry->address,
                               entry->bytes,
                               entry->value,
                               entry->detail,
                               entry->space,
                               (uint64_t)self << 32 | entry->stack};
    put(words, entry->device, entry->flags, entry->kind);
}

uint32_t trace_stack(const struct stats_stacks *stacks, uint32_t stack) {
    if (stack == 0 || callers_has(stack))
        return stack;
    int saved_errno = errno;
    if (self == 0)
        self = (uint32_t)syscall(SYS_gettid);
    bool written = trace_on() && callers_write(stacks, stack, self);
    errno = saved_errno;
    return written ? stack : 0;
}

/** Adds to the reserved bytes of a device. Returns the new sum. */
static uint64_t add_reserved(unsigned device, uint64_t change) {
    return device < STATS_MAX_DEVICES ? atomic_fetch_add(&reserved[device], change) + change : 0;
}

static uint64_t ticks_of(uint64_t ns) {
    return (uint64_t)(((unsigned __int128)ns << 32) / atomic_load(&tick_ns));
}

/** Adds an entry to the table of objects.h, or removes it. Takes the ring's lock. */
static void update_live_table(bool there, enum object_kind kind, uint64_t address, uint64_t space,
                              uint64_t ticks) {
    ring_hold();
    if (there)
        objects_add(kind, address, space, ticks);
    else
        objects_remove(kind, address, ticks);
    ring_release();
}

void trace_moment(enum flight_kind kind, unsigned device, uint64_t space, uint64_t address,
                  uint64_t bytes, uint64_t since) {
    if (!trace_on())
        return;
    uint64_t now = trace_clock(), took = since ? clock_ns(CLOCK_MONOTONIC) - since : 0;
    /* GIVE_BACK has the time of its begin: the address may be in use again before its end. */
    bool grows = kind == FLIGHT_GROW, begins = kind == FLIGHT_GIVE_BACK;
    struct trace_entry entry = {.ticks = begins ? now - ticks_of(took) : now,
                                .address = address,
                                .bytes = bytes,
                                .value = took,
                                .space = space,
                                .kind = TRACE_MOMENTS + kind,
                                .flags = begins ? TRACE_BEGINS : 0,
                                .device = device};
    if (grows || begins) {
        entry.detail = add_reserved(device, grows ? bytes : -bytes);
        if (address != 0)
            update_live_table(grows, OBJECT_SEGMENT, address, space, entry.ticks);
    }
    trace_write(&entry);
}

void trace_oom(unsigned device, uint64_t bytes, uint64_t free_bytes, uint32_t stack) {
    if (trace_on())
        trace_write(&(struct trace_entry){.ticks = trace_clock(),
                                          .bytes = bytes,
                                          .detail = free_bytes,
                                          .stack = stack,
                                          .kind = TRACE_MOMENT_OOM,
                                          .device = device});
}

void trace_native(unsigned device, uint64_t address, uint64_t bytes, uint64_t freed,
                  uint32_t stack) {
    if (!trace_on())
        return;
    bool comes = freed == 0;
    uint64_t ticks = comes ? trace_clock() : freed;
    /* The block begins one tick after its segment and ends one tick before it: readers sort by
     * ticks. */
    struct trace_entry segment = {.ticks = comes ? ticks : ticks + 1,
                                  .address = address,
                                  .bytes = bytes,
                                  .detail = add_reserved(device, comes ? bytes : -bytes),
                                  .kind = comes ? TRACE_MOMENT_GROW : TRACE_MOMENT_GIVE_BACK,
                                  .flags = comes ? 0 : TRACE_BEGINS,
                                  .device = device};
    struct trace_entry block = {.ticks = comes ? ticks + 1 : ticks,
                                .address = address,
                                .bytes = bytes,
                                .value = bytes,
                                .stack = stack,
                                .kind = comes ? TRACE_ALLOCATE : TRACE_FREE,
                                .device = device};
    update_live_table(comes, OBJECT_SEGMENT, address, 0, segment.ticks);
    update_live_table(comes, OBJECT_BLOCK, address, 0, block.ticks);
    trace_write(comes ? &segment : &block);
    trace_write(comes ? &block : &segment);
}

void trace_map(unsigned device, uint64_t space, uint64_t address, unsigned count) {
    for (unsigned i = 0; i < count && trace_on(); i++) {
        struct trace_entry entry = {.ticks = trace_clock(),
                                    .address = address + i * PAGE_BYTES,
                                    .bytes = PAGE_BYTES,
                                    .space = space,
                                    .kind = TRACE_MAP,
                                    .device = device};
        update_live_table(true, OBJECT_PAGE, entry.address, space, entry.ticks);
        trace_write(&entry);
    }
}

void trace_unmap(unsigned device, uint64_t space, uint64_t address, unsigned count,
                 uint64_t since) {
    if (!trace_on())
        return;
    for (unsigned i = 0; i < count; i++)
        update_live_table(false, OBJECT_PAGE, address + i * PAGE_BYTES, space, since);
    trace_write(&(struct trace_entry){.ticks = since,
                                      .address = address,
                                      .bytes = count * PAGE_BYTES,
                                      .space = space,
                                      .kind = TRACE_UNMAP,
                                      .device = device});
}

void trace_context_end(unsigned device, uint64_t space, uint64_t bytes, uint64_t since) {
    if (!trace_on())
        return;
    ring_hold();
    objects_end(space);
    ring_release();
    trace_write(&(struct trace_entry){.ticks = since,
                                      .bytes = bytes,
                                      .detail = add_reserved(device, -bytes),
                                      .space = space,
                                      .kind = TRACE_CONTEXT_END,
                                      .device = device});
}

void trace_mark(const char *label) {
    char text[TRACE_LABEL + 1] = "";
    const size_t piece = TRACE_LABEL_WORDS * sizeof(uint64_t);
    strncpy(text, label, TRACE_LABEL);
    unsigned count = 1 + (unsigned)(strlen(text) / piece); /* the last record has a NUL */
    if (!trace_on() || !has_slots(count))
        return;
    uint64_t now = trace_clock();
    for (unsigned i = 0; i < count; i++) {
        uint64_t words[7] = {now, [6] = (uint64_t)self << 32};
        memcpy(words + 1, text + i * piece, piece);
        put(words, TRACE_NO_DEVICE, 0, i == 0 ? TRACE_MARK : TRACE_TEXT);
    }
}

/* ---- the header ---- */

void trace_device(unsigned device, const char *name, const char *uuid, uint64_t total_bytes) {
    if (!trace_on() || device >= STATS_MAX_DEVICES)
        return;
    struct trace_device *to = &header->devices[device];
    strncpy(to->name, name, sizeof to->name - 1);
    strncpy(to->uuid, uuid, sizeof to->uuid - 1);
    to->total_bytes = total_bytes;
}

void trace_backend(unsigned device, const char *backend) {
    if (trace_on() && device < STATS_MAX_DEVICES)
        strncpy(header->devices[device].backend, backend,
                sizeof header->devices[device].backend - 1);
}

void trace_set_driver_version(int version) {
    if (trace_on())
        atomic_store(&header->driver_version, version);
}

static void write_options(void) {
    struct print out;
    print_init(&out, -1, header->options, sizeof header->options);
    for (int id = 0; id < OPTION_COUNT; id++)
        print_format(&out, "%s=%s\n", option_table[id].name, options_text((enum option_id)id));
    print_end(&out);
}

/** Writes the header. The magic is last: a reader that sees it sees all fields written here. */
static void write_header(void) {
    const struct program *of = program();
    start_clock();
    uint64_t now = first_ns;
    header->header_bytes = TRACE_HEADER_BYTES;
    header->record_bytes = TRACE_RECORD_BYTES;
    header->chunk_slots = TRACE_CHUNK_SLOTS;
    strncpy(header->version, GPUCACHE_VERSION, sizeof header->version - 1);
    header->who = place_self();
    header->started_ns = now - program_uptime_ns();
    header->real_ns = program_time_ns() - now;
    header->rank = of->rank;
    memcpy(header->name, of->name, sizeof of->name);
    memcpy(header->host, of->host, sizeof of->host);
    header->command_bytes = program_copy_command(header->command, sizeof header->command);
    _Static_assert(TRACE_ALL == OPTIONS_ALL, "a trace without a bound says so in its header");
    header->events_kept = options()->trace_events;
    write_options();
    atomic_store(&header->magic, TRACE_MAGIC);
}

/* ---- begin and end ---- */

/** Returns whether the block, segment or page that a record began is live. A block in space 0 is in
 * no pool. The caller holds the ring's lock. */
static bool is_alive(const struct trace_record *record, unsigned kind) {
    uint64_t address = atomic_load(&record->address), ticks = atomic_load(&record->ticks);
    switch (kind) {
    case TRACE_ALLOCATE:
        return atomic_load(&record->space) ? block_lives(address, ticks)
                                           : objects_has(OBJECT_BLOCK, address, ticks);
    case TRACE_MAP:
        return objects_has(OBJECT_PAGE, address, ticks);
    default:
        return objects_has(OBJECT_SEGMENT, address, ticks);
    }
}

static void say_why_not(int error) {
    const char *why = file_error(error);
    char shown[FILE_SHOWN];
    log_warn("GPUCACHE_TRACE=%s: %s; no trace is written",
             file_shown(shown, options()->trace_pattern), why ? why : "cannot be opened");
}

/** Ends the trace after the file was truncated. Runs in a signal handler. */
static void note_cut_short(void) {
    atomic_store(&cut_short, true);
    atomic_store(&trace_recording, false);
}

bool trace_start(bool (*lives)(uint64_t address, uint64_t ticks)) {
    int saved_errno = errno;
    if (*options()->trace_pattern == '\0')
        return false;
    int fd = file_create(options()->trace_pattern, path, sizeof path), r = fd < 0 ? fd : 0;
    block_lives = lives;
    owner = (pid_t)syscall(SYS_getpid);
    if (fd >= 0) {
        header = ring_open((struct ring_file){fd, path}, options()->trace_events, is_alive,
                           note_cut_short);
        r = header ? 0 : -errno;
        file_close(fd, path, header != NULL);
    }
    if (r == 0) {
        write_header();
        thread_end_works = pthread_key_create(&thread_end_key, thread_end) == 0;
        atomic_store(&trace_recording, !atomic_load(&cut_short));
        log_info("trace: %s", path);
    } else {
        say_why_not(r);
    }
    errno = saved_errno;
    return r == 0;
}

void trace_forked(void) {
    atomic_store(&trace_recording, false);
}

void trace_end(enum process_end how, int signal) {
    (void)signal;
    bool ends = how == PROCESS_EXITS || how == PROCESS_DIES;
    char shown[FILE_SHOWN];
    if (!header || !ends || owner != (pid_t)syscall(SYS_getpid))
        return;
    if (atomic_exchange(&cut_short, false))
        log_warn("trace %s: the file was cut short by another process; the trace ends there",
                 file_shown(shown, path));
    if (!trace_on())
        return;
    uint64_t dropped = atomic_load(&header->dropped), lost = atomic_load(&header->lost);
    uint64_t missed = atomic_load(&header->missed);
    int refused = atomic_load(&header->refused);
    const char *why = refused == ENOENT ? "it is gone from there" : file_error(refused);
    file_shown(shown, path);
    if (refused)
        log_warn("trace %s: could not grow further: %s", shown, why ? why : "refused");
    if (dropped)
        log_warn("trace %s: %llu older events were dropped; GPUCACHE_TRACE_EVENTS says how many "
                 "are kept",
                 shown, (unsigned long long)dropped);
    if (missed)
        log_warn("trace %s: %llu events found no place: too many threads", shown,
                 (unsigned long long)missed);
    if (lost)
        log_warn("trace %s: too small for all that lives: %llu blocks older than it are missing",
                 shown, (unsigned long long)lost);
}
