/* last_free: its last wait is a free. A kernel and a host function print before that free returns
 * natively. */
#include <cstdio>
#include <cuda_runtime.h>
#include <unistd.h>

#include "check.h"

static __global__ void print_after(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
    printf("the kernel has run\n");
}

static void CUDART_CB print_late(void *unused) {
    (void)unused;
    usleep(50000);
    printf("the host function has run\n");
}

int main(void) {
    void *device;
    CHECK(cudaMalloc(&device, 5000));
    print_after<<<1, 1>>>(20000000);
    CHECK(cudaGetLastError());
    CHECK(cudaLaunchHostFunc(0, print_late, NULL));
    CHECK(cudaFree(device));
    return 0;
}
