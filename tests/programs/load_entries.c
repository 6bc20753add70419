/*
 * Looks entries up as the CUDA runtime does: dlopen, one dlsym, then hundreds of cuGetProcAddress
 * requests before any other call; and by other ways. Prints the result of every look-up as "symbol
 * object"; load_entries.py compares it with the driver's own answer.
 *
 *   | load_entries ... | look-ups                                                         |
 *   | ---------------- | ---------------------------------------------------------------- |
 *   | requests FILE    | every request of the file (name, version, flags), and wrong ones |
 *   | symbols NAME...  | dlsym and dlvsym with every kind of handle                       |
 *   | race             | the first look-ups, from eight threads at once                   |
 *   | missing          | without libcuda                                                  |
 *   | weak             | calls of the library's entries while no driver is loaded         |
 */
#include "driver/table/cuda_abi.h"
#include "first_glibc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef CUresult get_v1(const char *, void **, int, cuuint64_t);
typedef CUresult get_v2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void *driver;

/* Returns the object and symbol of a pointer, without directories. */
static const char *place(void *pointer) {
    static _Thread_local char text[2][256];
    static _Thread_local unsigned turn;
    Dl_info info;
    char *out = text[turn++ % 2];
    if (!pointer)
        return "nothing";
    if (!dladdr(pointer, &info) || !info.dli_fname)
        return "nowhere";
    const char *file = strrchr(info.dli_fname, '/');
    snprintf(out, 256, "%s %s", info.dli_saddr == pointer ? info.dli_sname : "inside",
             file ? file + 1 : info.dli_fname);
    return out;
}

static void say(const char *what, const char *name, void *pointer) {
    const char *error = dlerror();
    printf("%s %s: %s; %s\n", what, name, place(pointer), error ? error : "no error");
}

static void ask(get_v2 *get, const char *name, int version, cuuint64_t flags) {
    CUdriverProcAddressQueryResult status = 77;
    void *found = (void *)&driver, *again = (void *)&driver;
    CUresult r = get(name, &found, version, flags, &status);
    CUresult r2 = get(name, &again, version, flags, NULL);
    printf("%s %d %llu: %d status %d %s%s\n", name ? name : "(null)", version,
           (unsigned long long)flags, r, status,
           found == (void *)&driver ? "untouched" : place(found),
           r2 == r && again == found ? "" : ", and another answer without status");
}

static void ask_v1(get_v1 *get, const char *name, int version, cuuint64_t flags) {
    void *found = (void *)&driver;
    CUresult r = get(name, &found, version, flags);
    printf("v1 %s %d %llu: %d %s\n", name, version, (unsigned long long)flags, r,
           found == (void *)&driver ? "untouched" : place(found));
}

static int requests(const char *path) {
    static const char *const odd[] = {
        "cuNoSuchThing",    "cuMemAllo",          "cuMemAlloc_v9", "cuda",
        "cudaMalloc",       "cudnnCreate",        "malloc",        "c",
        "cuMemAlloc_v2",    "cuMemFree_v2",       "cuInit",        "dlsym",
        "cuGetExportTable", "cuMemFreeAsync_ptsz"};
    char line[256], name[200];
    int version;
    unsigned long long flags;
    FILE *file = fopen(path, "r");
    get_v2 *get = (get_v2 *)dlsym(driver, "cuGetProcAddress_v2"), *self = NULL;
    get_v1 *old = NULL;
    if (!file || !get)
        return 2;
    ask(get, "", 0, 0);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%199s %d %llu", name, &version, &flags) == 3)
            ask(get, name, version, flags);
    fclose(file);
    for (unsigned i = 0; i < sizeof odd / sizeof *odd; i++)
        for (cuuint64_t f = 0; f < 3; f++)
            ask(get, odd[i], 13000, f);
    static const int versions[] = {-1,   0,     1,     2000,  3010,  3020,
                                   4000, 11019, 11020, 12040, 12050, 99999};
    for (unsigned i = 0; i < sizeof versions / sizeof *versions; i++) {
        ask(get, "cuMemAlloc", versions[i], 0);
        ask(get, "cuMemFreeAsync", versions[i], 2);
        ask(get, "cuCtxRecordEvent", versions[i], 0);
    }
    ask(get, NULL, 12000, 0);
    printf("null: %d\n", get("cuMemAlloc", NULL, 12000, 0, NULL));
    ask(get, "cuMemAlloc", 12000, 64);
    ask(get, "cuMemAlloc", 12000, 3);

    /* cuGetProcAddress, looked up by itself */
    get("cuGetProcAddress", (void **)&self, 12000, 0, NULL);
    for (unsigned depth = 0; self && depth < 3; depth++) {
        ask(self, "cuGetProcAddress", 12000, 0);
        ask(self, "cuGetProcAddress", 11030, 0);
        ask(self, "cuMemAlloc", 3020, 0);
        ask(self, "cuLaunchKernel", 4000, 2);
        self("cuGetProcAddress", (void **)&self, 12000, 0, NULL);
    }
    get("cuGetProcAddress", (void **)&old, 11030, 0, NULL);
    for (unsigned depth = 0; old && depth < 3; depth++) {
        ask_v1(old, "cuGetProcAddress", 11030, 0);
        ask_v1(old, "cuGetProcAddress", 12000, 0);
        ask_v1(old, "cuMemAlloc", 3020, 0);
        ask_v1(old, "cuMemFreeAsync", 11020, 2);
        ask_v1(old, "cuNoSuchThing", 11020, 0);
        old("cuGetProcAddress", (void **)&old, 11030, 0);
    }
    old = (get_v1 *)dlsym(driver, "cuGetProcAddress");
    if (old)
        ask_v1(old, "cuMemAllocPitch", 3020, 0);
    return 0;
}

