/*
 * One of several processes that share memory by IPC handles. A script controls it: a command on
 * each line of stdin, an answer on each line of stdout.
 *
 *   | command              | action and answer                                                    |
 *   | -------------------- | -------------------------------------------------------------------- |
 *   | take N BYTES VALUE   | allocates block N, with VALUE in the first and the last word of each |
 *   |                      | 2 MiB: its address                                                   |
 *   | fill N VALUE         | writes VALUE into these words                                        |
 *   | wrong N VALUE        | how many of these words have another value                           |
 *   | export N             | code, and the bytes of the handle as written over two backgrounds    |
 *   | open N BYTES HANDLE  | code, and whether the address is that of another block               |
 *   | opens N BYTES HANDLE | the same by eight threads at once: sum of the codes, and how many    |
 *   |                      | addresses                                                            |
 *   | opening N 0 HANDLE   | a thread opens and closes it until the process ends, in its own      |
 *   |                      | context                                                              |
 *   | guarded N 0 HANDLE   | the same, under a lock for which every fork waits too                |
 *   | later N BYTES HANDLE | a thread opens it; the code is the answer of then N                  |
 *   | close N, free N      | code; the address stays known                                        |
 *   | slow N               | a long kernel writes to the block, which is closed at once: codes    |
 *   | twice N 0 HANDLE     | closes it during earlier work, opens it again at the same time, uses |
 *   |                      | it, closes it: codes                                                 |
 *   | aside N              | closes it during work that goes on when another thread has queried   |
 *   |                      | it: codes                                                            |
 *   | captured N           | closes it while a stream is being captured: codes                    |
 *   | ask N                | the driver's answers about an opened block                           |
 *   | files                | how many descriptors are open, and how many sockets among them       |
 *   | limit COUNT          | sets the limit of descriptors                                        |
 *   | ticks                | starts a signal every millisecond                                    |
 *   | daemon               | closes all sockets, as daemons do, and opens sockets and files in    |
 *   |                      | turn up to number 300: their count                                   |
 *   | same                 | how many of those files are still the same                           |
 *   | crowd                | closes all sockets, and opens files until no number is left          |
 *   | thin                 | closes those files                                                   |
 *   | last                 | as files, after all exit handlers and the driver's own have run      |
 *   | fork                 | a child that stays until the end: its descriptors as above           |
 *   | forks COUNT          | COUNT children, one after another: the fewest and the most           |
 *   |                      | descriptors of one                                                   |
 *   | helpers              | how many threads have the library's name, and how many of these take |
 *   |                      | signals                                                              |
 *   | context DEVICE, end  | uses a context of its own from now on; ends it                       |
 *   | turn                 | makes the other one of the two contexts current                      |
 *   | peer                 | gives the current device access to the other one's memory            |
 *   | kernel N VALUE       | a kernel of the current context reads the block: how many words      |
 *   |                      | differ                                                               |
 *   | churn                | a thread allocates and frees until the process ends                  |
 */
#include "program.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 4096
#define PAGE ((uint64_t)2 << 20)
#define FILES 300
#define OPEN CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

static struct {
    CUdeviceptr p;
    uint64_t bytes;
} blocks[SLOTS];

static CUcontext context, other;
static struct kernels kernels;
static struct stat files[FILES + 3];

static void fill(unsigned n, uint32_t value) {
    for (uint64_t at = 0; at < blocks[n].bytes; at += PAGE) {
        uint64_t end = at + PAGE < blocks[n].bytes ? at + PAGE : blocks[n].bytes;
        CHECK(cuMemsetD32(blocks[n].p + at, value, 1));
        CHECK(cuMemsetD32(blocks[n].p + end / 4 * 4 - 4, value, 1));
    }
    CHECK(cuCtxSynchronize());
}

static unsigned wrong(unsigned n, uint32_t value) {
    unsigned count = 0;
    for (uint64_t at = 0; at < blocks[n].bytes; at += PAGE) {
        uint64_t end = at + PAGE < blocks[n].bytes ? at + PAGE : blocks[n].bytes;
        uint32_t words[2] = {~value, ~value};
        cuMemcpyDtoH(&words[0], blocks[n].p + at, 4);
        cuMemcpyDtoH(&words[1], blocks[n].p + end / 4 * 4 - 4, 4);
        count += (words[0] != value) + (words[1] != value);
    }
    return count;
}

