/*
 * What a program meets where the driver or the system refuses the library something: refusals CASE. The
 * same lines natively and under the library; refusals.py says what is refused.
 */
#include "diff.h"

#define GIB (MIB << 10)

static struct kernels kernels;
static CUstream stream;

/* Blocks of one size, one live at a time, each written late and read back: how many of them were had and
 * held what was written. */
static unsigned pairs(unsigned count, size_t bytes) {
    unsigned good = 0;
    for (unsigned i = 0; i < count; i++) {
        CUdeviceptr p;
        uint32_t first = 0;
        if (cuMemAlloc(&p, bytes) == CUDA_SUCCESS) {
            CHECK(launch_fill(&kernels, stream, p, i + 1, 100));
            CHECK(cuMemcpyDtoHAsync(&first, p, 4, stream));
            if (i % 2 == 0)
                CHECK(cuStreamSynchronize(stream));
            good += i % 2 != 0 || first == i + 1;
            CHECK(cuMemFree(p));
            CHECK(cuStreamSynchronize(stream));
        }
    }
    return good;
}

/* ---- records of the context's work, all of them or some ---- */

static void records(void) {
    line("records: 10 GiB: %u of 10", pairs(10, 10 * GIB));
    line("records: 1 GiB: %u of 100", pairs(100, GIB));
    line("records: 64 KiB: %u of 1000", pairs(1000, 64 * KIB));
    line("records: 7 GiB: %u of 20", pairs(20, 7 * GIB));
}

/* On 512 MiB: there is room for one, and the reserve is no large part of the budget. */
static void records_small(void) {
    line("records: 300 MiB: %u of 10", pairs(10, 300 * MIB));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"records", records},
        {"records_small", records_small},
    };
    if (argc < 2) {
        fprintf(stderr, "usage: refusals CASE\n");
        return 2;
    }
    begin();
    kernels_load(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    }
    fprintf(stderr, "no case %s\n", argv[1]);
    return 2;
}
