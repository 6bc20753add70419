/* Prints the answers of all queries about a pointer. */
#include "diff.h"

struct answers {
    CUdeviceptr base, devptr, start, mapped_to;
    size_t bytes, size;
    CUcontext context;
    unsigned type, managed;
    unsigned long long id, handles, access;
    int sync, ordinal, ipc, mapped, device, rdma;
    CUmemoryPool pool;
    void *host;
};

static CUcontext context;

static unsigned long long ask(const char *what, CUdeviceptr p) {
    struct answers a;
    memset(&a, 0xAA, sizeof a);
    a.base = a.start = p;
    CUresult range = cuMemGetAddressRange(&a.base, &a.bytes, p);
    line("pointers: %s: range %d +%lld %zd", what, range, range ? 0 : (long long)(p - a.base),
         range ? -1 : (ssize_t)a.bytes);
#define ASK(attribute, field) cuPointerGetAttribute(&a.field, CU_POINTER_ATTRIBUTE_##attribute, p)
    CUresult r = ASK(CONTEXT, context);
    line("pointers: %s: context %d %d", what, r, r ? -1 : a.context == context);
    r = ASK(MEMORY_TYPE, type);
    line("pointers: %s: type %d %d", what, r, r ? -1 : (int)a.type);
    r = ASK(DEVICE_POINTER, devptr);
    line("pointers: %s: device pointer %d %d", what, r, r ? -1 : a.devptr == p);
    r = ASK(HOST_POINTER, host);
    line("pointers: %s: host pointer %d %d", what, r, r ? -1 : (CUdeviceptr)a.host == p);
    r = ASK(SYNC_MEMOPS, sync);
    line("pointers: %s: sync %d %d", what, r, r ? -1 : a.sync != 0);
    r = ASK(IS_MANAGED, managed);
    line("pointers: %s: managed %d %d", what, r, r ? -1 : (int)(a.managed & 255));
    r = ASK(DEVICE_ORDINAL, ordinal);
    line("pointers: %s: ordinal %d %d", what, r, r ? -1 : a.ordinal);
    r = ASK(IS_LEGACY_CUDA_IPC_CAPABLE, ipc);
    line("pointers: %s: ipc %d %d", what, r, r ? -1 : a.ipc & 255);
    r = ASK(RANGE_START_ADDR, start);
    line("pointers: %s: start %d +%lld", what, r, r ? 0 : (long long)(p - a.start));
    r = ASK(RANGE_SIZE, size);
    line("pointers: %s: size %d %zd", what, r, r ? -1 : (ssize_t)a.size);
    r = ASK(MAPPED, mapped);
    line("pointers: %s: mapped %d %d", what, r, r ? -1 : a.mapped & 255);
    r = ASK(ALLOWED_HANDLE_TYPES, handles);
    line("pointers: %s: handle types %d %d", what, r, r ? -1 : (int)a.handles);
    r = ASK(MEMPOOL_HANDLE, pool);
    line("pointers: %s: pool %d %d", what, r, r ? -1 : a.pool != NULL);
    r = ASK(BUFFER_ID, id);
    line("pointers: %s: id %d", what, r);
    return r ? 0 : a.id;
}

static void several(const char *what, CUdeviceptr p) {
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,       CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_BUFFER_ID,
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,      CU_POINTER_ATTRIBUTE_HOST_POINTER};
    size_t size = 1;
    unsigned type = 1;
    CUdeviceptr start = p;
    unsigned long long id = 0, one = 0;
    int sync = 5;
    void *host = names;
    void *data[] = {&size, &type, &start, &id, &sync, &host};
    CUresult r = cuPointerGetAttributes(6, names, data, p);
    CUresult r1 = cuPointerGetAttribute(&one, CU_POINTER_ATTRIBUTE_BUFFER_ID, p);
    line("pointers: %s: several %d size %zu type %u +%lld sync %d same id %d %d host %d", what, r,
         size, type, start ? (long long)(p - start) : -1, sync, r1, r1 == CUDA_SUCCESS && id == one,
         (CUdeviceptr)host == p);
    line("pointers: %s: none of several %d", what, cuPointerGetAttributes(0, names, data, p));
    names[1] = (CUpointer_attribute)12345;
    line("pointers: %s: several, one unknown %d", what, cuPointerGetAttributes(6, names, data, p));
}

