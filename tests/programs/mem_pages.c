/*
 * Prints the behaviours in which memory of the virtual memory API differs from cuMemAlloc's:
 * queries, calls of that API on it, and its release at the end of a context. One line per
 * behaviour. mem_pages.py compares the lines on the pages backend with the native ones.
 *
 * `mem_pages LIBRARY` allocates blocks of many sizes, loads a library, and allocates others.
 * `mem_pages stack NAME` prints the bytes of stack that a thread takes: to allocate such blocks
 * ("grow"), for the first block of the process ("first") or of pinned memory ("pinned"), or for an
 * execvp() that finds no program ("exec").
 */
#include "diff.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define MAPPING (2 * MIB) /* granularity of the driver's mappings, bytes */

static CUcontext context;

struct mapping {
    CUdeviceptr base;
    size_t size;
};

static CUdeviceptr page_at(CUdeviceptr p) {
    return p / MAPPING * MAPPING;
}

/* Prints flags of a pointer. The driver may write one byte or four. */
static void flags_of(const char *what, CUdeviceptr p) {
    static const struct {
        CUpointer_attribute attribute;
        const char *name;
    } flags[] = {{CU_POINTER_ATTRIBUTE_MAPPED, "mapped"},
                 {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, "legacy ipc"},
                 {CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, "rdma"},
                 {CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, "decompress"},
                 {CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, "access"}};
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
        unsigned long long one = 0, several = 0;
        void *data = &several;
        CUpointer_attribute name = flags[i].attribute;
        CUresult a = cuPointerGetAttribute(&one, name, p);
        CUresult b = cuPointerGetAttributes(1, &name, &data, p);
        line("mem_pages: %s: %s %d %llu, several %d %llu", what, flags[i].name, a, one, b, several);
    }
}

static void mapping_of(const char *what, CUdeviceptr p, size_t bytes, CUdeviceptr at) {
    struct mapping m[2] = {{0, 0}, {0, 0}};
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                                   CU_POINTER_ATTRIBUTE_MAPPING_SIZE};
    void *data[] = {&m[1].base, &m[1].size};
    CUresult a = cuPointerGetAttribute(&m[0].base, names[0], at);
    CUresult b = cuPointerGetAttribute(&m[0].size, names[1], at);
    CUresult c = cuPointerGetAttributes(2, names, data, at);
    /* natively a block begins with a mapping; on pages it may reach into one more */
    size_t least = (bytes + MAPPING - 1) / MAPPING * MAPPING;
    bool little = m[0].size >= least && m[0].size <= least + MAPPING;
    line("mem_pages: %s: mapping %d %d %d no more than it needs %d, whole %d, all of it %d, the "
         "same %d",
         what, a, b, c, little, m[0].base % MAPPING == 0 && m[0].size % MAPPING == 0,
         m[0].base <= p && p + bytes <= m[0].base + m[0].size, !memcmp(&m[0], &m[1], sizeof *m));
}

static unsigned long long block_id_of(CUdeviceptr p) {
    unsigned long long id = 0;
    CUresult r = cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, p);
    return r == CUDA_SUCCESS ? id : 0;
}

static void print_answers(const char *what, CUdeviceptr p, size_t bytes) {
    CUcontext owner = NULL, several = NULL;
    CUmemoryPool pool = (CUmemoryPool)1;
    unsigned long long handles = 7;
    CUpointer_attribute name = CU_POINTER_ATTRIBUTE_CONTEXT;
    void *data = &several;
    CUdeviceptr last = p + bytes - 1;
    CUresult r = cuPointerGetAttribute(&owner, name, last);
    CUresult s = cuPointerGetAttributes(1, &name, &data, last);
    line("mem_pages: %s: context %d %d, several %d %d", what, r, owner == context, s,
         several == context);
    r = cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p);
    s = cuPointerGetAttribute(&handles, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p);
    line("mem_pages: %s: pool %d %d, handle types %d %llu", what, r, pool != NULL, s, handles);
    flags_of(what, p + bytes / 2);
    mapping_of(what, p, bytes, p);
    mapping_of(what, p, bytes, last);
    line("mem_pages: %s: block ID: not 0 %d, the same at its end %d", what, block_id_of(p) != 0,
         block_id_of(p) == block_id_of(last));
}

