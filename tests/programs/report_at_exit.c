/*
 * report_at_exit WAY STATE: uses CUDA, then ends in one way (`ways`). STATE is the program's own
 * handling of the signal. `report_at_exit CASE` tests other effects of the library's handlers.
 */
#include "program.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HANDLED 7

static CUdeviceptr kept;

static void use_cuda(void) {
    CUdeviceptr p;
    begin();
    CHECK(cuMemAlloc(&kept, 5000));
    CHECK(cuMemAlloc(&p, 3 << 20));
    CHECK(cuMemFree(p));
}

static void say(const char *text) {
    if (write(STDOUT_FILENO, text, strlen(text)) < 0)
        abort();
}

/* ---- ways to end ---- */

static void null_pointer(void) {
    *(volatile int *)0 = 1; /* NOLINT */
}

static void truncated_file(void) {
    int fd = memfd_create("file", 0);
    volatile char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *at = 1;
}

static void division(void) {
    volatile int zero = 0, one = 1;
    one = one / zero;
}

static void trap(void) {
    __builtin_trap();
}

static char *deeper(char *above) {
    char here[512];
    here[0] = above[0];
    return above[0] == 1 ? above : deeper(here) + here[0];
}

static void overflow(void) {
    char first[1] = {0};
    *deeper(first) = 2;
}

/* Overflows the stack of a thread that has a signal stack, as threads of some runtimes do. */
static void overflow_with_stack(void) {
    static char memory[32768];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    sigaltstack(&stack, NULL);
    overflow();
}

/* Called by exit(): its last step writes the buffers of open files. */
static ssize_t exit_again(void *cookie, const char *text, size_t length) {
    (void)cookie, (void)text, (void)length;
    _exit(4);
}

static void exit_twice(void) {
    FILE *file = fopencookie(NULL, "w", (cookie_io_functions_t){.write = exit_again});
    fputs("text", file);
    exit(3);
}

static void plain_exit(void) {
    exit(3);
}

static void exit__(void) {
    _exit(3);
}

static void Exit__(void) {
    _Exit(3);
}

static void quick(void) {
    quick_exit(3);
}

static char *self_arguments[] = {"ending", "arguments", "a", "b", NULL};
static char *self_environment[] = {"HOME=/", NULL};
#define SELF "/proc/self/exe"

static void exec_v(void) {
    execv(SELF, self_arguments);
}

static void exec_ve(void) {
    execve(SELF, self_arguments, self_environment);
}

static void exec_vp(void) {
    char path[4096] = {0};
    if (readlink(SELF, path, sizeof path - 1) < 0)
        return;
    *strrchr(path, '/') = '\0';
    char *folders = NULL;
    if (asprintf(&folders, "/nothing::%s", path) < 0)
        return;
    setenv("PATH", folders, 1);
    execvp("report_at_exit", self_arguments);
}

static void exec_vpe(void) {
    execvpe(SELF, self_arguments, self_environment);
}

static void exec_l(void) {
    execl(SELF, "ending", "arguments", "a", "b", (char *)NULL);
}

static void exec_lp(void) {
    execlp(SELF, "ending", "arguments", "a", "b", (char *)NULL);
}

static void exec_le(void) {
    execle(SELF, "ending", "arguments", "a", "b", (char *)NULL, self_environment);
}

static void exec_fd(void) {
    fexecve(open(SELF, O_RDONLY), self_arguments, self_environment);
}

static void exec_at(void) {
    execveat(AT_FDCWD, SELF, self_arguments, self_environment, 0);
}

/* Executes a file that the kernel recognises as no program. */
static void exec_no_program(void) {
    char path[] = "/tmp/ending.XXXXXX";
    int fd = mkstemp(path);
    if (fchmod(fd, 0700) != 0 || write(fd, "no program", 10) != 10)
        return;
    close(fd);
    execv(path, self_arguments);
    printf("errno %d\n", errno);
    unlink(path);
}

/* All of these calls fail, and the program continues. */
static void exec_nothing(void) {
    execv("/nothing", self_arguments);
    execv("/etc/passwd", self_arguments);
    execvp("nothing", self_arguments);
    execl("/", "ending", (char *)NULL);
    execve("/dev/null", self_arguments, self_environment);
    fexecve(-1, self_arguments, self_environment);
    printf("errno %d\n", errno);
}

