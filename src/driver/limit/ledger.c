#include "driver/limit/ledger.h"

#include "heap/host.h"

static struct ledger_row **rows;
static size_t row_count, row_room; /* room is a power of two */

static size_t home(uint64_t key, unsigned space) {
    uint64_t hash = (key ^ (uint64_t)space << 60) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 20) & (row_room - 1);
}

struct ledger_row *ledger_find(uint64_t key, unsigned space) {
    if (row_room == 0) {
        return NULL;
    }
    for (size_t i = home(key, space); rows[i]; i = (i + 1) & (row_room - 1)) {
        if (rows[i]->key == key && rows[i]->space == space) {
            return rows[i];
        }
    }
    return NULL;
}

static void place(struct ledger_row *row) {
    size_t i = home(row->key, row->space);
    while (rows[i]) {
        i = (i + 1) & (row_room - 1);
    }
    rows[i] = row;
}

static bool make_room(void) {
    if (row_count * 2 < row_room) {
        return true;
    }
    size_t old_room = row_room;
    struct ledger_row **old = rows,
                      **wider = host_map((old_room ? old_room * 2 : 1024) * sizeof *rows, 4096);
    if (!wider) {
        return false;
    }
    rows = wider;
    row_room = old_room ? old_room * 2 : 1024;
    for (size_t i = 0; i < old_room; i++) {
        if (old[i]) {
            place(old[i]);
        }
    }
    host_unmap(old, old_room * sizeof *old);
    return true;
}

bool ledger_add(struct ledger_row *row) {
    if (!make_room()) {
        return false;
    }
    place(row);
    row_count++;
    row->listed = true;
    return true;
}

void ledger_remove(struct ledger_row *row) {
    size_t hole = home(row->key, row->space);
    while (rows[hole] != row) {
        hole = (hole + 1) & (row_room - 1);
    }
    rows[hole] = NULL;
    row_count--;
    row->listed = false;
    for (size_t i = (hole + 1) & (row_room - 1); rows[i]; i = (i + 1) & (row_room - 1)) {
        struct ledger_row *moved = rows[i];
        rows[i] = NULL;
        place(moved);
    }
}

void ledger_each(void (*visit)(struct ledger_row *row, void *with), void *with) {
    for (size_t i = 0; i < row_room;) {
        struct ledger_row *row = rows[i];
        if (row) {
            visit(row, with);
        }
        i += rows[i] == row; /* another one may have moved up into its place */
    }
}