static void export(unsigned n) {
    CUipcMemHandle handle[2];
    memset(&handle[0], 0, sizeof handle[0]);
    memset(&handle[1], 0xff, sizeof handle[1]);
    CUresult a = cuIpcGetMemHandle(&handle[0], blocks[n].p);
    CUresult b = cuIpcGetMemHandle(&handle[1], blocks[n].p + blocks[n].bytes / 2);
    printf("%d %d ", a, memcmp(&handle[0], &handle[1], sizeof handle[0]) || a != b);
    for (unsigned i = 0; i < sizeof handle[0]; i++)
        printf("%02x", (unsigned char)handle[0].reserved[i]);
}

static CUipcMemHandle parse(const char *hex) {
    CUipcMemHandle handle;
    for (unsigned i = 0; i < sizeof handle; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        handle.reserved[i] = (char)byte;
    }
    return handle;
}

static void open_one(unsigned n, uint64_t bytes, const char *hex) {
    unsigned others = 0;
    CUresult r = cuIpcOpenMemHandle(&blocks[n].p, parse(hex), OPEN);
    blocks[n].bytes = bytes;
    for (unsigned i = 0; r == CUDA_SUCCESS && i < SLOTS; i++)
        others += i != n && blocks[i].p == blocks[n].p;
    printf("%d %u", r, others);
}

struct opener {
    CUipcMemHandle handle;
    CUdeviceptr p;
    CUresult code;
};

static void *open_in_thread(void *arg) {
    struct opener *opener = arg;
    CHECK(cuCtxSetCurrent(other ? other : context));
    opener->code = cuIpcOpenMemHandle(&opener->p, opener->handle, OPEN);
    return NULL;
}

static void open_at_once(unsigned n, uint64_t bytes, const char *hex) {
    pthread_t threads[8];
    struct opener openers[8];
    int sum = 0;
    unsigned addresses = 1;
    for (unsigned i = 0; i < 8; i++) {
        openers[i] = (struct opener){.handle = parse(hex)};
        pthread_create(&threads[i], NULL, open_in_thread, &openers[i]);
    }
    for (unsigned i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        sum += (int)openers[i].code;
        addresses += openers[i].p != openers[0].p;
    }
    blocks[n].p = openers[0].p;
    blocks[n].bytes = bytes;
    printf("%d %u", sum, addresses);
}

static struct opener later;
static pthread_t later_thread;

static void open_later(unsigned n, uint64_t bytes, const char *hex) {
    later = (struct opener){.handle = parse(hex)};
    blocks[n].bytes = bytes;
    pthread_create(&later_thread, NULL, open_in_thread, &later);
}

static void wait_for_it(unsigned n) {
    pthread_join(later_thread, NULL);
    blocks[n].p = later.p;
    printf("%d", later.code);
}

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static bool guarded;

static void before_fork(void) {
    if (guarded)
        pthread_mutex_lock(&guard);
}

static void after_fork(void) {
    if (guarded)
        pthread_mutex_unlock(&guard);
}

static void *open_for_ever(void *arg) {
    struct opener *opener = arg;
    CUcontext own;
    CUresult r = CUDA_SUCCESS;
    CHECK(cuCtxCreate_v2(&own, 0, 0));
    while (r == CUDA_SUCCESS) {
        before_fork();
        r = cuIpcOpenMemHandle(&opener->p, opener->handle, OPEN);
        if (r == CUDA_SUCCESS)
            CHECK(cuIpcCloseMemHandle(opener->p));
        after_fork();
        if (guarded)
            usleep(500);
    }
    fprintf(stderr, "refused\n");
    exit(3);
}

static void keep_opening(const char *hex, bool under_guard) {
    static struct opener opener;
    pthread_t thread;
    opener.handle = parse(hex);
    guarded = under_guard;
    pthread_create(&thread, NULL, open_for_ever, &opener);
    pthread_detach(thread);
}

static void slow(unsigned n) {
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(launch_sleep(&kernels, stream, 20000));
    CHECK(launch_fill(&kernels, stream, blocks[n].p, 7, blocks[n].bytes / 4));
    CUresult closed = cuIpcCloseMemHandle(blocks[n].p);
    CUresult done = cuStreamQuery(stream);
    printf("%d %d %d", closed, done, cuCtxSynchronize());
}

