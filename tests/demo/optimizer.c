/*
 * A library that allocates for its caller, as libraries of optimizers, solvers and communication
 * do. training.py loads it if TRAINING_LIBRARY names it; reports then show two libraries. Build it
 * with -fno-optimize-sibling-calls: after a tail call this function would not be on the stack.
 */
#include <stddef.h>

int cuMemAlloc_v2(unsigned long long *address, size_t bytes); /* of the driver, or of a preload */
int optimizer_allocate(unsigned long long *address, size_t bytes);

int optimizer_allocate(unsigned long long *address, size_t bytes) {
    return cuMemAlloc_v2(address, bytes);
}
