/*
 * Resolves the names of a report's call stacks, merges equal stacks, and prints folded stacks.
 */
#include "report/holders.h"
#include "tool/common/tool.h"
#include "tool/report/stacks.h"

#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static const char *build_id_of(const struct parsed_stacks *stacks, const char *path) {
    for (size_t i = 0; i < stacks->module_count; i++)
        if (strcmp(stacks->modules[i].path, path) == 0)
            return stacks->modules[i].build_id;
    return "";
}

void stack_frames_resolve(struct stack_frames *stack, unsigned at, const char *build_id) {
    const struct symbol *found;
    const struct stats_frame frame = stack->frames[at];
    /* A return address is after the call instruction, so look up the byte before it. */
    unsigned count = frame.function || !frame.file || frame.offset == 0
                         ? 0
                         : symbols_find(frame.file, build_id, frame.offset - 1, &found);
    if (count == 0)
        return;
    struct stats_frame *list =
        checked(realloc(stack->frames, (stack->count + count - 1) * sizeof *stack->frames));
    memmove(list + at + count, list + at + 1, (stack->count - at - 1) * sizeof *list);
    for (unsigned i = 0; i < count; i++) {
        const char *file = found[i].file ? found[i].file : frame.file;
        list[at + i] = (struct stats_frame){.function = stack_text(found[i].function),
                                            .file = stack_text(file),
                                            .module = stack_text(frame.file),
                                            .offset = frame.offset,
                                            .line = found[i].line,
                                            .inlined = i + 1 < count};
    }
    stack_frame_free(&frame);
    stack->frames = list;
    stack->count += count - 1;
}

/** Resolves the frames of a stack, outermost first, because one frame may become several. */
static void resolve(const struct parsed_stacks *stacks, struct stack_frames *stack) {
    for (unsigned i = stack->count; i > 0; i--) {
        const char *file = stack->frames[i - 1].file;
        if (file)
            stack_frames_resolve(stack, i - 1, build_id_of(stacks, file));
    }
}

/** Compares names, which are NULL if they are unknown. */
static int compare_names(const char *a, const char *b) {
    return a && b ? strcmp(a, b) : !!a - !!b;
}

int stack_frames_compare(const struct stack_frames *a, const struct stack_frames *b) {
    int order = a->count == b->count ? 0 : a->count < b->count ? -1 : 1;
    for (unsigned i = 0; order == 0 && i < a->count; i++) {
        const struct stats_frame *x = &a->frames[i], *y = &b->frames[i];
        bool named = x->function && y->function;
        order = compare_names(x->function, y->function);
        order = order ? order : compare_names(x->file, y->file);
        order = order ? order : (x->line > y->line) - (x->line < y->line);
        order = order || named ? order : (x->offset > y->offset) - (x->offset < y->offset);
    }
    return order;
}

static int compare_rows(const void *a, const void *b, void *with) {
    const struct stack_row *x = a, *y = b;
    const struct parsed_stacks *stacks = with;
    return x->device != y->device ? (x->device > y->device ? 1 : -1)
                                  : stack_frames_compare(&stacks->stacks[x->holder.stack - 1],
                                                         &stacks->stacks[y->holder.stack - 1]);
}

static void add_share(struct stats_share *to, const struct stats_share *more) {
    to->bytes += more->bytes;
    to->count += more->count;
}

static void add_holder(struct stats_holder *to, const struct stats_holder *holder) {
    uint32_t rest = to->byte_seconds_ns + holder->byte_seconds_ns;
    add_share(&to->held.live, &holder->held.live);
    add_share(&to->held.peak, &holder->held.peak);
    add_share(&to->total, &holder->total);
    to->byte_seconds += holder->byte_seconds + rest / 1000000000;
    to->byte_seconds_ns = rest % 1000000000;
}

/** Merges equal stacks: two addresses may belong to one line, for example in an unrolled loop. */
static void merge(struct parsed_stacks *stacks) {
    size_t kept = 0;
    if (stacks->row_count > 0)
        qsort_r(stacks->rows, stacks->row_count, sizeof *stacks->rows, compare_rows, stacks);
    for (size_t i = 1; i < stacks->row_count; i++)
        if (compare_rows(&stacks->rows[kept], &stacks->rows[i], stacks) == 0)
            add_holder(&stacks->rows[kept].holder, &stacks->rows[i].holder);
        else
            stacks->rows[++kept] = stacks->rows[i];
    stacks->row_count = stacks->row_count > 0 ? kept + 1 : 0;
}

/** Drops the native frames of a stack that has Python frames. */
static void keep_python_frames(struct stack_frames *stack) {
    unsigned kept = 0;
    bool any = false;
    for (unsigned i = 0; i < stack->count; i++)
        any |= stack->frames[i].python;
    for (unsigned i = 0; any && i < stack->count; i++)
        if (stack->frames[i].python)
            stack->frames[kept++] = stack->frames[i];
        else
            stack_frame_free(&stack->frames[i]);
    stack->count = any ? kept : stack->count;
}

void parsed_stacks_resolve(struct parsed_stacks *stacks, bool brief) {
    for (size_t i = 0; stacks && i < stacks->stack_count; i++) {
        if (brief)
            keep_python_frames(&stacks->stacks[i]);
        resolve(stacks, &stacks->stacks[i]);
    }
    if (stacks)
        merge(stacks);
}

/* ---- folded ---- */

static uint64_t weight_of(const struct stats_holder *holder, enum folded weight) {
    return weight == FOLDED_PEAK   ? holder->held.peak.bytes
           : weight == FOLDED_LIVE ? holder->held.live.bytes
                                   : holder->byte_seconds + (holder->byte_seconds_ns >= 500000000);
}

/** Prints a frame without the semicolon, which separates frames. */
static void print_folded(struct print *out, const struct stats_frame *frame) {
    char text[STACKS_FRAME_TEXT];
    struct print whole;
    print_init(&whole, -1, text, sizeof text);
    holders_print_frame(&whole, frame, true);
    print_end(&whole);
    for (char *at = text; (at = strchr(at, ';')) != NULL;)
        *at = ',';
    print_untrusted(out, text);
}

void parsed_stacks_fold(const struct parsed_stacks *stacks, int device, enum folded weight,
                        const char *root, struct print *out) {
    for (size_t i = 0; i < stacks->row_count; i++) {
        const struct stats_holder *holder = &stacks->rows[i].holder;
        const struct stack_frames *stack = &stacks->stacks[holder->stack - 1];
        uint64_t value = weight_of(holder, weight);
        if (stacks->rows[i].device != device || value == 0)
            continue;
        print_str(out, root);
        for (unsigned k = stack->count; k > 0; k--) {
            print_str(out, *root || k < stack->count ? ";" : "");
            print_folded(out, &stack->frames[k - 1]);
        }
        if (stack->count == 0)
            print_str(out, *root ? ";no frames" : "no frames");
        print_char(out, ' ');
        print_u64(out, value);
        print_char(out, '\n');
    }
}
