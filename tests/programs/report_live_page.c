/*
 * report_live_page: reads commands from standard input, one per line, runs each, and prints "done"
 * after it. report_live_page.py reads the live page at the same time. With an argument the program
 * enters a sandbox in which files can be neither created nor removed.
 *
 *   | command                    | action                                                         |
 *   | -------------------------- | -------------------------------------------------------------- |
 *   | allocate BYTES, free, sync | makes one call; free frees the newest block                    |
 *   | churn                      | allocates and frees random sizes in three threads, with waits, |
 *   |                            | until the next line                                            |
 *   | turns BYTES                | keeps one block; allocates, waits for the device, frees and    |
 *   |                            | sleeps 1 ms with another one, until the next line              |
 *   | rush BYTES                 | as turns, without waits and sleeps                             |
 *   | handed BYTES               | as turns, in two threads: one allocates the block, the other   |
 *   |                            | one frees it                                                   |
 *   | reset_peaks                | calls gpucache_reset_peak_stats(-1)                            |
 *   | quiet N                    | makes N pairs of small allocations and frees, and no other     |
 *   |                            | call                                                           |
 *   | exit, _exit, abort, kill   | ends the process                                               |
 *   | exec [PATH]                | executes /bin/sleep 60, or fails to execute PATH               |
 *   | bare_exec                  | executes /bin/sleep 60 by a system call, not by libc           |
 *   | fork                       | forks a child that allocates and stays; prints its process ID  |
 *   | fork_apart                 | forks a child that is process 1 of a new PID namespace, as its |
 *   |                            | parent is in its own; the child exits                          |
 *   | vfork                      | starts a child that executes /bin/true                         |
 *   | close                      | closes every descriptor but the first three                    |
 *   | capture on, capture off    | begins and ends a capture                                      |
 */
#include "program.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 4096

int gpucache_reset_peak_stats(int device) __attribute__((weak)); /* of gpucache.h */

static CUcontext context;
static CUdeviceptr blocks[MOST];
static int count;
static atomic_bool stop;
static bool rushing;
static pthread_barrier_t meeting;
static CUdeviceptr handed; /* block from gives() to takes(); 0: the end */
static const struct timespec millisecond = {0, 1000000};
static CUstream captured;

static void allocate(size_t bytes) {
    CUdeviceptr p = 0;
    CUresult r = cuMemAlloc(&p, bytes);
    if (r == CUDA_SUCCESS && count < MOST)
        blocks[count++] = p;
    printf("allocate %d\n", (int)r);
}

static void *churn(void *arg) {
    uint64_t state = (uintptr_t)arg;
    CHECK(cuCtxSetCurrent(context));
    while (!stop) {
        CUdeviceptr held[24];
        for (unsigned i = 0; i < 24; i++)
            CHECK(cuMemAlloc(&held[i], pick(&state, 3000000) + 1));
        CHECK(cuCtxSynchronize());
        for (unsigned i = 0; i < 24; i++)
            CHECK(cuMemFree(held[i]));
    }
    return NULL;
}

static void churn_on(void) {
    pthread_t threads[3];
    char line[16];
    stop = false;
    for (uintptr_t i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) != 0)
            exit(1);
    if (!fgets(line, sizeof line, stdin))
        fprintf(stderr, "churn: no end of it\n");
    stop = true;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

static void *turns(void *bytes) {
    CUdeviceptr kept;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc(&kept, (uintptr_t)bytes));
    while (!stop) {
        CUdeviceptr p;
        CHECK(cuMemAlloc(&p, (uintptr_t)bytes));
        if (!rushing)
            CHECK(cuCtxSynchronize());
        CHECK(cuMemFree(p));
        if (!rushing)
            nanosleep(&millisecond, NULL);
    }
    CHECK(cuMemFree(kept));
    return NULL;
}

/* Allocates a block for takes(), which frees it. */
static void *gives(void *bytes) {
    CUdeviceptr kept;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc(&kept, (uintptr_t)bytes));
    for (bool last = false; !last;) {
        last = stop;
        handed = 0;
        if (!last)
            CHECK(cuMemAlloc(&handed, (uintptr_t)bytes));
        pthread_barrier_wait(&meeting);
        pthread_barrier_wait(&meeting);
        nanosleep(&millisecond, NULL);
    }
    CHECK(cuMemFree(kept));
    return NULL;
}

static void *takes(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    for (bool last = false; !last;) {
        pthread_barrier_wait(&meeting);
        last = handed == 0;
        CHECK(cuCtxSynchronize());
        if (!last)
            CHECK(cuMemFree(handed));
        pthread_barrier_wait(&meeting);
    }
    return unused;
}

