/* Reads the header and the records of a trace, and sorts the records by time (trace_file.h). */
#include "tool/trace/trace_file.h"

#include "base/clock.h"
#include "heap/page.h"
#include "live/place.h"
#include "tool/common/tool.h"
#include "tool/report/pages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LATE_NS 250000000 /* a thread may stop between reading the clock and writing the record */
#define READ_SLOTS 4096   /* read at once */
#define DEVICE_MOST ((uint64_t)4 << 40) /* bytes, at most: readers walk them page by page */

const char *trace_event_words(unsigned kind) {
    static const char *const words[] = {
#define TRACE(number, kind, words) [number] = words,
#include "trace/kinds.def"
#undef TRACE
    };
    if (kind >= TRACE_MOMENTS)
        return page_event_words(kind - TRACE_MOMENTS);
    return kind < TRACE_KINDS && words[kind] ? words[kind] : "?";
}

/* ---- reading ---- */

static struct trace_header *read_header(int fd, const char **why) {
    struct trace_header *header = checked(calloc(1, TRACE_HEADER_BYTES));
    ssize_t got = pread(fd, header, TRACE_HEADER_BYTES, 0);
    int error = errno;
    uint64_t magic = got == TRACE_HEADER_BYTES ? atomic_load(&header->magic) : 0;
    bool same = magic == TRACE_MAGIC && header->header_bytes == TRACE_HEADER_BYTES &&
                header->record_bytes == TRACE_RECORD_BYTES &&
                header->chunk_slots == TRACE_CHUNK_SLOTS;
    if (same) {
        header->name[sizeof header->name - 1] = header->host[sizeof header->host - 1] = '\0';
        header->command[sizeof header->command - 1] = '\0';
        header->options[sizeof header->options - 1] = '\0';
        header->version[sizeof header->version - 1] = '\0';
        for (unsigned i = 0; i < STATS_MAX_DEVICES; i++)
            header->devices[i].backend[sizeof header->devices[i].backend - 1] =
                header->devices[i].name[sizeof header->devices[i].name - 1] = '\0';
        return header;
    }
    *why = got < 0 ? strerror(error)
           : (magic ^ TRACE_MAGIC) & LIVE_MAGIC_MASK
               ? "is no trace of the library's"
               : "is a trace of another version of the library";
    free(header);
    return NULL;
}

