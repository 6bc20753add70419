/*
 * load_without_cuda CASE: prints the loaded objects, threads, signals and exit status of a program
 * that never uses CUDA. load_without_cuda.py compares the lines with and without the library.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int loaded(const char *name) {
    char line[1024];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, name) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

static int entries(const char *folder) {
    int count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count;
}

static void signals(void) {
    for (int i = 1; i < 64; i++) {
        struct sigaction action;
        if (sigaction(i, NULL, &action) == 0 && action.sa_handler != SIG_DFL &&
            action.sa_handler != SIG_IGN)
            printf("signal %d has a handler\n", i);
    }
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "look";
    if (strcmp(what, "look") == 0) {
        printf("libcuda %d, %d threads, %d descriptors\n", loaded("libcuda"),
               entries("/proc/self/task"), entries("/proc/self/fd"));
        signals();
    }
    if (strcmp(what, "dlsym") == 0) {
        int (*f)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "atoi");
        printf("%d %d %s\n", f ? f("12") : -1, dlsym(RTLD_DEFAULT, "curl_nothing") != NULL,
               dlerror());
        printf("%d %d\n", loaded("libcuda"), entries("/proc/self/task"));
    }
    if (strcmp(what, "close") == 0) {
        fclose(stderr);
        fclose(stdout);
    }
    if (strcmp(what, "closeall") == 0)
        for (int fd = 0; fd < 1024; fd++)
            close(fd);
    if (strcmp(what, "status") == 0)
        return 42;
    if (strcmp(what, "_exit") == 0)
        _exit(43);
    if (strcmp(what, "kill") == 0)
        raise(SIGUSR2);
    if (strcmp(what, "term") == 0)
        raise(SIGTERM);
    if (strcmp(what, "exec") == 0)
        execl("/bin/sh", "sh", "-c", "echo $0 $LD_PRELOAD | wc -w", (char *)NULL);
    return 0;
}
