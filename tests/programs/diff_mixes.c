/* Combines every call that allocates with every call that frees, and checks the contents. */
#include "diff.h"

static struct kernels kernels;
static CUstream stream;

enum kind { PLAIN, PITCHED, ASYNC, FROM_POOL, MANAGED, LARGE, KINDS };
static const char *const names[] = {"plain", "pitched", "async", "from pool", "managed", "large"};
static CUmemoryPool pool;

static CUresult allocate(enum kind kind, CUdeviceptr *p) {
    size_t pitch;
    switch (kind) {
    case PLAIN:
        return cuMemAlloc(p, 6000);
    case PITCHED:
        return cuMemAllocPitch(p, &pitch, 100, 12, 4);
    case ASYNC:
        return cuMemAllocAsync(p, 6000, stream);
    case FROM_POOL:
        return cuMemAllocFromPoolAsync(p, 6000, pool, stream);
    case MANAGED:
        return cuMemAllocManaged(p, 6000, CU_MEM_ATTACH_GLOBAL);
    default:
        return cuMemAlloc(p, 3 * MIB);
    }
}

static CUresult release(unsigned way, CUdeviceptr p) {
    switch (way) {
    case 0:
        return cuMemFree(p);
    case 1:
        return cuMemFreeAsync(p, stream);
    case 2:
        return cuMemFreeAsync(p, CU_STREAM_LEGACY);
    case 3:
        return cuMemFreeAsync(p, CU_STREAM_PER_THREAD);
    default:
        return cuMemFreeHost((void *)p);
    }
}

static const char *const ways[] = {"free", "free async", "free async, legacy", "free async, own",
                                   "free host"};

static void pairs(void) {
    for (enum kind kind = 0; kind < KINDS; kind++) {
        for (unsigned way = 0; way < 5; way++) {
            CUdeviceptr p = 0;
            CUresult a = allocate(kind, &p);
            CHECK(cuStreamSynchronize(stream));
            CUresult set = cuMemsetD32(p, 0x1234 + way, 1500);
            const char *content = ends(p, 6000);
            CUresult f = release(way, p);
            CUresult sync = cuCtxSynchronize();
            CUresult range = cuMemGetAddressRange(NULL, &(size_t){0}, p);
            line("mixes: %s, %s: alloc %d set %d %s free %d sync %d range %d", names[kind],
                 ways[way], a, set, content, f, sync, range);
            if (f != CUDA_SUCCESS)
                line("mixes: %s, %s: then free %d", names[kind], ways[way], cuMemFree(p));
            /* once more with cuMemFreeAsync crashes the real driver */
            if (way == 0)
                CODES("mixes: again, inside", cuMemFree(p), cuMemFree(p + 4));
        }
    }
}

/* Memory freed in a stream is usable by earlier work of the stream, and by the next allocation. */
static void ordered(void) {
    CUdeviceptr p[32], errors = take(4);
    uint32_t wrong = 1;
    CHECK(cuMemsetD32(errors, 0, 1));
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 32; i++) {
            p[i] = take(1000 * (i + 1));
            CHECK(launch_fill(&kernels, stream, p[i], round * 100 + i, 250));
        }
        for (unsigned i = 0; i < 32; i++) {
            CHECK(launch_check(&kernels, stream, p[i], round * 100 + i, 250, errors));
            CHECK(cuMemFreeAsync(p[i], stream));
        }
    }
    CHECK(cuMemcpyDtoH(&wrong, errors, 4));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(&wrong, errors, 4));
    line("mixes: frees in order: %u words wrong", wrong);
    CHECK(cuMemFree(errors));
}

static void pitched(void) {
    static const size_t widths[] = {1, 4, 100, 511, 512, 513, 1000, 2048, 4097, 100000};
    for (unsigned i = 0; i < 10; i++) {
        for (unsigned element = 4; element <= 16; element *= 2) {
            CUdeviceptr p = 0;
            size_t pitch = 0, bytes = 0;
            CUresult r = cuMemAllocPitch(&p, &pitch, widths[i], 7, element);
            CUresult range = cuMemGetAddressRange(NULL, &bytes, p);
            CUresult set = cuMemsetD2D8(p, pitch, 0x5A, widths[i], 7);
            unsigned char byte[2] = {0, 0};
            cuMemcpyDtoH(&byte[0], p + 6 * pitch, 1);
            cuMemcpyDtoH(&byte[1], p + 6 * pitch + widths[i] - 1, 1);
            CUresult f = cuMemFree(p);
            line("mixes: pitch of %zu x 7, element %u: %d pitch %zu range %d %zu set %d %x %x free "
                 "%d",
                 widths[i], element, r, pitch, range, bytes, set, byte[0], byte[1], f);
        }
    }
}

