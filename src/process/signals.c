/*
 * Signals: a report at GPUCACHE_REPORT_SIGNAL, and a report before another signal ends the process.
 *
 * A signal at its default action gets the library's handler. The overrides of sigaction, signal and
 * the like (libc.h) show the program the default action. A handler of the program replaces the
 * library's handler. If the program sets the default action again, the library's handler is
 * installed again: Python's KeyboardInterrupt and crash handlers end a process in this way. Without
 * the overrides that report would be lost, and a program that saves the old action and calls it
 * later would call the library's handler.
 *
 *   signal                                    effect
 *   blocked, ignored, in sigwait or signalfd  no report
 *   any, after exec                           at its default action, as natively
 *   any, asked for without libc, as Go does   the program sees the library's handler
 *
 * No lock; nothing is allocated. "The handler" and "dying" below state their own rules.
 */
#include "process/signals.h"

#include "options/options.h"
#include "process/ending.h"
#include "process/guard.h"
#include "process/helper.h"
#include "process/libc.h"
#include "process/process.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SIGNALS 64
#define STACKS 4                 /* handlers that run at once, or inside each other */
#define STACK_BYTES 32768        /* a report takes some 4 KiB */
#define CPU_NS 2000000000        /* of a dying thread for its report, which takes less than 1 ms */
#define SHELL_STATUS 128         /* plus a signal: the exit status that a shell shows for it */
#define RESTORER_FLAG 0x04000000 /* added by libc to the flags on x86_64, and visible */

static const struct {
    int number;
    bool crash; /* raised by an instruction; if blocked, it ends the process */
    const char *name;
} deadly[] = {
    {SIGTERM, false, "TERM"}, {SIGINT, false, "INT"},  {SIGHUP, false, "HUP"},
    {SIGABRT, false, "ABRT"}, {SIGSEGV, true, "SEGV"}, {SIGBUS, true, "BUS"},
    {SIGFPE, true, "FPE"},    {SIGILL, true, "ILL"},
};
#define DEADLY (sizeof deadly / sizeof *deadly)

static _Atomic uint64_t claimed; /* signals whose default action the library replaces, a bit each */

/* The flags and mask that the program set with the default action. Its next query returns them. */
static struct {
    _Atomic int flags;
    _Atomic uint64_t mask;
} shown[SIGNALS + 1];

static struct stack {
    atomic_flag taken;
    _Alignas(64) char bytes[STACK_BYTES];
} stacks[STACKS];

/* The first thread that dies of a signal, and its signal. The dying thread writes dying_of and
 * dying_info before its report. Other threads read them after the report (ending_wait()). */
static _Atomic pid_t dying; /* 0: none */
static int dying_of;
static siginfo_t dying_info;

static bool is_claimed(int number) {
    return number > 0 && number <= SIGNALS &&
           (atomic_load_explicit(&claimed, memory_order_relaxed) >> (number - 1) & 1);
}

static pid_t this_thread(void) {
    return (pid_t)syscall(SYS_gettid);
}

/*
 * --- dying ---
 *
 * The default action is set, and the same signal is sent again with its original siginfo_t. The
 * signal stays blocked until the handler has returned. The exit status, the core file and its
 * registers are then those of the place where the signal came.
 */

static void mask_signal(int how, int number) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    pthread_sigmask(how, &only, NULL);
}

/*
 * Sends a signal to this thread again, with its default action. The process dies when the handler
 * returns.
 */
static void send_again(int number, siginfo_t *info) {
    struct sigaction by_default = {.sa_handler = SIG_DFL};
    pid_t process = (pid_t)syscall(SYS_getpid), self = this_thread();
    mask_signal(SIG_BLOCK, number);
    NEXT(sigaction)(number, &by_default, NULL);
    if (syscall(SYS_rt_tgsigqueueinfo, process, self, number, info) != 0)
        syscall(SYS_tgkill, process, self, number);
}

static struct sigaction own_action(void);

/*
 * Sets the handler for all crash signals: a later crash reaches die() in every thread that does not
 * block the signal. Starts a timer of the thread's CPU time. Its SIGSEGV ends a report that loops
 * in a broken list.
 */
static void guard_report(void) {
    struct sigaction own = own_action();
    for (size_t i = 0; i < DEADLY; i++)
        if (deadly[i].crash)
            NEXT(sigaction)(deadly[i].number, &own, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGSEGV};
    event._sigev_un._tid = this_thread();
    const struct itimerspec once = {.it_value = {CPU_NS / 1000000000, CPU_NS % 1000000000}};
    int timer;
    if (syscall(SYS_timer_create, CLOCK_THREAD_CPUTIME_ID, &event, &timer) == 0)
        syscall(SYS_timer_settime, timer, 0, &once, NULL);
}

/* Writes the last report, and sends the signal to this thread again. If another thread is dying,
 * waits for that thread's report and sends its signal instead. If this thread's own report crashed,
 * gives the report up and ends the process. */
