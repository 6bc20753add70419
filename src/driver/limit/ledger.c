#include "driver/limit/ledger.h"

#include "heap/host.h"

static struct ledger_row **rows;
static size_t row_count, row_capacity; /* row_capacity is a power of two, or 0 */

/* Returns the index at which the search for a key begins: the highest bits of a multiplicative
 * hash. Only these depend on all bits of the key and on `space`. */
static size_t first_index(uint64_t key, unsigned space) {
    uint64_t hash = (key ^ (uint64_t)space << 60) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> (__builtin_clzll(row_capacity) + 1));
}

struct ledger_row *ledger_find(uint64_t key, unsigned space) {
    if (row_capacity == 0)
        return NULL;
    for (size_t i = first_index(key, space); rows[i]; i = (i + 1) & (row_capacity - 1))
        if (rows[i]->key == key && rows[i]->space == space)
            return rows[i];
    return NULL;
}

static void insert(struct ledger_row *row) {
    size_t i = first_index(row->key, row->space);
    while (rows[i])
        i = (i + 1) & (row_capacity - 1);
    rows[i] = row;
}

/* Doubles the table if half of it is in use. Returns false without host memory. */
static bool ensure_capacity(void) {
    if (row_count * 2 < row_capacity)
        return true;
    size_t old_capacity = row_capacity;
    struct ledger_row **old = rows,
                      **fresh =
                          host_map((old_capacity ? old_capacity * 2 : 1024) * sizeof *rows, 4096);
    if (!fresh)
        return false;
    rows = fresh;
    row_capacity = old_capacity ? old_capacity * 2 : 1024;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i])
            insert(old[i]);
    host_unmap(old, old_capacity * sizeof *old);
    return true;
}

bool ledger_add(struct ledger_row *row) {
    if (!ensure_capacity())
        return false;
    insert(row);
    row_count++;
    row->listed = true;
    return true;
}

void ledger_remove(struct ledger_row *row) {
    size_t hole = first_index(row->key, row->space);
    while (rows[hole] != row)
        hole = (hole + 1) & (row_capacity - 1);
    rows[hole] = NULL;
    row_count--;
    row->listed = false;
    /* Inserts the rows up to the next hole again: a search ends at a hole. */
    for (size_t i = (hole + 1) & (row_capacity - 1); rows[i]; i = (i + 1) & (row_capacity - 1)) {
        struct ledger_row *moved = rows[i];
        rows[i] = NULL;
        insert(moved);
    }
}

void ledger_each(void (*apply)(struct ledger_row *row, void *with), void *with) {
    for (size_t i = 0; i < row_capacity;) {
        struct ledger_row *row = rows[i];
        if (row)
            apply(row, with);
        /* `apply` may have removed the row, which moves a later row to this index */
        i += rows[i] == row;
    }
}
