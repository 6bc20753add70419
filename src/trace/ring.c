#include "trace/ring.h"

#include "process/guard.h"
#include "process/lock.h"
#include "process/write.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHUNK_BYTES (TRACE_CHUNK_SLOTS * TRACE_RECORD_BYTES)
#define STEP_BYTES ((uint64_t)1 << 20) /* that the file grows by */
#define POPULATE_WRITE 23              /* MADV_POPULATE_WRITE, since Linux 5.14 */
#define SPARE_CHUNKS                                                                               \
    64 /* which threads may leave half empty and none of the wanted events be missing */
#define MOST_CHUNKS ((uint64_t)1 << 24) /* 64 GiB */
#define FEWEST_CHUNKS ((uint64_t)1 << 14)
#define MOST_CARRIED (TRACE_CHUNK_RECORDS / 2) /* of a chunk that is used again */
#define THREAD_CHUNKS 16384                    /* for more threads than there are chunks */
#define STAYING_CHUNKS 16384                   /* 64 MiB of what has to stay */
#define PASSED_BY 16 /* chunks in a row that have more: then what they carry is forgotten */
#define LOOK_AHEAD 8 /* one chunk more is looked after for so many that are used again */

static struct lock lock = LOCK_INITIALIZER(TRACE);
static struct trace_header *header;
static struct trace_record *slots; /* behind the header */
static ring_lives *is_alive;
static const char *file_path;
static dev_t file_device;
static ino_t file_inode;
static uint64_t file_bytes;
/* In chunks: in the file, given out for the first time, wanted, and allowed for what is carried. */
static uint64_t there, fresh, wanted, most;
static uint64_t staying; /* taken for good */
static uint64_t hand, look;
static _Atomic uint64_t looked;        /* how many have been looked after so far */
static _Atomic uint64_t taken;         /* how many chunks threads have got so far */
static _Atomic uint64_t held;          /* that some thread fills */
static uint64_t passed, passed_before; /* by the hand, in this round and the one before */
static uint64_t carried; /* slots that what is carried takes up, which events cannot have */
static uint64_t credit;  /* looks that are due, times the chunks of a round */

/* ---- the file ---- */

/** Maps as many bytes more of the file; 0 or a negative errno. */
static int map_more(int fd, uint64_t bytes) {
    int r = write_room(fd, file_bytes, bytes);
    if (r != 0)
        return r;
    write_pages(fd, file_bytes, bytes);
    void *at = (char *)header + file_bytes;
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)file_bytes) ==
        MAP_FAILED)
        return -errno;
    madvise(at, bytes, POPULATE_WRITE); /* at once costs less than page by page; or else so */
    file_bytes += bytes;
    return 0;
}

/** The file by its name, for it cannot be kept open: the program may close what it does not know. */
static int open_again(void) {
    struct stat file;
    long fd =
        syscall(SYS_openat, AT_FDCWD, file_path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat((int)fd, &file) == 0 && file.st_dev == file_device && file.st_ino == file_inode &&
        (uint64_t)file.st_size == file_bytes)
        return (int)fd;
    syscall(SYS_close, fd);
    return -ENOENT;
}

static bool grow(uint64_t limit) {
    if (there >= limit || atomic_load(&header->refused) != 0)
        return false;
    uint64_t bytes = (limit - there) * CHUNK_BYTES;
    bytes = bytes < STEP_BYTES ? bytes : STEP_BYTES;
    int fd = open_again(), r = fd < 0 ? fd : map_more(fd, bytes);
    if (fd >= 0)
        syscall(SYS_close, fd);
    if (r != 0) {
        atomic_store(&header->refused, -r);
        return false;
    }
    there += bytes / CHUNK_BYTES;
    atomic_store(&header->slots, there * TRACE_CHUNK_SLOTS);
    return true;
}

/** Returns how many bytes of addresses are reserved for the file. */
static size_t reserved_bytes(void) {
    return TRACE_HEADER_BYTES + (most + THREAD_CHUNKS + STAYING_CHUNKS) * CHUNK_BYTES;
}

/** Addresses for all of it, so that it lies side by side; fewer where there are not so many. */
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

/** Of something that may outlive the record. */
static bool brings(const struct trace_record *record, unsigned kind) {
    return kind == TRACE_ALLOCATE || kind == TRACE_MAP ||
           (kind == TRACE_MOMENT_GROW && atomic_load(&record->address) != 0);
}

/** Writes one record over another slot's, which is before it. */
static void move(struct trace_record *to, struct trace_record *from) {
    uint64_t head = head_of(from);
#define GET(field) atomic_load_explicit(&from->field, memory_order_relaxed)
    const uint64_t words[7] = {GET(ticks),  GET(address), GET(bytes), GET(value),
                               GET(detail), GET(space),   GET(who)};
#undef GET
    if (to != from) {
        atomic_store(&to->head, 0);
        atomic_thread_fence(memory_order_release);
    }
    trace_put(to, words, (uint16_t)(head >> 16), flags_of(head) | TRACE_CARRIED, kind_of(head));
}

