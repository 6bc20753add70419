/*
 * Prints the answers that a program gets through a chain of preloaded libraries, never addresses.
 * Linked with -lcuda as a program, and with -DTWIN as a shared object that host.c opens. With
 * OVERRIDE the program has its own dlsym, which then serves all libraries.
 */
#include "../first_glibc.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef OVERRIDE
void *dlsym(void *restrict handle, const char *restrict name) {
    static void *(*next)(void *, const char *);
    if (!next)
        next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", OVERRIDE);
    return next(handle, name);
}
#endif

static const char *file_of(void *pointer) {
    Dl_info info;
    if (!pointer)
        return "nothing";
    if (!dladdr(pointer, &info))
        return "nowhere";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static void count(const char *name) {
    int *counter = (int *)dlsym(RTLD_DEFAULT, name);
    printf("%s %d\n", name, counter ? *counter : -1);
}

static void ask(const char *what, void *handle) {
    int (*by_dlsym)(const char *) = (int (*)(const char *))dlsym(handle, "atoi");
    long (*by_dlvsym)(const char *) = (long (*)(const char *))dlvsym(handle, "atol", FIRST_GLIBC);
    printf("%s: atoi %d atol %ld, %s\n", what, by_dlsym ? by_dlsym("40") : -1,
           by_dlvsym ? by_dlvsym("40") : -1, file_of(dlsym(handle, "no_such_function")));
}

static int use_driver(void) {
    CUdeviceptr p = 0, q = 0;
    CUdevice device;
    CUcontext context;
    unsigned value = 0;
    size_t bytes = 0;
    int r[12];
    r[0] = cuInit(0);
    r[1] = cuDeviceGet(&device, 0);
    r[2] = cuDevicePrimaryCtxRetain(&context, device);
    r[3] = cuCtxSetCurrent(context);
    r[4] = cuMemAlloc(&p, 1000);
    CUresult (*alloc)(CUdeviceptr *, size_t) =
        (CUresult(*)(CUdeviceptr *, size_t))dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    r[5] = alloc ? (int)alloc(&q, 2000) : -1;
    r[6] = cuMemsetD32(p, 5, 250);
    r[7] = cuMemcpyDtoH(&value, p + 996, 4);
    r[8] = cuMemGetAddressRange(NULL, &bytes, q + 1999);
    r[9] = cuMemFree(p);
    r[10] = cuMemFree(q);
    r[11] = cuMemFree(q);
    for (int i = 0; i < 12; i++)
        printf("%d ", r[i]);
    printf("value %u bytes %zu\n", value, bytes);
    return 0;
}

/* Memory of the linked entry is freed by the looked-up entry, and the other way round. */
static void mix_ways(void *libcuda) {
    CUdeviceptr p[3] = {0};
    CUresult (*alloc)(CUdeviceptr *, size_t) =
        (CUresult(*)(CUdeviceptr *, size_t))dlsym(libcuda, "cuMemAlloc_v2");
    CUresult (*by_name)(CUdeviceptr) = (CUresult(*)(CUdeviceptr))dlsym(libcuda, "cuMemFree_v2");
    CUresult (*by_version)(CUdeviceptr) =
        (CUresult(*)(CUdeviceptr))dlvsym(libcuda, "cuMemFree_v2", "NONE");
    int r[6] = {cuMemAlloc(&p[0], 1000), cuMemAlloc(&p[1], 1000),
                alloc ? (int)alloc(&p[2], 1000) : -1};
    r[3] = by_name ? (int)by_name(p[1]) : -1;
    r[4] = by_name ? (int)by_name(p[0]) : -1;
    r[5] = cuMemFree(p[2]);
    printf("mixed: %d %d %d %d %d %d, %d\n", r[0], r[1], r[2], r[3], r[4], r[5], !by_version);
}

int chain_main(void) {
    void *libcuda = dlopen("libcuda.so.1", RTLD_LAZY);
    printf("atoi %d atol %ld\n", atoi("40"), atol("40"));
    ask("default", RTLD_DEFAULT);
    ask("next", RTLD_NEXT);
    ask("program", dlopen(NULL, RTLD_LAZY));
    ask("libc", dlopen("libc.so.6", RTLD_LAZY));
    use_driver();
    CUresult (*info)(size_t *, size_t *) =
        (CUresult(*)(size_t *, size_t *))dlsym(libcuda, "cuMemGetInfo_v2");
    CUresult (*next_free)(CUdeviceptr) = (CUresult(*)(CUdeviceptr))dlsym(RTLD_NEXT, "cuMemFree_v2");
    size_t a, b;
    printf("by handle %d, next %d, unknown %s\n", info ? (int)info(&a, &b) : -1,
           next_free ? (int)next_free(12345) : -1, file_of(dlsym(libcuda, "cuNoSuchThing")));
    mix_ways(libcuda);
    count("asked_layer_1");
    count("asked_layer_2");
    count("allocated_layer_1");
    count("allocated_layer_2");
    return 0;
}

#ifndef TWIN
int main(void) {
#ifdef EARLY
    extern int early_ran(void);
    printf("early ran: %d\n", early_ran());
#endif
    return chain_main();
}
#endif
