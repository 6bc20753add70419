/*
 * report_contents CASE: produces contents for a report. The last line tells whether the last
 * request was served; report_contents.py compares the report with the program's actions.
 */
#include "program.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define MOST 100000

static CUdeviceptr blocks[MOST];

/* Allocates blocks of `each` bytes until `total` bytes are live or one is refused. Returns the
 * number of blocks. */
static int fill(size_t each, size_t total) {
    int count = 0;
    while (count < MOST && (size_t)count * each < total && !cuMemAlloc(&blocks[count], each))
        count++;
    return count;
}

static void ask(size_t bytes) {
    CUdeviceptr last;
    CUresult r = cuMemAlloc(&last, bytes);
    printf("%s\n", r == CUDA_SUCCESS ? "served" : r == CUDA_ERROR_OUT_OF_MEMORY ? "refused" : "?");
}

/* Live memory fills the limit. */
static void full(void) {
    fill(32 * MIB, 1024 * MIB);
    ask(100 * MIB);
}

/* Frees every other block. No gap between the live blocks is large enough. */
static void pieces(size_t each, size_t last) {
    int count = fill(each, 700 * MIB);
    for (int i = 0; i < count; i += 2)
        CHECK(cuMemFree(blocks[i]));
    CHECK(cuCtxSynchronize());
    ask(last);
}

static void large_pieces(void) {
    pieces(3 * MIB, 600 * MIB);
}

/* A quarter of each segment is live. The segments were made for longer blocks. */
static void long_pieces(void) {
    int count = fill(64 * MIB, 700 * MIB);
    for (int i = 0; i < count; i++)
        CHECK(cuMemFree(blocks[i]));
    CHECK(cuCtxSynchronize());
    count = fill(16 * MIB, 700 * MIB);
    for (int i = 0; i < count; i++)
        if (i % 4 != 0)
            CHECK(cuMemFree(blocks[i]));
    CHECK(cuCtxSynchronize());
    ask(600 * MIB);
}

static void small_pieces(void) {
    pieces(20 * KIB, 400 * MIB);
}

static void odd_sizes(void) {
    fill(17 * MIB + 12345, 850 * MIB);
    ask(300 * MIB + 1);
}

static void next_to_an_array(void) {
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR of = {
        .Width = 4096, .Height = 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CHECK(cuArrayCreate(&array, &of));
    fill(32 * MIB, 704 * MIB);
    ask(128 * MIB);
}

static void impossible(void) {
    ask(64 * 1024 * MIB);
}

/* Allocates and frees a few blocks again and again. */
static void pairs(void) {
    for (int i = 0; i < 10000; i++) {
        CUdeviceptr block;
        CHECK(cuMemAlloc(&block, 40 * KIB));
        CHECK(cuMemFree(block));
    }
    ask(KIB);
}

static void pinned(void) {
    for (int i = 0; i < 100; i++) {
        void *host;
        CHECK(cuMemAllocHost(&host, MIB));
        CHECK(cuMemFreeHost(host));
    }
    ask(KIB);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"full", full},
        {"large_pieces", large_pieces},
        {"long_pieces", long_pieces},
        {"small_pieces", small_pieces},
        {"odd_sizes", odd_sizes},
        {"next_to_an_array", next_to_an_array},
        {"impossible", impossible},
        {"pairs", pairs},
        {"pinned", pinned},
    };
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    fprintf(stderr, "report_contents: no such case\n");
    return 2;
}
