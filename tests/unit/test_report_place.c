/*
 * Tests the destinations of a report: stderr, files, descriptors.
 *
 * Cases that depend on options run in a child, because options are read once per process.
 */
#include "reports.h"

#include "child.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static void write_at_exit(void) {
    close(STDERR_FILENO); /* as coreutils do */
    errno = EDOM;
    report_write("exit");
    if (errno != EDOM)
        _exit(1);
}

static void by_default_it_goes_to_the_kept_stderr(void **state) {
    (void)state;
    add_typical(0);
    assert_fits(STDERR_OF(write_at_exit, "A=1"), 1);
    assert_json(STDERR_OF(write_at_exit, "GPUCACHE_REPORT_FORMAT=json"), "");
}

static void off_and_no_device_are_silent(void **state) {
    (void)state;
    assert_string_equal(STDERR_OF(write_at_exit, "A=1"), "");
    add_typical(0);
    assert_string_equal(STDERR_OF(write_at_exit, "GPUCACHE_REPORT=off"), "");
}

static char directory[] = "/tmp/gpucache-report-XXXXXX";

static char *in_directory(const char *name) {
    static char path[4][320];
    static int next;
    char *to = path[next++ % 4];
    snprintf(to, sizeof *path, "%s/%s", directory, name);
    return to;
}

/** Returns the contents of a file in the directory, and removes the file. */
static const char *take_file(const char *name) {
    int fd = open(in_directory(name), O_RDONLY);
    if (fd < 0)
        fail_msg("no file %s", in_directory(name));
    const char *text = child_read(fd);
    close(fd);
    unlink(in_directory(name));
    return text;
}

static void write_one(void) {
    report_write("exit");
}

static void write_three(void) {
    umask(022);
    assert_int_equal(chdir("/"), 0);
    report_write("request");
    report_write("request");
    report_write("exit");
}

static void no_file_is_ever_written_twice(void **state) {
    (void)state;
    add_typical(0);
    char variable[512];
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("r.txt"));
    assert_string_equal(STDERR_OF(write_three, variable, "GPUCACHE_LOG=error"), "");
    assert_says(take_file("r.txt"), "on request");
    assert_says(take_file("r.txt.1"), "on request");
    assert_says(take_file("r.txt.2"), "at exit");

    FILE *mine = fopen(in_directory("n1"), "w");
    fputs("mine", mine);
    fclose(mine);
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("n%n"));
    assert_string_equal(STDERR_OF(write_three, variable, "GPUCACHE_LOG=error"), "");
    assert_string_equal(take_file("n1"), "mine");
    assert_fits(take_file("n2"), 1);
    assert_fits(take_file("n3"), 1);
    assert_says(take_file("n4"), "at exit");
}

static void write_pid_too(void) {
    umask(022);
    FILE *file = fopen(in_directory("pid"), "w");
    fprintf(file, "%d", getpid());
    fclose(file);
    report_write("exit");
}

static void a_pattern_names_process_host_program_and_rank(void **state) {
    (void)state;
    add_typical(0);
    char variable[512], name[256], host[65] = "";
    gethostname(host, sizeof host - 1);
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("%h-%e-%r-%p-%%"));
    assert_string_equal(STDERR_OF(write_pid_too, variable, "PMI_RANK=7", "GPUCACHE_LOG=error"), "");
    int pid = atoi(take_file("pid"));
    extern char *program_invocation_short_name;
    /* under valgrind only the first word of the command line is the program's */
    snprintf(name, sizeof name, "%s-%s-7-%d-%%", host, program_invocation_short_name, pid);
    assert_says(take_file(name), ", rank 7, on ");
}

static void a_device_file_is_written_in_place(void **state) {
    (void)state;
    add_typical(0);
    assert_string_equal(STDERR_OF(write_three, "GPUCACHE_REPORT=/dev/null"), "");
    assert_int_equal(access("/dev/null.1", F_OK), -1);
}

static void use_descriptor(void) {
    int fd = open(in_directory("out"), O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (dup2(fd, 9) != 9 || write(9, "before\n", 7) != 7)
        _exit(1);
    report_write("exit");
    if (write(9, "after\n", 6) != 6)
        _exit(2);
}

static void use_socket(void) {
    static char text[1 << 16];
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || dup2(ends[1], 9) != 9)
        _exit(1);
    report_write("exit");
    ssize_t length = recv(ends[0], text, sizeof text - 1, MSG_DONTWAIT);
    if (length <= 0 || !strstr(text, "at exit"))
        _exit(2);
}

