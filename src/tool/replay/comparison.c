/* Runs each row of a comparison in a child process, which writes to a shared account. */
#include "tool/replay/comparison.h"

#include "replay/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The state of a row whose process has not written its result yet. */
#define UNFINISHED (-ECHILD)

/** Maps memory that all children share, with an account for each row. */
static void share(struct comparison *comparison) {
    size_t periods = comparison->history->period_count;
    size_t each = sizeof(struct account) + periods * sizeof(uint64_t);
    void *memory = mmap(NULL, each * comparison->count, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *shared = checked(memory == MAP_FAILED ? NULL : memory);
    for (size_t i = 0; i < comparison->count; i++) {
        struct account *account = (struct account *)(shared + i * each);
        account_start(account, comparison->history, (uint64_t *)(account + 1));
        account->error = UNFINISHED;
        comparison->rows[i].account = account;
    }
}

static void run_row(const struct row *row) {
    const struct candidate *candidate = row->candidate;
    /* The shared account stays unfinished until the end: this process may be killed, or end because
     * memory is missing. */
    struct account account = *row->account;
    account.error = 0;
    if (candidate->is_model) {
        uint64_t limit = candidate->setting.limit, memory = candidate->setting.capacity;
        model_run(candidate->model, limit && limit < memory ? limit : memory, &account);
    } else {
        struct rerun_setting setting = candidate->setting;
        setting.delay_us = row->delay_us;
        rerun(&setting, &account);
    }
    *row->account = account;
}

static void wait_for_child(size_t *running) {
    int status;
    pid_t pid = wait(&status);
    *running -= pid > 0 || errno == ECHILD;
}

/**
 * Runs each row in a child process, and waits for all. Returns 0 or the negative errno of fork().
 */
static int run_rows(struct comparison *comparison) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    size_t running = 0, most = processors > 1 ? (size_t)processors : 1;
    int r = 0;
    for (size_t i = 0; i < comparison->count && r == 0; i++) {
        while (running == most)
            wait_for_child(&running);
        pid_t pid = fork();
        if (pid == 0) {
            run_row(&comparison->rows[i]);
            _exit(0);
        }
        r = pid < 0 ? -errno : 0;
        running += pid > 0;
    }
    while (running > 0)
        wait_for_child(&running);
    return r;
}

int comparison_run(struct comparison *comparison, const struct replay_request *request) {
    for (size_t i = 0; i < request->candidate_count; i++) {
        const struct candidate *candidate = &request->candidates[i];
        size_t delays = candidate->is_model ? 1 : request->delay_count;
        for (size_t k = 0; k < delays; k++) {
            struct row *row = APPEND(comparison->rows, comparison->count);
            row->candidate = candidate;
            row->delay_us = candidate->is_model ? 0 : request->delays_us[k];
        }
    }
    share(comparison);
    return run_rows(comparison);
}
