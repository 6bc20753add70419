/*
 * Chooses and prints the frames of call stacks, and lists the largest holders (holders.h). The
 * stacks are read through struct stats_stacks, which belongs to the library or to a parsed report.
 */
#include "report/holders.h"

#include "report/lines.h"

#include <string.h>

#define FRAMES_SHOWN 8 /* frames of a holder, at most, and as many as fit on two lines */
#define COLUMNS (LINES_COLUMNS - 4)

/* ---- a frame ---- */

/** Returns the name of a file without its folders. */
static const char *base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/** Returns the name of a nested Python function without the outer one, which is the next frame. */
static const char *inner_name(const char *function) {
    static const char inside[] = ".<locals>.";
    for (const char *at; (at = strstr(function, inside)) != NULL;)
        function = at + strlen(inside);
    return function;
}

void holders_print_frame(struct print *out, const struct stats_frame *frame, bool brief) {
    const char *file = frame->file && brief ? base(frame->file) : frame->file;
    if (!frame->function) {
        print_format(out, "%s%s0x", file ? file : "", file ? "+" : "");
        print_hex(out, frame->offset);
        return;
    }
    print_str(out, brief ? inner_name(frame->function) : frame->function);
    if (file && frame->line != 0)
        print_format(out, " (%s:%u)", file, frame->line);
    else if (file)
        print_format(out, " (%s)", file);
}

/** Returns whether a text begins with one of a list that ends with NULL. */
static bool begins_with(const char *text, const char *const *list) {
    for (; *list; list++)
        if (strncmp(text, *list, strlen(*list)) == 0)
            return true;
    return false;
}

bool holders_frame_is_entry(const struct stats_frame *frame) {
    static const char *const entries[] = {"libcuda", "libc10_cuda", NULL};
    return frame->file && begins_with(base(frame->file), entries);
}

bool holders_frame_is_own(const struct stats_frame *frame) {
    /* Python packages and library headers may lie below any folder. The system's files lie in fixed
     * folders. */
    static const char *const parts[] = {
        "/site-packages/", "/dist-packages/",    "/lib/python3",     "/include/c++/",
        "/include/cub/",   "/include/cuda/std/", "/include/thrust/", NULL};
    static const char *const folders[] = {"/lib/",         "/lib64/", "/usr/lib/", "/usr/lib64/",
                                          "/usr/include/", "<frozen", NULL};
    static const char *const libraries[] = {"libc10", "libgpucache", "libtorch", NULL};
    const char *function = frame->function ? frame->function : "";
    if (!frame->file || holders_frame_is_entry(frame) || strcmp(function, "_start") == 0 ||
        strncmp(function, "__libc_start", strlen("__libc_start")) == 0)
        return false;
    for (size_t i = 0; parts[i]; i++)
        if (strstr(frame->file, parts[i]))
            return false;
    return !begins_with(frame->file, folders) && !begins_with(base(frame->file), libraries);
}

/** Copies a C++ name without template arguments and without the return type. */
static void shorten(const char *name, char *into, size_t size) {
    unsigned angles = 0, parentheses = 0;
    size_t used = 0;
    for (; *name && used + 1 < size; name++) {
        parentheses += *name == '(';
        parentheses -= *name == ')' && parentheses > 0;
        angles += *name == '<';
        if (*name == ' ' && angles + parentheses == 0)
            used = 0;
        else if (angles == 0)
            into[used++] = *name;
        angles -= *name == '>' && angles > 0;
    }
    into[used] = 0;
}

void holders_print_short(struct print *out, const struct stats_frame *of) {
    struct stats_frame frame = *of;
    char name[256];
    if (frame.function && !frame.python && !strstr(frame.function, "operator")) {
        shorten(frame.function, name, sizeof name);
        frame.function = *name ? name : frame.function;
    }
    holders_print_frame(out, &frame, true);
}

/* ---- a holder ---- */

struct list {
    const struct stats_stacks *stacks;
    bool peak; /* the values at the peak, not the current ones */
    struct stats_holder rows[HOLDERS_NAMED];
    unsigned count;  /* of `rows`, which are sorted by bytes, largest first */
    unsigned others; /* holders that are not in `rows` */
    uint64_t other_bytes;
};

static const struct stats_share *share(const struct list *list, const struct stats_holder *row) {
    return list->peak ? &row->held.peak : &row->held.live;
}

static void add_holder(struct list *list, const struct stats_holder *row) {
    unsigned at = list->count;
    uint64_t bytes = share(list, row)->bytes;
    if (share(list, row)->count == 0)
        return;
    while (at > 0 && share(list, &list->rows[at - 1])->bytes < bytes)
        at--;
    if (list->count == HOLDERS_NAMED) {
        list->others++;
        list->other_bytes +=
            at < HOLDERS_NAMED ? share(list, &list->rows[HOLDERS_NAMED - 1])->bytes : bytes;
    }
    if (at == HOLDERS_NAMED)
        return;
    list->count += list->count < HOLDERS_NAMED;
    memmove(&list->rows[at + 1], &list->rows[at], (list->count - 1 - at) * sizeof *row);
    list->rows[at] = *row;
}