static void *close_in_thread(void *arg) {
    struct opener *opener = arg;
    CHECK(cuCtxSetCurrent(context));
    opener->code = cuIpcCloseMemHandle(opener->p);
    return NULL;
}

static void twice(unsigned n, const char *hex) {
    struct opener closers[2] = {{.p = blocks[n].p}, {.handle = parse(hex)}};
    pthread_t threads[2];
    CUstream streams[2];
    uint32_t *go;
    CHECK(cuMemAllocHost((void **)&go, 8));
    go[0] = go[1] = 0;
    for (unsigned i = 0; i < 2; i++) {
        CHECK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        if (i == 1)
            CHECK(cuIpcOpenMemHandle(&closers[1].p, closers[1].handle, OPEN));
        CHECK(launch_spin(&kernels, streams[i], (CUdeviceptr)&go[i], 1));
        CHECK(launch_fill(&kernels, streams[i], closers[i].p, 7, 1));
        pthread_create(&threads[i], NULL, close_in_thread, &closers[i]);
        usleep(100000);
    }
    for (unsigned i = 0; i < 2; i++) {
        __atomic_store_n(&go[i], 1, __ATOMIC_SEQ_CST);
        pthread_join(threads[i], NULL);
    }
    printf("%d %d %d", closers[0].code, closers[1].code, cuCtxSynchronize());
}

static void aside(unsigned n) {
    struct opener closer = {.p = blocks[n].p};
    pthread_t thread;
    CUstream stream;
    uint32_t *go;
    CUmemorytype type;
    CHECK(cuMemAllocHost((void **)&go, 4));
    *go = 0;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(launch_spin(&kernels, stream, (CUdeviceptr)go, 1));
    pthread_create(&thread, NULL, close_in_thread, &closer);
    usleep(100000);
    CUresult asked = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, blocks[n].p);
    CUresult id = cuMemGetAddressRange(&closer.p, NULL, blocks[n].p);
    __atomic_store_n(go, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    printf("%d %d %d %d", closer.code, asked != 0, id != 0, cuCtxSynchronize());
}

static void close_while_captured(unsigned n) {
    CUstream stream;
    CUgraph graph;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUresult closed = cuIpcCloseMemHandle(blocks[n].p);
    printf("%d %d", closed, cuStreamEndCapture(stream, &graph));
}

static CUcontext turned(void) {
    CUcontext current;
    CHECK(cuCtxGetCurrent(&current));
    return current == context ? other : context;
}

static void read_by_kernel(unsigned n, uint32_t value) {
    struct kernels here;
    CUdeviceptr errors;
    uint32_t count = 77;
    kernels_load(&here);
    CHECK(cuMemAlloc(&errors, 4));
    CHECK(cuMemsetD32(errors, 0, 1));
    CUresult r = launch_check(&here, CU_STREAM_LEGACY, blocks[n].p, value, 1, errors);
    CUresult s = cuCtxSynchronize();
    cuMemcpyDtoH(&count, errors, 4);
    cuMemFree(errors);
    printf("%d %d %u", r, s, count);
}

static void ask(unsigned n) {
    CUdeviceptr p = blocks[n].p, base = 0;
    CUmemGenericAllocationHandle handle;
    size_t bytes = 0;
    CUcontext owner = NULL;
    unsigned long long types = 7;
    CUresult r = cuMemGetAddressRange(&base, &bytes, p + blocks[n].bytes - 1);
    printf("%d %d %d;", r, base == p, bytes == blocks[n].bytes);
    r = cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p);
    printf(" %d %d;", r, owner == (other ? other : context));
    r = cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p);
    printf(" %d %llu;", r, types);
    printf(" %d %d %d %d;", cuMemRetainAllocationHandle(&handle, (void *)p),
           cuMemUnmap(p / PAGE * PAGE, PAGE), cuMemFree(p), cuIpcCloseMemHandle(p + 4));
    r = cuMemGetAddressRange(&base, &bytes,
                             p + blocks[n].bytes + PAGE); /* perhaps another block's */
    printf(" %d", r == CUDA_SUCCESS && base == p);
}

/* Uses the system call: ThreadSanitizer reports a race if another thread closes the descriptor. */
static bool look_at(int fd, struct stat *file) {
    return syscall(SYS_newfstatat, fd, "", file, AT_EMPTY_PATH) == 0;
}

