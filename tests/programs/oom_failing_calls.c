/*
 * oom_failing_calls FOLDER FIRST LAST STEP SYMBOL ERROR TIMES: runs a program that uses most
 * entries in a child for each k of FIRST, FIRST + STEP, ... LAST. The k-th call of SYMBOL ("*":
 * any) fails, and TIMES - 1 calls after it (-1: all; the program's output then does not matter).
 * The program repeats a refused call. Refusals and contents must equal those of the first child, in
 * which no call fails. Reports of child k go to FOLDER/k.
 *
 * The program's own launches, copies and waits do not fail. Calls of the library for allocations
 * and frees do. For the simulator only.
 */
#include "diff.h"

#include "gpucache.h"
#include "sim.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE (2 * MIB)
#define BLOCKS 200
#define PATIENCE 30 /* seconds */
#define GIVES_BACK                                                                                 \
    "cuMemFree_v2 cuMemFreeAsync cuMemRelease cuMemUnmap cuMemAddressFree cuMemFreeHost"

static struct {
    char text[4096]; /* the program's output */
    char wrong[4096];
    char failed[64];
    uint64_t calls;
} * told;

static int error, times; /* times 0: no call fails */
static bool several;     /* several successive calls fail */
static struct kernels kernels[2];
static unsigned here; /* number of the current context */
static CUstream streams[2];
static uint64_t serial, used_before;

static __attribute__((format(printf, 2, 3))) void tell(char *to, const char *format, ...) {
    size_t length = strlen(to);
    va_list values;
    va_start(values, format);
    vsnprintf(to + length, 4096 - length, format, values);
    va_end(values);
}

#define SEEN(...) tell(told->text, __VA_ARGS__)
#define WRONG(...) tell(told->wrong, __VA_ARGS__)

static void answered(CUresult answer, const char *call) {
    sim_exempt(0);
    if (answer != CUDA_SUCCESS)
        WRONG("%s: %d\n", call, (int)answer);
}

/* Makes a call that does not fail. */
#define SAFELY(call) (sim_exempt(1), answered((call), #call))

static bool is_forever(void) {
    return times < 0;
}

/* Checks that a call failed only with the code of its own refused driver call. Returns whether to
 * repeat the call. */
static bool may_fail(CUresult answer, const char *symbol) {
    const char *failed = sim_failed();
    bool itself = failed && strcmp(failed, symbol) == 0 && answer == (CUresult)error;
    if (answer != CUDA_SUCCESS && !itself && !is_forever())
        WRONG("%s: %d, because of %s\n", symbol, (int)answer, failed ? failed : "nothing");
    return answer != CUDA_SUCCESS && times != 0;
}

/* Repeats a refused call. */
#define TRY(answer, symbol, call)                                                                  \
    do {                                                                                           \
        (answer) = call;                                                                           \
        if (may_fail(answer, symbol) && ((answer) = call) != CUDA_SUCCESS && !is_forever())        \
            WRONG("%s: %d, again\n", symbol, (int)(answer));                                       \
    } while (0)

/* ---- blocks, with marks of their own in every page ---- */

static struct block {
    CUdeviceptr at;
    size_t bytes;
    uint32_t mark;
} blocks[BLOCKS];

static size_t next_mark(const struct block *block, size_t at) {
    size_t last = block->bytes - 4;
    return at == last ? block->bytes : at + PAGE > last ? last : at + PAGE;
}

static void write_marks(struct block *block, CUstream stream) {
    block->mark = (uint32_t)++serial;
    for (size_t at = 0; at < block->bytes; at = next_mark(block, at))
        SAFELY(launch_fill(&kernels[here], stream, block->at + at, block->mark, 1));
}

static void check_marks(const struct block *block) {
    SAFELY(cuStreamSynchronize(streams[0]));
    SAFELY(cuStreamSynchronize(streams[1]));
    for (size_t at = 0; at < block->bytes; at = next_mark(block, at)) {
        uint32_t found = 0;
        SAFELY(cuMemcpyDtoH(&found, block->at + at, 4));
        if (found != block->mark)
            WRONG("a block of %zu has %u at %zu, not %u\n", block->bytes, found, at, block->mark);
    }
}

static void look_for_overlap(const struct block *block) {
    for (const struct block *other = blocks; other < blocks + BLOCKS; other++)
        if (other != block && other->at && other->at < block->at + block->bytes &&
            block->at < other->at + other->bytes)
            WRONG("two blocks at %llx\n", (unsigned long long)block->at);
}

