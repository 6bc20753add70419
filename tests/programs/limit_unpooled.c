/*
 * limit_unpooled KIND: frees unpooled memory in one thread and allocates in another one, which gets
 * the same addresses, arrays and handles at once. The live bytes are the same at the end as at the
 * begin; then a part of them is freed. limit_unpooled.py compares the report with these bytes.
 */
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>

#define ROUNDS 2000
#define LEFT 100 /* blocks live at the end */
#define BYTES ((size_t)64 << 10)
#define GRANULE ((size_t)2 << 20)

static CUcontext context;
static const char *kind;
static CUdeviceptr old[ROUNDS], new[ROUNDS], space;
static atomic_int freed;
static pthread_barrier_t meet;

static CUdeviceptr take(int i) {
    CUdeviceptr p = 0;
    CUarray array;
    CUmipmappedArray mipmap;
    CUmemGenericAllocationHandle handle;
    CUDA_ARRAY_DESCRIPTOR flat = {128, 128, CU_AD_FORMAT_FLOAT, 1};
    CUDA_ARRAY3D_DESCRIPTOR deep = {128, 128, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    if (strcmp(kind, "native") == 0) {
        CHECK(cuMemAlloc(&p, BYTES));
    } else if (strcmp(kind, "managed") == 0) {
        CHECK(cuMemAllocManaged(&p, BYTES, CU_MEM_ATTACH_GLOBAL));
    } else if (strcmp(kind, "pinned_host") == 0) {
        CHECK(cuMemHostAlloc((void **)&p, BYTES, 0));
    } else if (strcmp(kind, "stream_ordered") == 0) {
        CHECK(cuMemAllocAsync(&p, BYTES, 0));
    } else if (strcmp(kind, "array") == 0) {
        CHECK(cuArrayCreate(&array, &flat));
        p = (CUdeviceptr)array;
    } else if (strcmp(kind, "mipmap") == 0) {
        CHECK(cuMipmappedArrayCreate(&mipmap, &deep, 1));
        p = (CUdeviceptr)mipmap;
    } else if (strcmp(kind, "virtual") == 0) {
        CHECK(cuMemCreate(&handle, GRANULE, &prop, 0));
        p = handle;
    } else if (strcmp(kind, "mapping") == 0) { /* the mapping holds it */
        p = space + (size_t)(i % ROUNDS) * GRANULE;
        CHECK(cuMemCreate(&handle, GRANULE, &prop, 0));
        while (cuMemMap(p, GRANULE, 0, handle, 0) != CUDA_SUCCESS)
            ; /* until the other thread has unmapped its memory there */
        CHECK(cuMemRelease(handle));
    } else {
        exit(2);
    }
    return p;
}

static void give(CUdeviceptr p) {
    if (strcmp(kind, "pinned_host") == 0)
        CHECK(cuMemFreeHost((void *)p));
    else if (strcmp(kind, "stream_ordered") == 0)
        CHECK(cuMemFreeAsync(p, 0));
    else if (strcmp(kind, "array") == 0)
        CHECK(cuArrayDestroy((CUarray)p));
    else if (strcmp(kind, "mipmap") == 0)
        CHECK(cuMipmappedArrayDestroy((CUmipmappedArray)p));
    else if (strcmp(kind, "virtual") == 0)
        CHECK(cuMemRelease(p));
    else if (strcmp(kind, "mapping") == 0)
        CHECK(cuMemUnmap(p, GRANULE));
    else
        CHECK(cuMemFree(p));
}

static void *gives(void *unused) {
    (void)unused;
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&meet);
    for (int i = 0; i < ROUNDS; i++) {
        give(old[i]);
        atomic_store(&freed, i + 1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    kind = argc > 1 ? argv[1] : "";
    context = begin();
    if (strcmp(kind, "mapping") == 0)
        CHECK(cuMemAddressReserve(&space, ROUNDS * GRANULE, 0, 0, 0));
    pthread_barrier_init(&meet, NULL, 2);
    for (int i = 0; i < ROUNDS; i++)
        old[i] = take(i);
    pthread_create(&thread, NULL, gives, NULL);
    pthread_barrier_wait(&meet);
    for (int i = 0; i < ROUNDS; i++) {
        while (atomic_load(&freed) < i)
            ;
        new[i] = take(ROUNDS + i);
    }
    pthread_join(thread, NULL);
    for (int i = LEFT; i < ROUNDS; i++)
        give(new[i]);
    CHECK(cuCtxSynchronize());
    return 0;
}
