/*
 * gpucache run --max-peak and --max-peak-or-none: runs the program, and afterwards compares the
 * peaks of the program and its children with a bound.
 *
 * Here gpucache remains the parent process. It forwards signals to the program, and ends as the
 * program did, with the same status or signal. Signals of a terminal reach the program directly.
 */
#include "live/peaks.h"
#include "report/lines.h"
#include "tool/common/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t program_pid;

static const int forwarded[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM, SIGUSR1,
                                SIGUSR2, SIGALRM, SIGABRT, SIGCONT};
#define FORWARDED (sizeof forwarded / sizeof *forwarded)

static void forward_signal(int number, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_code <= 0) /* sent by a process, not by the terminal */
        kill((pid_t)program_pid, number);
}

/* ---- the file ---- */

/** Makes the file to which the library in all child processes writes its peaks, and maps it. */
static struct peaks *make_file(char *path, size_t size) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, size, "%s/gpucache-peaks-XXXXXX", folder && *folder == '/' ? folder : "/tmp");
    int fd = mkostemp(path, O_CLOEXEC);
    int error = fd < 0 ? errno : posix_fallocate(fd, 0, sizeof(struct peaks));
    void *memory = error == 0
                       ? mmap(NULL, sizeof(struct peaks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                       : MAP_FAILED;
    if (memory == MAP_FAILED) {
        if (fd >= 0)
            unlink(path);
        fail(STATUS_OWN_FAILURE, path, strerror(error ? error : errno));
    }
    close(fd);
    struct peaks *peaks = memory;
    peaks->magic = PEAKS_MAGIC;
    return peaks;
}

/* ---- the program ---- */

/** Starts the program and waits for its end. Returns 0 and its wait status, or a negative errno.
 * All signals are blocked until the handlers are set, so that none is lost. */
static int wait_for_end(char **program, int *status) {
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    pid_t child = fork();
    if (child < 0)
        return -errno;
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        tool_become(program);
    }
    program_pid = child;
    /* Forwards ignored signals too: the child has inherited that they are ignored. */
    const struct sigaction pass = {.sa_sigaction = forward_signal,
                                   .sa_flags = SA_SIGINFO | SA_RESTART};
    for (size_t i = 0; i < FORWARDED; i++)
        sigaction(forwarded[i], &pass, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    while (waitpid(child, status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

/** Returns the program's exit status, or ends this process with the program's signal. */
static int end_like(int status) {
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    const struct rlimit none = {0, 0};
    sigset_t only;
    int number = WTERMSIG(status);
    setrlimit(RLIMIT_CORE, &none); /* the program has written a core file already */
    signal(number, SIG_DFL);
    sigemptyset(&only);
    sigaddset(&only, number);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    raise(number);
    return 128 + number;
}

/* ---- the verdict ---- */

/** Prints each device whose peak is above the bound. Returns whether there is one. */
static bool exceeds(const struct peaks *peaks, uint64_t most) {
    bool above = false;
    for (int i = 0; i < STATS_MAX_DEVICES; i++) {
        uint64_t bytes = atomic_load(&peaks->bytes[i]);
        if (bytes <= most)
            continue;
        above = true;
        tool_say("the peak on device %d, %s (%llu bytes), is above %s", i, SIZE(bytes),
                 (unsigned long long)bytes, SIZE(most));
    }
    return above;
}

int tool_judge_peak(uint64_t most, bool or_none, char **program) {
    char path[4096];
    struct peaks *peaks = make_file(path, sizeof path);
    int status = 0;
    int r = setenv("GPUCACHE_PEAKS", path, 1) != 0 ? -errno : wait_for_end(program, &status);
    unlink(path);
    if (r != 0)
        fail(STATUS_OWN_FAILURE, *program, strerror(-r));
    bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (exceeds(peaks, most))
        return passed ? STATUS_ABOVE_PEAK : end_like(status);
    if (atomic_load(&peaks->processes) > 0)
        return end_like(status);
    tool_say("no process used CUDA under the library: there is no peak%s",
             passed && !or_none ? " to judge; --max-peak-or-none lets that pass" : "");
    return passed && !or_none ? STATUS_NO_PEAK : end_like(status);
}
