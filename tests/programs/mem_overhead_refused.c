/*
 * Rows of mem_overhead.txt: requests that fit natively and are refused or delayed under the
 * library.
 *
 * The rows run on a GPU too. There nvidia-smi tells the held memory, and the number of calls is 0.
 */
#include "mem_overhead.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#pragma weak sim_used_memory
#pragma weak sim_calls

static double held(void) {
    double mib = 0;
    if (sim_used_memory)
        return held_mib();
    FILE *tool = popen("env -u LD_PRELOAD nvidia-smi -i 0 --query-gpu=memory.used "
                       "--format=csv,noheader,nounits",
                       "r");
    if (!tool || fscanf(tool, "%lf", &mib) != 1)
        mib = -1;
    if (tool)
        pclose(tool);
    return mib;
}

static double calls(void) {
    return sim_calls ? (double)sim_calls("*") : 0;
}

static size_t total_bytes(void) {
    size_t unused, total;
    CHECK(cuMemGetInfo(&unused, &total));
    return total;
}

static double free_mib(void) {
    size_t free_bytes, unused;
    CHECK(cuMemGetInfo(&free_bytes, &unused));
    return (double)free_bytes / MIB;
}

/* --- blocks of one size --- */

static size_t bytes_of(const char *mib) {
    return (size_t)(atof(mib) * (double)MIB);
}

/* Allocates blocks until the first refusal. Returns their number. */
static long count_of(size_t bytes, CUdeviceptr *at, long most) {
    long count = 0;
    while (count < most && cuMemAlloc(&at[count], bytes) == CUDA_SUCCESS)
        count++;
    return count;
}

static CUdeviceptr many[1 << 20];

/* to_the_brim MIB: allocates blocks of MIB MiB until the first refusal. */
static void to_the_brim(char **arguments) {
    begin();
    long count = count_of(bytes_of(arguments[0]), many, 1 << 20);
    printf("blocks=%ld free_mib=%.0f held_mib=%.0f\n", count, free_mib(), held());
}

/* all_to_the_brim FRESH: does the same with sizes from 1 MiB to 1 GiB in odd steps. Each size
 * has a process of its own. With FRESH 0 one process tries all sizes, and frees everything
 * before the next size. */
static void all_to_the_brim(char **arguments) {
    long sizes = 0, worst = 1000, sum = 0, natively;
    size_t total, two = 2 * MIB;
    bool fresh = atoi(arguments[0]);
    char own[400], command[512];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    begin();
    total = total_bytes();
    own[length < 0 ? 0 : length] = '\0';
    for (size_t bytes = MIB; bytes < GIB; bytes += bytes / 13 + 4097, sizes++) {
        long count = 0;
        natively = (long)(total / ((bytes + two - 1) / two * two));
        natively = natively > 0 ? natively : 1;
        snprintf(command, sizeof command, "%s to_the_brim %.12f", own, (double)bytes / MIB);
        FILE *child = fresh ? popen(command, "r") : NULL;
        if (child) {
            if (fscanf(child, "blocks=%ld", &count) != 1)
                count = 0;
            pclose(child);
        } else {
            count = count_of(bytes, many, 1 << 20);
            for (long i = 0; i < count; i++)
                free_block(many[i]);
        }
        long permille = count > natively ? 1000 : count * 1000 / natively;
        worst = permille < worst ? permille : worst;
        sum += permille;
    }
    printf("sizes=%ld worst_permille=%ld mean_permille=%ld\n", sizes, worst,
           sizes > 0 ? sum / sizes : 0);
}

/* --- pages that small blocks keep --- */

static double largest_mib(void) {
    size_t low = 0, high = total_bytes();
    CUdeviceptr p;
    while (high - low > 4 * MIB) {
        size_t middle = (low + high) / 2;
        if (cuMemAlloc(&p, middle) == CUDA_SUCCESS) {
            low = middle;
            free_block(p);
        } else {
            high = middle;
        }
    }
    return (double)low / MIB;
}

