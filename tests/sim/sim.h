/*
 * The control interface of the simulated CUDA driver.
 *
 * The simulator is a libcuda.so.1 whose devices are host memory and whose kernels are host
 * functions. A program uses it through the ordinary driver API. This interface is for tests that
 * need more: their own kernels and schedules, failing calls, and counts of calls. Link with the
 * simulator or look the functions up with dlsym.
 *
 * Environment, read when the library is loaded and again by cuInit:
 *
 *   | GPUCACHE_SIM_... | meaning                                                      | default |
 *   | ---------------- | ------------------------------------------------------------ | ------- |
 *   | DEVICES          | number of devices                                            | 1       |
 *   | MEMORY           | bytes per device, with K, M, G or T                          | 16G     |
 *   | HARD_LIMIT       | bytes of each device that may be used, as a cgroup's hard    |         |
 *   |                  | limit: cuMemGetInfo tells it, cuDeviceTotalMem does not      | none    |
 *   | DRIVER_VERSION   | version of cuDriverGetVersion and cuGetProcAddress           | 13000   |
 *   | SEED             | seed of the scheduler                                        | 1       |
 *   | EAGER            | per cent of the calls that run some queued work              | 50      |
 *   | PEER             | 0: devices cannot access each other                          | 1       |
 *   | VMM              | 0: devices have no virtual memory management                 | 1       |
 *   | POOLS            | 0: devices report no stream-ordered memory                   | 1       |
 *   | IDLE_MS          | run queued work after so long without a call; 0: never       | 100     |
 *   | HANG_MS          | a call that waits so long without progress is a hang         | 20000   |
 *   | SWITCH           | per cent of entries to and returns from a call at which the  |         |
 *   |                  | thread lets others run                                       | 0       |
 *   | SWITCH_US        | for at most so many microseconds                             | 200     |
 *   | MISALIGN         | bytes by which allocations of at least 2 MiB miss a multiple |         |
 *   |                  | of 2 MiB                                                     | 0       |
 *   | EVENTS_GO        | 1: a call that names a destroyed event, or one of an ended   |         |
 *   |                  | context, ends the process with status 98                     | 0       |
 *   | CONTEXT_BYTES    | memory that the driver takes for a context                   | 0       |
 *   | MODULE_BYTES     | the same for a loaded module or library                      | 0       |
 *   | LOCAL_BYTES      | the same at the first launch of a context                    | 0       |
 *   | SHARED           | file of the bytes in use of each device: processes that name |         |
 *   |                  | one file share the devices' memory. Memory of a killed       |         |
 *   |                  | process stays in use                                         |         |
 *   | FAIL             | symbol:skip:error:times, comma separated; see sim_fail()     |         |
 *   | COUNTS           | file to which the process appends "symbol calls" at its end  |         |
 *
 * Handles and addresses are reused at once. The next context has the handle of the one destroyed
 * last, unless that is still current in a thread. The next allocation that fits has the address of
 * the block freed last, in any device and context. With GPUCACHE_SIM_CONTEXT_BYTES a larger heap or
 * printf buffer (cuCtxSetLimit) takes memory as well. The driver releases its own memory at the end
 * of the context, or of the module.
 *
 * A hang prints "sim: hang in <call>" on stderr and ends the process with status 97.
 */
#ifndef GPUCACHE_TESTS_SIM_H
#define GPUCACHE_TESTS_SIM_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIM_HANG_STATUS 97
#define SIM_GONE_STATUS 98

/* The launch parameters that a kernel sees. */
struct sim_launch {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    int device;
    CUcontext context;
    uint64_t progress; /* the kernel's own scratch between two calls; 0 at the first */
};

/* The result of a kernel. */
enum sim_verdict {
    SIM_DONE = 0,  /* finished */
    SIM_SPIN = 1,  /* waits for something; has done nothing; call again later */
    SIM_MORE = 2,  /* has done a part; call again */
    SIM_FAULT = 3, /* touched what it must not: the context dies with CUDA_ERROR_ILLEGAL_ADDRESS */
};

/*
 * A kernel: one call runs the whole grid, or a part of it. `params[i]` points to a copy of the
 * i-th argument. Device pointers are host addresses. It runs with the driver's lock held and so
 * must call no CUDA function and no function of this file except sim_accessible.
 */
typedef int (*sim_kernel)(struct sim_launch *launch, void **params);

/*
 * Makes `kernel` known to cuModuleGetFunction and cuLibraryGetKernel under `name`; `sizes[i]` is
 * the size of the i-th parameter in bytes. Returns 0, or -1 when there are too many. A function
 * that is not registered is looked up among the process's symbols and may take no parameters.
 */
int sim_register_kernel(const char *name, sim_kernel kernel, unsigned nparams, const size_t *sizes);

/* 1 if a kernel of this launch may touch [address, address + bytes), else 0. */
int sim_accessible(const struct sim_launch *launch, CUdeviceptr address, size_t bytes);

/*
 * Makes calls of `symbol` (its exported name, such as cuMemAlloc_v2) fail with `error` without
 * doing anything: `skip` calls go through first, then `times` calls fail (-1: all). `symbol` "*"
 * means every one. times 0 removes the rule. Returns 0, or -1 for an unknown symbol.
 */
int sim_fail(const char *symbol, int skip, CUresult error, int times);

/* Exempts the calling thread from all rules, or ends that: rules do not count its calls. Returns
 * whether the thread was exempt before. */
int sim_exempt(int on);

/* Return the number of calls of threads that are not exempt, and the symbol of the last call that
 * a rule made fail (NULL: none). */
uint64_t sim_exposed(void);
const char *sim_failed(void);

/* Returns how often `symbol` was called, failed calls included; "*": all symbols. */
uint64_t sim_calls(const char *symbol);

/* 1 if a driver of the simulated version has this exported symbol, else 0. */
int sim_symbol_available(const char *symbol);

/* Pieces of work submitted and not finished, over all contexts. */
uint64_t sim_pending_work(void);

/* Runs up to `steps` steps of queued work; returns how many made progress. */
unsigned sim_step(unsigned steps);

/* Seeds the scheduler; sets how eager it is, in percent. */
void sim_set_seed(uint64_t seed);
void sim_set_eager(unsigned percent);

/* Makes other processes hold `bytes` of the device's memory from now on. */
void sim_occupy(int device, uint64_t bytes);

/* Bytes of device memory taken by this process, in the driver's own granules. */
uint64_t sim_used_memory(int device);

/*
 * Discards all work, contexts, memory, rules and counts. The registered kernels stay. The next
 * cuInit reads the environment again. No other thread may be inside a call.
 */
void sim_reset(void);

#ifdef __cplusplus
}
#endif

#endif
