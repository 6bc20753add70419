/*
 * A library that uses the driver in its constructor, before main() and perhaps before the library's
 * constructor, and again in its destructor. Linked with -lcuda.
 */
#include <cuda.h>
#include <stdio.h>

static CUdeviceptr kept;

int early_ran(void);
int early_ran(void) {
    return kept != 0;
}

__attribute__((constructor)) static void early(void) {
    CUcontext context = NULL;
    CUdeviceptr p = 0;
    size_t bytes = 0;
    int alloc, range, init = cuInit(0), retain = cuDevicePrimaryCtxRetain(&context, 0);
    int current = cuCtxSetCurrent(context);
    alloc = cuMemAlloc(&p, 3000);
    range = cuMemGetAddressRange(NULL, &bytes, p + 1);
    int first = cuMemFree(p), second = cuMemFree(p);
    printf("early: %d %d %d %d %d %zu free %d %d\n", init, retain, current, alloc, range, bytes,
           first, second);
    cuMemAlloc(&kept, 70000);
}

__attribute__((destructor)) static void late(void) {
    CUdeviceptr p;
    CUresult r = cuMemAlloc(&p, 3000);
    printf("late: %s\n", r == CUDA_SUCCESS || r == CUDA_ERROR_DEINITIALIZED ? "as it should" : "?");
    fflush(stdout);
}
