/*
 * Hooks of calls for which the driver takes memory: launches, modules, graphs, green contexts.
 * Most are generated from the RETRIED rows of entry_points.def. Called with no lock held.
 *
 * If the driver is out of memory, a hook releases idle memory of the pools and repeats the call
 * (limit/retry.h). Other errors are checked for faults (fault.h). Launches are the most frequent of
 * these calls: a hook adds one comparison of the result, about 2 ns.
 */
#include "driver/context/active_contexts.h"
#include "driver/context/context.h"
#include "driver/context/fault.h"
#include "driver/hooks/hook.h"
#include "driver/ipc/ipc_pages.h"

#include <string.h>

#define RETRIED(symbol, since, parameters, arguments)                                              \
    HOOK(hook_##symbol, parameters, NOTHING, RETRY(real_entries.real_##symbol arguments),          \
         fault_notice(answer))
#include "driver/table/entry_points.def"

CUresult hook_cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device,
                               unsigned int flags) {
    CUresult answer =
        RETRY_ON(device_used(device), REAL(cuGreenCtxCreate)(green, description, device, flags));
    if (answer == CUDA_SUCCESS && process_ready() && active_contexts_keep_all())
        context_drain_barriers();
    return answer;
}

/*
 * Gives the current device access to pooled and imported VMM pages of the context `peer`. The
 * driver does that for cuMemAlloc memory only. After an error, disables peer access again and
 * returns the driver's error.
 */
static CUresult grant_access(CUcontext peer) {
    CUdevice device;
    if (!process_ready() || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    CUresult answer = RETRY(context_grant_access(peer, device));
    answer = answer == CUDA_SUCCESS ? RETRY(ipc_pages_grant_access(peer, device)) : answer;
    if (answer != CUDA_SUCCESS)
        REAL(cuCtxDisablePeerAccess)(peer);
    return answer;
}

CUresult hook_cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    if (process_ready() && active_contexts_keep_current())
        context_drain_barriers();
    CUresult answer = RETRY(REAL(cuCtxEnablePeerAccess)(peer, flags));
    answer = answer == CUDA_SUCCESS ? grant_access(peer) : answer;
    return fault_notice(answer);
}

/* --- entries whose names cuda.h replaces by those of another version: no RETRIED rows --- */

CUresult hook_cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log,
                                 size_t bytes) {
    CUresult answer = RETRY(REAL(cuGraphInstantiate)(exec, graph, node, log, bytes));
    return fault_notice(answer);
}

CUresult hook_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node,
                                CUgraphExecUpdateResult *result) {
    CUresult answer = RETRY(REAL(cuGraphExecUpdate)(exec, graph, node, result));
    return fault_notice(answer);
}

/* --- JIT options: the driver overwrites the values with its answers --- */

#define JIT_OPTIONS 64 /* more options than CUDA has */

struct jit_values {
    void **values, *before[JIT_OPTIONS]; /* the program's array, and its values before the call */
    unsigned count;                      /* of copied values */
    bool complete;                       /* all values were copied */
    struct oom_retry oom_retry;
};

/* Copies the option values, for a repeated call. A call with more than JIT_OPTIONS values is not
 * copied and not repeated. */
static struct jit_values save_values(void **values, unsigned count) {
    struct jit_values saved = {.values = values,
                               .count = values && count <= JIT_OPTIONS ? count : 0};
    saved.complete = saved.count == count;
    saved.oom_retry.process_returns = oom_retry_returns();
    if (saved.count > 0)
        memcpy(saved.before, values, saved.count * sizeof *values);
    return saved;
}

/* Restores the option values if the call must be repeated. Returns whether it must. */
static bool restore_for_retry(CUresult answer, struct jit_values *saved) {
    if (answer != CUDA_ERROR_OUT_OF_MEMORY || !saved->complete || !process_ready() ||
        !retry_after(answer, device_current(), 0, &saved->oom_retry))
        return false;
    if (saved->count > 0)
        memcpy(saved->values, saved->before, saved->count * sizeof *saved->values);
    return true;
}

CUresult hook_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                 CUjit_option *options, void **values) {
    struct jit_values saved = save_values(values, count);
    CUresult answer;
    do {
        answer = REAL(cuModuleLoadDataEx)(module, image, count, options, values);
    } while (restore_for_retry(answer, &saved));
    return fault_notice(answer);
}

CUresult hook_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit,
                                void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                                void **values, unsigned int count) {
    struct jit_values saved = save_values(jit_values, jit_count);
    CUresult answer;
    do {
        answer = REAL(cuLibraryLoadData)(library, code, jit, jit_values, jit_count, options, values,
                                         count);
    } while (restore_for_retry(answer, &saved));
    return fault_notice(answer);
}

CUresult hook_cuLibraryLoadFromFile(CUlibrary *library, const char *file, CUjit_option *jit,
                                    void **jit_values, unsigned int jit_count,
                                    CUlibraryOption *options, void **values, unsigned int count) {
    struct jit_values saved = save_values(jit_values, jit_count);
    CUresult answer;
    do {
        answer = REAL(cuLibraryLoadFromFile)(library, file, jit, jit_values, jit_count, options,
                                             values, count);
    } while (restore_for_retry(answer, &saved));
    return fault_notice(answer);
}