static void count_files(void) {
    unsigned all = 0, sockets = 0;
    for (int fd = 0; fd < 2000; fd++) {
        struct stat file;
        if (!look_at(fd, &file))
            continue;
        all++;
        sockets += S_ISSOCK(file.st_mode);
    }
    printf("%u %u", all, sockets);
}

static bool is_last;

static void at_the_end(void) {
    if (is_last) {
        count_files();
        printf("\n");
        fflush(stdout);
    }
}

static bool is_same(int fd) {
    struct stat now;
    return look_at(fd, &now) && now.st_ino == files[fd].st_ino && now.st_dev == files[fd].st_dev;
}

static void tick(int signal) {
    (void)signal;
}

static void start_ticks(void) {
    const struct itimerval every = {{0, 1000}, {0, 1000}};
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
}

static void become_daemon(void) {
    unsigned there = 0;
    for (int fd = 3; fd < FILES; fd++) { /* not files, which may be the driver's */
        struct stat file;
        if (look_at(fd, &file) && S_ISSOCK(file.st_mode))
            close(fd);
    }
    for (;;) {
        int fd = there % 2 ? open("/dev/null", O_RDONLY) : socket(AF_UNIX, SOCK_STREAM, 0);
        if (fd < 0 || fd >= FILES) {
            close(fd);
            break;
        }
        fstat(fd, &files[fd]);
        there++;
    }
    printf("%u", there);
}

static void count_same(void) {
    unsigned there = 0;
    for (int fd = 3; fd < FILES; fd++)
        there += files[fd].st_ino != 0 && is_same(fd);
    printf("%u", there);
}

/* A socket that the library reopens meanwhile takes a number too. */
static void crowd(void) {
    for (unsigned turn = 0; turn < 2; turn++) {
        for (int fd = 3; fd < FILES; fd++) {
            struct stat file;
            if (look_at(fd, &file) && S_ISSOCK(file.st_mode))
                close(fd);
        }
        for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0;)
            fstat(fd, &files[fd]);
    }
}

static void thin(void) {
    for (int fd = 3; fd < FILES; fd++)
        if (files[fd].st_ino != 0 && is_same(fd))
            close(fd);
}

static void in_child(void) {
    int said[2];
    char text[64] = "";
    if (pipe(said) != 0)
        exit(9);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(said[1], 1);
        count_files();
        fflush(stdout);
        int nothing = open("/dev/null", O_RDWR);
        dup2(nothing, 0), dup2(nothing, 1), dup2(nothing, 2);
        close(said[0]), close(said[1]), close(nothing);
        for (;;)
            pause();
    }
    if (read(said[0], text, sizeof text - 1) <= 0)
        exit(9);
    close(said[0]), close(said[1]);
    printf("%s %d", text, child);
}

static void fork_often(unsigned count) {
    unsigned least = 1000, most = 0;
    for (unsigned i = 0; i < count; i++) {
        int status = 0;
        unsigned open_ones = 0;
        pid_t child = fork();
        for (int fd = 0; child == 0 && fd < 250; fd++)
            open_ones += fcntl(fd, F_GETFD) >= 0;
        if (child == 0)
            _exit((int)open_ones);
        waitpid(child, &status, 0);
        open_ones = (unsigned)WEXITSTATUS(status);
        least = open_ones < least ? open_ones : least;
        most = open_ones > most ? open_ones : most;
    }
    printf("%u %u", least, most);
}

static void helpers(void) {
    DIR *folder = opendir("/proc/self/task");
    unsigned count = 0, open_ones = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[300], text[256];
        unsigned long long blocked = 0;
        bool ours = false;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *file = fopen(path, "r");
        while (file && fgets(text, sizeof text, file)) {
            ours |= strcmp(text, "Name:\tgpucache\n") == 0;
            sscanf(text, "SigBlk: %llx", &blocked);
        }
        if (file)
            fclose(file);
        count += ours;
        open_ones += ours && (blocked & (1ull << (SIGTERM - 1))) == 0;
    }
    if (folder)
        closedir(folder);
    printf("%u %u", count, open_ones);
}

static void *churn(void *unused) {
    uint64_t state = 1;
    CUdeviceptr p[8] = {0};
    CHECK(cuCtxSetCurrent(context));
    for (unsigned i = 0;; i++) {
        if (p[i % 8])
            cuMemFree(p[i % 8]);
        CHECK(cuMemAlloc(&p[i % 8], PAGE / 2 + pick(&state, 64) * PAGE / 2));
        CHECK(cuMemsetD32(p[i % 8], 0xBAD, 1));
    }
    return unused;
}

