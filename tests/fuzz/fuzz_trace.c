/*
 * A trace, read as gpucache replay, timeline and snapshot read it.
 *
 * The header of a trace has 32 KiB, and a record counts only with its seal. To stay short, an input
 * is `struct start` and then records. The target makes their seals unless the input keeps them. The
 * reader's result must keep the promises of tool/trace/trace_file.h, and the files that are written
 * from it must be valid JSON and a valid pickle.
 */
#include "heap/page.h"
#include "histories.h"
#include "made_up_symbols.h"

#include "tool/trace/snapshot.c"

#include "tool/page/html.h"
#include "tool/replay/comparison.h"

#include <stdarg.h>
#include <sys/stat.h>

enum { AS_IT_IS = 1, TIMELINE = 2, SNAPSHOT = 4, JSON = 8, CUT = 16, ODD_HEADER = 32 };

struct start {
    uint8_t does, devices, last; /* bits from above; of the trace; events that are kept */
    uint64_t first_ticks, first_ns, tick_ns, dropped, dropped_until, lost, total_bytes;
} __attribute__((packed));

static char text[8 << 20];

/* Messages would hide those of the target. */
void tool_say(const char *format, ...) {
    (void)format;
}
void fail(int status, const char *what, const char *why) {
    fprintf(stderr, "ends with status %d: %s: %s\n", status, what, why);
    abort();
}

static void make_header(struct trace_header *header, const struct start *start, size_t slots) {
    header->header_bytes = TRACE_HEADER_BYTES;
    header->record_bytes = TRACE_RECORD_BYTES;
    header->chunk_slots = TRACE_CHUNK_SLOTS;
    header->who.pid = 1;
    header->who.pid_namespace = 1; /* not here: a reader waits for a process that runs */
    header->first_ticks = start->first_ticks;
    header->first_ns = start->first_ns;
    header->tick_ns = start->tick_ns;
    header->slots = slots;
    header->dropped = start->dropped;
    header->dropped_until = start->dropped_until;
    header->lost = start->lost;
    header->events_kept = TRACE_ALL;
    header->rank = -1;
    strcpy(header->version, GPUCACHE_VERSION);
    strcpy(header->name, "app");
    strcpy(header->options, "GPUCACHE_TRACE=app.trace\n");
    for (unsigned i = 0; i < start->devices % (STATS_MAX_DEVICES + 1); i++) {
        header->devices[i].total_bytes = start->total_bytes;
        strcpy(header->devices[i].name, "NVIDIA H200");
        strcpy(header->devices[i].backend, "pages");
    }
    header->magic = TRACE_MAGIC;
}

/** Changes words of the header anywhere. Keeps the identity: else a reader may wait for a
 * process. */
static void change_header(struct trace_header *header, struct fuzz_input *input) {
    struct live_identity who = header->who;
    for (unsigned i = fuzz_take_byte(input) % 16; i > 0; i--) {
        uint16_t at;
        uint64_t word;
        fuzz_take(input, &at, sizeof at);
        fuzz_take(input, &word, sizeof word);
        memcpy((char *)header + at % (sizeof *header - sizeof word), &word, sizeof word);
    }
    header->who = who;
}

static void seal(uint64_t words[8]) {
    unsigned kind = (uint8_t)words[7], flags = (uint8_t)(words[7] >> 8);
    unsigned device = (uint16_t)(words[7] >> 16);
    words[7] = trace_head(trace_seal(words, device, flags, kind), device, flags, kind);
}

/** Returns the bytes of a whole trace. */
static size_t make_trace(const struct start *start, struct fuzz_input *input, char **trace) {
    size_t slots = input->left / TRACE_RECORD_BYTES;
    size_t bytes = TRACE_HEADER_BYTES + slots * TRACE_RECORD_BYTES;
    char *memory = calloc(1, bytes);
    FUZZ_CHECK(memory);
    make_header((struct trace_header *)memory, start, slots);
    if (start->does & ODD_HEADER)
        change_header((struct trace_header *)memory, input);
    for (size_t i = 0; i < slots; i++) {
        uint64_t words[8];
        fuzz_take(input, words, sizeof words);
        if (!(start->does & AS_IT_IS))
            seal(words);
        memcpy(memory + TRACE_HEADER_BYTES + i * TRACE_RECORD_BYTES, words, sizeof words);
    }
    *trace = memory;
    return bytes;
}

/* ---- what the list promises ---- */

static bool is_there(const struct trace_live_set *live_set, enum trace_sort sort,
                     uint64_t address) {
    return trace_live_set_at(live_set, sort, address) != NULL;
}

static bool has_space(const struct trace_live_set *live_set, uint64_t space) {
    bool any = false;
    for (enum trace_sort sort = 0; sort < TRACE_SORTS; sort++) {
        size_t count;
        struct trace_event *list = trace_live_set_list(live_set, sort, NULL, &count);
        for (size_t i = 0; i < count; i++)
            any |= list[i].space == space;
        free(list);
    }
    return any;
}

