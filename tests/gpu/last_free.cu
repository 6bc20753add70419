/*
 * last_free WHAT [END]: its last wait is a free. Natively that free waits for what a kernel and a
 * host function print; under the library the end of the process does (driver/context/decay.h).
 *
 *   kernel          a kernel prints; then memory of the device is freed
 *   host            a host function prints; then memory of the device is freed
 *   pinned          a kernel prints; then pinned memory is freed
 *
 * END: _exit, quick_exit or exec; else main returns.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "kernel";
    void *device, *pinned;
    CHECK(cudaMalloc(&device, 5000));
    CHECK(cudaMallocHost(&pinned, 5000));
    if (strcmp(what, "host") == 0) {
        CHECK(cudaLaunchHostFunc(0, print_late, NULL));
    } else {
        print_after<<<1, 1>>>(100000000);
        CHECK(cudaGetLastError());
    }
    if (strcmp(what, "pinned") == 0) {
        CHECK(cudaFreeHost(pinned));
    } else {
        CHECK(cudaFree(device));
    }
    const char *end = argc > 2 ? argv[2] : "";
    if (strcmp(end, "_exit") == 0) {
        _exit(0);
    }
    if (strcmp(end, "quick_exit") == 0) {
        quick_exit(0);
    }
    if (strcmp(end, "exec") == 0) {
        execlp("true", "true", (char *)NULL);
    }
    return 0;
}