static void sync_memops(void) {
    CUdeviceptr p = take(4096), q = take(4096), big = take(4 * MIB);
    int on = 1, off = 0, got = -1, other = -1;
    line("pointers: sync memops: set %d",
         cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    line("pointers: sync memops: set on interior %d",
         cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, big + 100));
    cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
    cuPointerGetAttribute(&other, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, q);
    line("pointers: sync memops: its own %d, its neighbour's %d", got != 0, other != 0);
    cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, big);
    line("pointers: sync memops: of the whole block %d", got != 0);
    line("pointers: sync memops: off %d",
         cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
    line("pointers: sync memops: after off %d", got != 0);
    CHECK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    CHECK(cuMemFree(p));
    line("pointers: sync memops: of freed memory %d",
         cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    for (unsigned i = 0; i < 8; i++) {
        p = take(4096);
        cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
        if (got)
            line("pointers: sync memops: a new block has it");
    }
    line("pointers: sync memops: another attribute set %d",
         cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_RANGE_SIZE, q));
}

static void ids(void) {
    CUdeviceptr p[40];
    unsigned long long id[40], again = 0;
    bool all_differ = true, same = true;
    for (unsigned i = 0; i < 40; i++) {
        p[i] = take(i % 4 ? 3000 : 2 * MIB);
        CHECK(cuPointerGetAttribute(&id[i], CU_POINTER_ATTRIBUTE_BUFFER_ID, p[i]));
        for (unsigned j = 0; j < i; j++)
            all_differ &= id[i] != id[j];
    }
    for (unsigned i = 0; i < 40; i++) {
        CHECK(cuPointerGetAttribute(&again, CU_POINTER_ATTRIBUTE_BUFFER_ID, p[i] + 1500));
        same &= again == id[i];
    }
    line("pointers: ids: all differ %d, stay the same inside %d", all_differ, same);
    bool fresh = true;
    for (unsigned i = 0; i < 40; i++)
        CHECK(cuMemFree(p[i]));
    for (unsigned i = 0; i < 40; i++) {
        p[i] = take(i % 4 ? 3000 : 2 * MIB);
        CHECK(cuPointerGetAttribute(&again, CU_POINTER_ATTRIBUTE_BUFFER_ID, p[i]));
        for (unsigned j = 0; j < 40; j++)
            fresh &= again != id[j];
    }
    line("pointers: ids: new after reuse %d", fresh);
}

