/*
 * ipc [device of the importer]: shares blocks of odd sizes, and pointers into them, with a second
 * process by legacy IPC handles.
 *
 * The importer is this program again. With IPC_IMPORTER_BARE set it runs without LD_PRELOAD; it may
 * then be refused, but must never see another block's bytes. It prints the words that it found. The
 * exporter checks the words that the importer wrote.
 */
#include <cstring>
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "kernels.cuh"

enum { blocks = 12, words_least = 64 };

struct message {
    cudaIpcMemHandle_t handle;
    size_t words, skip; /* words in front of the exported pointer */
    uint32_t seed;
    int code; /* the exporter's code */
};

static unsigned long long count_wrong(const uint32_t *p, size_t words, uint32_t seed) {
    unsigned long long *bad, wrong;
    CHECK(cudaMalloc(&bad, 8));
    CHECK(cudaMemset(bad, 0, 8));
    verify<<<grid_for(words), 256>>>(p, words, seed, bad);
    CHECK(cudaMemcpy(&wrong, bad, 8, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(bad));
    return wrong;
}

static void read_all(int fd, void *to, size_t n) {
    for (char *p = (char *)to; n;) {
        ssize_t got = read(fd, p, n);
        if (got <= 0)
            DIE("the other process is gone");
        p += got, n -= (size_t)got;
    }
}

static int import(int in, int out, int device) {
    int opened = 0, refused = 0, wrong_bytes = 0;
    CHECK(cudaSetDevice(device));
    uint32_t *mine;
    CHECK(cudaMalloc(&mine, 12345)); /* an importer with a pool of its own */
    for (int i = 0; i < blocks; i++) {
        message m;
        read_all(in, &m, sizeof m);
        void *p = nullptr;
        int code = m.code ? m.code
                          : (int)cudaIpcOpenMemHandle(&p, m.handle, cudaIpcMemLazyEnablePeerAccess);
        if (code) {
            (void)cudaGetLastError();
            refused++;
        } else {
            opened++;
            /* a handle opens at the start of the allocation, whatever pointer into it was exported
             */
            if (count_wrong((uint32_t *)p, m.words, m.seed))
                wrong_bytes++;
            else
                fill<<<grid_for(m.words), 256>>>((uint32_t *)p, m.words, m.seed + 1000);
            CHECK(cudaDeviceSynchronize());
            CHECK(cudaIpcCloseMemHandle(p));
        }
        char done = code ? 'r' : 'o';
        if (write(out, &done, 1) != 1)
            DIE("write");
    }
    int again = (int)cudaFree(mine);
    printf("importer: %d opened, %d refused, %d with %s bytes, free of its own %d\n", opened,
           refused, wrong_bytes, wrong_bytes ? "WRONG" : "wrong", again);
    return wrong_bytes != 0;
}

int main(int argc, char **argv) {
    if (argc > 4 && strcmp(argv[1], "import") == 0)
        return import(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    int to[2], from[2];
    if (pipe(to) || pipe(from))
        DIE("pipe");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        close(to[1]);
        close(from[0]);
        char in[16], out[16];
        snprintf(in, sizeof in, "%d", to[0]);
        snprintf(out, sizeof out, "%d", from[1]);
        if (getenv("IPC_IMPORTER_BARE"))
            unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", argv[0], "import", in, out, argc > 1 ? argv[1] : "0",
              (char *)nullptr);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    uint32_t *p[blocks];
    message m[blocks];
    char answer[blocks];
    int not_written = 0, exported = 0;
    CHECK(cudaSetDevice(0));
    for (int i = 0; i < blocks; i++) {
        memset(&m[i], 0, sizeof m[i]);
        m[i].words = (size_t)words_least * (size_t)(3 * i + 1) << (i % 4) * 3;
        m[i].seed = (uint32_t)(i + 1);
        CHECK(cudaMalloc(&p[i], m[i].words * 4));
        fill<<<grid_for(m[i].words), 256>>>(p[i], m[i].words, m[i].seed);
    }
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < blocks; i++) {
        m[i].skip = i % 3 == 2 ? 33 : 0;
        m[i].code = (int)cudaIpcGetMemHandle(&m[i].handle, p[i] + m[i].skip);
        (void)cudaGetLastError();
        exported += m[i].code == 0;
        if (write(to[1], &m[i], sizeof m[i]) != (ssize_t)sizeof m[i])
            DIE("write");
        read_all(from[0], &answer[i], 1);
        if (answer[i] == 'o' && count_wrong(p[i], m[i].words, m[i].seed + 1000))
            not_written++;
    }
    int status;
    waitpid(pid, &status, 0);
    for (int i = 0; i < blocks; i++)
        CHECK(cudaFree(p[i]));
    printf("exporter: %d of %d exported, %d that the importer opened do not hold what it wrote; "
           "importer's status 0x%x\n",
           exported, (int)blocks, not_written, status);
    return not_written != 0 || status != 0;
}