/* Prints the virtual memory API's codes for a block, and checks the block afterwards. */
static void calls(const char *what, CUdeviceptr p, size_t bytes) {
    CUmemGenericAllocationHandle handle = 0;
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemAccessDesc access = {.location = location, .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};
    unsigned long long flags = 7;
    unsigned host_flags;
    CUdeviceptr device;
    CUipcMemHandle ipc;
    size_t whole = (p + bytes + MAPPING - 1) / MAPPING * MAPPING - page_at(p);
    CHECK(cuMemsetD32(p, 0x5a5a5a5a, bytes / 4));
    CODES(what, cuMemRetainAllocationHandle(&handle, (void *)p),
          cuMemRetainAllocationHandle(&handle, (void *)(p + bytes - 1)),
          cuMemGetAccess(&flags, &location, p), cuMemSetAccess(page_at(p), MAPPING, &access, 1),
          cuMemSetAccess(page_at(p), whole, &access, 1), cuMemUnmap(page_at(p), MAPPING),
          cuMemUnmap(page_at(p), whole), cuMemAddressFree(page_at(p), whole));
    line("mem_pages: %s: access %llu", what, flags);
    CODES(what, cuMemHostGetFlags(&host_flags, (void *)p),
          cuMemHostGetDevicePointer(&device, (void *)(p + bytes - 1), 0));
    line("mem_pages: %s: legacy ipc handle %d", what, cuIpcGetMemHandle(&ipc, p));
    line("mem_pages: %s: then %s", what, ends(p, bytes / 4 * 4));
}

static void each_size(void) {
    static const size_t sizes[] = {4, 4096, 100000, MIB, MIB + 4, 2 * MIB, 3 * MIB, 64 * MIB + 4};
    CUdeviceptr p[8];
    char what[64];
    for (unsigned i = 0; i < 8; i++) {
        p[i] = take(sizes[i]);
        snprintf(what, sizeof what, "%zu bytes", sizes[i]);
        print_answers(what, p[i], sizes[i]);
        calls(what, p[i], sizes[i]);
    }
    unsigned equal = 0;
    for (unsigned i = 4; i < 8; i++)
        for (unsigned j = 4; j < i; j++)
            equal += block_id_of(p[i]) == block_id_of(p[j]);
    line("mem_pages: equal block IDs: %u", equal);
    for (unsigned i = 0; i < 8; i++)
        CHECK(cuMemFree(p[i]));
    line("mem_pages: freed: context %d, retained %d, unmapped %d, access %d",
         cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, p[7]),
         cuMemRetainAllocationHandle(&(CUmemGenericAllocationHandle){0}, (void *)p[7]),
         cuMemUnmap(page_at(p[7]), MAPPING),
         cuMemGetAccess(&(unsigned long long){0},
                        &(CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE}, p[7]));
}

/* Maps and unmaps memory of the program's own while it has blocks. */
static void own_mappings(void) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle, again;
    unsigned long long flags = 0;
    CUdeviceptr p, block = take(5 * MIB);
    CODES("mem_pages: its own", cuMemAddressReserve(&p, 4 * MIB, 0, 0, 0),
          cuMemCreate(&handle, 2 * MIB, &prop, 0), cuMemMap(p, 2 * MIB, 0, handle, 0),
          cuMemSetAccess(p, 2 * MIB, &access, 1), cuMemGetAccess(&flags, &prop.location, p),
          cuMemsetD32(p, 7, MIB / 2), cuMemRetainAllocationHandle(&again, (void *)p),
          cuMemRelease(again), cuMemMap(block, 2 * MIB, 0, handle, 0), cuMemRelease(handle),
          cuMemUnmap(p, 2 * MIB), cuMemAddressFree(p, 4 * MIB));
    line("mem_pages: its own: access %llu", flags);
    CHECK(cuMemFree(block));
}

/* Checks that the device has all memory of a context again after its end. */
static void ends_with_its_context(void) {
    CUcontext other;
    size_t before, after, total;
    CHECK(cuMemGetInfo(&before, &total));
    for (unsigned round = 0; round < 3; round++) {
        CHECK(cuCtxCreate_v2(&other, 0, 0));
        for (unsigned i = 0; i < 20; i++) {
            CUdeviceptr p = take(i % 3 ? 7 * MIB + i : 3000);
            CHECK(cuMemsetD32(p, i, 100));
            if (i % 4 == 0)
                CHECK(cuMemFree(p));
        }
        CHECK(cuCtxDestroy(other));
        CHECK(cuCtxSetCurrent(context));
        CHECK(cuMemGetInfo(&after, &total));
        line("mem_pages: after a context: %lld bytes less", (long long)before - (long long)after);
    }
}

