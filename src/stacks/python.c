/*
 * Finds the layout of CPython's objects and reads frames with it (python.h). Variables are written
 * once, by python_start(); `trust` is atomic. The caller of python_line() holds the lock of site.c,
 * because text_keep() needs it.
 */
#include "stacks/python.h"

#include "base/log.h"
#include "base/utf8.h"
#include "stacks/module.h"
#include "stacks/text.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define NO_FIELD UINT16_MAX
#define FRAMES_WALKED 256 /* including frames of the interpreter itself */

/* Offsets of the fields of CPython's objects, in bytes. */
struct layout {
    uint16_t thread_frame; /* in the thread state: the frame, */
    uint16_t through;      /* or a pointer to a structure with the frame at this offset */
    uint16_t frame_previous, frame_code;
    uint16_t frame_place; /* the instruction: an index, or an address if code_start is known */
    uint16_t frame_owner; /* one byte; from OWNER_INTERPRETER on, the frame has no Python code */
    uint16_t code_file, code_name, code_first_line, code_lines, code_start;
    uint16_t units; /* bytes for each step of the instruction index */
};

#define OWNER_INTERPRETER 3
#define TAGS ((uint64_t)3) /* low bits of a reference on the interpreter's stack, from 3.14 on */
#define OBJECT_TYPE 8
#define OBJECT_SIZE 16 /* of a code object: instructions; of a bytes object: bytes */
#define BYTES_TEXT 32

static const struct {
    unsigned version;
    struct layout layout;
} known[] = {
    /*        thread      prev code place owner         file name line lines start   units */
    {0x308, {24, NO_FIELD, 24, 32, 104, NO_FIELD, 104, 112, 40, 120, NO_FIELD, 1}},
    {0x309, {24, NO_FIELD, 24, 32, 104, NO_FIELD, 104, 112, 40, 120, NO_FIELD, 1}},
    {0x30a, {24, NO_FIELD, 24, 32, 96, NO_FIELD, 104, 112, 40, 120, NO_FIELD, 2}},
    {0x30b, {56, 8, 48, 32, 56, NO_FIELD, 112, 128, 72, 136, 184, 2}},
    {0x30c, {56, 0, 8, 0, 56, 70, 112, 128, 68, 136, 192, 2}},
};

/*
 * Indices of the offsets in the table at the beginning of _PyRuntime, in 8-byte words.
 * The entries depend on the version.
 */
struct offsets {
    unsigned version;
    unsigned thread_frame, frame_previous, frame_code, frame_place, frame_owner;
    unsigned code_file, code_name, code_first_line, code_lines, code_start;
};

#define OFFSETS_COOKIE "xdebugpy"
#define OFFSETS_VERSION 1
#define OFFSETS_FREE_THREADED 2

static const struct offsets tables[] = {
    {0x30d, 23, 29, 30, 31, 33, 35, 37, 39, 38, 43},
    {0x30e, 26, 32, 33, 34, 36, 40, 42, 44, 43, 48},
};

static struct {
    int (*is_ending)(void);
    void *(*this_thread)(void);
    int (*line_of)(void *code, int offset);
    ptrdiff_t (*text_length)(void *text);
    uint32_t (*text_at)(void *text, ptrdiff_t index);
    const void *code_type;
    struct module_place place;
} python;

static struct layout layout;
static unsigned version;

/* --- the interpreter's version --- */

static bool find(stacks_look_up *look_up, const char *name, void *to) {
    void *found = look_up(RTLD_DEFAULT, name);
    memcpy(to, &found, sizeof found);
    return found != NULL;
}

static bool find_all(stacks_look_up *look_up) {
    void *evaluate;
    return (find(look_up, "Py_IsFinalizing", &python.is_ending) ||
            find(look_up, "_Py_IsFinalizing", &python.is_ending)) &&
           find(look_up, "PyGILState_GetThisThreadState", &python.this_thread) &&
           find(look_up, "PyCode_Addr2Line", &python.line_of) &&
           find(look_up, "PyUnicode_GetLength", &python.text_length) &&
           find(look_up, "PyUnicode_ReadChar", &python.text_at) &&
           find(look_up, "PyCode_Type", &python.code_type) &&
           find(look_up, "_PyEval_EvalFrameDefault", &evaluate) &&
           module_place_of((uintptr_t)evaluate, &python.place);
}