static void obey(const char *name, unsigned n, uint64_t bytes, uint64_t value, const char *hex) {
    if (strcmp(name, "take") == 0) {
        CHECK(cuMemAlloc(&blocks[n].p, bytes));
        blocks[n].bytes = bytes;
        fill(n, (uint32_t)value);
        printf("%llx", (unsigned long long)blocks[n].p);
    } else if (strcmp(name, "fill") == 0) {
        fill(n, (uint32_t)bytes);
    } else if (strcmp(name, "wrong") == 0) {
        printf("%u", wrong(n, (uint32_t)bytes));
    } else if (strcmp(name, "export") == 0) {
        export(n);
    } else if (strcmp(name, "open") == 0) {
        open_one(n, bytes, hex);
    } else if (strcmp(name, "opens") == 0) {
        open_at_once(n, bytes, hex);
    } else if (strcmp(name, "later") == 0) {
        open_later(n, bytes, hex);
    } else if (strcmp(name, "then") == 0) {
        wait_for_it(n);
    } else if (strcmp(name, "opening") == 0) {
        keep_opening(hex, false);
    } else if (strcmp(name, "guarded") == 0) {
        keep_opening(hex, true);
    } else if (strcmp(name, "close") == 0) {
        printf("%d", cuIpcCloseMemHandle(blocks[n].p));
    } else if (strcmp(name, "free") == 0) {
        printf("%d", cuMemFree(blocks[n].p));
    } else if (strcmp(name, "slow") == 0) {
        slow(n);
    } else if (strcmp(name, "twice") == 0) {
        twice(n, hex);
    } else if (strcmp(name, "aside") == 0) {
        aside(n);
    } else if (strcmp(name, "captured") == 0) {
        close_while_captured(n);
    } else if (strcmp(name, "ask") == 0) {
        ask(n);
    } else if (strcmp(name, "files") == 0) {
        count_files();
    } else if (strcmp(name, "last") == 0) {
        is_last = true;
    } else if (strcmp(name, "limit") == 0) {
        struct rlimit limit;
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = n;
        printf("%d", setrlimit(RLIMIT_NOFILE, &limit));
    } else if (strcmp(name, "ticks") == 0) {
        start_ticks();
    } else if (strcmp(name, "daemon") == 0) {
        become_daemon();
    } else if (strcmp(name, "same") == 0) {
        count_same();
    } else if (strcmp(name, "crowd") == 0) {
        crowd();
    } else if (strcmp(name, "thin") == 0) {
        thin();
    } else if (strcmp(name, "fork") == 0) {
        in_child();
    } else if (strcmp(name, "forks") == 0) {
        fork_often(n);
    } else if (strcmp(name, "helpers") == 0) {
        helpers();
    } else if (strcmp(name, "context") == 0) {
        CHECK(cuCtxCreate_v2(&other, 0, (CUdevice)n));
    } else if (strcmp(name, "end") == 0) {
        CHECK(cuCtxDestroy(other));
        CHECK(cuCtxSetCurrent(context));
        other = NULL;
    } else if (strcmp(name, "turn") == 0) {
        CHECK(cuCtxSetCurrent(turned()));
    } else if (strcmp(name, "peer") == 0) {
        printf("%d", cuCtxEnablePeerAccess(turned(), 0));
    } else if (strcmp(name, "kernel") == 0) {
        read_by_kernel(n, (uint32_t)bytes);
    } else if (strcmp(name, "churn") == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, churn, NULL);
        pthread_detach(thread);
    } else {
        exit(2);
    }
}

int main(void) {
    char text[512];
    atexit(at_the_end); /* registered before the driver's handler, so it runs after it */
    pthread_atfork(before_fork, after_fork, after_fork);
    context = begin();
    kernels_load(&kernels);
    while (fgets(text, sizeof text, stdin)) {
        char name[16] = "", hex[200] = "";
        unsigned n = 0;
        unsigned long long bytes = 0, value = 0;
        sscanf(text, "%15s %u %llu %199s", name, &n, &bytes, hex);
        sscanf(hex, "%llu", &value);
        obey(name, n < SLOTS ? n : 0, bytes, value, hex);
        putchar('\n');
        fflush(stdout);
    }
    return 0;
}
