/*
 * Changes the current context between two allocations, by each version of each entry. The entry is
 * found in the program's scope, by the driver's handle and by cuGetProcAddress().
 *
 * The library asks the driver for the current context if it may have changed, or if there are two
 * contexts. Every part begins and ends without a current context, and allocates before each change.
 * With "count" the program prints the calls of cuCtxGetCurrent() during 100 pairs (simulator only).
 */
#include "diff.h"
#include "green.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static CUdevice devices[2];
static void *driver;
static CUcontext first, second;

static const char *whose(CUdeviceptr p) {
    CUcontext owner = NULL;
    CUresult r = cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p);
    return r != CUDA_SUCCESS || !owner ? "nobody's"
           : owner == first            ? "first's"
           : owner == second           ? "second's"
                                       : "other's";
}

/* Allocates, and prints the context that owns the block. The freed block stays in the pool, so the
 * next allocation makes no driver call that could refuse. */
static void now(const char *what) {
    CUdeviceptr p = 0;
    CUresult r = cuMemAlloc(&p, 4096);
    if (r != CUDA_SUCCESS) {
        line("current: %s: %d", what, r);
        return;
    }
    const char *owner = whose(p);
    CUresult freed = cuMemFree(p);
    line("current: %s: %s, free %d, synchronize %d", what, owner, freed, cuCtxSynchronize());
}

/* An entry: its exported symbol, and its name and version for cuGetProcAddress(). */
struct entry {
    const char *symbol, *name;
    int version;
};

static const char *const ways[] = {"by scope", "by handle", "by request"};
#define WAYS 3

static void *find(unsigned way, const struct entry *entry) {
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    if (way == 0)
        return dlsym(RTLD_DEFAULT, entry->symbol);
    if (way == 1)
        return dlsym(driver, entry->symbol);
    return cuGetProcAddress_v2(entry->name, &found, entry->version, 0, &status) == CUDA_SUCCESS
               ? found
               : NULL;
}

/* Prints the entry and whether the driver has it; NULL if not. The library may export an entry that
 * the driver lacks. */
static void *take_entry(unsigned way, const struct entry *entry) {
    void *found = find(1, entry) ? find(way, entry) : NULL;
    line("current: %s, %s%s", entry->symbol, ways[way], found ? "" : ": absent");
    return found;
}

typedef CUresult CUDAAPI of_context(CUcontext);
typedef CUresult CUDAAPI to_context(CUcontext *);
typedef CUresult CUDAAPI of_device(CUdevice);
typedef CUresult CUDAAPI attach_entry(CUcontext *, unsigned);

static const struct entry set_entry = {"cuCtxSetCurrent", "cuCtxSetCurrent", 4000};
static const struct entry push_entries[] = {{"cuCtxPushCurrent", "cuCtxPushCurrent", 3010},
                                            {"cuCtxPushCurrent_v2", "cuCtxPushCurrent", 4000}};
static const struct entry pop_entries[] = {{"cuCtxPopCurrent", "cuCtxPopCurrent", 3010},
                                           {"cuCtxPopCurrent_v2", "cuCtxPopCurrent", 4000}};
static const struct entry destroy_entries[] = {{"cuCtxDestroy", "cuCtxDestroy", 3010},
                                               {"cuCtxDestroy_v2", "cuCtxDestroy", 4000}};

static void set(void) {
    for (unsigned way = 0; way < WAYS; way++) {
        of_context *make = (of_context *)take_entry(way, &set_entry);
        if (!make)
            continue;
        CHECK(cuCtxCreate_v2(&first, 0, devices[0]));
        now("one context");
        line("current: set none: %d", make(NULL));
        now("none set");
        line("current: set it: %d", make(first));
        now("it set");
        line("current: set it again: %d", make(first));
        now("it set again");
        CHECK(cuCtxDestroy(first));
    }
}

static void stack(void) {
    for (unsigned i = 0; i < 2 * WAYS; i++) {
        CUcontext popped = NULL;
        to_context *pop = (to_context *)take_entry(i / 2, &pop_entries[i % 2]);
        of_context *push = (of_context *)take_entry(i / 2, &push_entries[i % 2]);
        if (!pop || !push)
            continue;
        CHECK(cuCtxCreate_v2(&first, 0, devices[0]));
        now("one context");
        CODES("current: pop", pop(&popped), popped == first);
        now("popped");
        CODES("current: pop nothing", pop(&popped));
        now("nothing popped");
        CODES("current: push", push(first));
        now("pushed");
        CODES("current: push again", push(first));
        now("pushed again");
        CODES("current: pop", pop(&popped));
        now("popped once");
        CODES("current: pop", pop(NULL));
        now("popped twice");
        CODES("current: push, none below", push(first));
        now("pushed at last");
        CHECK(cuCtxDestroy(first));
        now("destroyed");
    }
}