static void die(int number, siginfo_t *info, const char *name) {
    pid_t none = 0, self = this_thread();
    if (atomic_load(&dying) == self) { /* the report itself crashed */
        send_again(dying_of, &dying_info);
        mask_signal(SIG_UNBLOCK, dying_of);
        /* Only the first process of a container is still alive: it ignores signals that are sent
         * with the default action. */
        syscall(SYS_exit_group, SHELL_STATUS + dying_of);
    }
    if (atomic_compare_exchange_strong(&dying, &none, self)) {
        dying_of = number;
        dying_info = *info;
        guard_report();
        ending_report(name);
        process_end(PROCESS_DIES, number);
    } else { /* another thread is dying: natively its signal would have been the last */
        ending_wait();
        number = dying_of;
        info = &dying_info;
    }
    send_again(number, info);
}

/*
 * --- the handler ---
 *
 * The handler takes no lock and allocates nothing. It runs on a stack of the library while one is
 * free: the interrupted stack, or an alternate signal stack, may have little left. The handler
 * blocks all signals, so that a second SIGTERM does not cut the report off. It unblocks crash
 * signals only on the library's stack: if the program's signal stack is too small for the handler,
 * the kernel then ends the process. It would otherwise start the handler at the top of that stack
 * again, for ever.
 *
 * The last report may crash, because the program may have broken the library's memory. It is then
 * given up, and the process dies of its first signal. The first process of a container may have to
 * exit instead, with the status that a shell shows for that signal.
 */

static void respond(int number, siginfo_t *info) {
    const char *name = NULL;
    bool crash = false;
    for (size_t i = 0; i < DEADLY; i++) {
        if (deadly[i].number == number) {
            name = deadly[i].name;
            crash = deadly[i].crash && info->si_code > 0;
        }
    }
    if (!name || number == options()->report_signal)
        process_report("signal");
    else if (syscall(SYS_getpid) == 1 && !crash && atomic_load(&dying) != this_thread())
        process_report(name); /* the first process of a container does not die of it by default */
    else
        die(number, info, name);
}

/* Runs on the library's stack. Unblocks crash signals, so that a crash of the report reaches die().
 * Without SS_DISABLE, the kernel would put the frame of the crash at the top of the program's
 * signal stack, over the frame of the first signal. The end of the handler undoes both. */
static void respond_there(int number, siginfo_t *info) {
    const stack_t none = {.ss_flags = SS_DISABLE};
    sigaltstack(&none, NULL);
    for (size_t i = 0; i < DEADLY; i++)
        if (deadly[i].crash)
            mask_signal(SIG_UNBLOCK, deadly[i].number);
    respond(number, info);
}

/*
 * Runs respond_there() on another stack. A register that a callee saves (rbx, x19) keeps the old
 * stack pointer. The clobbers are all registers that a callee may change.
 */
static void respond_on(char *top, int number, siginfo_t *info) {
#if defined(__x86_64__)
    uint64_t first = (uint64_t)number;
    __asm__ volatile("movq %%rsp, %%rbx\n\tmovq %2, %%rsp\n\tcall *%3\n\tmovq %%rbx, %%rsp"
                     : "+D"(first), "+S"(info)
                     : "r"(top), "r"(respond_there)
                     : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2",
                       "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                       "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
#elif defined(__aarch64__)
    register uint64_t first __asm__("x0") = (uint64_t)number;
    register siginfo_t *second __asm__("x1") = info;
    __asm__ volatile("mov x19, sp\n\tmov sp, %2\n\tblr %3\n\tmov sp, x19"
                     : "+r"(first), "+r"(second)
                     : "r"(top), "r"(respond_there)
                     : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13",
                       "x14", "x15", "x16", "x17", "x19", "x30", "v0", "v1", "v2", "v3", "v4", "v5",
                       "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16",
                       "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27",
                       "v28", "v29", "v30", "v31", "memory", "cc");
#else
#error "how to change the stack here?"
#endif
}

static struct stack *claim_stack(void) {
    for (size_t i = 0; i < STACKS; i++)
        if (!atomic_flag_test_and_set_explicit(&stacks[i].taken, memory_order_acquire))
            return &stacks[i];
    return NULL;
}

/* The library's handler. In a child by fork, vfork or clone sends the signal again, without a
 * report: only the parent may write one (process/ending.h). */
static void on_signal(int number, siginfo_t *info, void *context) {
    struct stack *stack;
    if (guard_repair(info) || helper_passes_on(number, info, context))
        return;
    if (!ending_is_own_process()) {
        send_again(number, info);
    } else if ((stack = claim_stack())) {
        respond_on(stack->bytes + sizeof stack->bytes, number, info);
        atomic_flag_clear_explicit(&stack->taken, memory_order_release);
    } else {
        respond(number, info);
    }
}

static struct sigaction own_action(void) {
    struct sigaction own = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    own.sa_sigaction = on_signal;
    sigfillset(&own.sa_mask);
    return own;
}

static bool is_own(const struct sigaction *action) {
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_signal;
}

/* --- signal actions as the program sees them --- */

static void record_shown(int number, const struct sigaction *action, int more_flags) {
    uint64_t mask;
    memcpy(&mask, &action->sa_mask, sizeof mask);
    atomic_store(&shown[number].flags, action->sa_flags | more_flags);
    atomic_store(&shown[number].mask, mask);
}

/* Replaces the library's handler in an answer of the kernel by the program's default action. */
static void disguise(int number, struct sigaction *action) {
    if (!is_own(action))
        return;
    uint64_t mask = atomic_load(&shown[number].mask);
    action->sa_handler = SIG_DFL;
    action->sa_flags = atomic_load(&shown[number].flags);
    sigemptyset(&action->sa_mask);
    memcpy(&action->sa_mask, &mask, sizeof mask);
}

int front_sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    if (!is_claimed(number))
        return NEXT(sigaction)(number, action, old);
    struct sigaction own, before;
    bool by_default = action && action->sa_handler == SIG_DFL && ending_is_own_process();
    if (by_default)
        own = own_action();
    int result = NEXT(sigaction)(number, by_default ? &own : action, &before);
    if (result != 0)
        return result;
    disguise(number, &before);
    if (by_default) {
#if defined(__x86_64__)
        record_shown(number, action, RESTORER_FLAG);
#else
        record_shown(number, action, 0);
#endif
    }
    if (old)
        *old = before;
    return 0;
}

