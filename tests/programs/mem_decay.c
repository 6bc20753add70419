/*
 * mem_decay SCENE [MS]: prints the memory that the driver has handed out while the program makes no
 * allocation, as lines of "NAME VALUE". mem_decay.py has the expected values.
 */
#include "program.h"

#include "gpucache.h"
#include "sim.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static unsigned budget_ms = 60000;
static CUcontext context;
static struct kernels kernels;
static CUdeviceptr flags;
static CUstream stream;

static void pause_ms(unsigned ms) {
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0)
        continue;
}

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void say(const char *what, unsigned long value) {
    printf("%s %lu\n", what, value);
    fflush(stdout);
}

static unsigned long device_mib(void) {
    return (unsigned long)(sim_used_memory(0) / MIB);
}

/* Waits until the driver has at most this memory handed out. Makes no driver call. */
static void wait_for(unsigned long mib) {
    for (unsigned ms = 0; ms < budget_ms && device_mib() > mib; ms += 5)
        pause_ms(5);
}

static unsigned threads(void) {
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void set_up(void) {
    context = begin();
    kernels_load(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&flags, 4096));
    CHECK(cuMemsetD32(flags, 0, 1024));
}

/* Allocates, uses and frees blocks of one size. */
static void use(unsigned count, size_t bytes) {
    CUdeviceptr blocks[256];
    size_t words = bytes < 64 << 10 ? bytes / 4 : 16 << 10;
    for (unsigned i = 0; i < count; i++) {
        CHECK(cuMemAlloc(&blocks[i], bytes));
        CHECK(launch_fill(&kernels, stream, blocks[i], i, words));
    }
    CHECK(cuStreamSynchronize(stream));
    for (unsigned i = 0; i < count; i++)
        CHECK(cuMemFree(blocks[i]));
}

/* ---- scenes ---- */

static void sleeps(void) {
    use(50, 20 * MIB);
    use(50, 300 << 10);
    say("held", device_mib());
    wait_for(2);
    say("left", device_mib());
    struct gpucache_stats stats = {.size = sizeof stats};
    say("answer", (unsigned long)-gpucache_get_stats(0, &stats));
    say("reserved", (unsigned long)(stats.reserved / MIB));
    use(50, 20 * MIB);
    say("again", device_mib());
}

/* Does the same; then a reader maps the live page. */
static void is_looked_at(void) {
    use(50, 20 * MIB);
    wait_for(2);
    say("left", device_mib());
    while (getchar() != EOF)
        continue;
}

