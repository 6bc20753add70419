/* Initialises locks; in builds with assertions, checks their order. lock.h has the rules. */
#include "base/lock.h"

void lock_start(struct lock *lock, enum lock_rank rank) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&lock->mutex, &kind);
    pthread_mutexattr_destroy(&kind);
#ifdef GPUCACHE_ASSERTIONS
    lock->rank = rank;
#else
    (void)rank;
#endif
}

#ifdef GPUCACHE_ASSERTIONS
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    const char *name, *protects;
} ranks[] = {
#define LOCK(name, protects) {#name, protects},
#include "base/lock.def"
#undef LOCK
};

/* How many locks of each rank this thread holds. A signal handler releases all that it takes. */
static _Thread_local unsigned held[LOCK_RANKS] __attribute__((tls_model("initial-exec")));

/*
 * Writes to stderr by a system call: write() is a cancellation point, and the library calls none.
 */
static void write_text(const char *words) {
    syscall(SYS_write, STDERR_FILENO, words, strlen(words));
}

/* Ends the process by SIGABRT without abort(), which the library may not call (test_entries.c). */
static _Noreturn void die(void) {
    raise(SIGABRT);
    __builtin_trap(); /* the program's handler for the signal has returned */
}

static void write_number(int n) {
    char text[12];
    char *at = text + sizeof text - 1;
    for (*at = '\0'; at == text + sizeof text - 1 || n > 0; n /= 10)
        *--at = (char)('0' + n % 10);
    write_text(at);
}

void assert_failed(const char *condition, const char *file, int line) {
    write_text("gpucache: ");
    write_text(file);
    write_text(":");
    write_number(line);
    write_text(": not true: ");
    write_text(condition);
    write_text("\n");
    die();
}

const void *assert_this_thread(void) {
    return held;
}

static void write_lock_name(enum lock_rank rank) {
    write_text(ranks[rank].name);
    write_text(" (");
    write_text(ranks[rank].protects);
    write_text(")");
}

void lock_check(enum lock_rank rank) {
    /* A thread with the pool's lock may hold several locks of rank LOCK_CACHE. */
    unsigned first = rank + (rank == LOCK_CACHE);
    for (unsigned other = first; other < LOCK_RANKS; other++) {
        if (held[other] > 0) {
            write_text("gpucache: lock ");
            write_lock_name(rank);
            write_text(" taken while ");
            write_lock_name(other);
            write_text(" is held\n");
            die();
        }
    }
}

void lock_note(enum lock_rank rank) {
    held[rank]++;
}

void lock_forget(enum lock_rank rank) {
    if (held[rank]-- == 0) {
        write_text("gpucache: lock ");
        write_lock_name(rank);
        write_text(" released, but not held\n");
        die();
    }
}
#endif