static const struct way {
    const char *name;
    int number; /* signal that is sent or raised; 0: none */
    void (*end)(void);
} ways[] = {
    {"TERM", SIGTERM, NULL},
    {"INT", SIGINT, NULL},
    {"HUP", SIGHUP, NULL},
    {"ABRT", SIGABRT, NULL},
    {"SEGV", SIGSEGV, NULL},
    {"BUS", SIGBUS, NULL},
    {"FPE", SIGFPE, NULL},
    {"ILL", SIGILL, NULL},
    {"USR2", SIGUSR2, NULL},
    {"USR1", SIGUSR1, NULL},
    {"KILL", SIGKILL, NULL},
    {"abort()", SIGABRT, abort},
    {"null pointer", SIGSEGV, null_pointer},
    {"truncated file", SIGBUS, truncated_file},
    {"division by 0", SIGFPE, division},
    {"trap", SIGILL, trap},
    {"stack overflow", SIGSEGV, overflow},
    {"stack overflow, signal stack", SIGSEGV, overflow_with_stack},
    {"exit", 0, plain_exit},
    {"exit, then _exit", 0, exit_twice},
    {"_exit", 0, exit__},
    {"_Exit", 0, Exit__},
    {"quick_exit", 0, quick},
    {"execv", 0, exec_v},
    {"execve", 0, exec_ve},
    {"execvp", 0, exec_vp},
    {"execvpe", 0, exec_vpe},
    {"execl", 0, exec_l},
    {"execlp", 0, exec_lp},
    {"execle", 0, exec_le},
    {"fexecve", 0, exec_fd},
    {"execveat", 0, exec_at},
    {"exec of nothing", 0, exec_nothing},
    {"exec of no program", 0, exec_no_program},
};
#define WAYS (sizeof ways / sizeof *ways)

/* ---- the program's handling of the signal ---- */

/* Ends the process without libc's _exit(), so that no report hides which handler ran. */
static void handler(int number) {
    (void)number;
    say("handler\n");
    syscall(SYS_exit_group, HANDLED);
}

/* A handler that cleans up and then ends the process by the same signal. */
static void clean_up(int number) {
    say("cleaned up\n");
    signal(number, SIG_DFL);
    raise(number);
}

static void handle(int number, void (*how)(int)) {
    struct sigaction action = {.sa_handler = how}, old;
    sigaction(number, &action, &old);
    printf("old action: %s\n", old.sa_handler == SIG_DFL ? "default" : "another");
}

static void block(int number) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

static void wait_for(int number, bool by_descriptor) {
    sigset_t set;
    int got = 0;
    sigemptyset(&set);
    sigaddset(&set, number);
    if (by_descriptor) {
        struct signalfd_siginfo info = {0};
        int fd = signalfd(-1, &set, 0);
        if (read(fd, &info, sizeof info) == sizeof info)
            got = (int)info.ssi_signo;
    } else {
        sigwait(&set, &got);
    }
    printf("got %d\n", got);
}

/* Returns whether the signal of `way` requests a report, so that the process continues. */
static bool is_report_signal(const struct way *way) {
    const char *name = getenv("GPUCACHE_REPORT_SIGNAL");
    return strcmp(way->name, name && strcmp(name, "off") != 0 ? name : "USR2") == 0;
}

static int end(const struct way *way, const char *state) {
    int number = way->number;
    if (strcmp(state, "handler before") == 0)
        handle(number, handler);
    if (strcmp(state, "handler before, then default") == 0)
        handle(number, clean_up);
    if (strcmp(state, "ignored before") == 0)
        handle(number, SIG_IGN);
    bool waits = strcmp(state, "sigwait") == 0 || strcmp(state, "signalfd") == 0;
    if (waits || strcmp(state, "blocked") == 0)
        block(number); /* threads of the driver inherit the mask */
    use_cuda();
    if (strcmp(state, "handler after") == 0)
        handle(number, handler);
    if (strcmp(state, "handler after, then default") == 0)
        handle(number, clean_up);
    if (strcmp(state, "ignored after") == 0)
        handle(number, SIG_IGN);
    if (strcmp(state, "default after") == 0) {
        handle(number, handler);
        printf("%d\n", signal(number, SIG_DFL) == handler);
    }
    fflush(stdout);
    if (way->end)
        way->end();
    else
        kill(getpid(), number);
    if (!way->end && strstr(state, "ignored") == NULL && strcmp(state, "blocked") != 0 && !waits)
        /* the kernel may deliver the signal to a thread of the driver that has just started */
        usleep(is_report_signal(way) || getpid() == 1 ? 200000 : 60000000);
    if (waits)
        wait_for(number, strcmp(state, "signalfd") == 0);
    printf("goes on\n");
    return 0;
}