/* A kernel that is launched right after the frees runs for all that time. */
static void during_a_kernel(void) {
    uint32_t go = 1;
    use(100, 20 * MIB);
    CHECK(launch_spin(&kernels, stream, flags, 1));
    wait_for(100);
    say("left", device_mib());
    say("runs", cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    CUstream other;
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(launch_set(&kernels, other, flags, go));
    CHECK(cuStreamSynchronize(stream));
    wait_for(2);
    say("after", device_mib());
}

/* Returns the number of driver calls that allocate or release memory. */
static uint64_t taken(void) {
    return sim_calls("cuMemMap") + sim_calls("cuMemCreate") + sim_calls("cuMemSetAccess") +
           sim_calls("cuMemAlloc_v2");
}

static uint64_t given_back(void) {
    return sim_calls("cuMemUnmap") + sim_calls("cuMemRelease") + sim_calls("cuMemFreeAsync");
}

/* Alternates two phases. Neither phase can use the memory of the other one. */
static void steady(void) {
    uint64_t took = 0, gave = 0, all = 0, slowest = 0, begun[2] = {0};
    for (int period = 0; period < 60; period++) {
        uint64_t last = begun[period % 2];
        begun[period % 2] = now_ms();
        if (period == 4) {
            took = taken();
            gave = given_back();
            all = sim_calls("*");
        }
        use(period % 2 ? 10 : 30, (period % 2 ? 40 : 9) * MIB);
        if (last && now_ms() - last > slowest)
            slowest = now_ms() - last;
        pause_ms(20);
    }
    say("taken", (unsigned long)(taken() - took));
    say("given_back", (unsigned long)(given_back() - gave));
    say("called", (unsigned long)(sim_calls("*") - all));
    say("slowest", (unsigned long)slowest);
}

/* Frees blocks in a stream that the program never queries again. */
static void in_a_stream(void) {
    CUdeviceptr blocks[40];
    for (unsigned i = 0; i < 40; i++) {
        CHECK(cuMemAlloc(&blocks[i], 20 * MIB));
        CHECK(launch_fill(&kernels, stream, blocks[i], i, 1000));
    }
    for (unsigned i = 0; i < 40; i++)
        CHECK(cuMemFreeAsync(blocks[i], stream));
    wait_for(2);
    say("left", device_mib());
}

static void captures(void) {
    CUgraph graph = NULL;
    use(50, 20 * MIB);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(launch_set(&kernels, stream, flags, 3));
    wait_for(100);
    say("left", device_mib());
    say("graph", cuStreamEndCapture(stream, &graph));
}

/* Forks during the decay. The child ends at once. */
static void forks(void) {
    unsigned good = 0;
    for (int i = 0; i < 30; i++) {
        use(20, 4 * MIB);
        pause_ms((unsigned)i % 8);
        pid_t child = fork();
        if (child == 0) {
            alarm(5);
            CUdeviceptr p;
            CUresult r = cuMemAlloc(&p, MIB);
            i % 2 ? exit(r == CUDA_SUCCESS) : _exit(r == CUDA_SUCCESS);
        }
        int status = -1;
        waitpid(child, &status, 0);
        good += WIFEXITED(status);
    }
    say("children", good);
    wait_for(2);
    say("left", device_mib());
}

static void ends(const char *how, const char *when) {
    use(100, 8 * MIB);
    if (strcmp(when, "gone") == 0)
        wait_for(2);
    else
        pause_ms((unsigned)atoi(when));
    if (strcmp(how, "_exit") == 0)
        _exit(0);
    if (strcmp(how, "exec") == 0)
        execl("/bin/true", "true", NULL);
    if (strcmp(how, "reset") == 0) {
        CHECK(cuDevicePrimaryCtxReset(0));
        say("left", device_mib());
    }
}

/* Calls execl() of an empty file in the current folder. */
static void fail_exec(void) {
    FILE *file = fopen("decay.tmp", "w");
    fclose(file);
    chmod("decay.tmp", 0755);
    execl("./decay.tmp", "none", NULL);
    unlink("decay.tmp");
}

/* Continues after an exec that fails. */
static void goes_on(void) {
    use(20, 20 * MIB);
    execl("/dev/null/none", "none", NULL);
    fail_exec();
    wait_for(2);
    say("left", device_mib());
}

/* Calls execl() of an empty file many times while the library's thread works. Each call fails. */
static void goes_on_often(void) {
    FILE *file = fopen("decay_often.tmp", "w");
    fclose(file);
    chmod("decay_often.tmp", 0755);
    for (int i = 0; i < 20; i++) {
        use(4, 20 * MIB);
        for (int n = 0; n < 2000; n++)
            execl("./decay_often.tmp", "none", NULL);
    }
    unlink("decay_often.tmp");
    use(4, 20 * MIB);
    wait_for(2);
    say("left", device_mib());
}

/* Allocates managed memory that, with the memory freed before, is nearly all of the device. Then
 * does so in the other order. The simulated driver keeps managed memory on the host. */
static void managed(void) {
    size_t total;
    CUdeviceptr p;
    CHECK(cuDeviceTotalMem(&total, 0));
    size_t half = total / 200 * 98 & ~(2 * MIB - 1);
    use(1, half);
    CHECK(cuMemAllocManaged(&p, half, CU_MEM_ATTACH_GLOBAL));
    say("left", device_mib());
    use(1, half);
    budget_ms = 11000;
    wait_for(2);
    say("later", device_mib());
    /* A kernel that was submitted after the free does not end before the program's next calls. */
    use(1, half);
    CHECK(launch_spin(&kernels, stream, flags, 1));
    uint64_t queries = sim_calls("cuEventQuery");
    CHECK(cuMemAllocManaged(&p, 2 * MIB, CU_MEM_ATTACH_GLOBAL));
    say("queries", (unsigned long)(sim_calls("cuEventQuery") - queries));
    CUstream other;
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(launch_set(&kernels, other, flags, 1));
    CHECK(cuStreamSynchronize(stream));
}

/* Frees memory next to managed memory; together they are nearly all of the device. A part of the
 * idle memory is enough for the managed memory, and the rest stays. */
static void managed_first(void) {
    size_t total;
    CUdeviceptr p;
    CHECK(cuDeviceTotalMem(&total, 0));
    size_t half = total / 200 * 98 & ~(2 * MIB - 1);
    use(1, 2 * MIB); /* the thread sleeps until the next tick */
    CHECK(cuMemAllocManaged(&p, half, CU_MEM_ATTACH_GLOBAL));
    use(8, half / 8);
    wait_for(half / MIB - 8);
    say("went", device_mib() < half / MIB - 7);
    pause_ms(100);
    say("rest", device_mib());
}

/* Moves managed memory to the device right after a free. Waits for no time to pass. */
static void prefetches(void) {
    size_t total;
    CUdeviceptr p;
    CHECK(cuDeviceTotalMem(&total, 0));
    size_t half = total / 200 * 98 & ~(2 * MIB - 1);
    CUmemLocation to = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CHECK(cuMemAllocManaged(&p, half, CU_MEM_ATTACH_GLOBAL));
    use(1, half);
    unsigned long before = device_mib();
    CHECK(cuMemPrefetchAsync_v2(p, half, to, 0, stream));
    say("before", before);
    say("after", device_mib());
}

/* Frees memory next to managed memory without decay, after an exec that fails. */
static void managed_never(void) {
    size_t total;
    CUdeviceptr p;
    CHECK(cuDeviceTotalMem(&total, 0));
    size_t half = total / 200 * 98 & ~(2 * MIB - 1);
    CHECK(cuMemAllocManaged(&p, half, CU_MEM_ATTACH_GLOBAL));
    use(1, 2 * MIB);
    fail_exec();
    use(1, half);
    unsigned long before = device_mib();
    budget_ms = 300;
    wait_for(before - 1);
    say("stays", device_mib() == before);
}

/* Frees a block that a kernel uses, next to managed memory. */
static void managed_in_use(void) {
    size_t total;
    CUdeviceptr p, q;
    CUstream other;
    CHECK(cuDeviceTotalMem(&total, 0));
    size_t half = total / 200 * 98 & ~(2 * MIB - 1);
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAllocManaged(&p, half, CU_MEM_ATTACH_GLOBAL));
    CHECK(cuMemAlloc(&q, half));
    CHECK(launch_spin(&kernels, stream, flags, 1));
    CHECK(cuMemFree(q));
    uint64_t queries = sim_calls("cuEventQuery");
    pause_ms(1000);
    say("queries", (unsigned long)(sim_calls("cuEventQuery") - queries));
    CHECK(launch_set(&kernels, other, flags, 1));
    wait_for(half / MIB - 1);
    say("went", device_mib() < half / MIB);
}