static CUresult block_alloc(unsigned i, size_t bytes) {
    CUresult answer;
    struct block *block = &blocks[i];
    TRY(answer, "cuMemAlloc_v2", cuMemAlloc(&block->at, bytes));
    if (answer != CUDA_SUCCESS) {
        block->at = 0;
        return answer;
    }
    block->bytes = bytes;
    look_for_overlap(block);
    write_marks(block, streams[i % 2]);
    return answer;
}

static void block_free(unsigned i, bool check) {
    CUresult answer;
    struct block *block = &blocks[i];
    if (block->at && check)
        check_marks(block);
    if (block->at) /* the block is not used any more, whatever the answer */
        TRY(answer, "cuMemFree_v2", cuMemFree(block->at));
    block->at = 0;
}

static void free_async(unsigned i) {
    CUresult answer = CUDA_SUCCESS;
    struct block *block = &blocks[i];
    if (block->at) { /* of memory of cuMemAlloc, the driver makes it wait for nothing else either */
        answer = cuMemFreeAsync(block->at, streams[i % 2]);
        if (answer != CUDA_SUCCESS && times == 0)
            WRONG("cuMemFreeAsync: %d\n", (int)answer);
        if (answer != CUDA_SUCCESS && cuMemFree(block->at) != CUDA_SUCCESS && !is_forever())
            WRONG("cuMemFree after cuMemFreeAsync\n");
        block->at = 0;
    }
}

static void check_all(void) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (blocks[i].at)
            check_marks(&blocks[i]);
}

static void free_all(void) {
    for (unsigned i = 0; i < BLOCKS; i++)
        block_free(i, i % 4 == 0);
}

/* ---- the steps of the program ---- */

/* Frees small and large blocks of recurring sizes during their work, some of them in stream order.
 */
static void churn(unsigned rounds, unsigned from) {
    static const size_t sizes[] = {512, 3 * MIB, 40 * KIB, 5 * MIB, 100, MIB, 8 * MIB, 2 * MIB};
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < 16; i++)
            block_alloc(from + i, sizes[i % 8]);
        for (unsigned i = round % 2; i < 16; i += i % 3 + 1)
            if (i % 5 == 4)
                free_async(from + i);
            else
                block_free(from + i, i % 4 == 3);
        for (unsigned i = 0; i < 16; i++)
            if (blocks[from + i].at && i % 2 == round % 2)
                block_free(from + i, false);
        for (unsigned i = 0; i < 16; i++)
            block_free(from + i, true);
    }
}

static void second_context(void) {
    CUcontext second, popped;
    CUresult answer;
    TRY(answer, "cuCtxCreate_v2", cuCtxCreate_v2(&second, 0, 0));
    if (answer != CUDA_SUCCESS)
        return;
    here = 1;
    SAFELY(cuModuleLoadData(&kernels[1].module, kernels_ptx));
    SAFELY(cuModuleGetFunction(&kernels[1].fill, kernels[1].module, "fill_u32"));
    for (unsigned i = 0; i < 4; i++) {
        struct block *block = &blocks[100 + i];
        TRY(answer, "cuMemAlloc_v2", cuMemAlloc(&block->at, (i + 1) * MIB));
        if (answer == CUDA_SUCCESS) {
            block->bytes = (i + 1) * MIB;
            look_for_overlap(block);
            write_marks(block, 0);
            SAFELY(cuCtxSynchronize());
            check_marks(block);
        } else {
            block->at = 0;
        }
    }
    block_free(100, true);
    block_free(102, true);
    SAFELY(cuCtxPopCurrent(&popped));
    here = 0;
    if (popped != second)
        WRONG("another context was current\n");
    block_alloc(3, 3 * MIB); /* two contexts now */
    block_free(3, true);
    TRY(answer, "cuCtxDestroy_v2", cuCtxDestroy(second));
    for (unsigned i = 0; i < 4; i++)
        blocks[100 + i].at = 0;
}

static void pinned(void) {
    CUresult answer;
    for (unsigned i = 0; i < 4; i++) {
        uint32_t *host = NULL, found = 0;
        TRY(answer, "cuMemAllocHost_v2", cuMemAllocHost((void **)&host, 256 * KIB));
        if (answer != CUDA_SUCCESS)
            continue;
        *host = i;
        SAFELY(launch_fill(&kernels[0], streams[0], (CUdeviceptr)host, i + 7, 1));
        SAFELY(cuStreamSynchronize(streams[0]));
        found = *host;
        if (found != i + 7)
            WRONG("pinned memory has %u\n", found);
        TRY(answer, "cuMemFreeHost", cuMemFreeHost(host));
    }
}

