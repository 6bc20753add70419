/*
 * report_output CASE: uses stderr and descriptors in one way, and prints their state. Reports that
 * go there must not change it.
 */
#include "program.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

static void use_cuda(void) {
    CUdeviceptr p;
    begin();
    CHECK(cuMemAlloc(&p, 4096));
    CHECK(cuMemFree(p));
}

/* A child closes the standard descriptors, as daemons do, and runs until the script kills it. */
static void daemon_stays(void) {
    use_cuda();
    pid_t child = fork();
    if (child == 0) {
        setsid();
        int null = open("/dev/null", O_RDWR);
        for (int fd = 0; fd < 3; fd++)
            dup2(null, fd);
        sleep(60);
        _exit(0);
    }
    printf("%d\n", (int)child);
}

static unsigned descriptors(void) {
    unsigned count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void count_descriptors(void) {
    unsigned before = descriptors();
    use_cuda();
    printf("descriptors: %u more\n", descriptors() - before);
}

/* Prints what a new program inherits. */
static void exec_descriptors(void) {
    unsigned before = descriptors();
    use_cuda();
    char text[16];
    snprintf(text, sizeof text, "%u", before);
    fflush(stdout);
    execl("/proc/self/exe", "stderr", "inherited", text, (char *)NULL);
}

/* Starts without stderr, so that the program's file gets its number. */
static void no_stderr(void) {
    const char *path = getenv("STDERR_FILE");
    int file = path ? open(path, O_RDWR | O_CREAT | O_TRUNC, 0600) : -1;
    if (path && (file != STDERR_FILENO || write(file, "data", 4) != 4))
        exit(9);
    use_cuda();
}

static volatile bool stopped;

/* Prints to the closed stdout, again and again. Returns NULL if no write succeeded. */
static void *keep_printing(void *any) {
    bool hit = false;
    while (!stopped)
        hit |= write(STDOUT_FILENO, "printed\n", 8) >= 0;
    return hit ? any : NULL;
}

/* Closes stdin and stdout before the first use of CUDA. Prints while the library opens files. */
static void closed_stdout(void) {
    pthread_t thread;
    CUdeviceptr p;
    void *hit = NULL;
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    if (pthread_create(&thread, NULL, keep_printing, &p) != 0)
        exit(9);
    begin();
    for (int i = 0; i < 100000; i++) { /* a trace grows for it */
        CHECK(cuMemAlloc(&p, 5000));
        CHECK(cuMemFree(p));
    }
    stopped = true;
    pthread_join(thread, &hit);
    exit(hit ? 8 : 0);
}

/* Writes a report to a nearly full pipe whose reader waits for the end of the process. */
static void full_stderr(void) {
    int ends[2], status = 0, turns = 0;
    if (pipe(ends) != 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        execl("/proc/self/exe", "stderr", "fill_stderr", (char *)NULL);
    }
    while (waitpid(child, &status, WNOHANG) == 0 && turns++ < 300)
        usleep(100000);
    printf("child: %d\n", turns < 300 ? status : -1);
    kill(child, SIGKILL);
}

static void fill_stderr(void) {
    static char much[65000];
    use_cuda();
    if (write(STDERR_FILENO, much, sizeof much) != sizeof much)
        exit(9);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"use", use_cuda},
        {"daemon_stays", daemon_stays},
        {"count_descriptors", count_descriptors},
        {"exec_descriptors", exec_descriptors},
        {"no_stderr", no_stderr},
        {"closed_stdout", closed_stdout},
        {"full_stderr", full_stderr},
        {"fill_stderr", fill_stderr},
    };
    if (argc > 2 && strcmp(argv[1], "inherited") == 0) {
        printf("inherited: %d more\n", (int)descriptors() - atoi(argv[2]));
        return 0;
    }
    for (unsigned i = 0; argc > 1 && i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    return 2;
}