/* A free of little memory gives nothing back before the tick, not even to a prefetch. */
static void managed_little(void) {
    size_t total;
    CUdeviceptr p, q;
    CUmemLocation to = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CHECK(cuDeviceTotalMem(&total, 0));
    size_t half = total / 200 * 98 & ~(2 * MIB - 1);
    CHECK(cuMemAllocManaged(&p, half, CU_MEM_ATTACH_GLOBAL));
    CHECK(cuMemAlloc(&q, half));
    unsigned long before = device_mib();
    use(1, 4 * MIB);
    budget_ms = 200;
    wait_for(before);
    CHECK(cuMemPrefetchAsync_v2(p, half, to, 0, stream));
    say("stays", device_mib() > before);
}

static void counts_threads(void) {
    use(4, 20 * MIB);
    say("threads", threads());
}

int main(int count, char **arguments) {
    const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {{"sleeps", sleeps},
                  {"is_looked_at", is_looked_at},
                  {"during_a_kernel", during_a_kernel},
                  {"steady", steady},
                  {"captures", captures},
                  {"forks", forks},
                  {"goes_on", goes_on},
                  {"goes_on_often", goes_on_often},
                  {"in_a_stream", in_a_stream},
                  {"managed", managed},
                  {"managed_first", managed_first},
                  {"managed_never", managed_never},
                  {"managed_in_use", managed_in_use},
                  {"managed_little", managed_little},
                  {"prefetches", prefetches},
                  {"threads", counts_threads}};
    const char *scene = count > 1 ? arguments[1] : "";
    if (strcmp(scene, "sleeps") == 0 && count == 3)
        budget_ms = (unsigned)atoi(arguments[2]);
    set_up();
    for (unsigned i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scene, scenes[i].name) == 0)
            scenes[i].run();
    if (strcmp(scene, "ends") == 0 && count == 4)
        ends(arguments[2], arguments[3]);
    return 0;
}