static void stream_ordered(void) {
    CUdeviceptr p = 0;
    CUresult answer;
    TRY(answer, "cuMemAllocAsync", cuMemAllocAsync(&p, 3 * MIB, streams[0]));
    if (answer == CUDA_SUCCESS)
        TRY(answer, "cuMemFreeAsync", cuMemFreeAsync(p, streams[0]));
    SAFELY(cuStreamSynchronize(streams[0]));
}

/* Makes queries. One block is exported, so its memory stays at its address. */
static void questions(void) {
    CUipcMemHandle handle;
    CUdeviceptr base = 0;
    size_t bytes = 0, total = 0;
    CUresult answer;
    if (block_alloc(0, 5 * MIB) != CUDA_SUCCESS)
        return;
    /* pages have no handle if the driver cannot export them */
    const char *failed = sim_failed();
    bool none = failed && strstr("cuDriverGetVersion cuDeviceGetAttribute", failed);
    answer = cuIpcGetMemHandle(&handle, blocks[0].at);
    if (!(none && answer == CUDA_ERROR_NOT_SUPPORTED) && may_fail(answer, "cuIpcGetMemHandle"))
        TRY(answer, "cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, blocks[0].at));
    TRY(answer, "cuMemGetAddressRange_v2", cuMemGetAddressRange(&base, &bytes, blocks[0].at + MIB));
    if (answer == CUDA_SUCCESS)
        SEEN("range %d %zu\n", base == blocks[0].at, bytes);
    TRY(answer, "cuMemGetInfo_v2", cuMemGetInfo(&bytes, &total));
    if (answer == CUDA_SUCCESS)
        SEEN("total %zu\n", total);
    block_free(0, true);
}

static void capture(void) {
    CUgraph graph = NULL;
    CUresult answer;
    block_alloc(0, 3 * MIB);
    block_alloc(1, 4 * KIB);
    TRY(answer, "cuStreamBeginCapture_v2",
        cuStreamBeginCapture_v2(streams[1], CU_STREAM_CAPTURE_MODE_RELAXED));
    if (answer != CUDA_SUCCESS)
        return;
    block_free(0, false);
    block_free(1, false);
    TRY(answer, "cuStreamEndCapture", cuStreamEndCapture(streams[1], &graph));
    if (graph)
        SAFELY(cuGraphDestroy(graph));
    /* the thread's own mode allows no allocation during a capture of another thread */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    SAFELY(cuThreadExchangeStreamCaptureMode(&mode));
    SEEN("mode %d\n", (int)mode);
    SAFELY(cuThreadExchangeStreamCaptureMode(&mode));
}

/* Allocates until memory is exhausted: one size, another size, and that again. As many blocks must
 * fit as natively. */
static void to_the_brim(void) {
    static const size_t sizes[] = {16 * MIB, 20 * MIB - 4 * KIB, 20 * MIB - 4 * KIB};
    for (unsigned turn = 0; turn < 3; turn++) {
        unsigned count = 0;
        while (count < BLOCKS) {
            struct block *block = &blocks[count];
            CUresult answer = cuMemAlloc(&block->at, sizes[turn]);
            if (answer != CUDA_SUCCESS && answer == (CUresult)error && times > 0)
                answer = cuMemAlloc(&block->at, sizes[turn]);
            if (answer != CUDA_SUCCESS) {
                block->at = 0;
                if (answer != CUDA_ERROR_OUT_OF_MEMORY && !is_forever())
                    WRONG("near a full device: %d\n", (int)answer);
                break;
            }
            block->bytes = sizes[turn];
            look_for_overlap(block);
            write_marks(block, streams[count++ % 2]);
        }
        /* if the driver refuses several unmaps in a row, that memory cannot serve other blocks yet
         */
        if (!several)
            SEEN("%u of %zu\n", count, sizes[turn]);
        else if (count < 8)
            WRONG("%u of %zu\n", count, sizes[turn]);
        for (unsigned i = 0; i < count; i += 3)
            block_free(i, true);
        check_all();
        free_all();
    }
}

static void limited(void) {
    if (!gpucache_set_memory_limit)
        return;
    for (int i = 0; i < 3; i++)
        gpucache_empty_cache(-1);
    gpucache_set_memory_limit(-1, 64 * MIB);
    for (unsigned turn = 0; turn < 3; turn++) {
        unsigned count = 0;
        size_t bytes = turn % 2 ? 6 * MIB : 10 * MIB;
        while (count < BLOCKS) {
            struct block *block = &blocks[count];
            CUresult answer = cuMemAlloc(&block->at, bytes);
            if (answer != CUDA_SUCCESS && answer == (CUresult)error && times > 0)
                answer = cuMemAlloc(&block->at, bytes);
            if (answer != CUDA_SUCCESS) {
                block->at = 0;
                break;
            }
            block->bytes = bytes;
            look_for_overlap(block);
            write_marks(block, streams[count++ % 2]);
        }
        if (count * bytes > 64 * MIB && !is_forever())
            WRONG("%u blocks beyond the limit\n", count);
        if (count * bytes < 24 * MIB && !is_forever())
            WRONG("%u of %zu at the limit\n", count, bytes);
        free_all();
    }
    gpucache_set_memory_limit(-1, 0);
}

/* Compares the memory that the library has charged with `used`. Nothing is pooled, so the charge is
 * the limit less free memory. */
static void check_charge(uint64_t used) {
    size_t left = 0, total = 0;
    gpucache_set_memory_limit(-1, 64 * MIB);
    SAFELY(cuMemGetInfo(&left, &total));
    if (used + left != total)
        WRONG("used %zu, charged %zu\n", (size_t)used, total - left);
    gpucache_set_memory_limit(-1, 0);
}

/* Compares the memory that the driver has back at the end with the library's report. */
static void end(void) {
    struct gpucache_stats stats = {.size = sizeof stats};
    free_all();
    if (!gpucache_empty_cache)
        return;
    for (int i = 0; i < 3; i++)
        gpucache_empty_cache(-1);
    gpucache_get_stats(-1, &stats);
    uint64_t used = sim_used_memory(0) - used_before;
    const char *failed = sim_failed();
    bool kept = failed && strstr(GIVES_BACK, failed);
    SEEN("requested %llu\n", (unsigned long long)stats.requested);
    if (!is_forever() && used > (kept ? (unsigned)times * 20 * MIB : 0))
        WRONG("the driver has not got back %llu, of which %llu are said to be reserved\n",
              (unsigned long long)used, (unsigned long long)stats.reserved);
    if (!is_forever())
        check_charge(used);
}

static void whole_program(uint64_t skip, const char *symbol) {
    CUdevice device;
    CUcontext context, current;
    CUresult answer;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    if (times != 0)
        sim_fail(symbol, (int)skip, (CUresult)error, times);
    TRY(answer, "cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    TRY(answer, "cuCtxSetCurrent", cuCtxSetCurrent(context));
    if (answer != CUDA_SUCCESS)
        return;
    sim_exempt(1);
    kernels_load(&kernels[0]);
    CHECK(cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING));
    sim_exempt(0);
    used_before = sim_used_memory(0);
    churn(2, 0);
    questions();
    second_context();
    pinned();
    stream_ordered();
    capture();
    to_the_brim();
    limited();
    churn(2, 20);
    if (gpucache_empty_cache)
        gpucache_empty_cache(-1);
    churn(1, 40);
    end();
    SAFELY(cuCtxGetCurrent(&current));
    if (current != context)
        WRONG("another context is current\n");
}

/* ---- one child after another ---- */

static int child(const char *folder, long k, const char *symbol, int how_often) {
    char name[512];
    memset(told, 0, sizeof *told);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(PATIENCE);
        times = how_often;
        snprintf(name, sizeof name, "%s/%ld", folder, k);
        setenv("GPUCACHE_REPORT", name, 1);
        setenv("GPUCACHE_REPORT_FORMAT", "json", 1);
        whole_program((uint64_t)k, symbol);
        const char *failed = sim_failed();
        snprintf(told->failed, sizeof told->failed, "%s", failed ? failed : "");
        told->calls = sim_exposed();
        exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

int main(int argc, char **argv) {
    static char as_it_was[4096];
    if (argc < 8)
        return 2;
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    error = atoi(argv[6]);
    several = atoi(argv[7]) > 1;
    long first = atol(argv[2]), last = atol(argv[3]), step = atol(argv[4]);
    int status = child(argv[1], -1, argv[5], 0);
    memcpy(as_it_was, told->text, sizeof as_it_was);
    if (last < 0)
        last = (long)told->calls;
    printf("calls %lu\n%s", (unsigned long)told->calls, as_it_was);
    if (status != 0 || told->wrong[0])
        printf("without a failure: status %x\n%s\n", (unsigned)status, told->wrong);
    for (long k = first; k <= last; k += step) {
        status = child(argv[1], k, argv[5], atoi(argv[7]));
        bool same = atoi(argv[7]) < 0 || strcmp(told->text, as_it_was) == 0;
        if (status != 0 || told->wrong[0] || !same)
            printf("k %ld, %s: status %x\n%s%s", k, told->failed, (unsigned)status, told->wrong,
                   same ? "" : told->text);
        fflush(stdout);
        if (told->failed[0] == 0 && status == 0)
            break; /* there is no such call */
    }
    printf("end\n");
    return 0;
}