static void turns_on(uintptr_t bytes, bool two) {
    pthread_t threads[2];
    char line[16];
    stop = false;
    if (pthread_barrier_init(&meeting, NULL, 2) != 0 ||
        pthread_create(&threads[0], NULL, two ? gives : turns, (void *)bytes) != 0 ||
        (two && pthread_create(&threads[1], NULL, takes, NULL) != 0))
        exit(1);
    if (!fgets(line, sizeof line, stdin))
        fprintf(stderr, "turns: no end of it\n");
    stop = true;
    for (int i = 0; i <= two; i++)
        pthread_join(threads[i], NULL);
}

static void pairs(long many) {
    for (long i = 0; i < many; i++) {
        CUdeviceptr p;
        CHECK(cuMemAlloc(&p, 4096));
        CHECK(cuMemFree(p));
    }
}

static void fork_child(void) {
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr p;
        cuMemAlloc(&p, 5 << 20); /* the driver may refuse */
        cuCtxSynchronize();
        fclose(stdin);
        sleep(60);
        _exit(0);
    }
    printf("child %d\n", (int)child);
}

static void fork_apart(void) {
    fflush(stdout);
    int status = unshare(CLONE_NEWPID);
    pid_t child = status == 0 ? fork() : -1;
    if (child == 0) {
        CUdeviceptr p;
        cuMemAlloc(&p, 5 << 20);
        exit(3);
    }
    waitpid(child, &status, 0);
    printf("apart %d %d\n", (int)getpid(), WEXITSTATUS(status));
}

static void vfork_child(void) {
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("vfork %d\n", status);
}

static void become(const char *path) {
    if (*path)
        execl(path, path, (char *)NULL);
    else
        execl("/bin/sleep", "sleep", "60", (char *)NULL);
}

static void become_past_libc(void) {
    char *arguments[] = {"sleep", "60", NULL};
    syscall(SYS_execve, "/bin/sleep", arguments, NULL);
}

static void capture(bool on) {
    CUgraph graph;
    if (on)
        CHECK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    else
        CHECK(cuStreamEndCapture(captured, &graph));
}

static void run_command(const char *order, const char *value) {
    if (strcmp(order, "allocate") == 0)
        allocate(strtoull(value, NULL, 10));
    else if (strcmp(order, "free") == 0)
        CHECK(cuMemFree(blocks[--count]));
    else if (strcmp(order, "reset_peaks") == 0 && gpucache_reset_peak_stats)
        gpucache_reset_peak_stats(-1);
    else if (strcmp(order, "sync") == 0)
        CHECK(cuCtxSynchronize());
    else if (strcmp(order, "churn") == 0)
        churn_on();
    else if (strcmp(order, "turns") == 0)
        turns_on(strtoull(value, NULL, 10), false);
    else if (strcmp(order, "rush") == 0)
        rushing = true, turns_on(strtoull(value, NULL, 10), false);
    else if (strcmp(order, "handed") == 0)
        turns_on(strtoull(value, NULL, 10), true);
    else if (strcmp(order, "quiet") == 0)
        pairs(atol(value));
    else if (strcmp(order, "fork") == 0)
        fork_child();
    else if (strcmp(order, "fork_apart") == 0)
        fork_apart();
    else if (strcmp(order, "vfork") == 0)
        vfork_child();
    else if (strcmp(order, "close") == 0)
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
    else if (strcmp(order, "capture") == 0)
        capture(strcmp(value, "on") == 0);
    else if (strcmp(order, "exec") == 0)
        become(value);
    else if (strcmp(order, "bare_exec") == 0)
        become_past_libc();
    else if (strcmp(order, "exit") == 0)
        exit(7);
    else if (strcmp(order, "_exit") == 0)
        _exit(8);
    else if (strcmp(order, "abort") == 0)
        abort();
    else if (strcmp(order, "kill") == 0)
        raise(SIGKILL);
}

#define REFUSE(name)                                                                               \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1),                                         \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)

static void enter_sandbox(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        REFUSE(mkdirat),
        REFUSE(unlinkat),
        REFUSE(fallocate),
#ifdef SYS_mkdir
        REFUSE(mkdir),
        REFUSE(unlink),
#endif
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        exit(77);
}

int main(int argc, char **argv) {
    char line[256];
    (void)argv;
    if (argc > 1)
        enter_sandbox();
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    allocate(1000);
    while (fgets(line, sizeof line, stdin)) {
        char *value = line + strcspn(line, " \n");
        value += *value == ' ' ? (*value = '\0', 1) : (*value = '\0', 0);
        value[strcspn(value, "\n")] = '\0';
        run_command(line, value);
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