static void sizes(void) {
    static const size_t bytes[] = {1,           2,       511,         512,         513,     1000,
                                   4096,        65536,   100000,      MIB - 1,     MIB,     MIB + 1,
                                   2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB + 7, 64 * MIB};
    CUdeviceptr p[17], q;
    char what[64];
    for (unsigned i = 0; i < 17; i++) {
        p[i] = take(bytes[i]);
        snprintf(what, sizeof what, "%zu bytes", bytes[i]);
        line("pointers: %s: aligned to 512 %d", what, p[i] % 512 == 0);
        unsigned long long id = ask(what, p[i]);
        snprintf(what, sizeof what, "%zu bytes, last", bytes[i]);
        line("pointers: %s: the same id %d", what, id == ask(what, p[i] + bytes[i] - 1));
        snprintf(what, sizeof what, "%zu bytes, middle", bytes[i]);
        ask(what, p[i] + bytes[i] / 2);
        several(what, p[i] + bytes[i] / 3);
        if (bytes[i] % 512)
            line("pointers: %s: byte after the end %d", what,
                 cuMemGetAddressRange(&q, NULL, p[i] + bytes[i]));
    }
    CHECK(cuMemFree(p[6]));
    ask("freed", p[6]);
    several("freed", p[6]);
    CHECK(cuMemFree(p[16]));
    int descriptor;
    line("pointers: freed large: descriptor of its range %d",
         cuMemGetHandleForAddressRange(&descriptor, p[16], 2 * MIB,
                                       CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    ask("freed large", p[16]);
    ask("freed large, inside", p[16] + 12345);
}

static void of_the_host(void) {
    char what[64];
    void *host;
    ask("null", 0);
    ask("stack", (CUdeviceptr)what);
    several("stack", (CUdeviceptr)what);
    CHECK(cuMemAllocHost(&host, 5000));
    ask("pinned", (CUdeviceptr)host + 10);
    CHECK(cuMemFreeHost(host));
    ask("pinned, freed", (CUdeviceptr)host + 10);
}

static void other_kinds(void) {
    CUdeviceptr q;
    size_t pitch;
    CHECK(cuMemAllocManaged(&q, 5000, CU_MEM_ATTACH_GLOBAL));
    ask("managed", q + 10);
    several("managed", q);
    CHECK(cuMemFree(q));
    CHECK(cuMemAllocPitch(&q, &pitch, 1000, 9, 4));
    ask("pitched", q + 2 * pitch);
    CHECK(cuMemFree(q));
    CHECK(cuMemAllocAsync(&q, 5000, 0));
    CHECK(cuCtxSynchronize());
    line("pointers: stream-ordered: range %d", cuMemGetAddressRange(NULL, NULL, q + 10));
    several("stream-ordered", q);
    CHECK(cuMemFree(q));
}

static void arguments(void) {
    CUdeviceptr p = take(1000), q;
    char what[64];
    line("pointers: only the base %d", cuMemGetAddressRange(&q, NULL, p));
    line("pointers: only the size %d", cuMemGetAddressRange(NULL, &(size_t){0}, p));
    line("pointers: neither %d", cuMemGetAddressRange(NULL, NULL, p));
    line("pointers: unknown attribute %d",
         cuPointerGetAttribute(what, (CUpointer_attribute)999, p));
    line("pointers: no data %d", cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p));
    line("pointers: no data for the context %d",
         cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_CONTEXT, p));
}

/* Queries of freed memory fail. An error about the context takes precedence. */
static void without_a_context(void) {
    CUdeviceptr p = take(1000), large = take(3 * MIB), keep = take(1000);
    CHECK(cuMemFree(p));
    CHECK(cuMemFree(large));
    for (unsigned with = 2; with-- > 0;) {
        CHECK(cuCtxSetCurrent(with ? context : NULL));
        for (unsigned i = 0; i < 3; i++) {
            CUdeviceptr q = i == 0 ? p : i == 1 ? large + 4096 : keep, base = 7;
            size_t bytes = 7;
            CUresult r = cuMemGetAddressRange(&base, &bytes, q);
            line("pointers: %s context: range %d, untouched %d, for nothing %d",
                 with ? "with a" : "without a", r, base == 7 && bytes == 7,
                 cuMemGetAddressRange(NULL, NULL, q));
        }
        several(with ? "freed, with a context" : "freed, without a context", p);
    }
    CHECK(cuCtxSetCurrent(context));
}

/* A range for a DMA-BUF has to begin at a host page (cuda.h). Large blocks of
 * the driver's do. */
static void host_pages(void) {
    enum { HELD = 24, TURNS = 400 };
    CUdeviceptr held[HELD] = {0};
    unsigned misaligned = 0;
    uint64_t state = 1;
    for (unsigned i = 0; i < TURNS; i++) {
        CUdeviceptr *p = &held[pick(&state, HELD)];
        if (*p)
            CHECK(cuMemFree(*p));
        *p = take(3 * MIB + pick(&state, 5 * MIB));
        misaligned += *p % (4 * KIB) != 0;
    }
    for (unsigned i = 0; i < HELD; i++)
        if (held[i])
            CHECK(cuMemFree(held[i]));
    line("pointers: %u of %d large blocks begin within a page of the host", misaligned, TURNS);
}

static void set_nothing(void) {
    line("pointers: sync memops: no value %d",
         cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, take(4096)));
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"sizes", sizes},
                 {"of the host", of_the_host},
                 {"other kinds", other_kinds},
                 {"sync memops", sync_memops},
                 {"ids", ids},
                 {"arguments", arguments},
                 {"without a context", without_a_context},
                 {"host pages", host_pages},
                 {"set nothing", set_nothing}};
    context = begin();
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        if (section(parts[i].name))
            parts[i].run();
    return 0;
}
