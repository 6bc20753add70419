/*
 * The last report, and the ends of a process that run no destructor.
 *
 * A process may end in several ways at once: one thread calls exit, another crashes, a third gets
 * SIGTERM. The first thread writes the report. The others must not end the process before the
 * report is written; they wait for at most LAST_REPORT_MS. No lock: a thread becomes the writer by
 * a compare and exchange of `writer`.
 *
 * In a child these functions only call libc's function and the hooks `end` (process.h), which must
 * do nothing there. After fork a child has a copy of the parent's state. After vfork it shares the
 * parent's memory, where a single store would change the parent.
 */
#include "process/ending.h"

#include "base/clock.h"
#include "base/print.h"
#include "process/interval.h"
#include "process/libc.h"
#include "process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HELPER_LIMIT_MS 1000 /* wait for a helper's piece of work, such as one order (helper.h) */
#define POLL_NS 1000000      /* between two checks of `written`: 1 ms */
#define LAST_REPORT_MS 3000  /* polls of POLL_NS: how long other threads wait for the last report */

static _Atomic pid_t own_process; /* 0: the library has not started */
static _Atomic pid_t writer;      /* thread that writes the last report */
static atomic_bool written;

static pid_t this_thread(void) {
    return (pid_t)syscall(SYS_gettid);
}

bool ending_is_own_process(void) {
    pid_t own = atomic_load(&own_process);
    return own != 0 && own == (pid_t)syscall(SYS_getpid);
}

void ending_stop_helper(const struct helper *helper, _Atomic int *turn) {
    int saved = errno;
    if (atomic_load(&helper->started) && ending_is_own_process())
        helper_hold(turn, HELPER_LIMIT_MS);
    errno = saved;
}

void ending_of_helper(const struct helper *helper, _Atomic int *turn, enum process_end how) {
    if (how == PROCESS_EXITS || how == PROCESS_EXECS)
        ending_stop_helper(helper, turn);
    else if (how == PROCESS_GOES_ON && ending_is_own_process())
        helper_release(turn);
}

void ending_wait(void) {
    for (int i = 0; i < LAST_REPORT_MS && !atomic_load(&written); i++)
        sleep_ns(POLL_NS);
}

void ending_report(const char *reason) {
    pid_t other = 0, self = this_thread();
    if (!ending_is_own_process() || atomic_load(&written))
        return;
    if (atomic_compare_exchange_strong(&writer, &other, self) || other == self) {
        int saved_errno = errno;
        interval_hold();
        errno = saved_errno;
        process_report(reason);
        atomic_store(&written, true);
    } else {
        int saved_errno = errno;
        ending_wait();
        errno = saved_errno;
    }
}

/* Undoes the end of the process after a failed exec: the process goes on. Does nothing if another
 * thread wrote the last report, because that thread may be ending the process. */
static void undo_end(void) {
    if (atomic_load(&writer) != this_thread())
        return;
    process_end(PROCESS_GOES_ON, 0);
    atomic_store(&written, false);
    atomic_store(&writer, 0);
    interval_release();
}

__attribute__((destructor)) static void report_exit(void) {
    ending_report("exit");
    process_end(PROCESS_EXITS, 0);
}

void ending_start(void) {
    atomic_store(&own_process, (pid_t)syscall(SYS_getpid));
    at_quick_exit(report_exit);
}

/* --- exits without destructors --- */

void front__exit(int status) {
    report_exit();
    NEXT(_exit)(status);
}

void front__Exit(int status) {
    report_exit();
    NEXT(_Exit)(status);
}

/* --- exec --- */

/*
 * Returns whether a file can be executed. Programs try one folder after another; only the attempt
 * that can succeed ends the process.
 */
static bool is_program(int folder, const char *path, int flags) {
    struct stat file;
    return path && fstatat(folder, path, &file, flags) == 0 && S_ISREG(file.st_mode) &&
           (file.st_mode & 0111);
}