/* ---- what the library's handlers change for a program ---- */

static const int deadly[] = {SIGTERM, SIGINT, SIGHUP, SIGABRT, SIGSEGV,
                             SIGBUS,  SIGFPE, SIGILL, SIGUSR2, SIGUSR1};
#define DEADLY (sizeof deadly / sizeof *deadly)

static void print_action(const char *when, const struct sigaction *action) {
    uint64_t mask;
    memcpy(&mask, &action->sa_mask, sizeof mask);
    printf(" %s: %s 0x%x 0x%llx", when,
           action->sa_handler == SIG_DFL   ? "default"
           : action->sa_handler == SIG_IGN ? "ignored"
           : action->sa_handler == handler ? "handler"
                                           : "another",
           (unsigned)action->sa_flags, (unsigned long long)mask);
}

static void ask(int number, const char *when) {
    struct sigaction now;
    sigaction(number, NULL, &now);
    print_action(when, &now);
}

static void print_handler(const char *when, void (*old)(int)) {
    printf(" %s: %s", when, old == SIG_DFL ? "default" : old == handler ? "handler" : "another");
}

/* Prints the old action that each function of libc returns. */
static int actions(void) {
    use_cuda();
    for (size_t i = 0; i < DEADLY; i++) {
        int number = deadly[i];
        struct sigaction mine = {.sa_handler = handler, .sa_flags = SA_NODEFER}, old;
        printf("%d:", number);
        ask(number, "first");
        sigaddset(&mine.sa_mask, SIGCHLD);
        sigaction(number, &mine, &old);
        print_action("set", &old);
        mine.sa_handler = SIG_DFL;
        sigaction(number, &mine, &old);
        print_action("default", &old);
        ask(number, "then");
        print_handler("signal", signal(number, handler));
        print_handler("signal", signal(number, SIG_DFL));
        ask(number, "then");
        print_handler("ssignal", ssignal(number, SIG_DFL));
        print_handler("sysv_signal", sysv_signal(number, handler));
        print_handler("sysv_signal", sysv_signal(number, SIG_DFL));
        ask(number, "then");
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
        print_handler("sigset", sigset(number, handler));
        print_handler("sigset", sigset(number, SIG_DFL));
        siginterrupt(number, 1);
        ask(number, "then");
        sigignore(number);
        ask(number, "last");
        printf("\n");
    }
    printf("%d %d\n", sigaction(SIGKILL, &(struct sigaction){0}, NULL), sigaction(99, NULL, NULL));
    return 0;
}

static void print_status(const char *name) {
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY);
    ssize_t length = read(fd, text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    printf("%s\n", name);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strncmp(line, "Sig", 3) == 0 || strncmp(line, "Shd", 3) == 0)
            if (strncmp(line, "SigQ", 4) != 0)
                printf("%s\n", line);
    fflush(stdout);
    close(fd);
}

/* Prints the signal masks and actions that a new program inherits, for every way to start it. */
static int inherit(void) {
    int status;
    char *arguments[] = {"ending", "inherited", NULL};
    pid_t child;
    signal(SIGHUP, SIG_IGN);
    block(SIGTERM);
    use_cuda();
    signal(SIGINT, SIG_DFL);
    signal(SIGFPE, SIG_IGN);
    if ((child = fork()) == 0)
        execv(SELF, arguments);
    waitpid(child, &status, 0);
    if ((child = vfork()) == 0)
        execv(SELF, arguments);
    waitpid(child, &status, 0);
    if (posix_spawn(&child, SELF, NULL, NULL, arguments, environ) == 0)
        waitpid(child, &status, 0);
    fflush(stdout);
    if (system("grep Sig[BI] /proc/self/status") != 0) /* NOLINT */
        return 2;
    ask(SIGINT, "after system");
    return 0;
}

/* ---- work in progress at the end ---- */

static void CUDA_CB print_late(void *unused) {
    (void)unused;
    usleep(50000);
    say("the host function has run\n");
}