static void check_event(const struct trace_live_set *live_set, const struct trace_event *event) {
    switch (event->kind) {
    case TRACE_ALLOCATE:
        FUZZ_CHECK(!is_there(live_set, TRACE_BLOCKS, event->address));
        break;
    case TRACE_FREE:
        FUZZ_CHECK(is_there(live_set, TRACE_BLOCKS, event->address));
        break;
    case TRACE_UNMAP:
        FUZZ_CHECK(event->bytes == PAGE_BYTES);
        FUZZ_CHECK(is_there(live_set, TRACE_PAGES, event->address));
        break;
    case TRACE_MOMENT_GIVE_BACK:
        FUZZ_CHECK(event->address == 0 || is_there(live_set, TRACE_SEGMENTS, event->address));
        break;
    case TRACE_CONTEXT_END:
        FUZZ_CHECK(!has_space(live_set, event->space));
        break;
    default:
        break;
    }
}

static void check_list(const struct trace_file *file) {
    struct trace_live_set live_set = {0};
    uint64_t before = 0;
    FUZZ_CHECK(file->carried <= file->count);
    for (size_t i = 0; i < file->count; i++) {
        const struct trace_event *event = &file->events[i];
        FUZZ_CHECK(event->text || event->kind != TRACE_MARK);
        FUZZ_CHECK(i >= file->carried || event->flags & TRACE_CARRIED);
        FUZZ_CHECK(i < file->carried || event->time_ns >= before);
        before = i < file->carried ? 0 : event->time_ns;
        check_event(&live_set, event);
        trace_live_set_apply(&live_set, event);
    }
    trace_live_set_free(&live_set);
}

static void check_stacks(struct trace_file *file) {
    for (size_t i = 0; i < file->count; i++) {
        unsigned count;
        const struct stats_frame *frame;
        const uint32_t *frames = trace_callers_stack(file->callers, file->events[i].stack, &count);
        for (unsigned k = 0; k < count; k++)
            for (unsigned n = 0; n == 0 || frame; n++) {
                frame = trace_callers_frame(file->callers, frames[k], n);
                FUZZ_CHECK(frame || n > 0);
            }
    }
}

/* ---- what is written of it ---- */

static void write_snapshot(struct trace_file *file, bool json) {
    static struct snapshot to;
    struct print out;
    memset(&to, 0, sizeof to);
    print_init(&out, -1, text, sizeof text);
    to.file = file;
    attribute_growth(file);
    memo_start(&to);
    pickle_begin(&to.pickle, &out, json);
    write_all(&to);
    pickle_end(&to.pickle);
    memo_free(&to);
    finish(&to, "trace");
    if (out.error != 0)
        return;
    (json ? fuzz_check_json : fuzz_check_pickle)(text, out.used);
    fuzz_read_histories((const uint8_t *)text, out.used);
}

static void write_page(const struct trace_file *file) {
    struct print out;
    print_init(&out, -1, text, sizeof text);
    struct json_put to = json_put_to(&out);
    html_put_trace(file, &to);
    if (out.error == 0 && out.used < sizeof text)
        fuzz_check_json(text, out.used);
}

static void write_timeline(const char *path) {
    static int file = -1;
    char name[128];
    snprintf(name, sizeof name, "%s", path);
    char *arguments[] = {name, NULL};
    struct stat size;
    if (file < 0) { /* tool_timeline() writes to stdout */
        file = fileno(tmpfile());
        dup2(file, STDOUT_FILENO);
    }
    FUZZ_CHECK(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
    FUZZ_CHECK(tool_timeline(arguments) == 0 && fstat(file, &size) == 0);
    if ((size_t)size.st_size <= sizeof text) {
        FUZZ_CHECK(pread(file, text, (size_t)size.st_size, 0) == size.st_size);
        fuzz_check_json(text, (size_t)size.st_size);
    }
}

static void read_replay(const char *path) {
    struct histories histories = {0};
    FUZZ_CHECK(replay_trace_read(path, &histories) == 0);
    for (size_t i = 0; i < histories.count; i++)
        fuzz_check_history(&histories.list[i]);
    histories_free(&histories);
}

int fuzz_one(const uint8_t *data, size_t size) {
    struct fuzz_input input = {data, size};
    struct trace_file file;
    struct start start;
    const char *why = NULL;
    char *trace;
    fuzz_take(&input, &start, sizeof start);
    size_t bytes = make_trace(&start, &input, &trace);
    const char *path = fuzz_file(trace, bytes);
    free(trace);
    int r = trace_file_read(path, &file, &why);
    FUZZ_CHECK(r == 0 || why);
    if (r != 0)
        return 0;
    if (start.does & TIMELINE)
        write_timeline(path);
    if (!file.incredible)
        check_list(&file);
    check_stacks(&file);
    read_replay(path);
    if (start.does & CUT) {
        trace_file_cut(&file, start.last);
        FUZZ_CHECK(file.count - file.carried <= start.last);
        check_list(&file);
    }
    write_page(&file);
    if (start.does & SNAPSHOT)
        write_snapshot(&file, start.does & JSON);
    trace_file_free(&file);
    return 0;
}