static unsigned version_of(stacks_look_up *look_up) {
    const char *(*get_version)(void);
    if (!find(look_up, "Py_GetVersion", &get_version))
        return 0;
    char *end;
    unsigned long major = strtoul(get_version(), &end, 10);
    return *end == '.' ? (unsigned)(major << 8 | strtoul(end + 1, NULL, 10)) : 0;
}

/*
 * Reads the layout from _PyRuntime. Returns false if the table is missing or of another version, or
 * if the build has no GIL, because its objects differ.
 */
static bool read_offsets(stacks_look_up *look_up, const struct offsets *table) {
    const uint64_t *words;
    if (!find(look_up, "_PyRuntime", &words) || memcmp(words, OFFSETS_COOKIE, 8) != 0 ||
        words[OFFSETS_VERSION] >> 16 != table->version || words[OFFSETS_FREE_THREADED] != 0)
        return false;
    layout = (struct layout){
        .thread_frame = (uint16_t)words[table->thread_frame],
        .through = NO_FIELD,
        .frame_previous = (uint16_t)words[table->frame_previous],
        .frame_code = (uint16_t)words[table->frame_code],
        .frame_place = (uint16_t)words[table->frame_place],
        .frame_owner = (uint16_t)words[table->frame_owner],
        .code_file = (uint16_t)words[table->code_file],
        .code_name = (uint16_t)words[table->code_name],
        .code_first_line = (uint16_t)words[table->code_first_line],
        .code_lines = (uint16_t)words[table->code_lines],
        .code_start = (uint16_t)words[table->code_start],
        .units = 2,
    };
    return true;
}

static bool find_layout(stacks_look_up *look_up, unsigned of) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].version == of) {
            layout = known[i].layout;
            return true;
        }
    }
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (tables[i].version == of)
            return read_offsets(look_up, &tables[i]);
    return false;
}

void python_start(stacks_look_up *look_up) {
    unsigned of = version_of(look_up);
    if (of == 0)
        return;
    if (!find_all(look_up) || !find_layout(look_up, of)) {
        log_warn("GPUCACHE_STACKS: the lines of this Python (%u.%u) cannot be read; known are 3.8 "
                 "to 3.14 with the GIL",
                 of >> 8, of & 255);
        return;
    }
    version = of;
}

unsigned python_version(void) {
    return version;
}

bool python_has(uint64_t address) {
    return version != 0 && address >= python.place.start && address < python.place.end;
}

/* --- reading frames --- */

/* Tells whether the layout is right. The first chain of frames that is not empty decides. */
enum trust { LAYOUT_UNCHECKED, LAYOUT_RIGHT, LAYOUT_WRONG };
static _Atomic int trust;

/* Copies memory of this process. With `checked`, a bad address is no crash: returns false. */
static inline bool fetch(uint64_t from, void *to, size_t bytes, bool checked) {
    if (!checked) {
        memcpy(to, (const void *)(uintptr_t)from, bytes);
        return true;
    }
    struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)from, bytes};
    ssize_t r = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    if (r < 0 && errno != EFAULT) { /* a sandbox forbids the call: the read is unchecked */
        memcpy(to, (const void *)(uintptr_t)from, bytes);
        return true;
    }
    return r == (ssize_t)bytes;
}

static inline bool fetch_word(uint64_t from, uint64_t *to, bool checked) {
    return fetch(from, to, sizeof *to, checked);
}

/*
 * Reads a frame's position in its code object, in bytes. Returns false if the position is outside
 * the code object.
 */
static inline bool read_position(uint64_t frame, uint64_t code, uint32_t *offset, bool checked) {
    if (layout.code_start == NO_FIELD) {
        int32_t last;
        if (!fetch(frame + layout.frame_place, &last, sizeof last, checked))
            return false;
        *offset = last < 0 ? 0 : (uint32_t)last * layout.units;
        return true;
    }
    uint64_t at, size;
    if (!fetch_word(frame + layout.frame_place, &at, checked) ||
        !fetch_word(code + OBJECT_SIZE, &size, checked))
        return false;
    at -= code + layout.code_start;
    *offset = (uint32_t)at;
    return at < size * layout.units || at + layout.units == 0; /* a frame that has not begun */
}

enum kind { FRAME_OF_CODE, FRAME_WITHOUT_CODE, FRAME_BAD };

/*
 * Computes a value that tells a code object from a later one at the same address. The later one may
 * have the same names; its line table usually differs. Returns false for a bad address.
 */
