/*
 * A server that shares its device with another one. Reads one command per line, and answers each
 * with one line.
 *
 *      take MIB    allocates a block
 *      give        frees the block that was taken last
 *      info        prints the free and total memory of the device, in bytes
 *      churn MIB   begins to allocate and free blocks of MIB in a thread, until `rest`
 *      rest        ends the thread, and prints the number of its pairs
 *      watch N     queries the free memory N times, and prints the minimum and the maximum
 */
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>

#define MIB ((size_t)1 << 20)
#define BLOCKS 64

static CUcontext context;
static CUdeviceptr blocks[BLOCKS];
static unsigned taken;
static pthread_t thread;
static atomic_bool stop;
static _Atomic unsigned long pairs;

static void *churn(void *bytes) {
    CUdeviceptr address[4];
    CHECK(cuCtxSetCurrent(context));
    while (!stop) {
        for (unsigned i = 0; i < 4; i++)
            CHECK(cuMemAlloc(&address[i], (size_t)bytes));
        for (unsigned i = 0; i < 4; i++)
            CHECK(cuMemFree(address[i]));
        pairs += 4;
    }
    return NULL;
}

static void watch(unsigned long times) {
    size_t least = SIZE_MAX, most = 0, now, total;
    while (times-- > 0) {
        CHECK(cuMemGetInfo(&now, &total));
        least = now < least ? now : least;
        most = now > most ? now : most;
    }
    printf("%zu %zu\n", least, most);
}

static void obey(const char *order, unsigned long value) {
    size_t now, total;
    CUresult r = CUDA_SUCCESS;
    if (strcmp(order, "take") == 0) {
        r = taken < BLOCKS ? cuMemAlloc(&blocks[taken], value * MIB) : CUDA_ERROR_NOT_SUPPORTED;
        taken += r == CUDA_SUCCESS;
    } else if (strcmp(order, "give") == 0) {
        r = taken > 0 ? cuMemFree(blocks[--taken]) : CUDA_ERROR_NOT_SUPPORTED;
    } else if (strcmp(order, "churn") == 0) {
        pthread_create(&thread, NULL, churn, (void *)(value * MIB));
        while (pairs == 0) /* answers when the first pair is done */
            ;
    } else if (strcmp(order, "rest") == 0) {
        stop = true;
        pthread_join(thread, NULL);
        printf("%lu\n", (unsigned long)pairs);
        stop = false;
        pairs = 0;
        return;
    } else if (strcmp(order, "watch") == 0) {
        watch(value);
        return;
    } else {
        CHECK(cuMemGetInfo(&now, &total));
        printf("%zu %zu\n", now, total);
        return;
    }
    printf("%d\n", (int)r);
}

int main(void) {
    char order[16];
    unsigned long value;
    CUdevice device;

    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    while (scanf("%15s %lu", order, &value) == 2)
        obey(order, value);
    while (taken > 0)
        CHECK(cuMemFree(blocks[--taken]));
    CHECK(cuDevicePrimaryCtxRelease(device));
    return 0;
}
