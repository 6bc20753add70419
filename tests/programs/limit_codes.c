/*
 * limit_codes BYTES: asks for too much by each entry of cuMemAlloc's kind. Prints the code of each
 * call, what the pointer is afterwards, and the state of a capture in which the call was made.
 */
#include "program.h"

#include <string.h>

static const CUdeviceptr before = 0xdeadbeef;
static size_t too_much, pitch;

static CUresult plain(CUdeviceptr *p) {
    return cuMemAlloc(p, too_much);
}

static CUresult pitched(CUdeviceptr *p) {
    return cuMemAllocPitch(p, &pitch, 1 << 20, too_much >> 20, 4);
}

static const struct {
    const char *name;
    CUresult (*call)(CUdeviceptr *p);
} calls[] = {{"cuMemAlloc", plain}, {"cuMemAllocPitch", pitched}};

int main(int argc, char **argv) {
    CUstream stream;
    CUgraph graph;
    too_much = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    begin();
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        CUdeviceptr p = before;
        CUresult r = calls[i].call(&p);
        printf("%s: %d, the pointer is %s, the pitch %zu\n", calls[i].name, r,
               p == 0        ? "0"
               : p == before ? "as before"
                             : "other",
               pitch);
        CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        p = before;
        r = calls[i].call(&p);
        printf("%s in a capture: %d, the pointer is %s; the capture ends with %d\n", calls[i].name,
               r,
               p == 0        ? "0"
               : p == before ? "as before"
                             : "other",
               cuStreamEndCapture(stream, &graph));
    }
    return 0;
}
