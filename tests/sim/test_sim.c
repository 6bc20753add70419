/*
 * Tests the simulator against answers that were measured on the real driver.
 *
 * This file has the functions that the tests share, and programs of several calls. The tests stand
 * in one file per subject. probe.c compares many more answers, but needs a GPU to compare with.
 */
#include "test_sim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

CUcontext context;
CUfunction fill, add, check, spin, set, fault;
CUstream a, b; /* non-blocking */
CUdeviceptr flag;

void load_kernels(void) {
    CUmodule module;

    OK(cuModuleLoadData(&module, "any image will do"));
    OK(cuModuleGetFunction(&fill, module, "fill_u32"));
    OK(cuModuleGetFunction(&add, module, "add_u32"));
    OK(cuModuleGetFunction(&check, module, "check_u32"));
    OK(cuModuleGetFunction(&spin, module, "spin_until"));
    OK(cuModuleGetFunction(&set, module, "set_u32"));
    OK(cuModuleGetFunction(&fault, module, "fault"));
}

void start(void) {
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    load_kernels();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&flag, 4096));
    OK(cuMemsetD32_v2(flag, 0, 1024));
    OK(cuCtxSynchronize());
}

/* Sets up two devices. Queued work runs only during waits. */
int fresh(void **state) {
    (void)state;
    setenv("GPUCACHE_SIM_DEVICES", "2", 1);
    setenv("GPUCACHE_SIM_MEMORY", "1G", 1);
    setenv("GPUCACHE_SIM_EAGER", "0", 1);
    setenv("GPUCACHE_SIM_IDLE_MS", "0", 1);
    sim_reset();
    start();
    return 0;
}

void fresh_with(const char *name, const char *value) {
    sim_reset();
    setenv(name, value, 1);
    start();
    unsetenv(name);
}