static inline bool read_check(uint64_t code, uint32_t *check, bool checked) {
    uint64_t file, name, lines, size, text;
    uint32_t first_line;
    if (!fetch_word(code + layout.code_file, &file, checked) ||
        !fetch_word(code + layout.code_name, &name, checked) ||
        !fetch(code + layout.code_first_line, &first_line, sizeof first_line, checked) ||
        !fetch_word(code + layout.code_lines, &lines, checked) ||
        !fetch_word(lines + OBJECT_SIZE, &size, checked) ||
        !fetch_word(lines + BYTES_TEXT, &text, checked))
        return false;
    uint64_t sum = (text + size) * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    *check = (uint32_t)((file ^ name << 7) >> 4) ^ first_line ^ (uint32_t)sum;
    return true;
}

static inline enum kind read_frame(uint64_t frame, struct python_frame *to, bool checked) {
    unsigned char owner = 0;
    uint64_t type;
    if (layout.frame_owner != NO_FIELD &&
        !fetch(frame + layout.frame_owner, &owner, sizeof owner, checked))
        return FRAME_BAD;
    if (owner >= OWNER_INTERPRETER)
        return FRAME_WITHOUT_CODE;
    if (!fetch_word(frame + layout.frame_code, &to->code, checked))
        return FRAME_BAD;
    to->code &= ~TAGS;
    if (to->code == 0 || !fetch_word(to->code + OBJECT_TYPE, &type, checked) ||
        type != (uintptr_t)python.code_type ||
        !read_position(frame, to->code, &to->offset, checked) ||
        !read_check(to->code, &to->check, checked))
        return FRAME_BAD;
    return FRAME_OF_CODE;
}

static unsigned walk(uint64_t frame, struct python_frame *frames, unsigned most, bool checked,
                     bool *bad) {
    unsigned count = 0;
    for (unsigned i = 0; frame != 0 && count < most && i < FRAMES_WALKED; i++) {
        enum kind kind = read_frame(frame, &frames[count], checked);
        if (kind == FRAME_BAD || !fetch_word(frame + layout.frame_previous, &frame, checked)) {
            *bad = true;
            return count;
        }
        count += kind == FRAME_OF_CODE;
    }
    return count;
}

/*
 * Reads the frames of the calling thread. Reads nothing while the interpreter finalises, because it
 * then frees the states of daemon threads that still run.
 */
unsigned python_frames(struct python_frame *frames, unsigned most) {
    int now = version != 0 ? atomic_load_explicit(&trust, memory_order_relaxed) : LAYOUT_WRONG;
    bool readable = now != LAYOUT_WRONG && !python.is_ending();
    uint64_t frame = readable ? (uintptr_t)python.this_thread() : 0;
    bool checked = now == LAYOUT_UNCHECKED, bad = false;
    if (frame == 0)
        return 0;
    if (!fetch_word(frame + layout.thread_frame, &frame, checked) ||
        (layout.through != NO_FIELD && !fetch_word(frame + layout.through, &frame, checked))) {
        frame = 0;
        bad = true;
    }
    unsigned count = walk(frame, frames, most, checked, &bad);
    if (checked && bad) {
        log_once(LOG_LEVEL_WARN,
                 "GPUCACHE_STACKS: this build of Python %u.%u is not laid out as known; "
                 "no lines of it",
                 version >> 8, version & 255);
    }
    if (checked && (bad || count > 0))
        atomic_store(&trust, bad ? LAYOUT_WRONG : LAYOUT_RIGHT);
    return checked && bad ? 0 : count;
}

/* --- text of a frame --- */

/*
 * Copies a Python string; of a string longer than TEXT_MAX only its end. The two functions of
 * Python used here change no reference count and allocate nothing.
 */
static const char *keep(void *text) {
    char bytes[4 * TEXT_MAX], *to = bytes;
    ptrdiff_t length = python.text_length(text), from = length > TEXT_MAX ? length - TEXT_MAX : 0;
    for (; from < length; from++)
        to = utf8_put(to, python.text_at(text, from));
    return text_keep(bytes, (size_t)(to - bytes));
}

bool python_line(const struct python_frame *frame, struct python_line *line) {
    uint64_t file = 0, name = 0;
    fetch_word(frame->code + layout.code_file, &file, false);
    fetch_word(frame->code + layout.code_name, &name, false);
    if (file == 0 || name == 0)
        return false;
    int at = python.line_of((void *)(uintptr_t)frame->code, (int)frame->offset);
    line->file = keep((void *)(uintptr_t)file);
    line->function = keep((void *)(uintptr_t)name);
    line->line = at > 0 ? (uint32_t)at : 0;
    return line->file && line->function;
}