static void create(void) {
    static const struct entry entries[] = {{"cuCtxCreate", "cuCtxCreate", 3010},
                                           {"cuCtxCreate_v2", "cuCtxCreate", 3020},
                                           {"cuCtxCreate_v3", "cuCtxCreate", 11040},
                                           {"cuCtxCreate_v4", "cuCtxCreate", 12050}};
    for (unsigned i = 0; i < 4 * WAYS; i++) {
        void *made = take_entry(i / 4, &entries[i % 4]);
        CUresult r;
        if (!made)
            continue;
        CHECK(cuCtxCreate_v2(&first, 0, devices[0]));
        now("one context");
        if (i % 4 < 2)
            r = ((CUresult(CUDAAPI *)(CUcontext *, unsigned, CUdevice))made)(&second, 0,
                                                                             devices[0]);
        else if (i % 4 == 2)
            r = ((CUresult(CUDAAPI *)(CUcontext *, void *, int, unsigned, CUdevice))made)(
                &second, NULL, 0, 0, devices[0]);
        else
            r = ((CUresult(CUDAAPI *)(CUcontext *, void *, unsigned, CUdevice))made)(&second, NULL,
                                                                                     0, devices[0]);
        line("current: create: %d", r);
        now("another one made");
        if (r == CUDA_SUCCESS)
            CHECK(cuCtxDestroy(second));
        now("and destroyed");
        CHECK(cuCtxDestroy(first));
        second = NULL;
    }
}

/* Without OpenGL these entries only answer. Entries for VDPAU call a function of the caller: only
 * "count" calls them. */
static void graphics(void) {
    typedef CUresult CUDAAPI create_entry(CUcontext *, unsigned, CUdevice);
    static const struct entry entries[] = {{"cuGLCtxCreate", "cuGLCtxCreate", 3010},
                                           {"cuGLCtxCreate_v2", "cuGLCtxCreate", 3020}};
    for (unsigned i = 0; i < 2 * WAYS; i++) {
        create_entry *make = (create_entry *)take_entry(i / 2, &entries[i % 2]);
        if (!make)
            continue;
        CHECK(cuCtxCreate_v2(&first, 0, devices[0]));
        now("one context");
        CUresult r = make(&second, 0, devices[0]);
        line("current: create for graphics: %d", r);
        now("another one asked for");
        if (r == CUDA_SUCCESS)
            CHECK(cuCtxDestroy(second));
        CHECK(cuCtxDestroy(first));
        second = NULL;
    }
}

static void destroy(void) {
    for (unsigned i = 0; i < 2 * WAYS; i++) {
        CUcontext popped;
        of_context *end = (of_context *)take_entry(i / 2, &destroy_entries[i % 2]);
        if (!end)
            continue;
        CHECK(cuCtxCreate_v2(&second, 0, devices[0]));
        CHECK(cuCtxPopCurrent(&popped));
        CHECK(cuCtxCreate_v2(&first, 0, devices[0]));
        now("one of two");
        line("current: destroy the other: %d", end(second));
        now("one left");
        line("current: destroy it: %d", end(first));
        now("none left");
        line("current: destroy nothing: %d", end(NULL));
        now("still none");
        second = NULL;
    }
}

static void attach(void) {
    static const struct entry attach_entries = {"cuCtxAttach", "cuCtxAttach", 2000};
    static const struct entry detach_entries = {"cuCtxDetach", "cuCtxDetach", 2000};
    for (unsigned way = 0; way < WAYS; way++) {
        CUcontext again = NULL;
        attach_entry *join = (attach_entry *)take_entry(way, &attach_entries);
        of_context *leave = (of_context *)take_entry(way, &detach_entries);
        if (!join || !leave)
            continue;
        CHECK(cuCtxCreate_v2(&first, 0, devices[0]));
        now("one context");
        CODES("current: attach", join(&again, 0), again == first);
        now("attached");
        line("current: detach: %d", leave(first));
        now("detached");
        line("current: detach the last user: %d", leave(first));
        now("none left");
    }
}