/* ---- what goes, and what stays; the lock is held ---- */

static struct trace_record *chunk_at(uint64_t number) {
    return slots + number * TRACE_CHUNK_SLOTS;
}

/** Marks what has gone of one chunk. Whoever fills it changes no record that is there. */
static void look_after(struct trace_record *chunk) {
    for (unsigned i = 1; i < TRACE_CHUNK_SLOTS; i++) {
        uint64_t head = head_of(&chunk[i]);
        if (brings(&chunk[i], kind_of(head)) && !(flags_of(head) & TRACE_DEAD) &&
            !is_alive(&chunk[i], kind_of(head)))
            atomic_fetch_or(&chunk[i].head, (uint64_t)TRACE_DEAD << 8);
    }
}

/* It will be needed next, and was written long ago. */
static void fetch(const struct trace_record *chunk) {
    for (unsigned i = 0; i < TRACE_CHUNK_SLOTS; i++)
        __builtin_prefetch(&chunk[i], 1);
}

static void look_further(void) {
    look_after(chunk_at(look));
    look = look + 1 < fresh ? look + 1 : 0;
    atomic_fetch_add(&looked, 1);
}

/** Chunks that a round of the hand gives out. */
static uint64_t of_a_round(void) {
    return passed_before + passed_before / 8 < fresh ? fresh - passed_before : fresh / 8 + 1;
}

/** So much that in one round of the hand, and a little less, all are looked after. */
static void look_at_times(void) {
    uint64_t round = of_a_round();
    for (credit += fresh + fresh / LOOK_AHEAD; credit >= round; credit -= round)
        look_further();
}

static bool stays(const struct trace_record *record, uint64_t head, bool forget) {
    return !forget && brings(record, kind_of(head)) && !(flags_of(head) & TRACE_DEAD);
}

/** What the figures of a device are before all that is kept. */
static void keep_figure(const struct trace_record *record, uint64_t head) {
    unsigned device = (uint16_t)(head >> 16);
    unsigned figure = trace_figure(kind_of(head), atomic_load(&record->value));
    uint64_t ticks = atomic_load(&record->ticks);
    if (figure < TRACE_FIGURES && device < STATS_MAX_DEVICES &&
        ticks >= atomic_load(&header->devices[device].before[figure].ticks)) {
        atomic_store(&header->devices[device].before[figure].ticks, ticks);
        atomic_store(&header->devices[device].before[figure].bytes, atomic_load(&record->detail));
    }
}

/** Says in the header what is about to go from a chunk. How many stay. */
static unsigned announce(struct trace_record *chunk, bool forget) {
    unsigned stay = 0;
    uint64_t until = atomic_load(&header->dropped_until), dropped = 0, lost = 0;
    for (unsigned i = 1; i < TRACE_CHUNK_SLOTS; i++) {
        uint64_t head = head_of(&chunk[i]), time = atomic_load(&chunk[i].ticks);
        if (kind_of(head) == TRACE_NONE)
            continue;
        stay += stays(&chunk[i], head, forget);
        lost += stays(&chunk[i], head, false) && forget;
        if (!(flags_of(head) & TRACE_CARRIED)) {
            dropped += kind_of(head) != TRACE_TEXT;
            until = time > until ? time : until;
            keep_figure(&chunk[i], head);
        }
    }
    atomic_store(&header->dropped_until, until);
    atomic_fetch_add(&header->dropped, dropped);
    atomic_fetch_add(&header->lost, lost);
    return stay;
}

/** Leaves in a chunk only what is carried, at its front; how many. */
static unsigned clean(struct trace_record *chunk, bool forget) {
    unsigned kept = 0, stay = announce(chunk, forget);
    for (unsigned i = 1; i < TRACE_CHUNK_SLOTS; i++) {
        uint64_t head = head_of(&chunk[i]);
        if (kind_of(head) == TRACE_NONE)
            continue;
        if (kept < stay && stays(&chunk[i], head, forget)) {
            kept++;
            if (kept < i || !(flags_of(head) & TRACE_CARRIED))
                move(&chunk[kept], &chunk[i]);
            if (kept == i)
                continue;
        }
        atomic_store_explicit(&chunk[i].head, 0, memory_order_release);
    }
    atomic_thread_fence(memory_order_release);
    return kept;
}

static bool is_taken(const struct trace_record *chunk) {
    return atomic_load_explicit(&chunk->who, memory_order_relaxed) != 0;
}

/*
 * The head of a chunk: who is filling it; bytes: slots that are taken up by what is carried; value, detail: what `looked` and `taken`
 * were when it was left.
 */

