/*
 * Tests writes: no signal ends the process, no write blocks, and no descriptor of the program
 * changes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/write.h"
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

/** Returns the write end of a pipe whose read end is closed. */
static int pipe_without_reader(void) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    return ends[1];
}

static void a_closed_reader_does_not_end_the_process(void **state) {
    (void)state;
    int fd = pipe_without_reader();
    pid_t child = fork();
    if (child == 0) {
        signal(SIGPIPE, SIG_DFL);
        bool right = write_all(fd, "x", 1) == -EPIPE;
        sigset_t pending, before;
        sigpending(&pending);
        right = right && !sigismember(&pending, SIGPIPE);
        sigprocmask(SIG_BLOCK, NULL, &before);
        _exit(right && !sigismember(&before, SIGPIPE) ? 0 : 1);
    }
    assert_int_equal(child_status(child), 0);
    close(fd);
}

static void a_pending_signal_of_the_programs_stays_pending(void **state) {
    (void)state;
    int fd = pipe_without_reader();
    pid_t child = fork();
    if (child == 0) {
        sigset_t pipe_only, pending;
        sigemptyset(&pipe_only);
        sigaddset(&pipe_only, SIGPIPE);
        sigprocmask(SIG_BLOCK, &pipe_only, NULL);
        raise(SIGPIPE);
        write_all(fd, "x", 1);
        sigpending(&pending);
        _exit(sigismember(&pending, SIGPIPE) ? 0 : 1);
    }
    assert_int_equal(child_status(child), 0);
    close(fd);
}

static void a_file_size_limit_does_not_end_the_process(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        char path[] = "/tmp/gpucache-print-XXXXXX";
        int fd = mkstemp(path);
        unlink(path);
        struct rlimit limit = {4, 4};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
            _exit(2);
        signal(SIGXFSZ, SIG_DFL);
        _exit(write_all(fd, "12345678", 8) == -EFBIG ? 0 : 1);
    }
    assert_int_equal(child_status(child), 0);
}

/** Fills the pipe, socket or terminal of fd. */
static void fill(int fd) {
    static char block[4096];
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    while (write(fd, block, sizeof block) > 0)
        continue;
    while (write(fd, block, 1) > 0)
        continue;
    fcntl(fd, F_SETFL, flags);
}

/** Returns the bytes that a full pipe holds. */
static size_t capacity(int fd) {
    int bytes = fcntl(fd, F_GETPIPE_SZ);
    assert_true(bytes > 0);
    return (size_t)bytes;
}

/** Returns a text of two capacities of the pipe. */
static char *twice_what_it_holds(int fd) {
    char *text = calloc(2, capacity(fd));
    assert_non_null(text);
    return text;
}

static void drain(int fd, size_t bytes) {
    char block[4096];
    while (bytes > 0) {
        ssize_t part = read(fd, block, bytes < sizeof block ? bytes : sizeof block);
        assert_true(part > 0);
        bytes -= (size_t)part;
    }
}