static void primary(void) {
    static const struct entry entries[] = {
        {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease", 7000},
        {"cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", 11000},
        {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset", 7000},
        {"cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset", 11000}};
    for (unsigned i = 0; i < 4 * WAYS; i++) {
        of_device *let_go = (of_device *)take_entry(i / 4, &entries[i % 4]);
        if (!let_go)
            continue;
        CHECK(cuDevicePrimaryCtxRetain(&first, devices[0]));
        CHECK(cuCtxSetCurrent(first));
        now("the primary context");
        line("current: let go: %d", let_go(devices[0]));
        now("let go, and still set");
        CHECK(cuDevicePrimaryCtxRetain(&first, devices[0]));
        now("retained again, and still set");
        CHECK(cuDevicePrimaryCtxRelease(devices[0]));
        if (i % 4 > 1) /* a reset does not change the count of users */
            CODES("current: the first user", cuDevicePrimaryCtxRelease(devices[0]));
        CHECK(cuCtxSetCurrent(NULL));
    }
}

/* --- green contexts; entries that a driver may lack --- */

static void green(void) {
    struct green g;
    CUcontext popped;
    CUdeviceptr p;
    CHECK(cuDevicePrimaryCtxRetain(&first, devices[0]));
    CHECK(cuCtxSetCurrent(first));
    now("the primary context");
    if (green_begin(&g, devices[0])) {
        now("a green one made");
        line("current: its view: %d", green_view(&g));
        now("a view of it");
        CODES("current: the view: push, alloc, free, pop", cuCtxPushCurrent(g.view),
              cuMemAlloc(&p, 4096), cuMemFree(p), cuCtxPopCurrent(&popped));
        now("popped");
        CODES("current: the view: set, alloc, free", cuCtxSetCurrent(g.view), cuMemAlloc(&p, 4096),
              cuMemFree(p));
        CHECK(cuCtxSetCurrent(first));
        now("the primary one set");
        line("current: the green one's end: %d", green_end(&g));
        now("the green one destroyed");
    }
    line("current: release: %d", cuDevicePrimaryCtxRelease(devices[0]));
    CHECK(cuCtxSetCurrent(NULL));
}

/* Makes the context of a green stream current, which no entry has returned before. */
static void unheard(unsigned how) {
    typedef CUresult CUDAAPI make(CUstream *, CUgreenCtx, unsigned, int);
    make *stream_of = (make *)dlsym(RTLD_DEFAULT, "cuGreenCtxStreamCreate");
    struct green g;
    CUstream stream;
    of_context *change = (of_context *)find(0, how < 2 ? &push_entries[how] : &set_entry);
    CHECK(cuCtxCreate_v2(&first, 0, devices[0]));
    now("one context");
    if (!change || !stream_of || !green_begin(&g, devices[0]) ||
        stream_of(&stream, g.green, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS) {
        line("current: unheard of: absent");
        return;
    }
    CHECK(cuStreamGetCtx(stream, &second));
    now("a stream's context known");
    line("current: unheard of: %s, %d", how < 2 ? "push" : "set", change(second));
    now("a stream's context current");
}

/* --- threads --- */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static void (*task)(void);
static bool over;

static void *work(void *unused) {
    pthread_mutex_lock(&turn);
    while (!over) {
        if (task) {
            task();
            task = NULL;
            pthread_cond_broadcast(&changed);
        }
        pthread_cond_wait(&changed, &turn);
    }
    pthread_mutex_unlock(&turn);
    return unused;
}

/* Runs what() in the other thread, and waits for its end. */
static void run_there(void (*what)(void)) {
    pthread_mutex_lock(&turn);
    task = what;
    pthread_cond_broadcast(&changed);
    while (task)
        pthread_cond_wait(&changed, &turn);
    pthread_mutex_unlock(&turn);
}

static void now_there(void) {
    now("there");
}

static void set_there(void) {
    CHECK(cuCtxSetCurrent(first));
}

static void pop_there(void) {
    CUcontext popped;
    CHECK(cuCtxPopCurrent(&popped));
}

static void create_there(void) {
    CHECK(cuCtxCreate_v2(&second, 0, devices[0]));
}

static void destroy_there(void) {
    CHECK(cuCtxDestroy(second));
}

static void begin_there(pthread_t *thread) {
    over = false;
    pthread_create(thread, NULL, work, NULL);
}

static void end_there(pthread_t thread) {
    pthread_mutex_lock(&turn);
    over = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&turn);
    pthread_join(thread, NULL);
}

static void threads(void) {
    pthread_t thread;
    CUcontext popped;
    begin_there(&thread);
    CHECK(cuCtxCreate_v2(&first, 0, devices[0]));
    now("here");
    run_there(now_there);
    run_there(set_there);
    run_there(now_there);
    CHECK(cuCtxPopCurrent(&popped));
    now("popped here");
    run_there(now_there);
    CHECK(cuCtxPushCurrent(first));
    run_there(pop_there);
    now("popped there");
    run_there(now_there);
    run_there(set_there);
    run_there(now_there);
    run_there(create_there);
    now("another one made there");
    run_there(now_there);
    CHECK(cuCtxPushCurrent(second));
    now("and pushed here");
    CHECK(cuCtxPopCurrent(&popped));
    now("and popped here");
    run_there(destroy_there);
    now("and destroyed there");
    run_there(now_there);
    CHECK(cuCtxDestroy(first));
    now("the first one destroyed here");
    run_there(now_there);
    end_there(thread);
    second = NULL;
}

/* --- a forked child, in which the driver does not work --- */

static void forked(void) {
    CHECK(cuCtxCreate_v2(&first, 0, devices[0]));
    now("before the fork");
    pid_t child = fork();
    if (child == 0) {
        now("in the child");
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    line("current: the child: %d", status);
    now("after the fork");
    CHECK(cuCtxDestroy(first));
}

/* --- how often the driver is asked --- */

static void print_queries(const char *when) {
    uint64_t (*count)(const char *) = (uint64_t(*)(const char *))dlsym(RTLD_DEFAULT, "sim_calls");
    uint64_t before = count ? count("cuCtxGetCurrent") : 0;
    for (unsigned i = 0; i < 100; i++)
        CHECK(cuMemFree(take(1000)));
    line("%s: %d", when, (int)((count ? count("cuCtxGetCurrent") : 0) - before));
}

/* A failing call of these entries may change the current context. */
static const char *const refused[] = {
    "cuCtxPushCurrent", "cuCtxPushCurrent_v2", "cuCtxCreate",   "cuCtxCreate_v2",
    "cuCtxCreate_v3",   "cuCtxCreate_v4",      "cuGLCtxCreate", "cuGLCtxCreate_v2",
    "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2", "cuCtxDestroy",  "cuCtxDestroy_v2",
    "cuCtxAttach",      "cuCtxDetach"};

static void refusals(void) {
    typedef CUresult CUDAAPI any_entry(void *, void *, void *, void *, void *);
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        any_entry *entry = (any_entry *)dlsym(RTLD_DEFAULT, refused[i]);
        if (entry && entry(NULL, NULL, NULL, NULL, NULL) != CUDA_SUCCESS)
            print_queries(refused[i]);
    }
}

static struct green seen_there;

static void view_there(void) {
    CHECK(green_view(&seen_there));
}

static void counted(void) {
    pthread_t thread;
    begin_there(&thread);
    CHECK(cuDevicePrimaryCtxRetain(&first, devices[0]));
    CHECK(cuCtxSetCurrent(first));
    print_queries("begun");
    print_queries("one");
    CHECK(cuCtxSetCurrent(first));
    print_queries("set");
    refusals();
    run_there(create_there);
    print_queries("two");
    run_there(destroy_there);
    print_queries("one again");
    CHECK(cuDevicePrimaryCtxRetain(&second, devices[1]));
    print_queries("two devices");
    CHECK(cuDevicePrimaryCtxRelease(devices[1]));
    print_queries("one device");
    if (green_begin(&seen_there, devices[0])) {
        print_queries("green");
        run_there(view_there);
        print_queries("view");
        CHECK(green_end(&seen_there));
        print_queries("no view");
    }
    end_there(thread);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"set", set},         {"stack", stack},   {"create", create},
                 {"destroy", destroy}, {"attach", attach}, {"graphics", graphics},
                 {"fork", forked},     {"green", green},   {"primary", primary},
                 {"threads", threads}};
    int count;
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&count));
    for (int i = 0; i < 2; i++)
        CHECK(cuDeviceGet(&devices[i], i < count ? i : 0));
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (argc > 1 && strcmp(argv[1], "count") == 0)
        counted();
    else if (argc > 1)
        unheard((unsigned)atoi(argv[1]));
    for (unsigned i = 0; argc == 1 && i < sizeof parts / sizeof *parts; i++)
        if (section(parts[i].name))
            parts[i].run();
    return 0;
}