static unsigned count_wrong(struct kernels *kernels, CUdeviceptr errors, CUdeviceptr p,
                            uint32_t value, uint64_t count) {
    uint32_t wrong = 77;
    CHECK(cuMemsetD32(errors, 0, 1));
    CHECK(launch_check(kernels, CU_STREAM_LEGACY, p, value, count, errors));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(&wrong, errors, 4));
    return wrong;
}

static CUdeviceptr take_filled(CUcontext where, size_t bytes, uint32_t value) {
    CHECK(cuCtxSetCurrent(where));
    CUdeviceptr p = take(bytes);
    CHECK(cuMemsetD32(p, value, bytes / 4));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxSetCurrent(context));
    return p;
}

/* Kernels of one device read blocks of another one: live or idle when access is given, or allocated
 * later. No copy between the devices comes before. */
static void peers(void) {
    static const size_t sizes[] = {4096, 3 * MIB, 40 * MIB};
    CUdeviceptr errors = take(4), p[6];
    struct kernels kernels;
    CUcontext other;
    int count;
    CHECK(cuDeviceGetCount(&count));
    if (count < 2)
        return;
    kernels_load(&kernels);
    CHECK(cuDevicePrimaryCtxRetain(&other, 1));
    CUdeviceptr idle = take_filled(other, 24 * MIB, 1);
    for (unsigned i = 0; i < 3; i++)
        p[i] = take_filled(other, sizes[i], 10 + i);
    CHECK(cuMemFree(idle));
    line("mem_pages: access given: %d", cuCtxEnablePeerAccess(other, 0));
    for (unsigned i = 0; i < 3; i++)
        p[3 + i] = take_filled(other, i == 1 ? 24 * MIB : sizes[i], 13 + i);
    for (unsigned i = 0; i < 6; i++)
        line("mem_pages: read there: %u wrong",
             count_wrong(&kernels, errors, p[i], 10 + i, sizes[i % 3] / 4));
    for (unsigned i = 0; i < 6; i++)
        CHECK(cuMemFree(p[i]));
    CHECK(cuDevicePrimaryCtxRelease(1));
}

static void sizes_in_turn(unsigned from) {
    for (unsigned i = from; i < from + 20; i++) {
        CUdeviceptr p = take((3 + i * 7 % 20) * MIB), q = take((23 - i * 7 % 20) * MIB);
        CHECK(cuMemFree(p));
        CHECK(cuMemFree(q));
        CHECK(cuCtxSynchronize());
    }
}

static void *grow(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < 20; i++) {
        CUdeviceptr p = take((200 + i * 70 % 200) * MIB), q = take((20 + i) * MIB);
        CHECK(cuMemFree(p));
        CHECK(cuCtxSynchronize());
        CHECK(cuMemFree(take((40 + i * 110 % 300) * MIB)));
        CHECK(cuMemFree(q));
    }
    return unused;
}

static void *first(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemFree(take(100)));
    return unused;
}

static void *pinned(void *unused) {
    void *host;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAllocHost(&host, 1000));
    CHECK(cuMemFreeHost(host));
    return unused;
}

static void *exec(void *unused) {
    char *arguments[] = {"no-such-program", NULL};
    execvp(arguments[0], arguments);
    return unused;
}

static const struct {
    const char *name;
    void *(*run)(void *);
    bool starts; /* a block is allocated before, which starts the library */
} stacks[] = {
    {"grow", grow, false}, {"first", first, false}, {"pinned", pinned, true}, {"exec", exec, true}};

static void stack(void *(*what)(void *)) {
    static _Alignas(4096) char memory[1 << 18];
    pthread_attr_t attributes;
    pthread_t thread;
    size_t unused = 0;
    memset(memory, 0x5a, sizeof memory);
    CHECK(pthread_attr_init(&attributes));
    CHECK(pthread_attr_setstack(&attributes, memory, sizeof memory));
    CHECK(pthread_create(&thread, &attributes, what, NULL));
    CHECK(pthread_join(thread, NULL));
    while (memory[unused] == 0x5a)
        unused++;
    printf("%zu\n", sizeof memory - unused);
}

int main(int argc, char **argv) {
    context = begin();
    for (unsigned i = 0; argc > 2 && i < sizeof stacks / sizeof *stacks; i++) {
        if (strcmp(argv[2], stacks[i].name) != 0)
            continue;
        if (stacks[i].starts)
            CHECK(cuMemFree(take(100)));
        stack(stacks[i].run);
        return 0;
    }
    if (argc > 1) {
        sizes_in_turn(0);
        void *library = dlopen(argv[1], RTLD_NOW);
        sizes_in_turn(7);
        return library ? 0 : 2;
    }
    peers();
    ends_with_its_context();
    each_size();
    own_mappings();
    return 0;
}