int front___sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    return front_sigaction(number, action, old);
}

static libc_handler *disguised(libc_handler *handler) {
    return (void *)handler == (void *)on_signal ? SIG_DFL : handler;
}

/* Sets the default action as `action` has it, and any other handler by libc's function `next`. */
static libc_handler *replace(int number, libc_handler *wanted,
                             libc_handler *(*next)(int number, libc_handler *wanted),
                             struct sigaction *action) {
    struct sigaction old;
    if (wanted != SIG_DFL || !is_claimed(number))
        return disguised(next(number, wanted));
    return front_sigaction(number, action, &old) == 0 ? old.sa_handler : SIG_ERR;
}

static libc_handler *replace_bsd(int number, libc_handler *wanted,
                                 libc_handler *(*next)(int number, libc_handler *wanted)) {
    struct sigaction action = {.sa_handler = SIG_DFL, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, number);
    return replace(number, wanted, next, &action);
}

static libc_handler *replace_sysv(int number, libc_handler *wanted,
                                  libc_handler *(*next)(int number, libc_handler *wanted)) {
    struct sigaction action = {.sa_handler = SIG_DFL, .sa_flags = SA_RESETHAND | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    return replace(number, wanted, next, &action);
}

libc_handler *front_signal(int number, libc_handler *wanted) {
    return replace_bsd(number, wanted, NEXT(signal));
}

libc_handler *front_bsd_signal(int number, libc_handler *wanted) {
    return replace_bsd(number, wanted, NEXT(bsd_signal));
}

libc_handler *front_ssignal(int number, libc_handler *wanted) {
    return replace_bsd(number, wanted, NEXT(ssignal));
}

libc_handler *front_sysv_signal(int number, libc_handler *wanted) {
    return replace_sysv(number, wanted, NEXT(sysv_signal));
}

libc_handler *front___sysv_signal(int number, libc_handler *wanted) {
    return replace_sysv(number, wanted, NEXT(__sysv_signal));
}

/*
 * sigset() changes the signal mask too. After it sets the default action, the library writes no
 * report at that signal.
 */
libc_handler *front_sigset(int number, libc_handler *wanted) {
    return disguised(NEXT(sigset)(number, wanted));
}

/* --- start --- */

/*
 * Installs the handler if the signal is at its default action. The program may install a handler at
 * the same moment: then that handler is restored.
 */
static void claim(int number) {
    struct sigaction before, own = own_action();
    if (NEXT(sigaction)(number, NULL, &before) != 0 || before.sa_handler != SIG_DFL)
        return;
    record_shown(number, &before, 0);
    if (NEXT(sigaction)(number, &own, &before) == 0 && before.sa_handler != SIG_DFL &&
        !is_own(&before))
        NEXT(sigaction)(number, &before, NULL);
}

/**
 * Returns the signals that are needed, a bit for each: those of reports, and SIGBUS if an option
 * has a file mapped (guard.h).
 */
static uint64_t wanted_signals(void) {
    uint64_t wanted = 0;
    bool reports = options()->report != REPORT_TO_NOWHERE;
    if (guard_is_needed())
        wanted |= UINT64_C(1) << (SIGBUS - 1);
    for (size_t i = 0; i < DEADLY && reports; i++)
        wanted |= UINT64_C(1) << (deadly[i].number - 1);
    if (reports && options()->report_signal != 0)
        wanted |= UINT64_C(1) << (options()->report_signal - 1);
    return wanted;
}

void signals_start(void) {
    uint64_t wanted = wanted_signals();
    atomic_store(&claimed, wanted);
    for (int number = 1; number <= SIGNALS; number++)
        if (is_claimed(number))
            claim(number);
}