/* Returns whether execvp would find the program. Takes about as much stack as execvp itself. */
static bool is_found(const char *name) {
    const char *folders = secure_getenv("PATH");
    if (!name || strchr(name, '/'))
        return is_program(AT_FDCWD, name, 0);
    if (!folders)
        folders = "/bin:/usr/bin";
    size_t size = strlen(folders) + strlen(name) + sizeof "/";
    size = size < PATH_MAX ? size : PATH_MAX;
    char *path = __builtin_alloca(size);
    for (size_t length;; folders += length + 1) {
        struct print out;
        length = strcspn(folders, ":");
        print_init(&out, -1, path, size);
        print_bytes(&out, folders, length);
        print_str(&out, length > 0 ? "/" : "");
        print_str(&out, name);
        print_end(&out);
        if (out.error == 0 && is_program(AT_FDCWD, path, 0))
            return true;
        if (folders[length] == '\0')
            return false;
    }
}

/*
 * Writes the last report, then runs `call`, an exec. The value is that of `call`, which returns
 * only after a failure. Writes no report if `is_end` says that the exec cannot succeed, and none in
 * a child, where `is_end` is not evaluated: the child of a vfork must not change the parent's
 * memory.
 */
#define EXEC(is_end, call)                                                                         \
    __extension__({                                                                                \
        int saved_errno = errno;                                                                   \
        bool end = ending_is_own_process() && (is_end);                                            \
        errno = saved_errno;                                                                       \
        if (end) {                                                                                 \
            ending_report("exit");                                                                 \
            process_end(PROCESS_EXECS, 0);                                                         \
        }                                                                                          \
        int result = call;                                                                         \
        if (end)                                                                                   \
            undo_end();                                                                            \
        result;                                                                                    \
    })

int front_execve(const char *path, char *const *arguments, char *const *environment) {
    return EXEC(is_program(AT_FDCWD, path, 0), NEXT(execve)(path, arguments, environment));
}

int front_execv(const char *path, char *const *arguments) {
    return EXEC(is_program(AT_FDCWD, path, 0), NEXT(execv)(path, arguments));
}

int front_execvp(const char *name, char *const *arguments) {
    return EXEC(is_found(name), NEXT(execvp)(name, arguments));
}

int front_execvpe(const char *name, char *const *arguments, char *const *environment) {
    return EXEC(is_found(name), NEXT(execvpe)(name, arguments, environment));
}

int front_fexecve(int fd, char *const *arguments, char *const *environment) {
    return EXEC(is_program(fd, "", AT_EMPTY_PATH), NEXT(fexecve)(fd, arguments, environment));
}

/* glibc has execveat since 2.34; this library exports it in any case. */
int front_execveat(int folder, const char *path, char *const *arguments, char *const *environment,
                   int flags) {
    int (*next)(int, const char *, char *const *, char *const *, int) = NEXT(execveat);
    return EXEC(is_program(folder, path, flags),
                next ? next(folder, path, arguments, environment, flags)
                     : (int)syscall(SYS_execveat, folder, path, arguments, environment, flags));
}

static size_t count_arguments(const char *argument, va_list rest) {
    size_t arguments = 0;
    for (; argument; argument = va_arg(rest, const char *))
        arguments++;
    return arguments;
}

/*
 * Copies the arguments into an array that ends with NULL. Leaves `rest` behind the NULL argument.
 */
static void copy_arguments(char **arguments, const char *argument, va_list *rest) {
    for (; argument; argument = va_arg(*rest, const char *))
        *arguments++ = (char *)argument;
    *arguments = NULL;
}

/* Builds the array on the caller's stack: between vfork and exec nothing can be allocated. */
#define GATHER(arguments, argument, rest)                                                          \
    va_start(rest, argument);                                                                      \
    char **arguments =                                                                             \
        __builtin_alloca((count_arguments(argument, rest) + 1) * sizeof *(arguments));             \
    va_end(rest);                                                                                  \
    va_start(rest, argument);                                                                      \
    copy_arguments(arguments, argument, &(rest))

int front_execl(const char *path, const char *argument, ...) {
    va_list rest;
    GATHER(arguments, argument, rest);
    va_end(rest);
    return front_execv(path, arguments);
}

int front_execlp(const char *name, const char *argument, ...) {
    va_list rest;
    GATHER(arguments, argument, rest);
    va_end(rest);
    return front_execvp(name, arguments);
}

int front_execle(const char *path, const char *argument, ...) {
    va_list rest;
    GATHER(arguments, argument, rest);
    char *const *environment = va_arg(rest, char *const *);
    va_end(rest);
    return front_execve(path, arguments, environment);
}