/* The last wait of the program is a free: natively, that waits for the host function. */
static int last_free(const char *how) {
    CUdeviceptr p;
    begin();
    CHECK(cuMemAlloc(&p, 5000));
    CHECK(cuLaunchHostFunc(NULL, print_late, NULL));
    CHECK(cuMemFree(p));
    if (strcmp(how, "_exit") == 0)
        _exit(5);
    if (strcmp(how, "quick_exit") == 0)
        quick_exit(6);
    if (strcmp(how, "exec") == 0)
        execlp("true", "true", (char *)NULL);
    return 0;
}

/* As last_free(), with a free of pinned memory. */
static int last_pinned_free(void) {
    void *host;
    begin();
    CHECK(cuMemAlloc(&kept, 5000));
    CHECK(cuMemHostAlloc(&host, 5000, 0));
    CHECK(cuLaunchHostFunc(NULL, print_late, NULL));
    CHECK(cuMemFreeHost(host));
    return 0;
}

static void end_inside_malloc(int number) {
    exit(number == SIGALRM ? 0 : 1);
}

/* A signal handler calls exit() while its thread is inside malloc, most likely with a lock. */
static _Noreturn void exit_in_malloc(void) {
    const struct itimerval soon = {.it_value = {.tv_usec = 20000}};
    use_cuda();
    signal(SIGALRM, end_inside_malloc);
    setitimer(ITIMER_REAL, &soon, NULL);
    for (;;) {
        void *volatile block = malloc(3000); /* larger than what malloc serves without a lock */
        free(block);
    }
}

static void CUDA_CB run_on(void *unused) {
    (void)unused;
    sleep(1000);
}

/* No free waits for the host function: the program ends while that runs. */
static int work_after_last_free(void) {
    CUdeviceptr p;
    begin();
    CHECK(cuMemAlloc(&p, 5000));
    CHECK(cuMemFree(p));
    CHECK(cuLaunchHostFunc(NULL, run_on, NULL));
    return 0;
}

/* ---- children ---- */

static int status_of(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static int children(void) {
    use_cuda();
    fflush(stdout);
    for (size_t i = 0; i < DEADLY; i++) {
        pid_t child = fork();
        if (child == 0) {
            raise(deadly[i]);
            _exit(9);
        }
        int forked = status_of(child);
        if ((child = _Fork()) == 0) {
            raise(deadly[i]);
            _exit(9);
        }
        int bare = status_of(child);
        if ((child = vfork()) == 0) {
            raise(deadly[i]);
            _exit(9);
        }
        printf("%d: fork %d, _Fork %d, vfork %d\n", deadly[i], forked, bare, status_of(child));
    }
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        signal(SIGTERM, SIG_DFL);
        execv("/nothing", self_arguments);
        _exit(4);
    }
    printf("_exit after vfork: %d,", status_of(child));
    ask(SIGTERM, "here still");
    printf("\n");
    fflush(stdout);
    if ((child = vfork()) == 0)
        execl(SELF, "ending", "arguments", (char *)NULL);
    printf("exec after vfork: %d\n", status_of(child));
    return 0;
}

/* ---- signals in unusual states of the program ---- */

static volatile sig_atomic_t in_handler;

static void raise_within(int number) {
    (void)number;
    raise(SIGUSR2);
    in_handler = 1;
}

static int within_handler(void) {
    use_cuda();
    signal(SIGALRM, raise_within);
    raise(SIGALRM);
    printf("%d\n", (int)in_handler);
    return 0;
}

/* Bytes of stack that are left beyond the kernel's signal frame when a signal comes. */
#define LITTLE 1024

static volatile char *stack_end;
static int little_signal;

static void *raise_on_little_stack(void *unused) {
    size_t left = getauxval(AT_MINSIGSTKSZ);
    char here, *below = (char *)stack_end + (left > 2048 ? left : 8192) + LITTLE;
    volatile char *gone = __builtin_alloca((size_t)(&here - below));
    gone[0] = 1;
    syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), little_signal);
    return unused;
}

