/* Functions of the programs that run rows of mem_overhead.txt. A row prints its values in one
 * line, as NAME=NUMBER. */
#ifndef GPUCACHE_TESTS_MEM_OVERHEAD_H
#define GPUCACHE_TESTS_MEM_OVERHEAD_H

#include "program.h"
#include "sim.h"

#include <stdint.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* Allocates a block. A refusal ends the program. */
static inline CUdeviceptr alloc_block(size_t bytes) {
    CUdeviceptr p = 0;
    CHECK(cuMemAlloc(&p, bytes));
    return p;
}

static inline void free_block(CUdeviceptr p) {
    CHECK(cuMemFree(p));
}

/* Returns the MiB of device 0 that this process holds from the driver. */
static inline double held_mib(void) {
    return (double)sim_used_memory(0) / MIB;
}

/* Returns the larger one of an earlier value and the MiB that are held at this moment. */
static inline double peak_held(double before) {
    double now = held_mib();
    return now > before ? now : before;
}

/* Each program has a list of rows. `PROGRAM ROW ARGUMENT...` runs one row. */
struct row {
    const char *name;
    void (*run)(char **arguments); /* NULL after the last one */
};

static inline int run_row(const struct row *rows, int argc, char **argv) {
    for (; argc > 1 && rows->name; rows++) {
        if (strcmp(rows->name, argv[1]) == 0) {
            rows->run(argv + 2);
            return 0;
        }
    }
    fprintf(stderr, "%s: no row has this name\n", argv[0]);
    return 2;
}

#endif
