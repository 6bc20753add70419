#include "process/helper.h"

#include "base/clock.h"
#include "options/options.h"
#include "process/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define POLL_NS 1000000 /* between two checks of a turn: 1 ms */

/* Blocks the signal in this thread at once, so that another thread of the process gets it. */
static void block_signal(int number) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* Whether this thread is a helper. The signal handler reads it. In another TLS model, the first
 * access of a thread could allocate. */
static _Thread_local bool is_helper __attribute__((tls_model("initial-exec")));

static void *run_helper(void *run) {
    is_helper = true;
    pthread_setname_np(pthread_self(), "gpucache"); /* naming another thread opens a file */
    helper_admit_sigbus();
    return ((void *(*)(void *))run)(NULL);
}

int helper_start(void *(*run)(void *)) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run_helper, (void *)run);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        pthread_detach(thread);
    return error;
}

void helper_admit_sigbus(void) {
    sigset_t bus;
    if (is_helper && (guard_is_needed() || options()->report != REPORT_TO_NOWHERE)) {
        sigemptyset(&bus);
        sigaddset(&bus, SIGBUS);
        pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
    }
}

bool helper_passes_on(int number, siginfo_t *info, void *context) {
    ucontext_t *interrupted = context;
    pid_t process = (pid_t)syscall(SYS_getpid);
    bool own_timer = number == SIGSEGV && info->si_code == SI_TIMER; /* of guard_report() */
    if (!is_helper || info->si_code > 0 || own_timer)
        return false;
    /* The mask of `interrupted` blocks the signal after the handler, and block_signal() in it. */
    sigaddset(&interrupted->uc_sigmask, number);
    block_signal(number);
    if (syscall(SYS_rt_sigqueueinfo, process, number, info) != 0)
        syscall(SYS_kill, process, number);
    return true;
}

_Atomic(struct helper *) helper_requested;

void helper_request(struct helper *helper) {
    if (!atomic_exchange(&helper->requested, true)) {
        helper->next = atomic_load(&helper_requested);
        while (!atomic_compare_exchange_weak(&helper_requested, &helper->next, helper)) {
        }
    }
}

void helper_start_all_requested(void) {
    int saved = errno;
    struct helper *helper = atomic_exchange(&helper_requested, NULL);
    while (helper) {
        struct helper *next = helper->next;
        atomic_store(&helper->started, true);
        int error = helper_start(helper->run);
        if (error != 0) {
            atomic_store(&helper->started, false);
            log_line(helper->level, "%s: a thread cannot be made: error %d", helper->lacking,
                     error);
        }
        helper = next;
    }
    errno = saved;
}

bool helper_begin(_Atomic int *turn) {
    helper_admit_sigbus();
    int idle = HELPER_IDLE;
    return atomic_compare_exchange_strong(turn, &idle, HELPER_AT_WORK);
}

void helper_done(_Atomic int *turn) {
    atomic_store(turn, HELPER_IDLE);
}

void helper_hold(_Atomic int *turn, unsigned ms) {
    for (unsigned i = 0; i < ms; i++) {
        int idle = HELPER_IDLE;
        if (atomic_compare_exchange_strong(turn, &idle, HELPER_HELD) || idle == HELPER_HELD)
            return;
        sleep_ns(POLL_NS);
    }
}

void helper_release(_Atomic int *turn) {
    int held = HELPER_HELD;
    atomic_compare_exchange_strong(turn, &held, HELPER_IDLE);
}