bool holders_frame_is_named(const struct holders_pick *pick, const struct stats_frame *frame) {
    return (!pick->python || frame->python) && (!pick->own || holders_frame_is_own(frame)) &&
           (!pick->beyond || !holders_frame_is_entry(frame));
}

struct holders_pick holders_pick_frames(const struct stats_stacks *stacks, uint32_t stack) {
    struct holders_pick pick = {false, false, false};
    struct stats_frame frame;
    for (unsigned i = 0; stacks->frame(stacks->of, stack, i, &frame); i++)
        pick.python |= frame.python;
    for (unsigned i = 0; stacks->frame(stacks->of, stack, i, &frame); i++) {
        pick.own |= (frame.python || !pick.python) && holders_frame_is_own(&frame);
        pick.beyond |= !holders_frame_is_entry(&frame);
    }
    return pick;
}

void holders_print_stack(const struct stats_stacks *stacks, uint32_t stack, struct print *first,
                         struct print *second) {
    struct holders_pick pick = holders_pick_frames(stacks, stack);
    struct stats_frame frame;
    unsigned shown = 0;
    for (unsigned i = 0; shown < FRAMES_SHOWN && stacks->frame(stacks->of, stack, i, &frame); i++) {
        if (!holders_frame_is_named(&pick, &frame))
            continue;
        struct print *out = shown == 0 ? first : second;
        size_t before = out->used;
        print_str(out, shown == 0 ? ": " : shown == 1 ? "    from " : ", ");
        holders_print_short(out, &frame);
        shown++;
        if (shown > 2 && out->used + strlen(", ...") > COLUMNS) {
            out->used = before;
            print_str(out, ", ...");
            return;
        }
    }
    if (shown == 0)
        print_str(first, ": no frames");
}

/** Writes the holders of a list, each on one or two lines, and the sum of all others. */
static void write_list(const struct list *list, void (*line)(void *with, struct print *text),
                       void *with) {
    char text[512], more[512];
    struct print first, second;
    for (unsigned i = 0; i < list->count; i++) {
        const struct stats_share *held = share(list, &list->rows[i]);
        print_init(&first, -1, text, sizeof text);
        print_init(&second, -1, more, sizeof more);
        print_format(&first, "  %s in %s", SIZE(held->bytes), COUNT(held->count));
        holders_print_stack(list->stacks, list->rows[i].stack, &first, &second);
        line(with, &first);
        if (second.used > 0)
            line(with, &second);
    }
    if (list->others > 0) {
        print_init(&first, -1, text, sizeof text);
        print_format(&first, "  %s of %u more call stack%s", SIZE(list->other_bytes), list->others,
                     list->others == 1 ? "" : "s");
        line(with, &first);
    }
}

/* ---- all of them ---- */

static void add_all_holders(struct list *list, int device) {
    struct stats_holder row;
    uint32_t at = 0;
    while (list->stacks->next(list->stacks->of, device, &at, &row))
        add_holder(list, &row);
}

unsigned holders_largest(const struct stats_stacks *stacks, int device,
                         struct stats_holder rows[HOLDERS_NAMED]) {
    struct list now = {.stacks = stacks};
    add_all_holders(&now, device);
    memcpy(rows, now.rows, sizeof now.rows);
    return now.count;
}

static void write_lost(const struct stats_stacks *stacks,
                       void (*line)(void *with, struct print *text), void *with) {
    struct stats_recording recording = stacks->recording(stacks->of);
    uint64_t blocks = recording.lost_blocks, others = recording.lost_stacks;
    char text[128];
    struct print out;
    print_init(&out, -1, text, sizeof text);
    if (blocks > 0)
        print_format(&out, "Not counted here: %s allocation%s, for which there was no room",
                     COUNT(blocks), PLURAL(blocks));
    else if (others > 0)
        print_format(&out, "Without frames: %s allocation%s, too many different call stacks",
                     COUNT(others), PLURAL(others));
    if (out.used > 0)
        line(with, &out);
}

void holders_write(const struct stats_stacks *stacks, int device, bool now_only,
                   void (*line)(void *with, struct print *text), void *with) {
    struct stats_held held = stacks->held(stacks->of, device);
    struct list at_peak = {.stacks = stacks, .peak = true}, now = {.stacks = stacks};
    char text[128];
    struct print out;
    if (!now_only && held.peak.bytes > held.live.bytes) {
        add_all_holders(&at_peak, device);
        print_init(&out, -1, text, sizeof text);
        print_format(&out, "Held at the peak, %s:", SIZE(held.peak.bytes));
        line(with, &out);
        write_list(&at_peak, line, with);
    }
    add_all_holders(&now, device);
    print_init(&out, -1, text, sizeof text);
    print_format(&out, "Held now, %s%s", SIZE(held.live.bytes), now.count > 0 ? ":" : "");
    line(with, &out);
    write_list(&now, line, with);
    write_lost(stacks, line, with);
}