void launch(CUfunction function, CUstream stream, void **params) {
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

void launch_fill(CUstream stream, CUdeviceptr to, uint32_t value, uint64_t count) {
    launch(fill, stream, (void *[]){&to, &value, &count});
}

void launch_spin(CUstream stream, CUdeviceptr at, uint32_t value) {
    launch(spin, stream, (void *[]){&at, &value});
}

void launch_set(CUstream stream, CUdeviceptr at, uint32_t value) {
    launch(set, stream, (void *[]){&at, &value});
}

uint32_t read_u32(CUdeviceptr at) {
    uint32_t value;

    memcpy(&value, (void *)at, sizeof(value)); /* device memory is host memory */
    return value;
}

const CUmemAllocationProp page_prop = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};
const CUmemAccessDesc page_access = {
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

/* ---- scenes ---------------------------------------------------------------------------------- */

static const char *self_path;

const char *old_driver(void) {
    return getenv("SIM_OLD_DRIVER");
}

int run_scene(const char *name) {
    pid_t child = fork();
    int status;

    if (child == 0) {
        execl(self_path, self_path, name, (char *)NULL);
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

pid_t start_scene(const char *name, int fd, int as) {
    pid_t child = fork();

    if (child == 0) {
        dup2(fd, as);
        fcntl(as, F_SETFD, 0); /* the descriptor may have had this number before */
        execl(self_path, self_path, name, (char *)NULL);
        _exit(127);
    }
    return child;
}

/*
 * The table of late records: kernel A spins until kernel B, launched later on another stream, sets
 * its flag; in between the program frees and allocates.
 */
static void scene_native_free_before(void) {
    CUdeviceptr p;

    start();
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemFree_v2(p));
    launch_spin(a, flag, 1);
    OK(cuMemAlloc_v2(&p, 4096));
    launch_set(b, flag, 1);
    OK(cuCtxSynchronize());
}

static void barrier_scene(bool late) {
    CUevent event;

    start();
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    if (!late)
        OK(cuCtxRecordEvent(context, event)); /* in the free */
    launch_spin(a, flag, 1);
    if (late)
        OK(cuCtxRecordEvent(context, event));
    OK(cuCtxWaitEvent(context, event)); /* in the allocation */
    launch_set(b, flag, 1);
    OK(cuCtxSynchronize());
}

static void scene_barrier_in_free(void) {
    barrier_scene(false);
}

static void scene_barrier_late(void) {
    barrier_scene(true);
}

static void *free_in_thread(void *address) {
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree_v2((CUdeviceptr)(uintptr_t)address));
    return NULL;
}

static void scene_free_in_another_thread(void) {
    CUdeviceptr p;
    pthread_t thread;

    start();
    OK(cuMemAlloc_v2(&p, 4096));
    launch_spin(a, flag, 1);
    pthread_create(&thread, NULL, free_in_thread, (void *)(uintptr_t)p);
    while (sim_calls("cuMemFree_v2") == 0) /* the free keeps the lock of the count until it waits */
        usleep(100);
    launch_set(b, flag, 1); /* delayed by the free */
    pthread_join(thread, NULL);
}

static void scene_before_init(void) {
    CUdeviceptr p;
    CUcontext c;

    SCENE_TRUE(cuMemAlloc_v2(&p, 16) == CUDA_ERROR_NOT_INITIALIZED);
    SCENE_TRUE(cuCtxGetCurrent(&c) == CUDA_ERROR_NOT_INITIALIZED);
    SCENE_OK(cuInit(0));
    SCENE_TRUE(cuMemAlloc_v2(&p, 16) == CUDA_ERROR_INVALID_CONTEXT);
    SCENE_OK(cuMemFree_v2(0));
}

static void after_driver_is_down(void) {
    CUdeviceptr p;

    if (cuMemAlloc_v2(&p, 16) != CUDA_ERROR_DEINITIALIZED)
        _exit(1);
    _exit(42);
}

static void scene_after_exit(void) {
    atexit(after_driver_is_down); /* registered before the driver's, so it runs after it */
    start();
    exit(0);
}

static void scene_forked_child(void) {
    CUdeviceptr p;
    int status;

    start();
    pid_t child = fork();
    if (child == 0)
        _exit(cuMemAlloc_v2(&p, 16) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    waitpid(child, &status, 0);
    SCENE_TRUE(status == 0);
    SCENE_OK(cuMemAlloc_v2(&p, 16));
}

static void scene_driver_12_4_by_environment(void) {
    void *address = (void *)1;
    CUdriverProcAddressQueryResult status;
    int version;

    SCENE_OK(cuGetProcAddress_v2("cuCtxWaitEvent", &address, 12040, 0, &status));
    SCENE_TRUE(!address); /* even before cuInit */
    SCENE_OK(cuInit(0));
    SCENE_OK(cuDriverGetVersion(&version));
    SCENE_TRUE(version == 12040);
    SCENE_OK(cuGetProcAddress_v2("cuCtxRecordEvent", &address, 12040, 0, &status));
    SCENE_TRUE(!address && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    SCENE_TRUE(cuGetProcAddress_v2("cuCtxRecordEvent", &address, 13000, 0, &status) ==
               CUDA_ERROR_INVALID_VALUE);
    SCENE_OK(cuGetProcAddress_v2("cuStreamGetCtx", &address, 12040, 0, &status));
    SCENE_TRUE(address == (void *)cuStreamGetCtx);
    SCENE_TRUE(!sim_symbol_available("cuCtxWaitEvent"));
    SCENE_TRUE(sim_symbol_available("cuMemAlloc_v2"));
}

static void scene_old_library(void) {
    void *library = dlmopen(LM_ID_NEWLM, old_driver(), RTLD_NOW);
    int version = 0;
    CUresult (*get_version)(int *);

    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    SCENE_TRUE(library);
    SCENE_TRUE(!dlsym(library, "cuCtxRecordEvent") && !dlsym(library, "cuCtxWaitEvent"));
    SCENE_TRUE(dlsym(library, "cuGreenCtxCreate") && dlsym(library, "cuMemFree_v2"));
    *(void **)&get_version = dlsym(library, "cuDriverGetVersion");
    SCENE_OK(get_version(&version));
    SCENE_TRUE(version == 12040);
}

/* Opens the handle that the parent sends on fd 3, checks and changes the memory, and waits. */
static void scene_ipc_importer(void) {
    CUipcMemHandle handle;
    CUdeviceptr p, again;
    size_t size;
    char byte;

    SCENE_TRUE(read(3, &handle, sizeof(handle)) == sizeof(handle));
    SCENE_OK(cuInit(0));
    SCENE_OK(cuCtxCreate_v2(&context, 0, 0));
    SCENE_OK(cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    SCENE_OK(cuIpcOpenMemHandle_v2(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    SCENE_TRUE(p == again);
    SCENE_OK(cuMemGetAddressRange_v2(NULL, &size, p));
    SCENE_TRUE(size == 100000);
    SCENE_TRUE(read_u32(p) == 1234 && read_u32(p + 1000) == 5678);
    SCENE_OK(cuMemsetD32_v2(p, 4321, 1));
    SCENE_OK(cuCtxSynchronize());
    SCENE_TRUE(write(3, "x", 1) == 1);
    SCENE_TRUE(read(3, &byte, 1) == 1);
    SCENE_TRUE(read_u32(p + 1000) == 5678); /* freed by the exporter, still open here */
    SCENE_TRUE(cuIpcCloseMemHandle(p + 512) == CUDA_ERROR_INVALID_VALUE);
    SCENE_OK(cuIpcCloseMemHandle(p));
    SCENE_OK(cuIpcCloseMemHandle(p));
    SCENE_TRUE(cuIpcCloseMemHandle(p) == CUDA_ERROR_INVALID_VALUE);
}

/* Fd 4 is the inherited descriptor of a physical handle. */
static void scene_vmm_importer(void) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p;

    SCENE_OK(cuInit(0));
    SCENE_OK(cuCtxCreate_v2(&context, 0, 0));
    SCENE_OK(cuMemImportFromShareableHandle(&handle, (void *)4,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    SCENE_OK(cuMemAddressReserve(&p, 2 * GRANULE, 0, 0, 0));
    SCENE_OK(cuMemMap(p, 2 * GRANULE, 0, handle, 0));
    SCENE_OK(cuMemSetAccess(p, 2 * GRANULE, &page_access, 1));
    SCENE_TRUE(read_u32(p + GRANULE) == 77);
    SCENE_OK(cuMemsetD32_v2(p, 78, 1));
    SCENE_OK(cuCtxSynchronize());
    SCENE_OK(cuMemUnmap(p, 2 * GRANULE));
    SCENE_OK(cuMemRelease(handle));
    SCENE_OK(cuMemAddressFree(p, 2 * GRANULE));
}

static void scene_counts(void) {
    CUdeviceptr p;

    start();
    for (int i = 0; i < 3; i++)
        SCENE_OK(cuMemAlloc_v2(&p, 64));
}

static void scene_fail_by_environment(void) {
    CUdeviceptr p;

    setenv("GPUCACHE_SIM_FAIL", "cuMemAlloc_v2:2:2:1", 1); /* start() makes one call */
    start();
    SCENE_OK(cuMemAlloc_v2(&p, 64));
    SCENE_TRUE(cuMemAlloc_v2(&p, 64) == CUDA_ERROR_OUT_OF_MEMORY);
    SCENE_OK(cuMemAlloc_v2(&p, 64));
}

static const struct {
    const char *name;
    void (*run)(void);
} scenes[] = {
    {"native free before", scene_native_free_before},
    {"barrier on time", scene_barrier_in_free},
    {"barrier late", scene_barrier_late},
    {"free in another thread", scene_free_in_another_thread},
    {"before init", scene_before_init},
    {"after exit", scene_after_exit},
    {"forked child", scene_forked_child},
    {"12.4 by environment", scene_driver_12_4_by_environment},
    {"old library", scene_old_library},
    {"ipc importer", scene_ipc_importer},
    {"vmm importer", scene_vmm_importer},
    {"counts", scene_counts},
    {"fail by environment", scene_fail_by_environment},
};

int main(int argc, char **argv) {
    self_path = argv[0];
    for (size_t i = 0; argc > 1 && i < sizeof(scenes) / sizeof(*scenes); i++) {
        if (strcmp(argv[1], scenes[i].name) == 0) {
            scenes[i].run();
            return 0;
        }
    }
    return test_entries() + test_memory() + test_contexts() + test_streams() + test_captures() +
           test_sharing() + test_control() + test_lifetimes();
}
