/*
 * Shares memory between two processes by handle: the other process opens, reads, writes and closes
 * blocks of many sizes and offsets. The importer is a second run of this program; only the exporter
 * prints.
 */
#include "diff.h"

#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 24

struct message {
    CUipcMemHandle handle[BLOCKS];
    uint32_t bytes[BLOCKS];
    int own; /* the exporter's code for opening its own handle */
};

/* Prints the driver's attributes of an address, relative to the start of the block. */
struct about {
    int codes[5];
    int64_t base, start;
    uint64_t bytes, size, id;
};

struct reply {
    int opened[BLOCKS], closed[BLOCKS], freed[BLOCKS];
    uint32_t first[BLOCKS], last[BLOCKS];
    struct about inner[BLOCKS]; /* of an address inside the block */
    int past[BLOCKS];           /* a copy beyond the block's end */
    int distinct, distinct_ids, closed_twice, after[2], alloc, bad, reopened;
};

static void all(ssize_t (*move)(int, void *, size_t), int fd, void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t part = move(fd, (char *)data + done, bytes - done);
        if (part <= 0)
            exit(9);
        done += (size_t)part;
    }
}

static ssize_t put(int fd, void *data, size_t bytes) {
    return write(fd, data, bytes);
}

static struct about ask(CUdeviceptr p, CUdeviceptr at) {
    struct about a;
    memset(&a, 0, sizeof a);
    CUdeviceptr base = at, start = at;
    size_t bytes = 0, size = 0;
    a.codes[0] = cuMemGetAddressRange(&base, &bytes, at);
    a.codes[1] = cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at);
    a.codes[2] = cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at);
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_BUFFER_ID};
    size_t again = 0;
    void *data[] = {&again, &a.id};
    a.codes[3] = cuPointerGetAttributes(2, names, data, at);
    a.codes[4] = again == size;
    a.base = (int64_t)(base - p);
    a.start = (int64_t)(start - p);
    a.bytes = bytes;
    a.size = size;
    return a;
}

