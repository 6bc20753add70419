/*
 * The chunks of a trace's file (ring.h). `lock` protects all variables, except atomic ones and the
 * chunks that threads fill. The head of a chunk:
 *
 *      who        not 0: a thread fills the chunk, or ring_take_for_good() gave it away. The hand
 *                 skips such a chunk. 0: the chunk can be reused
 *      bytes      slots that events cannot use: those of carried records, or all slots if the
 *                 carried records are more than MOST_CARRIED
 *      value      `scanned` when the thread returned the chunk
 *      detail     `taken` when the thread returned the chunk
 */
#include "trace/ring.h"

#include "base/lock.h"
#include "base/write.h"
#include "process/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHUNK_BYTES (TRACE_CHUNK_SLOTS * TRACE_RECORD_BYTES)
#define STEP_BYTES ((uint64_t)1 << 20) /* growth of the file */
#define POPULATE_WRITE 23              /* MADV_POPULATE_WRITE, since Linux 5.14 */
#define SPARE_CHUNKS 64 /* more than the events need: threads leave chunks half empty */
#define MOST_CHUNKS ((uint64_t)1 << 24) /* 64 GiB */
#define FEWEST_CHUNKS ((uint64_t)1 << 14)
#define MOST_CARRIED (TRACE_CHUNK_RECORDS / 2) /* carried records of a reused chunk */
#define THREAD_CHUNKS 16384                    /* beyond the bound, when threads fill all others */
#define STAYING_CHUNKS 16384                   /* 64 MiB of definitions */
/* A reuse passes at most this many chunks that are too full of carried records. The next chunk
 * loses its carried records too. */
#define MOST_FULL_CHUNKS 16
#define SCAN_AHEAD 8 /* one round of the hand scans all chunks, and one in this many once more */

static struct lock lock = LOCK_INITIALIZER(TRACE);
static struct trace_header *header;
static struct trace_record *slots; /* behind the header */
static ring_lives *is_alive;
static const char *file_path;
static dev_t file_device;
static ino_t file_inode;
static uint64_t file_bytes;
/*
 * Numbers of chunks:
 *
 *      file_chunks   in the file
 *      used_chunks   used at least once
 *      wanted        needed for the events to be kept
 *      most          allowed, including the chunks for carried records
 */
static uint64_t file_chunks, used_chunks, wanted, most;
static uint64_t staying;                 /* never reused */
static uint64_t hand, scan;              /* indices, see ring.h */
static _Atomic uint64_t scanned;         /* scanned since the start */
static _Atomic uint64_t taken;           /* taken by threads since the start */
static _Atomic uint64_t held;            /* being filled by threads */
static uint64_t skipped, skipped_before; /* skipped by the hand in this round and in the last */
static uint64_t carried;                 /* sum of `bytes` of all chunks' heads */
static uint64_t scan_credit;             /* for scans; each costs chunks_per_round() of it */

/* ---- the file ---- */

/**
 * Extends the file by `bytes` and maps them. Returns 0 or a negative errno. A mapping begins with a
 * host page: if host pages have 64 KiB, the last one of the file is mapped already.
 */
static int map_more(int fd, uint64_t bytes) {
    int r = write_reserve(fd, file_bytes, bytes);
    if (r != 0)
        return r;
    write_pages(fd, file_bytes, bytes);
    uint64_t page = (uint64_t)getpagesize();
    uint64_t from = (file_bytes + page - 1) & ~(page - 1), end = file_bytes + bytes;
    if (from < end) {
        void *at = (char *)header + from;
        if (mmap(at, end - from, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)from) ==
            MAP_FAILED)
            return -errno;
        /* cheaper than one fault per page; failure is harmless */
        madvise(at, end - from, POPULATE_WRITE);
    }
    file_bytes = end;
    return 0;
}

/**
 * Opens the file again by its name: the program may close descriptors that it did not open,
 * so the library keeps none. Returns -ENOENT if the name is another file or the length has changed.
 */