static void use_stdout(void) {
    int fd = open(in_directory("out"), O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (dup2(fd, STDOUT_FILENO) != STDOUT_FILENO)
        _exit(1);
    report_write("exit");
}

static void use_stderr_in_a_file(void) {
    report_write("request"); /* to the pipe */
    int fd = open(in_directory("out"), O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (dup2(fd, STDERR_FILENO) != STDERR_FILENO) /* not the stderr of the start any more */
        _exit(1);
    report_write("exit");
}

static void a_file_or_socket_of_a_descriptor_is_written_in_place(void **state) {
    (void)state;
    add_typical(0);
    static const char *const names[] = {"GPUCACHE_REPORT=/dev/fd/9",
                                        "GPUCACHE_REPORT=/proc/self/fd/9"};
    for (int i = 0; i < 2; i++) {
        assert_string_equal(STDERR_OF(use_descriptor, names[i]), "");
        const char *text = take_file("out");
        assert_memory_equal(text, "before\n|==", 10);
        assert_says(text, "at exit");
        assert_string_equal(text + strlen(text) - 6, "after\n");
        assert_string_equal(STDERR_OF(use_socket, names[i]), "");
    }
    assert_string_equal(STDERR_OF(use_stdout, "GPUCACHE_REPORT=/dev/stdout"), "");
    assert_fits(take_file("out"), 1);
    assert_fits(STDERR_OF(use_stderr_in_a_file, "GPUCACHE_REPORT=/dev/stderr"), 1);
    assert_string_equal(take_file("out"), "");
    const char *text = STDERR_OF(write_one, "GPUCACHE_REPORT=/dev/fd/9");
    assert_says(text, "report file /dev/fd/9: not open for writing; writing to stderr\n");
}

/** Exchanges two links, one to /dev/null and one to a file, until it is killed. */
static pid_t keep_exchanging(const char *a, const char *b, const char *victim) {
    assert_int_equal(symlink("/dev/null", a), 0);
    assert_int_equal(symlink(victim, b), 0);
    pid_t child = fork();
    while (child == 0)
        renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
    return child;
}

static void write_many(void) {
    umask(022);
    for (int i = 0; i < 3000; i++)
        report_write("request");
}

/* A regular file replaces the device between the check of the type and the opening. */
static void a_file_that_appears_during_the_call_is_not_written_to(void **state) {
    (void)state;
    add_typical(0);
    char variable[512], a[256], b[256], victim[256], rest[sizeof a + 16];
    strcpy(a, in_directory("a"));
    strcpy(b, in_directory("b"));
    strcpy(victim, in_directory("victim"));
    close(open(victim, O_WRONLY | O_CREAT | O_EXCL, 0644));
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", a);
    pid_t child = keep_exchanging(a, b, victim);
    const char *said = STDERR_OF(write_many, variable, "GPUCACHE_LOG=error");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_string_equal(said, "");
    struct stat file;
    assert_int_equal(stat(victim, &file), 0);
    unlink(a);
    unlink(b);
    unlink(victim);
    for (int i = 1; i <= 3000; i++) {
        snprintf(rest, sizeof rest, "%s.%d", a, i);
        unlink(rest);
    }
    assert_int_equal(file.st_size, 0);
}

static int mode_of(const char *name) {
    struct stat file;
    return stat(in_directory(name), &file) == 0 ? (int)(file.st_mode & 0777) : -1;
}

static void write_under_a_mask(void) {
    umask(027);
    report_write("exit");
}

static void only_its_user_reads_a_report_unless_told_otherwise(void **state) {
    (void)state;
    add_typical(0);
    char variable[512];
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("mode"));
    STDERR_OF(write_three, variable, "GPUCACHE_LOG=error");
    STDERR_OF(write_under_a_mask, variable, "GPUCACHE_LOG=error", "GPUCACHE_FILE_MODE=0666");
    int usual = mode_of("mode"), wider = mode_of("mode.3");
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, i == 0 ? "mode" : "mode.%d", i);
        unlink(in_directory(name));
    }
    assert_int_equal(usual, 0600);
    assert_int_equal(wider, 0640);
}

/** Writes a report while the FIFO of that name is read. Returns the text that was read. */
static const char *report_to_fifo(const char *variable) {
    assert_int_equal(mkfifo(in_directory("fifo"), 0600), 0);
    int fd = open(in_directory("fifo"), O_RDONLY | O_NONBLOCK);
    assert_true(fd >= 0);
    assert_string_equal(STDERR_OF(write_one, variable, "GPUCACHE_LOG=error"), "");
    const char *text = child_read(fd);
    close(fd);
    unlink(in_directory("fifo"));
    return text;
}

