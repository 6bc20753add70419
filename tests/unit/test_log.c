/*
 * Tests the log: which messages are written, their form, and files that never get messages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/log.h"
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/** Returns the text that body() writes to stderr in a child. */
static const char *stderr_of(void (*body)(void)) {
    return child_stderr(NULL, body);
}

/** Opens an unnamed file, as the program under test has. */
static int open_unnamed(int flags) {
    char path[] = "/tmp/gpucache-log-XXXXXX";
    int file = mkostemp(path, flags);
    unlink(path);
    return file;
}

static void say_by_level(void) {
    errno = EDOM;
    log_error("e%d", 1);
    log_warn("w");
    log_info("i");
    log_set_level(LOG_LEVEL_INFO);
    log_info("i2");
    log_debug("d");
    if (errno != EDOM)
        _exit(1);
}

static void messages_below_the_level_are_not_written(void **state) {
    (void)state;
    assert_string_equal(stderr_of(say_by_level), "gpucache: e1\ngpucache: w\ngpucache: i2\n");
}

static void say_in_a_loop(void) {
    for (int i = 0; i < 5; i++)
        log_once(LOG_LEVEL_WARN, "turn %d", i);
}

static void a_place_that_logs_once_logs_once(void **state) {
    (void)state;
    assert_string_equal(stderr_of(say_in_a_loop), "gpucache: turn 0\n");
}

static void say_too_much(void) {
    char text[2000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    text[3] = '\n';
    log_warn("%s", text);
}

static void a_long_message_is_one_cut_line(void **state) {
    (void)state;
    const char *got = stderr_of(say_too_much);
    assert_int_equal(strlen(got), LOG_LINE);
    assert_memory_equal(got, "gpucache: xxx?xxx", 17);
    assert_string_equal(got + LOG_LINE - 4, "...\n");
}

static void say_after_close(void) {
    log_keep();
    close(STDERR_FILENO);
    log_warn("still there");
}

static void say_in_disguise(void) {
    log_warn("%s", "a\x1b[2J \xc2\x9b"
                   "31m \x9b\xff \xc3\xa9 \xe2\x82\xac");
}

static void a_message_contains_no_terminal_command(void **state) {
    (void)state;
    assert_string_equal(stderr_of(say_in_disguise),
                        "gpucache: a?[2J ??31m ?? \xc3\xa9 \xe2\x82\xac\n");
}

static void messages_come_out_after_the_program_closed_stderr(void **state) {
    (void)state;
    assert_string_equal(stderr_of(say_after_close), "gpucache: still there\n");
}

static void say_into_a_number_that_was_taken_over(void) {
    log_keep();
    for (int fd = 2; fd < 1024; fd++)
        close(fd);
    int file = open_unnamed(0);
    for (int fd = file + 1; fd < 200; fd++)
        dup2(file, fd);
    log_warn("must not land in a file of the program's");
    if (lseek(file, 0, SEEK_END) != 0)
        _exit(1);
}

static void a_file_under_the_kept_number_is_never_written_to(void **state) {
    (void)state;
    assert_string_equal(stderr_of(say_into_a_number_that_was_taken_over), "");
}

static void limit_descriptors(rlim_t most) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = most;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        _exit(1);
}

static void say_with_few_descriptors(void) {
    limit_descriptors(50);
    log_keep();
    close(STDERR_FILENO);
    log_warn("low number");
}

static void a_low_descriptor_limit_is_no_obstacle(void **state) {
    (void)state;
    assert_string_equal(stderr_of(say_with_few_descriptors), "gpucache: low number\n");
}

