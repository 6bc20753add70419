/*
 * Compares the call stacks of two reports, and prints which of them hold more or less memory.
 *
 * Two stacks are equal if their frames have the same names and lines. If a source line has moved,
 * its stack appears as removed in one report and as new in the other.
 */
#include "report/holders.h"
#include "report/lines.h"
#include "tool/report/stacks.h"

#include <stdlib.h>
#include <string.h>

#define NAMED 5

struct change {
    uint64_t before, after; /* bytes at the peak */
    const struct parsed_stacks *of;
    uint32_t stack;
};

struct changes {
    struct change list[NAMED]; /* largest first */
    unsigned count, others;    /* changes in the list, and not in it */
};

static uint64_t size_of(const struct change *change) {
    return change->after > change->before ? change->after - change->before
                                          : change->before - change->after;
}

static void add_change(struct changes *changes, const struct change *change) {
    unsigned at = changes->count;
    if (size_of(change) == 0)
        return;
    while (at > 0 && size_of(&changes->list[at - 1]) < size_of(change))
        at--;
    changes->others += changes->count == NAMED;
    if (at == NAMED)
        return;
    changes->count += changes->count < NAMED;
    memmove(&changes->list[at + 1], &changes->list[at], (changes->count - 1 - at) * sizeof *change);
    changes->list[at] = *change;
}

/** Returns the next row of the device. Rows are sorted by stack. */
static const struct stack_row *next_row(const struct parsed_stacks *stacks, int device,
                                        size_t *at) {
    while (*at < stacks->row_count && stacks->rows[*at].device != device)
        ++*at;
    return *at < stacks->row_count ? &stacks->rows[*at] : NULL;
}

static void collect_changes(struct changes *changes, const struct parsed_stacks *before,
                            const struct parsed_stacks *after, int device, int device_after) {
    size_t i = 0, k = 0;
    const struct stack_row *x, *y;
    while (x = next_row(before, device, &i), y = next_row(after, device_after, &k), x || y) {
        int order = !y   ? -1
                    : !x ? 1
                         : stack_frames_compare(&before->stacks[x->holder.stack - 1],
                                                &after->stacks[y->holder.stack - 1]);
        struct change change = {
            order <= 0 ? x->holder.held.peak.bytes : 0, order >= 0 ? y->holder.held.peak.bytes : 0,
            order < 0 ? before : after, order < 0 ? x->holder.stack : y->holder.stack};
        add_change(changes, &change);
        i += order <= 0;
        k += order >= 0;
    }
}

static void print_change(struct print *out, const struct change *change) {
    struct print first = PRINT_TEXT(512);
    struct print second = PRINT_TEXT(512);
    print_format(&first, "  %s%s, from %s to %s", change->after > change->before ? "+" : "-",
                 SIZE(size_of(change)), SIZE(change->before), SIZE(change->after));
    holders_print_stack(&change->of->view, change->stack, &first, &second);
    print_untrusted(out, print_end(&first));
    print_char(out, '\n');
    if (second.used > 0) {
        print_untrusted(out, print_end(&second));
        print_char(out, '\n');
    }
}

void parsed_stacks_print_changes(const struct parsed_stacks *before,
                                 const struct parsed_stacks *after, int device, int device_after,
                                 struct print *out) {
    struct changes changes = {.count = 0};
    if (!before || !after)
        return;
    collect_changes(&changes, before, after, device, device_after);
    print_str(out, changes.count > 0 ? "Held at the peak, by who asked:\n"
                                     : "Held at the peak, by who asked: the same\n");
    for (unsigned i = 0; i < changes.count; i++)
        print_change(out, &changes.list[i]);
    if (changes.others > 0)
        print_format(out, "  and %u less\n", changes.others);
}