static void a_fifo_of_the_user_gets_the_report(void **state) {
    (void)state;
    add_typical(0);
    char variable[512];
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("fifo"));
    assert_fits(report_to_fifo(variable), 1);
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("link"));
    assert_int_equal(symlink(in_directory("fifo"), in_directory("link")), 0);
    assert_fits(report_to_fifo(variable), 1);
    unlink(in_directory("link"));
}

#define ANOTHER_USER 2001

/** If a file of another user has the name, the report gets the next name. */
static void another_users_fifo_or_link_gets_nothing(void **state) {
    (void)state;
    if (geteuid() != 0)
        skip();
    add_typical(0);
    char variable[512];
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("trap"));
    assert_int_equal(mkfifo(in_directory("trap"), 0666), 0);
    assert_int_equal(chown(in_directory("trap"), ANOTHER_USER, ANOTHER_USER), 0);
    assert_int_equal(symlink("/dev/null", in_directory("trap.1")), 0);
    assert_int_equal(lchown(in_directory("trap.1"), ANOTHER_USER, ANOTHER_USER), 0);
    assert_int_equal(symlink(in_directory("trap"), in_directory("trap.2")),
                     0); /* a link of the user's */
    int fd = open(in_directory("trap"), O_RDONLY | O_NONBLOCK);
    const char *said = STDERR_OF(write_one, variable, "GPUCACHE_LOG=error");
    assert_string_equal(said, "");
    assert_string_equal(child_read(fd), "");
    close(fd);
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, i == 0 ? "trap" : "trap.%d", i);
        unlink(in_directory(name));
    }
    assert_fits(take_file("trap.3"), 1);
}

static void a_block_device_is_not_written_to(void **state) {
    (void)state;
    char variable[512];
    add_typical(0);
    /* a device number without a driver, so that a write can do no damage */
    if (mknod(in_directory("disk"), S_IFBLK | 0600, makedev(240, 77)) != 0)
        skip();
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("disk"));
    const char *said = STDERR_OF(write_one, variable);
    unlink(in_directory("disk"));
    assert_says(said, "is a block device; writing to stderr\n");
    assert_fits(strchr(said, '\n') + 1, 1);
}

/** Another user has files under every name that can be predicted. */
static void names_that_are_all_taken_send_no_report_to_stderr(void **state) {
    (void)state;
    add_typical(0);
    char variable[512], name[32], found[256] = "";
    for (int i = 0; i < 10000; i++) {
        snprintf(name, sizeof name, i == 0 ? "taken" : "taken.%d", i);
        assert_int_equal(symlink("/nonexistent/file", in_directory(name)), 0);
    }
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("taken"));
    const char *said = STDERR_OF(write_one, variable, "GPUCACHE_LOG=error");
    DIR *all = opendir(directory);
    for (const struct dirent *one; (one = readdir(all));)
        if (one->d_type == DT_LNK)
            unlink(in_directory(one->d_name));
        else if (*one->d_name != '.')
            snprintf(found, sizeof found, "%s", one->d_name);
    closedir(all);
    assert_string_equal(said, "");
    assert_fits(take_file(found), 1);
}

static void a_report_that_cannot_be_written_goes_to_stderr(void **state) {
    (void)state;
    add_typical(0);
    const char *text = STDERR_OF(write_three, "GPUCACHE_REPORT=/nonexistent/r");
    static const char warning[] = "gpucache: cannot write report file /nonexistent/r: no such "
                                  "directory; writing to stderr\n|====";
    assert_memory_equal(text, warning, strlen(warning));
    assert_null(strstr(text + 1, "gpucache: cannot"));
    assert_fits(strchr(text, '\n') + 1, 3);

    text = STDERR_OF(write_three, "GPUCACHE_REPORT=/dev/full");
    assert_says(text, "gpucache: cannot write report file /dev/full: no space left");
    assert_fits(strchr(text, '\n') + 1, 3);

    static char variable[1100] = "GPUCACHE_REPORT=/tmp/";
    memset(variable + strlen(variable), 'x', 300);
    text = STDERR_OF(write_three, variable);
    assert_says(text, ": name too long; writing to stderr\n");
    memset(variable + strlen(variable), 'x', 700); /* the message cuts the path, not the reason */
    assert_says(STDERR_OF(write_three, variable), "xxx...: name too long; writing to stderr\n");
}