/** Returns the lowest free number. */
static int next_number(void) {
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

static void open_with_few_descriptors(void) {
    int next = next_number();
    limit_descriptors(50);
    log_keep();
    if (next_number() != next || fcntl(49, F_GETFD) < 0)
        _exit(2);
}

static void open_the_last_descriptor(void) {
    int next = next_number();
    limit_descriptors((rlim_t)next + 1);
    log_keep();
    if (next_number() != next)
        _exit(2);
}

static void open_below_full_numbers(void) {
    int next = next_number();
    limit_descriptors(50);
    for (int fd = next + 2; fd < 50; fd++)
        dup2(STDERR_FILENO, fd);
    log_keep();
    if (next_number() != next || fcntl(next + 1, F_GETFD) >= 0)
        _exit(2);
}

static void the_lowest_free_numbers_are_the_programs(void **state) {
    (void)state;
    assert_string_equal(stderr_of(open_with_few_descriptors), "");
    assert_string_equal(stderr_of(open_the_last_descriptor), "");
    assert_string_equal(stderr_of(open_below_full_numbers), "");
}

static void look_at_the_kept_one(void) {
    int open_before[256];
    for (int fd = 0; fd < 256; fd++)
        open_before[fd] = fcntl(fd, F_GETFD);
    log_open();
    for (int fd = 0; fd < 256; fd++)
        if (fcntl(fd, F_GETFD) != open_before[fd])
            _exit(1);
    log_keep();
    int kept = 0;
    for (int fd = 0; fd < 256; fd++)
        if (open_before[fd] < 0 && fcntl(fd, F_GETFD) >= 0) {
            kept++;
            if (fd < 100 || !(fcntl(fd, F_GETFD) & FD_CLOEXEC))
                _exit(2);
        }
    if (kept != 1)
        _exit(3);
    log_forked();
    for (int fd = 0; fd < 256; fd++)
        if (fcntl(fd, F_GETFD) != open_before[fd])
            _exit(4);
    log_warn("from the child");
}

static void the_kept_descriptor_is_high_and_closed_on_exec_and_fork(void **state) {
    (void)state;
    assert_string_equal(stderr_of(look_at_the_kept_one), "gpucache: from the child\n");
}

static void forget_what_is_not_ours(void) {
    log_keep();
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    int file = open_unnamed(0);
    for (int fd = file + 1; fd < 256; fd++)
        dup2(file, fd);
    log_forked();
    for (int fd = file; fd < 256; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            _exit(1);
}

static void a_child_closes_nothing_of_the_programs(void **state) {
    (void)state;
    assert_string_equal(stderr_of(forget_what_is_not_ours), "");
}

/** Replaces stderr by a file, and writes a message. Returns whether the file has the message. */
static bool is_written_to(int file, int flags) {
    struct stat found;
    dup3(file, STDERR_FILENO, flags);
    close(file);
    log_keep();
    log_warn("a line");
    return fstat(STDERR_FILENO, &found) == 0 && found.st_size > 0;
}

/** Opens an unnamed file that can only be written. */
static int open_write_only(void) {
    char path[64];
    int unnamed = open_unnamed(0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", unnamed);
    int file = open(path, O_WRONLY);
    close(unnamed);
    return file;
}

static void redirect(void) {
    _exit(is_written_to(open_write_only(), 0) ? 0 : 1);
}

static void redirect_and_append(void) {
    _exit(is_written_to(open_unnamed(O_APPEND), 0) ? 0 : 1);
}

static void take_the_number(void) {
    _exit(is_written_to(open_write_only(), O_CLOEXEC) ? 1 : 0);
}

static void take_the_number_for_data(void) {
    _exit(is_written_to(open_unnamed(0), 0) ? 1 : 0);
}

/** Puts a socket in place of stderr, and of stdout if `both`. Returns whether a message is sent. */
static bool is_sent_to_socket(bool both) {
    int ends[2];
    char got[64];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        _exit(2);
    dup2(ends[0], STDERR_FILENO);
    if (both)
        dup2(ends[0], STDOUT_FILENO);
    close(ends[0]);
    log_keep();
    log_warn("a line");
    return recv(ends[1], got, sizeof got, MSG_DONTWAIT) > 0;
}

/* As pytest and torchrun do, whose files can be read, too. */
static void redirect_by_dup2(void) {
    int file = open_unnamed(0), high = fcntl(file, F_DUPFD, 200);
    close(file);
    struct stat found;
    dup2(high, STDERR_FILENO);
    log_keep();
    log_warn("a line");
    _exit(fstat(high, &found) == 0 && found.st_size > 0 ? 0 : 1);
}

static void serve_a_client(void) {
    _exit(is_sent_to_socket(false) ? 1 : 0);
}

static void serve_as_inetd_does(void) {
    _exit(is_sent_to_socket(true) ? 0 : 1);
}

static void a_file_in_place_of_stderr_is_used_if_meant_as_stderr(void **state) {
    (void)state;
    assert_string_equal(stderr_of(redirect), "");
    assert_string_equal(stderr_of(redirect_and_append), "");
    assert_string_equal(stderr_of(redirect_by_dup2), "");
    assert_string_equal(stderr_of(take_the_number), "");
    assert_string_equal(stderr_of(take_the_number_for_data), "");
    assert_string_equal(stderr_of(serve_a_client), "");
    assert_string_equal(stderr_of(serve_as_inetd_does), "");
}

static char *self;

static void start_without(void) {
    close(STDERR_FILENO);
    execl(self, self, "without", (char *)NULL);
    _exit(127);
}

/* The first file of a program that has no stderr gets its number. */
static int run_without(void) {
    int file = open_unnamed(0);
    if (file != STDERR_FILENO)
        return 1;
    log_keep();
    log_warn("must not land in a file of the program's");
    return lseek(file, 0, SEEK_END) == 0 && log_fd() < 0 ? 0 : 2;
}

static void a_program_without_stderr_keeps_its_files_to_itself(void **state) {
    (void)state;
    assert_string_equal(stderr_of(start_without), "");
}

static void start_with_capture(void) {
    execl(self, self, "capture", (char *)NULL);
    _exit(127);
}

/* Uses another file as stderr for a while, at the time of the first message. */
static int run_capture(void) {
    int kept = dup(STDERR_FILENO), file = open_unnamed(0);
    struct stat found;
    dup2(file, STDERR_FILENO);
    close(file);
    log_keep();
    log_warn("captured");
    bool empty = fstat(STDERR_FILENO, &found) == 0 && found.st_size == 0;
    dup2(kept, STDERR_FILENO);
    log_warn("after the capture");
    return empty ? 0 : 1;
}

static void messages_come_out_after_a_capture_of_stderr(void **state) {
    (void)state;
    assert_string_equal(stderr_of(start_with_capture), "gpucache: after the capture\n");
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "without") == 0)
        return run_without();
    if (argc > 1 && strcmp(argv[1], "capture") == 0)
        return run_capture();
    self = argv[0];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_below_the_level_are_not_written),
        cmocka_unit_test(a_place_that_logs_once_logs_once),
        cmocka_unit_test(a_long_message_is_one_cut_line),
        cmocka_unit_test(a_message_contains_no_terminal_command),
        cmocka_unit_test(messages_come_out_after_the_program_closed_stderr),
        cmocka_unit_test(a_file_under_the_kept_number_is_never_written_to),
        cmocka_unit_test(a_low_descriptor_limit_is_no_obstacle),
        cmocka_unit_test(the_lowest_free_numbers_are_the_programs),
        cmocka_unit_test(the_kept_descriptor_is_high_and_closed_on_exec_and_fork),
        cmocka_unit_test(a_child_closes_nothing_of_the_programs),
        cmocka_unit_test(messages_come_out_after_a_capture_of_stderr),
        cmocka_unit_test(a_file_in_place_of_stderr_is_used_if_meant_as_stderr),
        cmocka_unit_test(a_program_without_stderr_keeps_its_files_to_itself),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