bool trace_file_is_open(int fd) {
    uint64_t magic = 0;
    return pread(fd, &magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
           ((magic ^ TRACE_MAGIC) & LIVE_MAGIC_MASK) == 0;
}

bool trace_file_is(const char *path) {
    int fd = tool_open_regular(path);
    bool is = fd >= 0 && trace_file_is_open(fd);
    if (fd >= 0)
        close(fd);
    return is;
}

/** Returns whether the size in a record is possible for the device. A damaged file may have any. */
static bool fits(const struct trace_header *header, const uint64_t words[8], unsigned kind,
                 unsigned device) {
    uint64_t total = device < STATS_MAX_DEVICES ? header->devices[device].total_bytes : 0;
    uint64_t most = total != 0 && total < DEVICE_MOST ? total : DEVICE_MOST;
    switch (kind) {
    case TRACE_ALLOCATE:
    case TRACE_FREE:
        return words[2] <= most && words[3] <= most && words[1] < UINT64_MAX - most;
    case TRACE_MAP: /* one page; readers walk its bytes again when it ends */
        return words[2] == PAGE_BYTES && words[1] < UINT64_MAX - most;
    case TRACE_UNMAP:
    case TRACE_MOMENT_GROW:
    case TRACE_MOMENT_GIVE_BACK:
        return words[2] <= most && words[1] < UINT64_MAX - most;
    default:
        return true;
    }
}

/** Reads a record. Returns false if the slot has none, or if the process is writing it. */
static bool take_record(const struct trace_header *header, const uint64_t words[8], size_t place,
                        struct trace_event *event) {
    uint64_t head = words[7];
    unsigned kind = (uint8_t)head, flags = (uint8_t)(head >> 8), device = (uint16_t)(head >> 16);
    if (kind == TRACE_NONE || kind == TRACE_CHUNK ||
        head >> 32 != trace_seal(words, device, flags, kind) || !fits(header, words, kind, device))
        return false;
    *event = (struct trace_event){.time_ns = trace_ns(header, words[0]),
                                  .address = words[1],
                                  .bytes = words[2],
                                  .value = words[3],
                                  .detail = words[4],
                                  .space = words[5],
                                  .thread = (uint32_t)(words[6] >> 32),
                                  .stack = kind == TRACE_FREE ? 0 : (uint32_t)words[6],
                                  .life = (uint32_t)words[kind == TRACE_FREE ? 6 : 0],
                                  .device = (uint16_t)device,
                                  .kind = (uint8_t)kind,
                                  .flags = (uint8_t)flags,
                                  .place = place};
    return true;
}

/** Appends a record's part to a mark's text. *used bytes of file->texts are in use. */
static void take_text(struct trace_file *file, const uint64_t words[8], size_t *used) {
    struct trace_event *event = &file->events[file->count - 1];
    char *text = file->texts + *used;
    const size_t bytes = TRACE_LABEL_WORDS * sizeof(uint64_t);
    if (event->kind == TRACE_TEXT) { /* continues the record before it */
        bool follows = file->count > 1 && event[-1].text && event[-1].place + 1 == event->place &&
                       event[-1].time_ns == event->time_ns;
        file->count--;
        if (!follows)
            return;
        text -= 1; /* over the NUL */
        event[-1].place++;
        *used -= 1;
    } else {
        event->text = text;
    }
    memcpy(text, words + 1, bytes);
    text[bytes] = '\0';
    *used += strlen(text) + 1;
}

/** Returns whether the record is part of a definition (trace_callers.c), and adds it there. */
static bool take_caller(struct trace_file *file, const uint64_t words[8], size_t place) {
    uint64_t head = words[7];
    unsigned kind = (uint8_t)head;
    if (kind < TRACE_STACK || kind > TRACE_MORE)
        return false;
    if (head >> 32 == trace_seal(words, (uint16_t)(head >> 16), (uint8_t)(head >> 8), kind))
        trace_callers_take(file->callers, kind, words, place);
    return true;
}

/** Reads the records of one part of the file, which begins at slot `at`. */
static void take_slots(struct trace_file *file, const uint64_t (*slots)[8], size_t count, size_t at,
                       size_t *used) {
    for (size_t i = 0; i < count; i++) {
        struct trace_event *event = &file->events[file->count];
        if (take_caller(file, slots[i], at + i))
            continue;
        if (!take_record(file->header, slots[i], at + i, event))
            continue;
        file->count++;
        if (event->kind == TRACE_MARK || event->kind == TRACE_TEXT)
            take_text(file, slots[i], used);
    }
}

static int read_slots(int fd, struct trace_file *file, uint64_t slots) {
    uint64_t(*buffer)[8] = checked(malloc((size_t)READ_SLOTS * TRACE_RECORD_BYTES));
    size_t used = 0;
    ssize_t got = 1;
    file->events = checked(malloc((slots + 1) * sizeof *file->events));
    /* As if all slots were marks; untouched pages take no memory. */
    file->texts = checked(malloc((slots + 1) * (TRACE_LABEL_WORDS * sizeof(uint64_t) + 1)));
    file->callers = trace_callers_open();
    for (uint64_t at = 0; at < slots && got > 0; at += READ_SLOTS) {
        uint64_t count = slots - at < READ_SLOTS ? slots - at : READ_SLOTS;
        got = pread(fd, buffer, count * TRACE_RECORD_BYTES,
                    (off_t)(TRACE_HEADER_BYTES + at * TRACE_RECORD_BYTES));
        if (got > 0)
            take_slots(file, buffer, (size_t)got / TRACE_RECORD_BYTES, at, &used);
    }
    free(buffer);
    return got < 0 ? -errno : 0;
}

static int by_time(const void *a, const void *b) {
    const struct trace_event *first = a, *second = b;
    int result = (first->time_ns > second->time_ns) - (first->time_ns < second->time_ns);
    return result ? result : (first->place > second->place) - (first->place < second->place);
}

/* ---- a file ---- */

static int read_all(int fd, struct trace_file *file) {
    struct live_identity who = file->header->who, self = place_self();
    file->running = place_life(&who, self.pid_namespace) == PLACE_ALIVE;
    file->end_ns = clock_ns(CLOCK_MONOTONIC);
    if (file->running)
        nanosleep(&(struct timespec){0, LATE_NS}, NULL);
    struct stat stat;
    uint64_t slots = atomic_load(&file->header->slots);
    uint64_t there = fstat(fd, &stat) == 0 && stat.st_size > TRACE_HEADER_BYTES
                         ? (uint64_t)(stat.st_size - TRACE_HEADER_BYTES) / TRACE_RECORD_BYTES
                         : 0;
    int r = read_slots(fd, file, slots < there ? slots : there);
    qsort(file->events, file->count, sizeof *file->events, by_time);
    /* Drops events after the begin of the read. A running process may have written a later event,
     * but not yet an earlier one that it depends on. */
    while (file->running && file->count > 0 && file->events[file->count - 1].time_ns > file->end_ns)
        file->count--;
    if (!file->running)
        file->end_ns = file->count > 0 ? file->events[file->count - 1].time_ns : 0;
    return r;
}

/** Reads the header again, because the process may have dropped records during the read. Keeps the
 * conversion of times. */
static int read_header_again(int fd, struct trace_file *file, const char **why) {
    struct trace_header *again = read_header(fd, why);
    if (!again)
        return -EINVAL;
    atomic_store(&again->tick_ns, atomic_load(&file->header->tick_ns));
    free((void *)file->header);
    file->header = again;
    return 0;
}

int trace_file_read_open(int fd, struct trace_file *file, const char **why) {
    *file = (struct trace_file){0};
    file->header = read_header(fd, why);
    int r = file->header ? read_all(fd, file) : -EINVAL;
    if (r == 0)
        r = read_header_again(fd, file, why);
    else if (file->header)
        *why = strerror(-r);
    close(fd);
    if (r != 0) {
        trace_file_free(file);
        return r;
    }
    file->dropped = atomic_load(&file->header->dropped);
    trace_file_complete(file);
    return 0;
}

int trace_file_read(const char *path, struct trace_file *file, const char **why) {
    int fd = tool_open_regular(path);
    if (fd < 0) {
        *why = fd == -EINVAL ? "is no regular file" : strerror(-fd);
        return fd;
    }
    return trace_file_read_open(fd, file, why);
}

void trace_file_free(struct trace_file *file) {
    free((void *)file->header);
    free(file->events);
    free(file->texts);
    trace_callers_free(file->callers);
    *file = (struct trace_file){0};
}