/** Whether it was left so lately that what is in it belongs to the events that are kept: it was added, or a slow thread had it for
 * longer than the hand takes for a round. */
static bool is_recent(const struct trace_record *chunk) {
    uint64_t kept = wanted - SPARE_CHUNKS / 2 + carried / TRACE_CHUNK_RECORDS;
    return atomic_load(&taken) - atomic_load(&chunk->detail) < kept;
}

/** Sees to it that all have been looked after since the last record in it was written. */
static void look_since(const struct trace_record *chunk) {
    uint64_t left = atomic_load(&chunk->value);
    while (atomic_load(&looked) - left < fresh)
        look_further();
}

static struct trace_record *take_fresh(uint64_t limit) {
    bool more = fresh < limit && (fresh < there || grow(limit));
    return more ? chunk_at(fresh++) : NULL;
}

/** Takes note of how much of a chunk what is carried takes up. */
static void charge(struct trace_record *chunk, uint64_t slots_taken) {
    carried += slots_taken - atomic_load(&chunk->bytes);
    atomic_store(&chunk->bytes, slots_taken);
}

/** As many chunks as hold the wanted events beside all that is carried. Those that threads fill count twice: they are passed by, and
 * what is in them when they are left is newer than what they were taken after. */
static uint64_t enough(void) {
    uint64_t chunks = wanted + 2 * atomic_load(&held) + carried / TRACE_CHUNK_RECORDS;
    return staying + (chunks < most ? chunks : most);
}

static struct trace_record *next_in_turn(bool recent_too) {
    struct trace_record *chunk = chunk_at(hand);
    hand = hand + 1 < fresh ? hand + 1 : 0;
    if (hand == 0) {
        passed_before = passed;
        passed = 0;
    }
    if (!is_taken(chunk) && (recent_too || !is_recent(chunk))) {
        look_since(chunk);
        return chunk;
    }
    passed++;
    return NULL;
}

/** A chunk with room, and how many of its slots are used; NULL: every one is some thread's. */
static struct trace_record *take_again(unsigned *used) {
    unsigned crowded = 0;
    look_at_times();
    for (uint64_t tries = 0; tries < 2 * fresh; tries++) {
        struct trace_record *chunk = next_in_turn(tries >= fresh), *more;
        if (!chunk)
            continue;
        *used = clean(chunk, crowded >= PASSED_BY);
        charge(chunk, *used <= MOST_CARRIED ? *used : TRACE_CHUNK_RECORDS);
        if (*used <= MOST_CARRIED)
            return chunk;
        passed++;
        if ((more = take_fresh(most + staying)) != NULL) {
            *used = 0;
            return more;
        }
        crowded++;
    }
    return NULL;
}

static void give_out(struct trace_record *chunk, unsigned used, uint32_t thread,
                     struct ring_place *place) {
    const uint64_t words[7] = {[2] = used, [6] = (uint64_t)thread << 32 | 1};
    atomic_fetch_add(&taken, 1);
    trace_put(chunk, words, TRACE_NO_DEVICE, 0, TRACE_CHUNK);
    *place = (struct ring_place){chunk + 1 + used, TRACE_CHUNK_RECORDS - used, chunk};
}

bool ring_take_for_good(struct ring_place *place, uint32_t thread) {
    struct trace_record *chunk =
        staying < STAYING_CHUNKS ? take_fresh(most + THREAD_CHUNKS + staying + 1) : NULL;
    if (chunk) {
        staying++;
        give_out(chunk, 0, thread, place);
    }
    return chunk != NULL;
}

bool ring_take(struct ring_place *place, uint32_t thread) {
    unsigned used = 0;
    ring_leave(place);
    lock_acquire(&lock);
    struct trace_record *chunk = take_fresh(enough());
    if (!chunk)
        chunk = take_again(&used);
    if (!chunk)
        chunk = take_fresh(most + THREAD_CHUNKS + staying);
    if (!chunk)
        atomic_fetch_add(&header->missed, 1);
    if (chunk) {
        give_out(chunk, used, thread, place);
        atomic_fetch_add(&held, 1);
        fetch(chunk_at(hand));
        fetch(chunk_at(look));
    }
    lock_release(&lock);
    return chunk != NULL;
}

void ring_leave(struct ring_place *place) {
    if (place->chunk) {
        atomic_store(&place->chunk->value, atomic_load(&looked));
        atomic_store(&place->chunk->detail, atomic_load(&taken));
        atomic_store_explicit(&place->chunk->who, 0, memory_order_release);
        atomic_fetch_sub(&held, 1);
    }
    *place = (struct ring_place){0};
}

void ring_hold(void) {
    lock_acquire(&lock);
}

void ring_release(void) {
    lock_release(&lock);
}