static void one_line_says_where_a_report_was_written(void **state) {
    (void)state;
    char variable[512], expected[512];
    add_typical(0);
    snprintf(variable, sizeof variable, "GPUCACHE_REPORT=%s", in_directory("said"));
    snprintf(expected, sizeof expected, "gpucache: report written to %s\n", in_directory("said"));
    assert_string_equal(STDERR_OF(write_one, variable), expected);
    unlink(in_directory("said"));
    assert_string_equal(STDERR_OF(write_one, variable, "GPUCACHE_LOG=error"), "");
    unlink(in_directory("said"));
}

/* One write does not mix with the writes of other processes to the same pipe. */
static void a_report_on_eight_devices_leaves_in_one_write(void **state) {
    (void)state;
    static char text[1 << 18];
    int ends[2];
    for (int i = 0; i < 8; i++)
        add_extreme(i);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    assert_int_equal(report_write_fd(ends[1], REPORT_JSON, "request"), 0);
    ssize_t length = recv(ends[0], text, sizeof text - 1, MSG_DONTWAIT);
    assert_true(length > 16384);
    text[length] = '\0';
    assert_json(text, "assert len(r['devices'])==8\n");
    assert_int_equal(recv(ends[0], text, sizeof text, MSG_DONTWAIT), -1);
    close(ends[0]);
    close(ends[1]);
}

static void a_bad_descriptor_or_format_is_an_error(void **state) {
    (void)state;
    add_typical(0);
    assert_int_equal(report_write_fd(1000000, REPORT_TEXT, "request"), -EBADF);
    assert_int_equal(report_write_fd(-1, REPORT_TEXT, "request"), -EBADF);
    assert_int_equal(report_write_fd(1, 2, "request"), -EINVAL);
}

static int handler_fd;

static void report_in_handler(int number) {
    (void)number;
    report_write_fd(handler_fd, REPORT_JSON, "signal");
}

static void a_small_signal_stack_is_enough(void **state) {
    (void)state;
    add_extreme(0);
    FILE *file = tmpfile();
    handler_fd = fileno(file);
    /* the kernel's frame may take 4 KiB and more; the sanitizers' frames are no measure */
    size_t size = 16384;
    stack_t stack = {.ss_sp = malloc(size), .ss_size = size}, before;
    assert_int_equal(sigaltstack(&stack, &before), 0);
    struct sigaction action = {.sa_handler = report_in_handler, .sa_flags = SA_ONSTACK}, old;
    sigaction(SIGUSR1, &action, &old);
    raise(SIGUSR1);
    sigaction(SIGUSR1, &old, NULL);
    sigaltstack(&before, NULL);
    free(stack.ss_sp);
    lseek(handler_fd, 0, SEEK_SET);
    assert_json(child_read(handler_fd), "assert r['reason']=='signal'\n");
    fclose(file);
}

static int make_directory(void **state) {
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state) {
    (void)state;
    return rmdir(directory); /* fails if the directory still contains a report */
}

int main(void) {
    const struct CMUnitTest in_children[] = {
        TEST(by_default_it_goes_to_the_kept_stderr),
        TEST(off_and_no_device_are_silent),
        TEST(no_file_is_ever_written_twice),
        TEST(a_pattern_names_process_host_program_and_rank),
        TEST(a_device_file_is_written_in_place),
        TEST(a_file_or_socket_of_a_descriptor_is_written_in_place),
        TEST(a_file_that_appears_during_the_call_is_not_written_to),
        TEST(only_its_user_reads_a_report_unless_told_otherwise),
        TEST(a_fifo_of_the_user_gets_the_report),
        TEST(another_users_fifo_or_link_gets_nothing),
        TEST(a_block_device_is_not_written_to),
        TEST(names_that_are_all_taken_send_no_report_to_stderr),
        TEST(a_report_that_cannot_be_written_goes_to_stderr),
        TEST(one_line_says_where_a_report_was_written),
    };
    const struct CMUnitTest in_process[] = {
        TEST(a_report_on_eight_devices_leaves_in_one_write),
        TEST(a_bad_descriptor_or_format_is_an_error),
        TEST(a_small_signal_stack_is_enough),
    };
    int failed =
        cmocka_run_group_tests_name("report places", in_children, make_directory, remove_directory);
    options_load();
    return failed + cmocka_run_group_tests_name("report descriptors", in_process, NULL, NULL);
}
