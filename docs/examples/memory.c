/*
 * memory: what a program may ask of libgpucache while it runs under it.
 *
 *      cc -I include docs/examples/memory.c -lcuda -o memory
 *      ./memory                        runs as it always did
 *      gpucache run -- ./memory        says what it holds, and gives back what it does not need
 *
 * Nothing of the library is linked: the functions of gpucache.h are NULL without it.
 */
#include <cuda.h>
#include <gpucache.h>

#include <stdio.h>
#include <stdlib.h>

#define MIB ((size_t)1 << 20)

static void check(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "memory: %s: error %d\n", what, (int)result);
        exit(1);
    }
}

/* Of all devices together. */
static void say(const char *when) {
    struct gpucache_stats stats = {.size = sizeof stats};
    if (!gpucache_get_stats) {
        printf("%s: not under libgpucache\n", when);
        return;
    }
    if (gpucache_mark)
        gpucache_mark(when); /* the moment has a name in logs and traces */
    if (gpucache_get_stats(-1, &stats) != 0)
        return; /* no device was used yet */
    printf("%s: %zu MiB live, %zu MiB at most, %zu MiB reserved\n", when,
           (size_t)stats.requested / MIB, (size_t)stats.requested_peak / MIB,
           (size_t)stats.reserved / MIB);
}

int main(void) {
    CUcontext context;
    CUdeviceptr weights, batch, more = 0;
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");

    check(cuMemAlloc(&weights, 100 * MIB), "weights");
    check(cuMemAlloc(&batch, 300 * MIB), "a batch");
    say("with a batch");
    check(cuMemFree(batch), "free");
    say("without it"); /* the pool keeps its memory for the next one */

    /* another program on this GPU needs the memory now */
    if (gpucache_empty_cache && gpucache_empty_cache(-1) == 0)
        say("given back");

    /* from here on this process takes no more than so much; a larger request fails as on a full
     * device */
    if (gpucache_set_memory_limit && gpucache_set_memory_limit(-1, 512 * MIB) == 0)
        printf("within a limit: %s\n",
               cuMemAlloc(&more, 600 * MIB) == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "?");

    if (gpucache_write_report)
        gpucache_write_report(2, GPUCACHE_REPORT_TEXT);
    check(cuMemFree(weights), "free");
    return 0;
}
