/*
 * Reads the call stacks that a trace's events name by number (trace/callers.h): assembles the
 * definitions, and resolves frames at their first use.
 */
#include "tool/trace/trace_file.h"

#include "tool/common/tool.h"
#include "tool/report/stacks.h"

#include <stdlib.h>
#include <string.h>

#define KINDS 3         /* STACK, FRAME, MODULE: the tables are in the order of the kinds */
#define MOST (1u << 20) /* largest number of a stack, frame or module that a damaged file may use */
#define MOST_OF_STACK 256

_Static_assert((int)TRACE_FRAME == TRACE_STACK + 1 && (int)TRACE_MODULE == TRACE_STACK + 2 &&
                   TRACE_MODULE - TRACE_STACK + 1 == KINDS && (int)TRACE_MORE == TRACE_MODULE + 1,
               "the kinds of definitions are adjacent");

/* The definition of a number. */
struct text {
    char *bytes;
    uint32_t count;
    struct stack_frames frames; /* of a frame: one until its names are found */
    bool resolved;
};

struct trace_callers {
    struct definitions {
        struct text *texts; /* by number */
        uint32_t capacity;
    } tables[KINDS];
    uint32_t numbers[MOST_OF_STACK];
    /* the text that is being assembled from records */
    unsigned kind;
    uint32_t number, bytes, got;
    size_t next; /* slot of the next piece; 0: none */
    char text[TRACE_PIECE * TRACE_CHUNK_SLOTS];
};

struct trace_callers *trace_callers_open(void) {
    return checked(calloc(1, sizeof(struct trace_callers)));
}

void trace_callers_free(struct trace_callers *callers) {
    if (!callers)
        return;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        const struct definitions *table = &callers->tables[kind];
        for (uint32_t i = 0; i < table->capacity; i++) {
            stack_frames_free(&table->texts[i].frames);
            free(table->texts[i].bytes);
        }
        free(table->texts);
    }
    free(callers);
}

/* ---- reading ---- */

static void store_text(struct trace_callers *callers) {
    struct definitions *table = &callers->tables[callers->kind - TRACE_STACK];
    uint32_t number = callers->number;
    if (number >= table->capacity) {
        uint32_t capacity = number < 1024 ? 1024 : 2 * number;
        table->texts = checked(realloc(table->texts, capacity * sizeof *table->texts));
        memset(table->texts + table->capacity, 0,
               (capacity - table->capacity) * sizeof *table->texts);
        table->capacity = capacity;
    }
    struct text *text = &table->texts[number];
    free(text->bytes);
    text->bytes = checked(calloc(1, callers->bytes + 1));
    text->count = callers->bytes;
    memcpy(text->bytes, callers->text, callers->bytes);
}

void trace_callers_take(struct trace_callers *callers, unsigned kind, const uint64_t words[7],
                        size_t place) {
    bool more = kind == TRACE_MORE, goes_on = callers->next != 0 && callers->next == place;
    callers->next = 0;
    if (!more) {
        callers->kind = kind;
        callers->number = (uint32_t)(words[0] >> 32);
        callers->bytes = (uint32_t)words[0];
        callers->got = 0;
    } else if (!goes_on ||
               words[0] != ((uint64_t)callers->number << 32 | callers->got / TRACE_PIECE)) {
        return;
    }
    if (callers->number >= MOST || callers->bytes > sizeof callers->text)
        return;
    memcpy(callers->text + callers->got, words + 1, TRACE_PIECE);
    callers->got += TRACE_PIECE;
    if (callers->got >= callers->bytes)
        store_text(callers);
    else
        callers->next = place + 1;
}

/* ---- queries ---- */

/** Returns the definition of a number, or NULL beyond the last number. */
static struct text *text_of(const struct trace_callers *callers, unsigned kind, uint32_t number) {
    const struct definitions *table = &callers->tables[kind - TRACE_STACK];
    return number < table->capacity ? &table->texts[number] : NULL;
}

uint32_t trace_callers_stacks(const struct trace_callers *callers) {
    return callers->tables[0].capacity;
}

uint32_t trace_callers_frames(const struct trace_callers *callers) {
    return callers->tables[TRACE_FRAME - TRACE_STACK].capacity;
}

static const char *build_id_of(const struct trace_callers *callers, const char *path) {
    const struct definitions *table = &callers->tables[TRACE_MODULE - TRACE_STACK];
    for (uint32_t i = 0; i < table->capacity; i++) {
        const char *module = table->texts[i].bytes;
        if (module && strcmp(module, path) == 0 && strlen(module) + 1 < table->texts[i].count)
            return module + strlen(module) + 1;
    }
    return "";
}

/** Takes the next text of a frame, if there is one. Returns a copy, or NULL. */
static char *take_text(const char **at, const char *end) {
    size_t length = strnlen(*at, (size_t)(end - *at));
    char *text = *at < end ? checked(strndup(*at, length)) : NULL;
    *at += *at < end ? length + (*at + length < end) : 0;
    return text;
}

static struct stats_frame unpack(const struct text *text) {
    struct trace_frame head = {0};
    const char *at = text->bytes + sizeof head, *end = text->bytes + text->count;
    if (text->count < sizeof head)
        return (struct stats_frame){0};
    memcpy(&head, text->bytes, sizeof head);
    struct stats_frame frame = {
        .offset = head.offset, .line = head.line, .python = (head.parts & TRACE_FRAME_PYTHON) != 0};
    if (head.parts & TRACE_FRAME_FUNCTION)
        frame.function = take_text(&at, end);
    if (head.parts & TRACE_FRAME_FILE)
        frame.file = take_text(&at, end);
    return frame;
}

static struct text *read_frame(const struct trace_callers *callers, uint32_t number) {
    struct text *text = text_of(callers, TRACE_FRAME, number);
    if (text && text->frames.count == 0 && text->bytes)
        *APPEND(text->frames.frames, text->frames.count) = unpack(text);
    return text;
}

const struct stats_frame *trace_callers_frame(struct trace_callers *callers, uint32_t number,
                                              unsigned index) {
    static const struct stats_frame nothing = {.function = "?"};
    struct text *text = read_frame(callers, number);
    if (!text || text->frames.count == 0)
        return index == 0 ? &nothing : NULL;
    const char *file = text->frames.frames[0].file;
    /* Resolves a frame at its first use, because names in large libraries take seconds. */
    if (!text->resolved && file)
        stack_frames_resolve(&text->frames, 0, build_id_of(callers, file));
    text->resolved = true;
    return index < text->frames.count ? &text->frames.frames[index] : NULL;
}

const uint32_t *trace_callers_stack(struct trace_callers *callers, uint32_t stack,
                                    unsigned *count) {
    const struct text *text = text_of(callers, TRACE_STACK, stack);
    unsigned most = text ? text->count / (unsigned)sizeof(uint32_t) : 0;
    most = most < MOST_OF_STACK ? most : MOST_OF_STACK;
    *count = 0;
    for (unsigned all = 0; all < 2 && *count == 0; all++) {
        for (unsigned i = 0; i < most; i++) {
            uint32_t number;
            memcpy(&number, text->bytes + i * sizeof number, sizeof number);
            const struct text *frame = read_frame(callers, number);
            if (all == 1 || (frame && frame->frames.count > 0 && frame->frames.frames[0].python))
                callers->numbers[(*count)++] = number;
        }
    }
    return callers->numbers;
}