static void a_full_non_blocking_pipe_is_waited_for_briefly(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    fill(ends[1]);
    assert_int_equal(write_all(ends[1], "x", 1), -EAGAIN);
    close(ends[0]);
    close(ends[1]);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Asserts that the first write waits briefly for a reader, and that later writes do not wait. */
static void assert_given_up_on(int fd) {
    alarm(20);
    double start = now();
    assert_int_equal(write_in_time(fd, "x", 1), -EAGAIN);
    assert_true(now() - start > 0.1 && now() - start < 10);
    start = now();
    for (int i = 0; i < 50; i++)
        assert_int_equal(write_in_time(fd, "x", 1), -EAGAIN);
    assert_true(now() - start < 10);
    alarm(0);
}

static void a_full_blocking_pipe_does_not_block_the_writer(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fill(ends[1]);
    assert_given_up_on(ends[1]);
    drain(ends[0], capacity(ends[0]));
    assert_int_equal(write_in_time(ends[1], "x", 1), 0);
    drain(ends[0], 1);
    assert_int_equal(fcntl(ends[1], F_GETFL) & O_NONBLOCK,
                     0); /* other processes share the file description */
    close(ends[0]);
    close(ends[1]);
}

/* Cases: without /proc, and without a free descriptor. */
static void a_full_pipe_that_cannot_be_reopened_does_not_block_either(void **state) {
    (void)state;
    int ends[2];
    struct rlimit before, none;
    assert_int_equal(pipe(ends), 0);
    fill(ends[1]);
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_given_up_on(ends[1]);
    char *text = twice_what_it_holds(ends[1]);
    alarm(20);
    assert_int_equal(write_in_time(ends[1], text, 2 * capacity(ends[1])), -EAGAIN);
    alarm(0);
    free(text);
    drain(ends[0], capacity(ends[0]));
    none.rlim_cur = 1; /* poll() takes as many descriptors as the limit allows */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(write_in_time(ends[1], "x", 1), 0); /* the reader has come back */
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(write_in_time(ends[1], "x", 1), 0);
    close(ends[0]);
    close(ends[1]);
}

static void interrupt(int number) {
    (void)number;
}

/* The text is longer than the pipe, so it is written in pieces. Signals would restart a write that
 * blocks (SA_RESTART). */
static void a_signal_does_not_make_the_writer_block(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fill(ends[1]);
    char *text = twice_what_it_holds(ends[1]);
    pid_t child = fork();
    if (child == 0) {
        const struct itimerval often = {{0, 20000}, {0, 20000}};
        struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESTART};
        struct rlimit one = {1, 1}; /* the pipe cannot be opened again */
        setrlimit(RLIMIT_NOFILE, &one);
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &often, NULL);
        int r = write_in_time(ends[1], text, 2 * capacity(ends[1]));
        free(text); /* valgrind reports leaks of the child too */
        _exit(r == -EAGAIN ? 0 : 1);
    }
    int status = -1;
    for (int i = 0; i < 1000 && waitpid(child, &status, WNOHANG) == 0; i++)
        usleep(10000);
    if (status == -1)
        kill(child, SIGKILL);
    assert_int_equal(status, 0);
    free(text);
    close(ends[0]);
    close(ends[1]);
}

static void a_full_blocking_socket_does_not_block_the_writer(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    fill(ends[1]);
    assert_given_up_on(ends[1]);
    close(ends[0]);
    close(ends[1]);
}

static void a_terminal_without_a_reader_does_not_block_the_writer(void **state) {
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        skip();
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0);
    static char much[65536];
    alarm(20);
    assert_int_equal(write_in_time(terminal, much, sizeof much), -EAGAIN);
    alarm(0);
    close(terminal);
    close(master);
}

static void a_text_too_long_for_a_pipe_is_dropped_whole(void **state) {
    (void)state;
    int ends[2], held = 0;
    assert_int_equal(pipe(ends), 0);
    fill(ends[1]);
    size_t page = (size_t)getpagesize(), bytes = page + page / 2; /* a pipe consists of pages */
    if (capacity(ends[1]) == page)
        skip(); /* the pipe would be empty, and take a part of the text */
    char *text = calloc(1, bytes);
    assert_non_null(text);
    drain(ends[0], page);
    assert_int_equal(write_in_time(ends[1], text, bytes), -EAGAIN);
    assert_int_equal(ioctl(ends[0], FIONREAD, &held), 0);
    assert_int_equal(held, capacity(ends[0]) - page);
    free(text);
    close(ends[0]);
    close(ends[1]);
}

static void a_late_reader_gets_all_of_a_text(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fill(ends[1]);
    char *text = twice_what_it_holds(ends[1]);
    size_t bytes = 2 * capacity(ends[1]);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        usleep(100000);
        size_t got = 0;
        for (ssize_t part; (part = read(ends[0], text, bytes)) > 0;)
            got += (size_t)part;
        free(text);
        _exit(got == bytes / 2 + bytes ? 0 : 1);
    }
    close(ends[0]);
    assert_int_equal(write_in_time(ends[1], text, bytes), 0);
    close(ends[1]);
    free(text);
    assert_int_equal(child_status(child), 0);
}

/** Opens a terminal that sends SIGTTOU to a background job that writes. Returns -1 without one. */
static int terminal_with_tostop(void) {
    struct termios mode;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        return -1;
    int terminal = open(ptsname(master), O_RDWR); /* without O_NOCTTY: it controls this session */
    if (terminal < 0 || tcgetattr(terminal, &mode) != 0)
        return -1;
    mode.c_lflag |= TOSTOP;
    return tcsetattr(terminal, TCSANOW, &mode) == 0 ? terminal : -1;
}