/* Opens all blocks, reads and writes them, and closes them. */
static int importer(void) {
    static struct message m;
    static struct reply r;
    CUdeviceptr p[BLOCKS], q, mine;
    begin();
    mine = take(5000);
    all(read, 3, &m, sizeof m);
    r.distinct = r.distinct_ids = 1;
    for (unsigned i = 0; i < BLOCKS; i++) {
        r.opened[i] = cuIpcOpenMemHandle(&p[i], m.handle[i], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        if (r.opened[i] != CUDA_SUCCESS) {
            p[i] = 0;
            continue;
        }
        r.inner[i] = ask(p[i], p[i] + m.bytes[i] - 1);
        r.past[i] = cuMemcpyDtoH(&r.last[i], p[i] + m.bytes[i] - 1, 2);
        cuMemcpyDtoH(&r.first[i], p[i], 4);
        cuMemcpyDtoH(&r.last[i], p[i] + m.bytes[i] - 4, 4);
        cuMemsetD32(p[i], 0xC0DE0000 + i, m.bytes[i] / 4);
        for (unsigned j = 0; j < i; j++)
            r.distinct &= p[i] != p[j], r.distinct_ids &= r.inner[i].id != r.inner[j].id;
        r.freed[i] = cuMemFree(p[i]);
    }
    cuCtxSynchronize();
    r.alloc = cuMemFree(mine);
    CUipcMemHandle nonsense;
    memset(&nonsense, 0x5A, sizeof nonsense);
    r.bad = cuIpcOpenMemHandle(&q, nonsense, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    for (unsigned i = 0; i < BLOCKS; i++)
        r.closed[i] = p[i] ? (int)cuIpcCloseMemHandle(p[i]) : -1;
    r.closed_twice = cuIpcCloseMemHandle(p[0]);
    r.after[0] = ask(p[0], p[0]).codes[0];
    r.after[1] = ask(p[13], p[13]).codes[2];
    r.reopened = cuIpcOpenMemHandle(&q, m.handle[5], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (r.reopened == CUDA_SUCCESS)
        r.reopened = cuIpcCloseMemHandle(q);
    all(put, 4, &r, sizeof r);
    return 0;
}

/* A block of a stream-ordered pool. */
struct pool_message {
    CUmemPoolPtrExportData data;
    uint32_t bytes;
};

struct pool_reply {
    int codes[6], last, size_is_right;
};

#define POOL_FD 5

static int pool_importer(void) {
    struct pool_message m;
    struct pool_reply r;
    CUmemoryPool pool = NULL;
    CUdeviceptr p = 0, base = 0;
    uint32_t last = 0;
    size_t bytes = 0;
    memset(&r, 0, sizeof r);
    begin();
    all(read, 3, &m, sizeof m);
    r.codes[0] = cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)POOL_FD,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    r.codes[1] = cuMemPoolImportPointer(&p, pool, &m.data);
    r.codes[2] = cuMemGetAddressRange(&base, &bytes, p);
    r.size_is_right = base == p && bytes == m.bytes;
    r.codes[3] = cuMemcpyDtoH(&last, p + m.bytes - 4, 4);
    r.last = (int)last;
    r.codes[4] = cuMemFree(p);
    r.codes[5] = cuMemFree(p);
    all(put, 4, &r, sizeof r);
    return 0;
}

static pid_t start(const char *self, int *to, int *from, int pool_fd) {
    int down[2], up[2];
    if (pipe(down) != 0 || pipe(up) != 0)
        exit(9);
    pid_t child = fork();
    if (child == 0) {
        /* numbers above 4 first: the pipes may have the numbers 3 and 4 themselves */
        int in = dup2(down[0], 13), out = dup2(up[1], 14);
        dup2(in, 3);
        dup2(out, 4);
        if (pool_fd >= 0)
            dup2(pool_fd, POOL_FD);
        for (int fd = pool_fd >= 0 ? POOL_FD + 1 : 5; fd < 32; fd++)
            close(fd);
        if (getenv("GPUCACHE_TEST_PLAIN_IMPORTER"))
            unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", self, pool_fd >= 0 ? "import pool" : "import", NULL);
        _exit(9);
    }
    close(down[0]);
    close(up[1]);
    *to = down[1];
    *from = up[0];
    return child;
}

static void pools(const char *self) {
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    struct pool_message m;
    struct pool_reply r;
    CUdeviceptr p = 0;
    int fd = -1, to, from;
    memset(&m, 0, sizeof m);
    m.bytes = 3000000;
    CODES("ipc: pool: create, allocate, fill", cuMemPoolCreate(&pool, &props),
          cuMemAllocFromPoolAsync(&p, m.bytes, pool, 0), cuMemsetD32(p, 0xBEE, m.bytes / 4),
          cuCtxSynchronize());
    CODES("ipc: pool: export",
          cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          cuMemPoolExportPointer(&m.data, p));
    pid_t child = start(self, &to, &from, fd);
    all(put, to, &m, sizeof m);
    all(read, from, &r, sizeof r);
    waitpid(child, NULL, 0);
    codes("ipc: pool: import, pointer, range, read, free, again", r.codes, 6);
    line("ipc: pool: holds %x, size is right %d", r.last, r.size_is_right);
    CODES("ipc: pool: free", cuMemFree(p), cuCtxSynchronize());
}

int main(int argc, char **argv) {
    static struct message m;
    static struct reply r;
    static const uint32_t sizes[] = {4,    512,  1000,  1024,   4096,    20000,   65536,   100000,
                                     4096, 4096, 600,   300000, 1048576, 1048580, 2097152, 3000000,
                                     512,  1536, 40000, 512,    5242880, 4096,    777216,  2048};
    CUdeviceptr p[BLOCKS], q;
    int to, from, status = -1;
    if (argc > 1 && strcmp(argv[1], "import") == 0)
        return importer();
    if (argc > 1 && strcmp(argv[1], "import pool") == 0)
        return pool_importer();
    pid_t child = start(argv[0], &to, &from, -1);
    begin();
    if (!section("two processes"))
        return 0;
    for (unsigned i = 0; i < 7; i++) /* so that blocks begin at many offsets of a slab */
        take(1000 + 512 * i);
    take(5000000);
    for (unsigned i = 0; i < BLOCKS; i++) {
        p[i] = take(sizes[i]);
        m.bytes[i] = sizes[i];
        CHECK(cuMemsetD32(p[i], 0xAB000000 + i, sizes[i] / 4));
        line("ipc: export of %u bytes %d", sizes[i], cuIpcGetMemHandle(&m.handle[i], p[i]));
    }
    CHECK(cuCtxSynchronize());
    CUipcMemHandle inner, again;
    CODES("ipc: export of an interior address, again", cuIpcGetMemHandle(&inner, p[7] + 1000),
          cuIpcGetMemHandle(&again, p[7]));
    line("ipc: the same handle again %d, for an interior address %d",
         memcmp(&again, &m.handle[7], sizeof again) == 0,
         memcmp(&inner, &again, sizeof inner) == 0);
    CODES("ipc: export of nothing", cuIpcGetMemHandle(&again, 0));
    q = take(4096);
    CHECK(cuMemFree(q));
    CODES("ipc: export of freed memory", cuIpcGetMemHandle(&again, q));
    CODES("ipc: open one's own",
          cuIpcOpenMemHandle(&q, m.handle[3], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CODES("ipc: open without a flag", cuIpcOpenMemHandle(&q, m.handle[3], 0));
    CODES("ipc: close what was not opened", cuIpcCloseMemHandle(p[3]), cuIpcCloseMemHandle(0));
    all(put, to, &m, sizeof m);
    all(read, from, &r, sizeof r);
    waitpid(child, &status, 0);
    line("ipc: the importer ended %d", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    for (unsigned i = 0; i < BLOCKS; i++) {
        line("ipc: import of %u: opened %d, holds %x..%x, free %d, close %d", sizes[i], r.opened[i],
             r.first[i], r.last[i], r.freed[i], r.closed[i]);
        line("ipc: what it wrote: %s, past the end: %d", ends(p[i], sizes[i]), r.past[i]);
        const struct about *a = &r.inner[i];
        line("ipc: its end: %d at %ld, %lu bytes; %d at %ld, %d %lu bytes, %d %d", a->codes[0],
             (long)a->base, (unsigned long)a->bytes, a->codes[1], (long)a->start, a->codes[2],
             (unsigned long)a->size, a->codes[3], a->codes[4]);
    }
    line("ipc: distinct addresses %d, numbers %d", r.distinct, r.distinct_ids);
    CODES("ipc: questions after closing", r.after[0], r.after[1]);
    CODES("ipc: closed twice, own free, nonsense opened, opened once more", r.closed_twice, r.alloc,
          r.bad, r.reopened);
    for (unsigned i = 0; i < BLOCKS; i++)
        CODES("ipc: free", cuMemFree(p[i]), cuMemFree(p[i]));
    for (unsigned i = 0; i < BLOCKS; i++) {
        p[i] = take(sizes[i]);
        CHECK(cuMemsetD32(p[i], 0xEF000000 + i, sizes[i] / 4));
        line("ipc: after reuse %u: %s", sizes[i], ends(p[i], sizes[i]));
    }
    if (section("export nowhere"))
        CODES("ipc: export nowhere", cuIpcGetMemHandle(NULL, take(4096)));
    if (section("pools"))
        pools(argv[0]);
    return 0;
}
