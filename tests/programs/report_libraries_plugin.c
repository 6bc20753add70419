/*
 * The libraries that report_libraries.c loads. With -DRUNTIME: a stand-in for the shared CUDA
 * runtime. Without: a library that asks for memory itself, through that runtime, and through a
 * runtime of its own. Two libraries are built from it, so their return addresses are the same if
 * one is loaded where the other was.
 */
#include <cuda.h>

#include <alloca.h>
#include <stdlib.h>
#include <string.h>

#define NESTED __attribute__((noinline))

/* As in the runtime, two functions lie between the caller and the driver. */
static NESTED CUresult inner(CUdeviceptr *p, size_t bytes, char *frame) {
    frame[0] = (char)bytes;
    CUresult r = cuMemAlloc(p, bytes);
    return r == CUDA_SUCCESS && frame[0] == (char)bytes ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static NESTED CUresult outer(CUdeviceptr *p, size_t bytes) {
    char frame[200];
    memset(frame, (int)bytes, sizeof frame);
    CUresult r = inner(p, bytes, frame);
    return frame[1] == (char)bytes ? r : CUDA_ERROR_UNKNOWN;
}

#ifdef RUNTIME

CUresult runtime_alloc(CUdeviceptr *p, size_t bytes) {
    CUresult r = outer(p, bytes);
    return r != CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : r;
}

/* Has a stack frame of at least `room` bytes. */
CUresult runtime_alloc_in_frame(CUdeviceptr *p, size_t bytes, size_t room) {
    volatile char *frame = alloca(room);
    frame[0] = frame[room - 1] = 1;
    CUresult r = cuMemAlloc(p, bytes);
    return r == CUDA_SUCCESS && frame[room - 1] == 1 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

#else

CUresult runtime_alloc(CUdeviceptr *p, size_t bytes);
CUresult runtime_alloc_in_frame(CUdeviceptr *p, size_t bytes, size_t room);

CUdeviceptr plugin_alloc(const char *way, size_t bytes) {
    CUdeviceptr p = 0;
    CUresult r = strcmp(way, "shared runtime") == 0   ? runtime_alloc(&p, bytes)
                 : strcmp(way, "static runtime") == 0 ? outer(&p, bytes)
                 : strcmp(way, "large frame") == 0    ? runtime_alloc_in_frame(&p, bytes, 200000)
                 : strcmp(way, "small frame") == 0    ? runtime_alloc_in_frame(&p, bytes, 16)
                 : strcmp(way, "managed") == 0 ? cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL)
                 : strcmp(way, "stream") == 0  ? cuMemAllocAsync(&p, bytes, NULL)
                                               : cuMemAlloc(&p, bytes);
    if (r != CUDA_SUCCESS)
        abort();
    return p;
}

/* Allocates while the library is closed, if plugin_last_bytes() was called. */
static size_t last_bytes;

void plugin_last_bytes(size_t bytes) {
    last_bytes = bytes;
}

static __attribute__((destructor)) void leave(void) {
    if (last_bytes > 0)
        cuMemFree(plugin_alloc("itself", last_bytes));
}

#endif
