/*
 * A library that allocates in its constructor, which runs under the loader's lock.
 */
#include <cuda.h>

CUdeviceptr stacks_plugin_block;

__attribute__((constructor)) static void while_opened(void) {
    cuMemAlloc(&stacks_plugin_block, 9000);
    __asm__ volatile("" ::: "memory");
}

void stacks_plugin_keep(void) {
    CUdeviceptr kept;
    cuMemAlloc(&kept, 9001);
    __asm__ volatile("" ::: "memory");
}