static void look_up(const char *what, void *handle, const char *name) {
    say(what, name, dlsym(handle, name));
}

static int symbols(char **names) {
    void *program = dlopen(NULL, RTLD_LAZY), *wide;
    for (char **name = names; *name; name++) {
        look_up("before, default", RTLD_DEFAULT, *name);
        look_up("before, next", RTLD_NEXT, *name);
        look_up("before, program", program, *name);
        look_up("handle", driver, *name);
        say("handle, version", *name, dlvsym(driver, *name, "NO_SUCH_VERSION"));
        say("default, version", *name, dlvsym(RTLD_DEFAULT, *name, "NO_SUCH_VERSION"));
        say("default, glibc", *name, dlvsym(RTLD_DEFAULT, *name, FIRST_GLIBC));
    }
    look_up("an error,", driver, "cuNoSuchThing");
    dlsym(driver, "cuNoSuchThing");
    say("then a success,", "cuInit", dlsym(driver, "cuInit"));
    dlsym(driver, "cuNoSuchThing");
    look_up("then one of ours,", driver, "cuMemAlloc_v2");
    dlsym(driver, "alsoNoSuchThing");
    say("an error stays,", "until asked", NULL);
    say("and is gone,", "then", NULL);
    wide = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL);
    printf("same handle: %d\n", wide == driver);
    for (char **name = names; *name; name++) {
        look_up("after, default", RTLD_DEFAULT, *name);
        look_up("after, next", RTLD_NEXT, *name);
        look_up("after, program", program, *name);
    }
    say("no handle,", "dlopen", dlopen("libno-such-library.so", RTLD_LAZY));
    say("nothing loaded,", "dlopen", dlopen("libno-such-library.so", RTLD_LAZY | RTLD_NOLOAD));
    return 0;
}

static pthread_barrier_t start;

static void *racer(void *answers) {
    void **out = answers;
    pthread_barrier_wait(&start);
    get_v2 *get = (get_v2 *)dlsym(driver, "cuGetProcAddress_v2");
    out[0] = dlsym(driver, "cuMemAlloc_v2");
    get("cuMemAlloc", &out[1], 12000, 0, NULL);
    get("cuMemFree", &out[2], 12000, 0, NULL);
    get("cuLaunchKernel", &out[3], 12000, 0, NULL);
    return NULL;
}

static int race(void) {
    void *answers[8][4] = {{0}};
    pthread_t threads[8];
    pthread_barrier_init(&start, NULL, 8);
    for (unsigned i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, racer, answers[i]);
    for (unsigned i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < 8; i++)
        if (memcmp(answers[i], answers[0], sizeof answers[0]) != 0)
            printf("thread %u was told something else\n", i);
    for (unsigned i = 0; i < 4; i++)
        printf("race: %s\n", place(answers[0][i]));
    return 0;
}

extern __attribute__((weak)) CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *, size_t);
extern __attribute__((weak)) CUresult CUDAAPI cuMemFree_v2(CUdeviceptr);
extern __attribute__((weak)) CUresult CUDAAPI cuCtxSynchronize(void);

static int weak(void) {
    CUdeviceptr p;
    if (cuMemAlloc_v2 && cuMemFree_v2 && cuCtxSynchronize)
        printf("%d %d %d\n", cuMemAlloc_v2(&p, 100), cuMemFree_v2(5), cuCtxSynchronize());
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0); /* the driver may crash in a look-up */
    if (strcmp(what, "weak") == 0)
        return weak();
    driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (strcmp(what, "missing") == 0) {
        say("missing,", "dlopen", driver);
        look_up("missing, default", RTLD_DEFAULT, "cuMemAlloc_v2");
        look_up("missing, next", RTLD_NEXT, "cuMemAlloc_v2");
        look_up("missing, default", RTLD_DEFAULT, "cuInit");
        return 0;
    }
    if (!driver)
        return 2;
    if (strcmp(what, "requests") == 0 && argc > 2)
        return requests(argv[2]);
    if (strcmp(what, "symbols") == 0)
        return symbols(argv + 2);
    return strcmp(what, "race") == 0 ? race() : 2;
}