static void copies(void) {
    static unsigned char host[8192], back[8192];
    for (unsigned i = 0; i < sizeof host; i++)
        host[i] = (unsigned char)(i * 7 + i / 256);
    CUdeviceptr p = take(8192), q = take(8192), big = take(5 * MIB);
    CODES("mixes: copy in", cuMemcpyHtoD(p, host, 8192));
    CODES("mixes: copy over", cuMemcpyDtoD(q, p, 8192));
    CODES("mixes: copy by unified address", cuMemcpy(big + 3 * MIB, q, 8192));
    CODES("mixes: copy back", cuMemcpyDtoH(back, big + 3 * MIB, 8192),
          memcmp(host, back, 8192) == 0);
    CODES("mixes: async copy", cuMemcpyDtoDAsync(big + 1, p, 8191, stream),
          cuStreamSynchronize(stream));
    CODES("mixes: and back", cuMemcpyDtoH(back, big + 1, 8191), memcmp(host, back, 8191) == 0);
    CODES("mixes: from nowhere", cuMemcpyDtoH(back, 0, 10));
    CODES("mixes: frees", cuMemFree(p), cuMemFree(q), cuMemFree(big));
}

/* Makes a long random series of calls. All answers enter the output. */
static void series(uint64_t seed) {
    CUdeviceptr p[30] = {0};
    size_t bytes[30];
    uint32_t value[30];
    uint64_t random = seed, codes = 0, wrong = 0;
    for (unsigned step = 0; step < 3000; step++) {
        unsigned at = pick(&random, 30), what = pick(&random, 10);
        CUresult r = CUDA_SUCCESS;
        if (!p[at] && what < 7) {
            bytes[at] = 4 + (draw(&random) % (what == 0  ? 4 * MIB
                                              : what < 3 ? 200000
                                                         : 5000)) /
                                4 * 4;
            value[at] = (uint32_t)draw(&random);
            r = what == 1   ? cuMemAllocManaged(&p[at], bytes[at], CU_MEM_ATTACH_GLOBAL)
                : what == 2 ? cuMemAllocAsync(&p[at], bytes[at], 0)
                            : cuMemAlloc(&p[at], bytes[at]);
            if (r == CUDA_SUCCESS)
                r = cuMemsetD32(p[at], value[at], bytes[at] / 4);
        } else if (p[at] && what < 6) {
            uint32_t last = 0;
            r = cuMemcpyDtoH(&last, p[at] + bytes[at] - 4, 4);
            wrong += last != value[at];
            r = r ? r : what < 4 ? cuMemFree(p[at]) : cuMemFreeAsync(p[at], 0);
            /* after cuMemFreeAsync a second free of ordinary memory crashes the real driver */
            if (what == 3)
                r += cuMemFree(p[at]) * 1000;
            p[at] = 0;
        } else if (p[at] && what == 6) {
            r = cuMemFree(p[at] + 1 + draw(&random) % (bytes[at] - 1));
        } else if (p[at] && what == 7) {
            size_t got = 0;
            r = cuMemGetAddressRange(NULL, &got, p[at] + draw(&random) % bytes[at]);
        }
        codes = codes * 31 + (unsigned)r;
    }
    for (unsigned i = 0; i < 30; i++)
        if (p[i])
            codes = codes * 31 + (unsigned)cuMemFree(p[i]);
    line("mixes: series %llu: codes %016llx wrong %llu", (unsigned long long)seed,
         (unsigned long long)codes, (unsigned long long)wrong);
}

int main(void) {
    begin();
    kernels_load(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
    if (section("pairs"))
        pairs();
    if (section("ordered"))
        ordered();
    if (section("pitched"))
        pitched();
    if (section("copies"))
        copies();
    for (uint64_t seed = 1; seed <= 10; seed++) {
        char name[32];
        snprintf(name, sizeof name, "series %llu", (unsigned long long)seed);
        if (section(name))
            series(seed);
    }
    return 0;
}