static int open_again(void) {
    struct stat file;
    int fd = write_open(AT_FDCWD, file_path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    if (fstat(fd, &file) == 0 && file.st_dev == file_device && file.st_ino == file_inode &&
        (uint64_t)file.st_size == file_bytes)
        return fd;
    syscall(SYS_close, fd);
    return -ENOENT;
}

/** Extends the file by STEP_BYTES, up to `limit` chunks. Does not try again after a failure. */
static bool grow(uint64_t limit) {
    if (file_chunks >= limit || atomic_load(&header->refused) != 0)
        return false;
    uint64_t bytes = (limit - file_chunks) * CHUNK_BYTES;
    bytes = bytes < STEP_BYTES ? bytes : STEP_BYTES;
    int fd = open_again(), r = fd < 0 ? fd : map_more(fd, bytes);
    if (fd >= 0)
        syscall(SYS_close, fd);
    if (r != 0) {
        atomic_store(&header->refused, -r);
        return false;
    }
    file_chunks += bytes / CHUNK_BYTES;
    atomic_store(&header->slots, file_chunks * TRACE_CHUNK_SLOTS);
    return true;
}

/** Returns how many bytes of addresses are reserved for the file. */
static size_t reserved_bytes(void) {
    return TRACE_HEADER_BYTES + (most + THREAD_CHUNKS + STAYING_CHUNKS) * CHUNK_BYTES;
}

/**
 * Reserves addresses for the largest file, so that its chunks are adjacent. Halves the bound until
 * the reservation succeeds. Returns NULL if not even FEWEST_CHUNKS fit.
 */
static void *reserve(void) {
    for (;;) {
        void *memory = mmap(NULL, reserved_bytes(), PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory != MAP_FAILED)
            return memory;
        if (most <= FEWEST_CHUNKS)
            return NULL;
        most /= 2;
        wanted = wanted < most ? wanted : most;
    }
}

struct trace_header *ring_open(struct ring_file file, uint64_t events, ring_lives *lives,
                               void (*lost)(void)) {
    struct stat status;
    bool bounded = events < MOST_CHUNKS / 2 * TRACE_CHUNK_RECORDS;
    uint64_t needed = (events + TRACE_CHUNK_RECORDS - 1) / TRACE_CHUNK_RECORDS;
    wanted = bounded ? needed + SPARE_CHUNKS : MOST_CHUNKS;
    most = bounded ? 2 * wanted : MOST_CHUNKS;
    is_alive = lives;
    file_path = file.path;
    int r = 0;
    if (fstat(file.fd, &status) != 0 || !(header = reserve())) {
        r = -errno;
    } else {
        file_device = status.st_dev;
        file_inode = status.st_ino;
        guard_mapping(header, reserved_bytes(), lost);
        r = map_more(file.fd, TRACE_HEADER_BYTES);
    }
    slots = r == 0 ? (struct trace_record *)((char *)header + TRACE_HEADER_BYTES) : NULL;
    if (r == 0 && !grow(wanted))
        r = -atomic_load(&header->refused);
    errno = -r;
    return r == 0 ? header : NULL;
}

/* ---- records ---- */

static uint64_t head_of(const struct trace_record *record) {
    return atomic_load_explicit(&record->head, memory_order_acquire);
}

static unsigned kind_of(uint64_t head) {
    return (uint8_t)head;
}

static unsigned flags_of(uint64_t head) {
    return (uint8_t)(head >> 8);
}

/** Returns whether the record begins a block, a segment or a page, which may outlive the record. */
static bool begins_object(const struct trace_record *record, unsigned kind) {
    return kind == TRACE_ALLOCATE || kind == TRACE_MAP ||
           (kind == TRACE_MOMENT_GROW && atomic_load(&record->address) != 0);
}

/** Moves a record to an earlier slot of its chunk, and marks it as carried. */
static void carry_record(struct trace_record *to, struct trace_record *from) {
    uint64_t head = head_of(from);
    uint64_t words[7];
    trace_get(from, words);
    if (to != from) {
        atomic_store(&to->head, 0);
        atomic_thread_fence(memory_order_release);
    }
    trace_put(to, words, (uint16_t)(head >> 16), flags_of(head) | TRACE_CARRIED, kind_of(head));
}

/* ---- scan and reuse; the caller holds the lock ---- */

static struct trace_record *chunk_at(uint64_t number) {
    return slots + number * TRACE_CHUNK_SLOTS;
}

/** Marks the dead records of a chunk. A thread may fill it: written records never change. */
static void mark_dead(struct trace_record *chunk) {
    for (unsigned i = 1; i < TRACE_CHUNK_SLOTS; i++) {
        uint64_t head = head_of(&chunk[i]);
        if (begins_object(&chunk[i], kind_of(head)) && !(flags_of(head) & TRACE_DEAD) &&
            !is_alive(&chunk[i], kind_of(head)))
            atomic_fetch_or(&chunk[i].head, (uint64_t)TRACE_DEAD << 8);
    }
}

/** Prefetches a chunk that is used next: it left the processor's caches long ago. */
static void prefetch(const struct trace_record *chunk) {
    for (unsigned i = 0; i < TRACE_CHUNK_SLOTS; i++)
        __builtin_prefetch(&chunk[i], 1);
}

static void scan_one(void) {
    mark_dead(chunk_at(scan));
    scan = scan + 1 < used_chunks ? scan + 1 : 0;
    atomic_fetch_add(&scanned, 1);
}

/** Estimates how many chunks the hand reuses in one round, from the chunks it skipped before. */
static uint64_t chunks_per_round(void) {
    return skipped_before + skipped_before / 8 < used_chunks ? used_chunks - skipped_before
                                                             : used_chunks / 8 + 1;
}

/** Adds the scan credit of one reused chunk, and makes the scans that it suffices for. In one round
 * of the hand, these are scans of all chunks, and of one chunk in SCAN_AHEAD once more. */
static void scan_due(void) {
    uint64_t round = chunks_per_round();
    for (scan_credit += used_chunks + used_chunks / SCAN_AHEAD; scan_credit >= round;
         scan_credit -= round)
        scan_one();
}

static bool is_kept(const struct trace_record *record, uint64_t head, bool drop_live) {
    return !drop_live && begins_object(record, kind_of(head)) && !(flags_of(head) & TRACE_DEAD);
}

/** Stores in the header the metric of a record that is about to be dropped: the metric's value at
 * the front of the trace. */
static void keep_metric(const struct trace_record *record, uint64_t head) {
    unsigned device = (uint16_t)(head >> 16);
    unsigned metric = trace_metric(kind_of(head), atomic_load(&record->value));
    uint64_t ticks = atomic_load(&record->ticks);
    if (metric < TRACE_METRICS && device < STATS_MAX_DEVICES &&
        ticks >= atomic_load(&header->devices[device].before[metric].ticks)) {
        atomic_store(&header->devices[device].before[metric].ticks, ticks);
        atomic_store(&header->devices[device].before[metric].bytes, atomic_load(&record->detail));
    }
}

/**
 * Counts in the header the records that a chunk is about to lose. Returns how many stay. Runs
 * before drop_records() changes a record: readers must not see a gap that the header does not name.
 */
static unsigned count_dropped(struct trace_record *chunk, bool drop_live) {
    unsigned stay = 0;
    uint64_t until = atomic_load(&header->dropped_until), dropped = 0, lost = 0;
    for (unsigned i = 1; i < TRACE_CHUNK_SLOTS; i++) {
        uint64_t head = head_of(&chunk[i]), time = atomic_load(&chunk[i].ticks);
        if (kind_of(head) == TRACE_NONE)
            continue;
        stay += is_kept(&chunk[i], head, drop_live);
        lost += is_kept(&chunk[i], head, false) && drop_live;
        if (!(flags_of(head) & TRACE_CARRIED)) {
            dropped += kind_of(head) != TRACE_TEXT;
            until = time > until ? time : until;
            keep_metric(&chunk[i], head);
        }
    }
    atomic_store(&header->dropped_until, until);
    atomic_fetch_add(&header->dropped, dropped);
    atomic_fetch_add(&header->lost, lost);
    return stay;
}

/**
 * Drops the records of a chunk, except the begins of live objects, which move to its front. Returns
 * the number of records that stay. `drop_live` drops the live ones too.
 */
static unsigned drop_records(struct trace_record *chunk, bool drop_live) {
    unsigned kept = 0, stay = count_dropped(chunk, drop_live);
    for (unsigned i = 1; i < TRACE_CHUNK_SLOTS; i++) {
        uint64_t head = head_of(&chunk[i]);
        if (kind_of(head) == TRACE_NONE)
            continue;
        if (kept < stay && is_kept(&chunk[i], head, drop_live)) {
            kept++;
            if (kept < i || !(flags_of(head) & TRACE_CARRIED))
                carry_record(&chunk[kept], &chunk[i]);
            if (kept == i)
                continue;
        }
        atomic_store_explicit(&chunk[i].head, 0, memory_order_release);
    }
    atomic_thread_fence(memory_order_release);
    return kept;
}

/* Returns whether a thread fills the chunk. After false, the caller's reads see all that the last
 * thread wrote to the chunk. */
static bool is_being_filled(const struct trace_record *chunk) {
    return atomic_load_explicit(&chunk->who, memory_order_acquire) != 0;
}

/**
 * Returns whether the records of a chunk belong to the events to be kept, because a thread returned
 * the chunk recently. The hand meets such a chunk if the chunk is new, or if a slow thread filled
 * it for longer than a round.
 */
static bool is_recent(const struct trace_record *chunk) {
    uint64_t kept = wanted - SPARE_CHUNKS / 2 + carried / TRACE_CHUNK_RECORDS;
    return atomic_load(&taken) - atomic_load(&chunk->detail) < kept;
}

/** Scans until all chunks have been scanned since the last record in `chunk` was written. */
static void scan_since(const struct trace_record *chunk) {
    uint64_t returned = atomic_load(&chunk->value);
    while (atomic_load(&scanned) - returned < used_chunks)
        scan_one();
}

/** Returns a chunk that was never used. NULL: `limit` chunks are used, or the file cannot grow. */
static struct trace_record *take_new_chunk(uint64_t limit) {
    bool more = used_chunks < limit && (used_chunks < file_chunks || grow(limit));
    return more ? chunk_at(used_chunks++) : NULL;
}

/** Sets the number of slots of a chunk that events cannot use. */
static void count_carried(struct trace_record *chunk, uint64_t slots_taken) {
    carried += slots_taken - atomic_load(&chunk->bytes);
    atomic_store(&chunk->bytes, slots_taken);
}

/**
 * Returns the number of chunks for the events to be kept and all carried records. A chunk that a
 * thread fills counts twice: the hand skips it now, and again while its records are recent.
 */
static uint64_t chunks_needed(void) {
    uint64_t chunks = wanted + 2 * atomic_load(&held) + carried / TRACE_CHUNK_RECORDS;
    return staying + (chunks < most ? chunks : most);
}

/** Advances the hand. Returns the chunk that it left, or NULL if the chunk must be skipped. */
static struct trace_record *advance_hand(bool recent_too) {
    struct trace_record *chunk = chunk_at(hand);
    hand = hand + 1 < used_chunks ? hand + 1 : 0;
    if (hand == 0) {
        skipped_before = skipped;
        skipped = 0;
    }
    if (!is_being_filled(chunk) && (recent_too || !is_recent(chunk))) {
        scan_since(chunk);
        return chunk;
    }
    skipped++;
    return NULL;
}

/** Returns a chunk to fill and its number of used slots. The chunk is a reused one, or a new one
 * after a chunk that is too full of carried records. Returns NULL if threads fill all chunks. */
static struct trace_record *reuse_chunk(unsigned *used) {
    unsigned full_chunks = 0;
    scan_due();
    for (uint64_t steps = 0; steps < 2 * used_chunks; steps++) {
        struct trace_record *chunk = advance_hand(steps >= used_chunks), *more;
        if (!chunk)
            continue;
        *used = drop_records(chunk, full_chunks >= MOST_FULL_CHUNKS);
        count_carried(chunk, *used <= MOST_CARRIED ? *used : TRACE_CHUNK_RECORDS);
        if (*used <= MOST_CARRIED)
            return chunk;
        skipped++;
        if ((more = take_new_chunk(most + staying)) != NULL) {
            *used = 0;
            return more;
        }
        full_chunks++;
    }
    return NULL;
}

/* ---- chunks of threads ---- */

/** Makes a chunk the thread's, and describes its free slots in *place. The caller has the lock. */
static void assign_chunk(struct trace_record *chunk, unsigned used, uint32_t thread,
                         struct ring_place *place) {
    const uint64_t words[7] = {[2] = used, [6] = (uint64_t)thread << 32 | 1};
    atomic_fetch_add(&taken, 1);
    trace_put(chunk, words, TRACE_NO_DEVICE, 0, TRACE_CHUNK);
    *place = (struct ring_place){chunk + 1 + used, TRACE_CHUNK_RECORDS - used, chunk};
}

/* The caller holds the lock (ring_hold()). The head keeps its thread, so the hand always skips the
 * chunk: never call ring_leave() for it. */
bool ring_take_for_good(struct ring_place *place, uint32_t thread) {
    struct trace_record *chunk =
        staying < STAYING_CHUNKS ? take_new_chunk(most + THREAD_CHUNKS + staying + 1) : NULL;
    if (chunk) {
        staying++;
        assign_chunk(chunk, 0, thread, place);
    }
    return chunk != NULL;
}

bool ring_take(struct ring_place *place, uint32_t thread) {
    unsigned used = 0;
    ring_leave(place);
    lock_acquire(&lock);
    struct trace_record *chunk = take_new_chunk(chunks_needed());
    if (!chunk)
        chunk = reuse_chunk(&used);
    if (!chunk)
        chunk = take_new_chunk(most + THREAD_CHUNKS + staying);
    if (!chunk)
        atomic_fetch_add(&header->missed, 1);
    if (chunk) {
        assign_chunk(chunk, used, thread, place);
        atomic_fetch_add(&held, 1);
        prefetch(chunk_at(hand));
        prefetch(chunk_at(scan));
    }
    lock_release(&lock);
    return chunk != NULL;
}

void ring_leave(struct ring_place *place) {
    if (place->chunk) {
        atomic_store(&place->chunk->value, atomic_load(&scanned));
        atomic_store(&place->chunk->detail, atomic_load(&taken));
        atomic_store_explicit(&place->chunk->who, 0, memory_order_release);
        atomic_fetch_sub(&held, 1);
    }
    *place = (struct ring_place){0};
}

void ring_each(void (*see)(const struct trace_record *record, void *with), void *with) {
    lock_acquire(&lock);
    for (uint64_t i = 0; i < used_chunks; i++)
        for (unsigned k = 1; k < TRACE_CHUNK_SLOTS; k++)
            see(&chunk_at(i)[k], with);
    lock_release(&lock);
}

const struct trace_header *ring_header(void) {
    return header;
}

void ring_hold(void) {
    lock_acquire(&lock);
}

void ring_release(void) {
    lock_release(&lock);
}