static int little_stack(const char *signal_name) {
    static _Alignas(4096) char memory[2 << 16];
    pthread_attr_t attributes;
    pthread_t thread;
    use_cuda();
    fflush(stdout);
    little_signal = strcmp(signal_name, "USR2") == 0 ? SIGUSR2 : SIGTERM;
    stack_end = memory + 4096;
    mprotect(memory, 4096, PROT_NONE);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, memory + 4096, sizeof memory - 4096);
    if (pthread_create(&thread, &attributes, raise_on_little_stack, NULL) != 0)
        return 2;
    pthread_join(thread, NULL);
    printf("goes on\n");
    return 0;
}

/* Takes a signal on a signal stack of about the size of the kernel's frame. */
static int small_signal_stack(int more_bytes, int number) {
    static _Alignas(4096) char memory[2 << 16];
    mprotect(memory, 4096, PROT_NONE);
    stack_t stack = {.ss_sp = memory + 4096};
    stack.ss_size = getauxval(AT_MINSIGSTKSZ) + (size_t)more_bytes;
    use_cuda();
    sigaltstack(&stack, NULL);
    raise(number);
    return 0;
}

static atomic_bool over;
static CUcontext context;

static void *allocate(void *unused) {
    CUdeviceptr p[64];
    uint64_t seed = (uint64_t)(uintptr_t)&seed;
    CHECK(cuCtxSetCurrent(context));
    while (!over) {
        for (int i = 0; i < 64; i++)
            CHECK(cuMemAlloc(&p[i], 1 + pick(&seed, i % 8 == 0 ? 8 << 20 : 60000)));
        for (int i = 0; i < 64; i++)
            CHECK(cuMemFree(p[i]));
    }
    return unused;
}

/* Sends signals to threads that are inside the library nearly all the time, often under a lock. */
static int busy(int times) {
    pthread_t threads[3];
    use_cuda();
    CHECK(cuCtxGetCurrent(&context));
    for (int i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, allocate, NULL) != 0)
            return 2;
    for (int i = 0; i < times; i++) {
        pthread_kill(threads[i % 3], SIGUSR2);
        usleep(200);
    }
    over = true;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("done\n");
    return 0;
}

/* A blocked read() must be restarted after the library's handler. Natively there is no handler. */
static void *signal_reader(void *reader) {
    usleep(100000);
    pthread_kill(*(pthread_t *)reader, SIGUSR2);
    return NULL;
}

static int restarts(void) {
    int ends[2];
    char byte;
    pthread_t other, self = pthread_self();
    use_cuda();
    if (pipe(ends) != 0 || pthread_create(&other, NULL, signal_reader, &self) != 0)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        usleep(400000);
        syscall(SYS_exit_group, write(ends[1], "x", 1) != 1);
    }
    printf("%zd\n", read(ends[0], &byte, 1));
    pthread_join(other, NULL);
    return 0;
}

static pthread_barrier_t both;

static void *crash_together(void *unused) {
    pthread_barrier_wait(&both);
    null_pointer();
    return unused;
}

static int crash_twice(void) {
    pthread_t threads[2];
    use_cuda();
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, crash_together, NULL) != 0)
            return 2;
    pthread_join(threads[0], NULL);
    return 0;
}

/* ---- damage to the library's memory, as a wrong program would cause ---- */

struct range {
    char *from, *to;
};

static size_t writable(struct range *ranges, size_t max) {
    char line[512];
    size_t count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && count < max && fgets(line, sizeof line, maps)) {
        unsigned long long from, to, inode;
        char access[8];
        if (sscanf(line, "%llx-%llx %7s %*s %*s %llu", &from, &to, access, &inode) == 4 &&
            strncmp(access, "rw-p", 4) == 0 && inode == 0 && !strchr(line, '['))
            ranges[count++] = (struct range){(char *)from, (char *)to}; /* NOLINT */
    }
    fclose(maps);
    return count;
}