/** Runs in the first process of a session. Returns the status of a background job that writes. */
static int write_in_background(void) {
    int terminal = terminal_with_tostop(), status;
    if (terminal < 0)
        return 77;
    pid_t job = fork();
    if (job == 0) {
        setpgid(0, 0);
        _exit(write_all(terminal, "x", 1) == 0 && write_in_time(terminal, "x", 1) == 0 ? 0 : 1);
    }
    waitpid(job, &status, WUNTRACED);
    if (WIFSTOPPED(status))
        kill(job, SIGKILL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

static void a_background_job_is_not_stopped(void **state) {
    (void)state;
    pid_t leader = fork();
    if (leader == 0) {
        setsid();
        _exit(write_in_background());
    }
    int status = child_status(leader);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(status, 0);
}

static const int *closed; /* descriptors that use_closed() expects to be closed; ends with -1 */
static volatile bool opened;

/** Writes to the closed descriptors until the file is open. Returns whether a write succeeded. */
static void *use_closed(void *fifo) {
    bool hit = false;
    for (int i = 0; i < 200; i++, usleep(1000))
        for (const int *fd = closed; *fd >= 0; fd++)
            hit |= write(*fd, "x", 1) >= 0 || errno != EBADF;
    opened = true;
    int reader = write_open(AT_FDCWD, fifo, O_RDONLY | O_NONBLOCK, 0); /* ends the wait for it */
    return hit || reader < 0 ? fifo : NULL;
}

static void a_file_never_gets_a_standard_number(void **state) {
    (void)state;
    static const int sets[][4] = {{0, 1, 2, -1}, {1, -1}, {0, 2, -1}};
    char fifo[64];
    snprintf(fifo, sizeof fifo, "/tmp/gpucache-write-%d", (int)getpid());
    assert_int_equal(mkfifo(fifo, 0600), 0);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            void *hit = NULL;
            closed = sets[i];
            for (const int *fd = closed; *fd >= 0; fd++)
                close(*fd);
            alarm(20);
            pthread_create(&thread, NULL, use_closed, fifo);
            bool right = write_open(AT_FDCWD, fifo, O_WRONLY | O_CLOEXEC, 0) > STDERR_FILENO;
            right = right && opened;
            pthread_join(thread, &hit);
            for (const int *fd = closed; *fd >= 0; fd++)
                right = right && fcntl(*fd, F_GETFD) < 0;
            right = right && write_open(AT_FDCWD, "/nonexistent/file", O_RDONLY, 0) == -ENOENT;
            _exit(right && !hit ? 0 : 1);
        }
        int status = child_status(child);
        if (status != 0)
            unlink(fifo);
        assert_int_equal(status, 0);
    }
    unlink(fifo);
}

/** Makes fallocate() fail with EINTR, as some file systems do at any signal. */
static bool interrupt_fallocate(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINTR),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void an_interrupted_reservation_writes_zeros(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        char path[] = "/tmp/gpucache-write-XXXXXX";
        int fd = mkstemp(path);
        struct stat file;
        unlink(path);
        if (!interrupt_fallocate())
            _exit(77);
        _exit(write_reserve(fd, 0, 100000) == 0 && fstat(fd, &file) == 0 && file.st_size == 100000
                  ? 0
                  : 1);
    }
    int status = child_status(child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(status, 0);
}

/* Makes each test start without the state that an earlier one left after a failed write. */
static int write_something(void **state) {
    (void)state;
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int result = write_in_time(null, "x", 1);
    close(null);
    return result;
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, write_something)
    const struct CMUnitTest tests[] = {
        TEST(a_closed_reader_does_not_end_the_process),
        TEST(a_pending_signal_of_the_programs_stays_pending),
        TEST(a_file_size_limit_does_not_end_the_process),
        TEST(a_full_non_blocking_pipe_is_waited_for_briefly),
        TEST(a_full_blocking_pipe_does_not_block_the_writer),
        TEST(a_full_pipe_that_cannot_be_reopened_does_not_block_either),
        TEST(a_signal_does_not_make_the_writer_block),
        TEST(a_full_blocking_socket_does_not_block_the_writer),
        TEST(a_terminal_without_a_reader_does_not_block_the_writer),
        TEST(a_text_too_long_for_a_pipe_is_dropped_whole),
        TEST(a_late_reader_gets_all_of_a_text),
        TEST(a_background_job_is_not_stopped),
        TEST(a_file_never_gets_a_standard_number),
        TEST(an_interrupted_reservation_writes_zeros),
    };
    return cmocka_run_group_tests_name("write", tests, NULL, NULL);
}