/* pinned MIB GIB K [1]: allocates GIB GiB in blocks of MIB MiB, and frees all but every K-th
 * block. Prints the largest block that fits then. With a 1, one block of GIB GiB was used and
 * freed before. */
static void pinned(char **arguments) {
    size_t bytes = bytes_of(arguments[0]);
    long count = (long)(atof(arguments[1]) * (double)GIB / (double)bytes), k = atol(arguments[2]);
    begin();
    if (arguments[3])
        free_block(alloc_block((size_t)count * bytes));
    for (long i = 0; i < count; i++)
        many[i] = alloc_block(bytes);
    for (long i = 0; i < count; i++)
        if (i % k)
            free_block(many[i]);
    CHECK(cuCtxSynchronize());
    double said = free_mib(), largest = largest_mib();
    printf("largest_mib=%.0f free_mib=%.0f\n", largest, said);
}

/* --- several contexts --- */

/* contexts: two contexts allocate and free ten sixteenths of the device in turn, four times. */
static void contexts(char **arguments) {
    CUcontext context[2] = {begin()};
    CUdevice device;
    size_t part = total_bytes() / 16 / MIB * MIB;
    long served = 0;
    (void)arguments;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate_v4(&context[1], NULL, 0, device));
    for (int round = 0; round < 4; round++) {
        CHECK(cuCtxSetCurrent(context[round % 2]));
        long count = count_of(part, many, 10);
        served += count;
        while (count-- > 0)
            free_block(many[count]);
    }
    printf("blocks=%ld\n", served);
}

/* --- other threads --- */

static struct kernels kernels;
static CUcontext main_context;
static atomic_int stage;

static void wait_for_stage(int which) {
    while (atomic_load(&stage) < which)
        usleep(100);
}