/* Returns the number of sleeps of this process's other threads; -1: one of them is running. */
static long sleeps_of_others(void) {
    long sum = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[300], line[128], state = 0;
        long times = 0;
        if (task->d_name[0] == '.' || atoi(task->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        while (status && fgets(line, sizeof line, status)) {
            sscanf(line, "State: %c", &state);
            sscanf(line, "voluntary_ctxt_switches: %ld", &times);
        }
        if (status)
            fclose(status);
        sum = state == 'S' && sum >= 0 ? sum + times : -1;
    }
    closedir(tasks);
    return sum;
}

/* Waits until all other threads sleep: a starting thread would crash on its own damaged stack. */
static void let_others_sleep(void) {
    for (long before = -1, now; (now = sleeps_of_others()) != 0 && (now < 0 || now != before);) {
        before = now;
        usleep(5000);
    }
}

/*
 * Makes range number `which` of the memory mapped by the first use of CUDA unreadable or zero, and
 * sends a signal that ends the process. The status is 0 if there is no such range, and 1 if the
 * process survives the signal.
 */
static int broken(const char *how, size_t which) {
    static struct range before[256], after[256];
    size_t old = writable(before, 256), number = 0;
    if (strcmp(how, "unreadable, handler") == 0)
        signal(SIGSEGV, handler); /* must not run: the fault is inside the library */
    use_cuda();
    let_others_sleep();
    size_t now = writable(after, 256);
    for (size_t i = 0; i < now; i++) {
        bool known = false;
        for (size_t j = 0; j < old; j++)
            known = known || (before[j].from <= after[i].from && after[i].to <= before[j].to);
        if (known || number++ != which)
            continue;
        size_t length = (size_t)(after[i].to - after[i].from);
        if (strncmp(how, "unreadable", 10) == 0)
            mprotect(after[i].from, length, PROT_NONE);
        else
            for (size_t at = 0; at < length && at < 64 << 20; at += 8)
                *(volatile uint64_t *)(after[i].from + at) = 0;
        if (strcmp(how, "zero, crash") == 0)
            null_pointer();
        if (strcmp(how, "unreadable, file") == 0)
            truncated_file();
        kill(getpid(), SIGTERM);
        syscall(SYS_exit_group, 1); /* the process survived its signal */
    }
    syscall(SYS_exit_group, 0); /* there is no such range */
    return 0;
}

/* ---- waiting for signals from outside ---- */

static int sleeps(double seconds, bool full) {
    static char much[65000];
    use_cuda();
    if (full && write(STDERR_FILENO, much, sizeof much) != sizeof much)
        return 9;
    say("ready\n");
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    return nanosleep(&left, NULL) == 0 ? 0 : 8;
}

static void *exit_meanwhile(void *unused) {
    usleep(200000);
    _exit(4);
    return unused;
}

/* Two threads end the process while the report of the first one waits for its reader. */
static int exits_twice(void) {
    pthread_t other;
    if (pthread_create(&other, NULL, exit_meanwhile, NULL) != 0)
        return 2;
    return sleeps(0, true);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "", *more = argc > 2 ? argv[2] : "";
    for (size_t i = 0; i < WAYS; i++)
        if (strcmp(what, ways[i].name) == 0)
            return end(&ways[i], more);
    if (strcmp(what, "arguments") == 0) {
        printf("%d arguments, %s\n", argc, getenv("HOME") ? getenv("HOME") : "no home");
        return 3;
    }
    if (strcmp(what, "inherited") == 0) {
        print_status("inherited");
        return 0;
    }
    if (strcmp(what, "actions") == 0)
        return actions();
    if (strcmp(what, "inherit") == 0)
        return inherit();
    if (strcmp(what, "children") == 0)
        return children();
    if (strcmp(what, "last free") == 0)
        return last_free(more);
    if (strcmp(what, "last pinned free") == 0)
        return last_pinned_free();
    if (strcmp(what, "exit in malloc") == 0)
        exit_in_malloc();
    if (strcmp(what, "work after last free") == 0)
        return work_after_last_free();
    if (strcmp(what, "within handler") == 0)
        return within_handler();
    if (strcmp(what, "little stack") == 0)
        return little_stack(more);
    if (strcmp(what, "small signal stack") == 0 && argc > 3)
        return small_signal_stack(atoi(more), atoi(argv[3]));
    if (strcmp(what, "busy") == 0)
        return busy(atoi(more));
    if (strcmp(what, "restarts") == 0)
        return restarts();
    if (strcmp(what, "crash twice") == 0)
        return crash_twice();
    if (strcmp(what, "broken") == 0 && argc > 3)
        return broken(more, (size_t)atoi(argv[3]));
    if (strcmp(what, "sleeps") == 0)
        return sleeps(atof(more), false);
    if (strcmp(what, "exits twice, stderr full") == 0)
        return exits_twice();
    return strcmp(what, "sleeps, stderr full") == 0 ? sleeps(atof(more), true) : 2;
}
