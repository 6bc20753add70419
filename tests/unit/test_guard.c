/*
 * Tests guard_repair() on mapped files that are truncated: an access to a missing page reads zeros,
 * and no other fault is repaired.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "child.h"
#include "process/guard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 3
#define NOT_REPAIRED 7

static char *mapped;
static size_t page;
static volatile sig_atomic_t told;
static int fd;

static void lost(void) {
    told++;
}

static void on_sigbus(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    if (!guard_repair(info))
        _exit(NOT_REPAIRED);
}

/** Runs run() in a child that handles SIGBUS, with `mapped` leading to a file of PAGES pages. */
static void in_a_child(void (*run)(void)) {
    char path[] = "/tmp/guard-XXXXXX";
    page = (size_t)sysconf(_SC_PAGESIZE);
    fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(ftruncate(fd, (off_t)(PAGES * page)), 0);
    mapped = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(mapped, MAP_FAILED);
    memset(mapped, 1, PAGES * page);
    pid_t child = fork();
    if (child == 0) {
        const struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
        sigaction(SIGBUS, &action, NULL);
        run();
        _exit(0);
    }
    int status = child_status(child);
    munmap(mapped, PAGES * page);
    close(fd);
    assert_int_equal(status, 0);
}

static void check(bool right, int code) {
    if (!right)
        _exit(code);
}

static void cut_to_one_page(void) {
    guard_mapping(mapped, PAGES * page, lost);
    check(ftruncate(fd, (off_t)page) == 0, 1);
    errno = EDOM;
    mapped[2 * page + 5] = 3; /* written */
    check(errno == EDOM && told == 1, 2);
    check(mapped[2 * page + 4] == 0 && mapped[2 * page + 5] == 3 && told == 1, 3);
    check(((volatile char *)mapped)[page] == 0 && told == 2, 4); /* read */
    check(mapped[page - 1] == 1, 5);                             /* still the file's */
}

static void cut_twice(void) {
    guard_mapping(mapped, PAGES * page, NULL); /* no function is told of losses */
    check(ftruncate(fd, 0) == 0 && ((volatile char *)mapped)[0] == 0, 1);
    check(ftruncate(fd, (off_t)(PAGES * page)) == 0 && ftruncate(fd, 0) == 0, 2);
    check(((volatile char *)mapped)[page] == 0, 3);
}

static void cut_beside_it(void) {
    guard_mapping(mapped, page, lost);
    check(ftruncate(fd, 0) == 0, 1);
    siginfo_t other = {.si_signo = SIGBUS, .si_code = SI_USER, .si_addr = mapped};
    check(!guard_repair(&other), 2);
    other = (siginfo_t){.si_signo = SIGSEGV, .si_code = BUS_ADRERR, .si_addr = mapped};
    check(!guard_repair(&other), 3);
    other = (siginfo_t){.si_signo = SIGBUS, .si_code = BUS_ADRERR, .si_addr = mapped + page};
    check(!guard_repair(&other) && told == 0, 4);
}

static void a_missing_page_becomes_zeros(void **state) {
    (void)state;
    if (child_under_valgrind())
        skip();
    in_a_child(cut_to_one_page);
    in_a_child(cut_twice);
}

static void nothing_else_is_repaired(void **state) {
    (void)state;
    in_a_child(cut_beside_it);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_page_becomes_zeros),
        cmocka_unit_test(nothing_else_is_repaired),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
