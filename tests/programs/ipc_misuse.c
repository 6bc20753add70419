/*
 * Misuses handles of another process's memory: closes them twice, opens them with unknown flags,
 * changes a bit, opens thousands. `ipc_misuse BLOCKS` prints the driver's answers. With a second
 * argument it opens BLOCKS blocks and prints how long a query of other memory takes.
 */
#include "diff.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCKS_MOST 4096
#define OPEN CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

struct message {
    CUipcMemHandle handle[BLOCKS_MOST];
    uint32_t bytes[BLOCKS_MOST];
};

static struct message m;
static CUdeviceptr p[BLOCKS_MOST];
static unsigned count;

static CUresult open_block(unsigned i) {
    return cuIpcOpenMemHandle(&p[i], m.handle[i], OPEN);
}

static void closed_too_often(void) {
    for (unsigned i = 0; i < count; i++)
        CHECK(open_block(i));
    for (unsigned i = 0; i < count; i += 2) {
        CODES("ipc_misuse: closed, again, again", cuIpcCloseMemHandle(p[i]),
              cuIpcCloseMemHandle(p[i]), cuIpcCloseMemHandle(p[i]));
        line("ipc_misuse: the next one: %s", ends(p[i + 1], m.bytes[i + 1]));
    }
    for (unsigned i = 0; i < count; i += 2)
        CODES("ipc_misuse: the next one closed, again", cuIpcCloseMemHandle(p[i + 1]),
              cuIpcCloseMemHandle(p[i + 1]));
    CHECK(open_block(1));
    CHECK(open_block(1));
    CODES("ipc_misuse: opened twice: close", cuIpcCloseMemHandle(p[1] + 4),
          cuIpcCloseMemHandle(p[1]));
    line("ipc_misuse: opened twice: %s", ends(p[1], m.bytes[1]));
    CODES("ipc_misuse: opened twice: close again", cuIpcCloseMemHandle(p[1]),
          cuIpcCloseMemHandle(p[1]));
}

/* The driver knows the start of an allocation, which may lie in front of the program's block. */
static void closed_below(void) {
    unsigned closed = 0;
    CHECK(open_block(1));
    for (CUdeviceptr at = p[1] - 512; at > p[1] - 2 * MIB; at -= 512)
        closed += cuIpcCloseMemHandle(at) == CUDA_SUCCESS;
    line("ipc_misuse: closed below: %u; then %s", closed, ends(p[1], m.bytes[1]));
    CODES("ipc_misuse: closed", cuIpcCloseMemHandle(p[1]));
}

static void flags(CUcontext context) {
    CUdeviceptr q;
    CHECK(open_block(1));
    CODES("ipc_misuse: flags", cuIpcOpenMemHandle(&q, m.handle[1], 0),
          cuIpcOpenMemHandle(&q, m.handle[3], 2), cuIpcOpenMemHandle(&q, m.handle[3], ~0u));
    CHECK(cuCtxSetCurrent(NULL));
    CODES("ipc_misuse: without a context: open, close", cuIpcOpenMemHandle(&q, m.handle[1], OPEN),
          cuIpcCloseMemHandle(p[1]), cuIpcCloseMemHandle(p[1] + 4));
    CHECK(cuCtxSetCurrent(context));
    line("ipc_misuse: still there: %s", ends(p[1], m.bytes[1]));
    CODES("ipc_misuse: closed, again", cuIpcCloseMemHandle(p[1]), cuIpcCloseMemHandle(p[1]));
}

/* Changes bits that the driver leaves unused. No other memory may be reached. */
static void changed(void) {
    for (unsigned i = 0; i < count; i++) {
        unsigned elsewhere = 0, other = 0;
        CHECK(open_block(i));
        for (unsigned bit = 448; bit < 512; bit++) {
            CUipcMemHandle handle = m.handle[i];
            CUdeviceptr q = 0;
            size_t bytes = 0;
            handle.reserved[bit / 8] ^= (char)(1u << bit % 8);
            if (cuIpcOpenMemHandle(&q, handle, OPEN) != CUDA_SUCCESS)
                continue;
            elsewhere += q != p[i];
            CHECK(cuMemGetAddressRange(NULL, &bytes, q));
            other += bytes / 512 != m.bytes[i] / 512 && bytes != (m.bytes[i] + 511) / 512 * 512;
            CHECK(cuIpcCloseMemHandle(q));
        }
        line("ipc_misuse: changed: %u elsewhere, %u of another size", elsewhere, other);
        CODES("ipc_misuse: changed: closed, again", cuIpcCloseMemHandle(p[i]),
              cuIpcCloseMemHandle(p[i]));
    }
}

