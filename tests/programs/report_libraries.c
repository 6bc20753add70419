/*
 * `report_libraries PART A B...`: allocates by turns in the program and in the libraries A and B,
 * of report_libraries_plugin.c. Prints a line "NAME CURRENT PEAK" for each that asked for large
 * blocks or unpooled memory, and leaves the memory allocated for the report at exit.
 */
#include "program.h"

#include "gpucache.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

struct library {
    const char *path;
    void *handle;
    CUdeviceptr (*alloc)(const char *way, size_t bytes);
    void (*last_bytes)(size_t bytes);
    size_t current, peak;
};

static void load(struct library *l) {
    l->handle = dlopen(l->path, RTLD_NOW | RTLD_LOCAL);
    if (!l->handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    void *alloc = dlsym(l->handle, "plugin_alloc"), *last = dlsym(l->handle, "plugin_last_bytes");
    memcpy(&l->alloc, &alloc, sizeof alloc);
    memcpy(&l->last_bytes, &last, sizeof last);
}

static CUdeviceptr take(struct library *l, const char *way, size_t bytes) {
    l->current += bytes;
    l->peak = l->peak < l->current ? l->current : l->peak;
    return l->alloc(way, bytes);
}

static void give(struct library *l, CUdeviceptr p, size_t bytes) {
    CHECK(cuMemFree(p)); /* the requester counts, not the thread that frees */
    l->current -= bytes;
}

static void say(const struct library *l) {
    const char *slash = strrchr(l->path, '/');
    printf("%s %zu %zu\n", slash ? slash + 1 : l->path, l->current, l->peak);
}

static const char *const ways[] = {"itself", "shared runtime", "static runtime", "managed",
                                   "stream"};
#define WAYS (sizeof ways / sizeof *ways)

static CUdeviceptr own_alloc(const char *way, size_t bytes) {
    CUdeviceptr p;
    (void)way;
    CHECK(cuMemAlloc(&p, bytes));
    return p;
}

static struct library own = {.path = "report_libraries", .alloc = own_alloc};

static bool exact; /* GPUCACHE_STACKS is set: small blocks have a library */

/* Allocates in all libraries in turn, twice in each: the table answers the second call. Frees
 * every other block. */
static void turns(struct library *a, struct library *b) {
    struct library *const all[] = {a, &own, b};
    load(a);
    load(b);
    for (size_t turn = 0; turn < 12 * WAYS; turn++) {
        struct library *l = all[turn % 3];
        size_t bytes = (2 + turn) * MIB + 4096 * turn;
        const char *way = ways[turn / 3 % WAYS];
        CUdeviceptr p = take(l, way, bytes);
        if (turn % 2)
            give(l, p, bytes);
        CUdeviceptr small = (exact ? take(l, way, 100 + turn) : l->alloc("itself", 100 + turn));
        if (exact && turn % 3 == 0)
            give(l, small, 100 + turn);
    }
}

/* Loads B at the addresses of A, so its calls have the same return addresses. A's second block
 * outlives A. */
static void closed(struct library *a, struct library *b) {
    load(a);
    uintptr_t was = (uintptr_t)a->alloc;
    CUdeviceptr first = take(a, "itself", 4 * MIB);
    give(a, first, 4 * MIB);
    take(a, "shared runtime", 4 * MIB);
    CUdeviceptr kept = take(a, "itself", 6 * MIB);
    a->last_bytes(5 * MIB); /* in a destructor, which fills the table once more */
    a->peak += 5 * MIB;
    dlclose(a->handle);
    load(b);
    if ((uintptr_t)b->alloc != was)
        printf("elsewhere\n");
    take(b, "itself", 8 * MIB);
    take(b, "shared runtime", 3 * MIB);
    give(a, kept, 6 * MIB);
}

/* Frames of one function have different sizes. The large one reaches past the end of the stack from
 * where the small one is. */
static void frames(struct library *a, struct library *b) {
    load(a);
    load(b);
    for (unsigned turn = 0; turn < 4; turn++) {
        take(a, "large frame", 4 * MIB);
        take(b, "small frame", 5 * MIB);
        take(a, "small frame", 6 * MIB);
    }
}

/* A child has no memory of its parent's, and changes nothing of what the parent counts. */
static void forked(struct library *a, struct library *b) {
    load(a);
    load(b);
    take(a, "itself", 4 * MIB);
    if (fork() == 0) {
        CUdeviceptr p;
        _exit(cuMemAlloc(&p, 4 * MIB) == CUDA_SUCCESS);
    }
    int status;
    wait(&status);
    printf("child %d\n", status);
    take(b, "managed", 5 * MIB);
    give(a, take(a, "itself", 8 * MIB), 8 * MIB);
}

/* The end of a context frees its blocks. The next context of the device begins with none. */
static void ended(struct library *a, struct library *b) {
    CUdevice device;
    load(a);
    load(b);
    CHECK(cuDeviceGet(&device, 0));
    take(a, "itself", 4 * MIB);
    if (exact)
        take(a, "shared runtime", 70000);
    take(b, "managed", 6 * MIB);
    CHECK(cuDevicePrimaryCtxReset(device));
    a->current = b->current = 0;
    begin();
    take(b, "itself", 9 * MIB);
    CHECK(cuDevicePrimaryCtxReset(device));
    b->current = 0;
    begin();
    take(a, "itself", 3 * MIB);
    take(b, "itself", 11 * MIB);
}

static void reset(struct library *a, struct library *b) {
    load(a);
    load(b);
    give(a, take(a, "itself", 32 * MIB), 32 * MIB);
    take(b, "itself", 7 * MIB);
    if (gpucache_reset_peak_stats)
        CHECK((CUresult)-gpucache_reset_peak_stats(-1));
    a->peak = a->current;
    take(a, "itself", 3 * MIB);
}

/*
 * Calls cuMemAlloc from code outside all modules, as a just-in-time compiler makes it. Twice: the
 * second call is answered from the table. Other processors than x86_64 have no such code here.
 */
static void generated(struct library *a, struct library *b) {
    static struct library unknown = {.path = "unknown"};
    (void)a, (void)b;
#if defined(__x86_64__)
    static const unsigned char code[] = {
        0x48, 0x83, 0xec, 0x08, /* sub $8, %rsp */
        0x48, 0x89, 0xf8,       /* mov %rdi, %rax */
        0x48, 0x89, 0xf7,       /* mov %rsi, %rdi */
        0x48, 0x89, 0xd6,       /* mov %rdx, %rsi */
        0xff, 0xd0,             /* call *%rax */
        0x48, 0x83, 0xc4, 0x08, /* add $8, %rsp */
        0xc3,                   /* ret */
    };
#elif defined(__aarch64__)
    static const uint32_t code[] = {
        0xa9bf7bfd, /* stp x29, x30, [sp, #-16]! */
        0xaa0003e9, /* mov x9, x0 */
        0xaa0103e0, /* mov x0, x1 */
        0xaa0203e1, /* mov x1, x2 */
        0xd63f0120, /* blr x9 */
        0xa8c17bfd, /* ldp x29, x30, [sp], #16 */
        0xd65f03c0, /* ret */
    };
#else
#error "the test has no code for this processor"
#endif
    CUresult (*call)(CUresult(*alloc)(CUdeviceptr *, size_t), CUdeviceptr * p, size_t bytes);
    void *memory = mmap(NULL, sizeof code, PROT_READ | PROT_WRITE | PROT_EXEC,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUdeviceptr p;
    memcpy(memory, code, sizeof code);
    __builtin___clear_cache((char *)memory, (char *)memory + sizeof code);
    memcpy(&call, &memory, sizeof call);
    for (unsigned i = 0; i < 2; i++)
        CHECK(call(cuMemAlloc, &p, 5 * MIB));
    unknown.current = unknown.peak = 2 * 5 * MIB;
    say(&unknown);
}

/* Loads more libraries than a report names, each under its own name. */
static void many(struct library *const all, int count) {
    for (int i = 0; i < count; i++) {
        load(&all[i]);
        take(&all[i], "itself", (size_t)(2 + i) * MIB);
        say(&all[i]);
    }
}

static atomic_bool over;

static void *busy(void *with) {
    struct library *l = with;
    uint64_t random = (uintptr_t)l->path;
    CUcontext context = begin();
    /* without the last way: the reserve of the driver's pool would cover up an excess */
    while (!atomic_load(&over)) {
        CUdeviceptr p = l->alloc(ways[pick(&random, WAYS - 1)], (size_t)4096 << pick(&random, 12));
        CHECK(cuMemFree(p));
    }
    CHECK(cuCtxSetCurrent(context));
    return NULL;
}

/* Writes reports while four threads allocate and free. */
static void threads(struct library *a, struct library *b) {
    pthread_t thread[4];
    int to = open(getenv("REPORTS") ? getenv("REPORTS") : "/dev/null",
                  O_WRONLY | O_APPEND | O_CREAT, 0600);
    load(a);
    load(b);
    for (unsigned i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, busy, i % 2 ? b : a);
    for (unsigned i = 0; i < 2000 && gpucache_write_report; i++)
        gpucache_write_report(to, 1);
    atomic_store(&over, true);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(struct library *, struct library *);
    } parts[] = {{"turns", turns},     {"closed", closed}, {"forked", forked},
                 {"ended", ended},     {"reset", reset},   {"generated", generated},
                 {"threads", threads}, {"frames", frames}};
    if (argc < 4)
        return 2;
    exact = getenv("GPUCACHE_STACKS") != NULL;
    struct library a = {.path = argv[2]}, b = {.path = argv[3]};
    begin();
    if (strcmp(argv[1], "many") == 0) {
        struct library all[32] = {{0}};
        for (int i = 2; i < argc && i < 34; i++)
            all[i - 2].path = argv[i];
        many(all, argc - 2);
        return 0;
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(parts[i].name, argv[1]) == 0)
            parts[i].run(&a, &b);
    say(&a);
    say(&b);
    say(&own);
    return 0;
}