static void *keep_busy(void *unused) {
    CUstream stream;
    CUevent events[3];
    CHECK(cuCtxSetCurrent(main_context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 3; i++)
        CHECK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    for (int i = 0; atomic_load(&stage) < 2; i++) {
        CHECK(launch_sleep(&kernels, stream, 2000));
        CHECK(cuEventRecord(events[i % 3], stream));
        if (i >= 2)
            CHECK(cuEventSynchronize(events[(i - 2) % 3]));
        if (i == 3)
            atomic_store(&stage, 1);
    }
    CHECK(cuStreamSynchronize(stream));
    return unused;
}

/* busy: a thread always has kernels queued. Meanwhile ten sixteenths of the device are used and
 * freed, in 160 blocks and then in one block, three times. */
static void busy(char **arguments) {
    pthread_t thread;
    long blocks = 0, large = 0;
    (void)arguments;
    main_context = begin();
    kernels_load(&kernels);
    size_t part = total_bytes() / 256 / MIB * MIB;
    CHECK(pthread_create(&thread, NULL, keep_busy, NULL) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
    wait_for_stage(1);
    for (int round = 0; round < 3; round++) {
        CUdeviceptr p;
        long count = count_of(part, many, 160);
        blocks += count;
        for (long i = 0; i < count; i++)
            CHECK(launch_fill(&kernels, 0, many[i], 1, 16));
        while (count-- > 0)
            free_block(many[count]);
        if (cuMemAlloc(&p, 160 * part) == CUDA_SUCCESS) {
            large++;
            free_block(p);
        }
    }
    atomic_store(&stage, 2);
    pthread_join(thread, NULL);
    printf("blocks=%ld large=%ld\n", blocks, large);
}

static void *keep_capturing(void *unused) {
    CUstream stream;
    CUgraph graph;
    CHECK(cuCtxSetCurrent(main_context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    wait_for_stage(1);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    atomic_store(&stage, 2);
    wait_for_stage(3);
    CHECK(cuStreamEndCapture(stream, &graph));
    return unused;
}

/* capture: ten sixteenths of the device are used and freed. While another thread captures, uses
 * 64 blocks of one sixteenth one after another, then one block of ten sixteenths. */
static void capture(char **arguments) {
    pthread_t thread;
    CUdeviceptr p;
    long pairs = 0;
    (void)arguments;
    main_context = begin();
    kernels_load(&kernels);
    size_t part = total_bytes() / 16 / MIB * MIB;
    free_block(alloc_block(MIB));
    CHECK(pthread_create(&thread, NULL, keep_capturing, NULL) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
    long before = count_of(part, many, 10);
    for (long i = 0; i < before; i++)
        CHECK(launch_fill(&kernels, 0, many[i], 1, 16));
    for (long i = 0; i < before; i++)
        free_block(many[i]);
    atomic_store(&stage, 1);
    wait_for_stage(2);
    while (pairs < 64 && cuMemAlloc(&p, part) == CUDA_SUCCESS) {
        CHECK(launch_fill(&kernels, 0, p, 1, 256));
        free_block(p);
        pairs++;
    }
    bool large = cuMemAlloc(&p, 10 * part) == CUDA_SUCCESS;
    atomic_store(&stage, 3);
    pthread_join(thread, NULL);
    printf("pairs=%ld large=%d\n", pairs, large);
}

/* capture_full: fills the device to the last MiB. While another thread captures, frees each
 * block, allocates two smaller blocks in its place, and then one block of its size again. */
static void capture_full(char **arguments) {
    pthread_t thread;
    CUdeviceptr p;
    long served = 0;
    (void)arguments;
    main_context = begin();
    kernels_load(&kernels);
    size_t part = total_bytes() / 16 / MIB * MIB;
    long before = count_of(part, many, 16);
    while (cuMemAlloc(&p, 2 * MIB) == CUDA_SUCCESS)
        ;
    CHECK(pthread_create(&thread, NULL, keep_capturing, NULL) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
    atomic_store(&stage, 1);
    wait_for_stage(2);
    for (long i = 0; i < before; i++) {
        CUdeviceptr half = 0, third = 0;
        CHECK(launch_fill(&kernels, 0, many[i], 1, 16));
        free_block(many[i]);
        served += cuMemAlloc(&half, part / 2) == CUDA_SUCCESS;
        served += cuMemAlloc(&third, part / 3) == CUDA_SUCCESS;
        cuMemFree(half);
        cuMemFree(third);
        served += cuMemAlloc(&many[i], part) == CUDA_SUCCESS;
    }
    atomic_store(&stage, 3);
    pthread_join(thread, NULL);
    printf("blocks=%ld served=%ld\n", before, served);
}

/* Allocates a part of the device by another entry than cuMemAlloc, and frees it. Returns whether
 * it was served. */
static bool take_otherwise(unsigned way, size_t bytes) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 4096,
                                  .Height = bytes / 4096 / 4,
                                  .Format = CU_AD_FORMAT_UNSIGNED_INT32,
                                  .NumChannels = 1};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p;
    CUarray array;
    switch (way) {
    case 0:
        return cuMemAllocAsync(&p, bytes, 0) == CUDA_SUCCESS && cuMemFree(p) == CUDA_SUCCESS;
    case 1:
        return cuMemCreate(&handle, bytes, &prop, 0) == CUDA_SUCCESS &&
               cuMemRelease(handle) == CUDA_SUCCESS;
    default:
        return cuArrayCreate(&array, &flat) == CUDA_SUCCESS &&
               cuArrayDestroy(array) == CUDA_SUCCESS;
    }
}

/* capture_otherwise WAY: frees three quarters of the device during its work, just before another
 * thread begins a capture. Then allocates half of the device by another entry than cuMemAlloc. */
static void capture_otherwise(char **arguments) {
    pthread_t thread;
    main_context = begin();
    kernels_load(&kernels);
    size_t part = total_bytes() / 16 / MIB * MIB;
    CHECK(pthread_create(&thread, NULL, keep_capturing, NULL) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
    long before = count_of(part, many, 12);
    for (long i = 0; i < before; i++)
        CHECK(launch_fill(&kernels, 0, many[i], 1, 16));
    CHECK(launch_sleep(&kernels, 0, 20000));
    for (long i = 0; i < before; i++)
        free_block(many[i]);
    atomic_store(&stage, 1);
    wait_for_stage(2);
    bool served = take_otherwise((unsigned)atoi(arguments[0]), 8 * part);
    atomic_store(&stage, 3);
    pthread_join(thread, NULL);
    printf("served=%d\n", served);
}

/* --- contexts that end --- */

static CUcontext ending;

static void *destroy(void *unused) {
    atomic_store(&stage, 1);
    CHECK(cuCtxDestroy(ending));
    return unused;
}

/* context_ends WAY: frees three quarters of the device in a context that another thread then
 * destroys. The destruction takes as long as a kernel of the context. Meanwhile allocates half
 * of the device in the other context, by another entry than cuMemAlloc or, with WAY 3, by
 * cuMemAlloc. */
static void context_ends(char **arguments) {
    pthread_t thread;
    CUstream stream;
    CUdeviceptr p;
    int way = atoi(arguments[0]);
    main_context = begin();
    size_t part = total_bytes() / 16 / MIB * MIB;
    alloc_block(MIB);
    CHECK(cuCtxCreate_v4(&ending, NULL, 0, 0));
    kernels_load(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    long before = count_of(part, many, 12);
    for (long i = 0; i < before; i++)
        free_block(many[i]);
    CHECK(launch_sleep(&kernels, stream, 300000));
    CHECK(cuCtxSetCurrent(main_context));
    CHECK(pthread_create(&thread, NULL, destroy, NULL) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
    wait_for_stage(1);
    /* By then the thread is probably inside cuCtxDestroy. The request must be served before, during
     * and after that call. */
    usleep(50000);
    bool served = way < 3 ? take_otherwise((unsigned)way, 8 * part)
                          : cuMemAlloc(&p, 8 * part) == CUDA_SUCCESS;
    pthread_join(thread, NULL);
    printf("served=%d\n", served);
}

static atomic_bool enough;

static void *retain_and_release(void *unused) {
    CUcontext context;
    while (!atomic_load(&enough)) {
        CHECK(cuDevicePrimaryCtxRetain(&context, 0));
        CHECK(cuDevicePrimaryCtxRelease(0));
    }
    return unused;
}

/* release ROUNDS: uses and frees three quarters of the device, then allocates five eighths of it
 * in one block. Meanwhile another thread releases a reference of the context, never the last
 * one. */
static void release(char **arguments) {
    pthread_t thread;
    CUdeviceptr p;
    long served = 0, rounds = atol(arguments[0]);
    begin();
    kernels_load(&kernels);
    size_t part = total_bytes() / 16 / MIB * MIB;
    CHECK(pthread_create(&thread, NULL, retain_and_release, NULL) ? CUDA_ERROR_UNKNOWN
                                                                  : CUDA_SUCCESS);
    for (long round = 0; round < rounds; round++) {
        for (long i = 0; i < 12; i++)
            many[i] = alloc_block(part);
        for (long i = 0; i < 12; i++)
            CHECK(launch_fill(&kernels, 0, many[i], 1, 16));
        for (long i = 0; i < 12; i++)
            free_block(many[i]);
        if (cuMemAlloc(&p, 10 * part) == CUDA_SUCCESS) {
            free_block(p);
            served++;
        }
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    printf("refused=%ld\n", rounds - served);
}

/* --- requests that nothing could serve --- */

/* impossible: a kernel runs, and a small block that the kernel may use was freed. Three entries
 * request more than that block could make free. Prints the refusals, and the driver calls of
 * these requests. */
static void impossible(char **arguments) {
    CUstream stream, other;
    uint32_t *flag;
    CUdeviceptr live, freed, p;
    (void)arguments;
    begin();
    kernels_load(&kernels);
    size_t total = total_bytes(), part = total / 16 / MIB * MIB;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAllocHost((void **)&flag, 4096));
    *flag = 0;
    freed = alloc_block(part);
    CHECK(cuMemAllocAsync(&live, 11 * part, other));
    CHECK(cuStreamSynchronize(other));
    CHECK(launch_spin(&kernels, stream, (CUdeviceptr)flag, 1));
    /* Natively this free would wait for the kernel, which ends after the requests. */
    if (getenv("LD_PRELOAD"))
        free_block(freed);
    double before = calls();
    int refused = cuMemAlloc(&p, 8 * part) == CUDA_ERROR_OUT_OF_MEMORY;
    refused += cuMemAllocAsync(&p, 8 * part, other) == CUDA_ERROR_OUT_OF_MEMORY;
    refused += cuMemAllocManaged(&p, 8 * part, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_OUT_OF_MEMORY;
    double made = calls() - before;
    *(volatile uint32_t *)flag = 1;
    CHECK(cuCtxSynchronize());
    printf("refused=%d calls=%.0f\n", refused, made);
}

/* --- random sizes on a nearly full device --- */

/* near_the_brim PERCENT: keeps PERCENT of the device live in blocks of 1.1 to 64 MiB, and
 * replaces blocks at random. */
static void near_the_brim(char **arguments) {
    enum { REPLACED = 20000, MOST = 1 << 16 };
    static size_t bytes[MOST];
    uint64_t seed = 99;
    size_t live = 0;
    long count = 0, refused = 0;
    begin();
    size_t most = (size_t)((double)total_bytes() * atof(arguments[0]) / 100);
    for (long i = 0; i < REPLACED; i++) {
        size_t octave = (size_t)1126 * KIB << pick(&seed, 6);
        size_t next = octave + draw(&seed) % octave;
        next = next > 64 * MIB ? 64 * MIB : next;
        while (live + next > most) {
            long j = pick(&seed, (unsigned)count);
            free_block(many[j]);
            live -= bytes[j];
            many[j] = many[--count];
            bytes[j] = bytes[count];
        }
        if (cuMemAlloc(&many[count], next) == CUDA_SUCCESS) {
            bytes[count++] = next;
            live += next;
        } else {
            refused++;
        }
    }
    printf("refused_permille=%.1f\n", 1000.0 * (double)refused / (double)REPLACED);
}

/* --- small programs --- */

/* small BYTES: uses and frees 1 MiB in blocks of BYTES, again and again, before the device has
 * reached their work. */
static void small(char **arguments) {
    size_t bytes = (size_t)atol(arguments[0]);
    long count = (long)(MIB / bytes);
    double most = 0;
    begin();
    kernels_load(&kernels);
    for (int round = 0; round < 200; round++) {
        for (long i = 0; i < count; i++)
            many[i] = alloc_block(bytes);
        for (long i = 0; i < count; i++)
            CHECK(launch_fill(&kernels, 0, many[i], 1, 16));
        for (long i = 0; i < count; i++)
            free_block(many[i]);
        most = sim_used_memory ? peak_held(most) : 0;
    }
    printf("held_mib=%.0f\n", most > 0 ? most : held());
}

static const struct row rows[] = {{"to_the_brim", to_the_brim},
                                  {"all_to_the_brim", all_to_the_brim},
                                  {"pinned", pinned},
                                  {"contexts", contexts},
                                  {"busy", busy},
                                  {"capture", capture},
                                  {"capture_full", capture_full},
                                  {"capture_otherwise", capture_otherwise},
                                  {"context_ends", context_ends},
                                  {"release", release},
                                  {"impossible", impossible},
                                  {"near_the_brim", near_the_brim},
                                  {"small", small},
                                  {NULL, NULL}};

int main(int argc, char **argv) {
    return run_row(rows, argc, argv);
}