/* The same function as in src/driver/ipc. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

/* Forges handles with knowledge of the source: addresses outside the segment must be refused. */
static void forged(void) {
    unsigned opened = 0;
    CUdeviceptr q;
    for (unsigned i = 0; i < count; i++) {
        static const uint64_t changes[] = {1 << 12, 1 << 13, 1 << 27, (uint64_t)1 << 52};
        for (unsigned c = 0; c < 4; c++) {
            uint64_t words[8], last;
            CUipcMemHandle handle;
            memcpy(words, &m.handle[i], sizeof words);
            last = words[7] ^ changes[c];
            for (unsigned w = 0; w < 7; w++)
                words[w] ^= mix(words[7] + w) ^ mix(last + w);
            words[7] = last;
            memcpy(&handle, words, sizeof handle);
            opened += cuIpcOpenMemHandle(&q, handle, OPEN) == CUDA_SUCCESS;
        }
    }
    line("ipc_misuse: forged: %u opened", opened);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Returns the best of several measurements, because the machine is shared. */
static double question(CUdeviceptr about) {
    double best = 1;
    for (unsigned turn = 0; turn < 20; turn++) {
        double start = seconds();
        for (unsigned i = 0; i < 500; i++) {
            int type;
            cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, about);
        }
        double time = (seconds() - start) / 500;
        best = time < best ? time : best;
    }
    return best;
}

static void many(void) {
    void *host;
    CHECK(cuMemAllocHost(&host, 4096));
    for (unsigned i = 0; i < count; i++)
        CHECK(open_block(i));
    line("ns: %.0f %.0f %.0f", question((CUdeviceptr)host) * 1e9, question(p[0]) * 1e9,
         question(p[count - 1]) * 1e9);
    for (unsigned i = 0; i < count; i++)
        CHECK(cuIpcCloseMemHandle(p[i]));
}

static void importer(int in, bool time) {
    for (size_t done = 0; done < sizeof m;) {
        ssize_t part = read(in, (char *)&m + done, sizeof m - done);
        if (part <= 0)
            exit(9);
        done += (size_t)part;
    }
    CUcontext context = begin();
    if (time) {
        many();
        return;
    }
    closed_too_often();
    closed_below();
    flags(context);
    changed();
    forged();
}

/* Natively an error about the current context precedes one about the address. */
static void exported(CUcontext context) {
    CUdeviceptr q = take(1000), keep = take(1000);
    CHECK(cuMemFree(q));
    CODES("ipc_misuse: export of freed memory", cuIpcGetMemHandle(&m.handle[0], q));
    CHECK(cuCtxSetCurrent(NULL));
    CODES("ipc_misuse: export without a context", cuIpcGetMemHandle(&m.handle[0], q),
          cuIpcGetMemHandle(&m.handle[0], keep));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemFree(keep));
}

int main(int argc, char **argv) {
    int down[2], status;
    count = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
    if (count < 4 || count > BLOCKS_MOST || count % 2 || pipe(down) != 0)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        importer(down[0], argc > 2);
        fflush(stdout);
        exit(0);
    }
    CUcontext context = begin();
    if (argc <= 2)
        exported(context);
    for (unsigned i = 0; i < count; i++) {
        m.bytes[i] = i % 16 == 7    ? (uint32_t)(2 * MIB - 4) /* fills a segment */
                     : i % 16 == 15 ? (uint32_t)(2 * MIB - 64 * KIB)
                                    : 300 + 212 * (i % 64);
        p[i] = take(m.bytes[i]);
        CHECK(cuMemsetD32(p[i], i, m.bytes[i] / 4));
        CHECK(cuIpcGetMemHandle(&m.handle[i], p[i]));
    }
    CHECK(cuCtxSynchronize());
    if (write(down[1], &m, sizeof m) != (ssize_t)sizeof m)
        return 2;
    waitpid(child, &status, 0);
    for (unsigned i = 0; i < count; i++)
        CHECK(cuMemFree(p[i]));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}
