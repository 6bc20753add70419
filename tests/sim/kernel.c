/*
 * Modules, functions, launches: kernels that are host functions.
 *
 * Any image loads. A function is found by name: among the built-in kernels, those that a test
 * registered, and the process's symbols. A launch copies its arguments, as the driver does, and
 * therefore needs their sizes.
 */
#include "driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct module {
    struct object object;
    struct context *context; /* NULL: a library */
    struct context *charged; /* its code takes memory of this context */
    unsigned long long life; /* generation of that context */
};

/* A kernel's name and parameters, the same for all modules. */
struct known {
    struct known *next;
    char *name;
    sim_kernel kernel;
    unsigned nparams;
    size_t sizes[MAX_PARAMS];
};

static struct slab module_slab = SLAB(struct module);
static struct slab function_slab = SLAB(struct function);
static struct known *registered;
static struct context *running_in; /* context of the running kernel */

/* ---- built-in kernels ------------------------------------------------------------------------ */

#define PARAM(type, index) (*(const type *)params[index])

SIM_EXPORT int sim_accessible(const struct sim_launch *launch, CUdeviceptr address, size_t bytes) {
    (void)launch;
    return range_accessible(running_in, address, bytes);
}

/* Returns the end of the piece that begins at `progress`. A kernel processes a large array in
 * several pieces. */
static uint64_t piece_end(const struct sim_launch *launch, uint64_t count) {
    uint64_t rest = count - launch->progress;
    uint64_t draw = sim_random();

    return rest > 1 && draw % 4 == 0 ? launch->progress + 1 + (draw >> 8) % (rest - 1) : count;
}

static int fill_u32(struct sim_launch *launch, void **params) {
    CUdeviceptr to = PARAM(CUdeviceptr, 0);
    uint64_t count = PARAM(uint64_t, 2);

    if (!sim_accessible(launch, to, count * 4))
        return SIM_FAULT;
    uint64_t end = piece_end(launch, count);
    for (uint64_t i = launch->progress; i < end; i++)
        ((uint32_t *)to)[i] = PARAM(uint32_t, 1);
    launch->progress = end;
    return end == count ? SIM_DONE : SIM_MORE;
}

static int add_u32(struct sim_launch *launch, void **params) {
    CUdeviceptr to = PARAM(CUdeviceptr, 0);
    CUdeviceptr a = PARAM(CUdeviceptr, 1), b = PARAM(CUdeviceptr, 2);
    uint64_t count = PARAM(uint64_t, 3);

    if (!sim_accessible(launch, to, count * 4) || !sim_accessible(launch, a, count * 4) ||
        !sim_accessible(launch, b, count * 4))
        return SIM_FAULT;
    uint64_t end = piece_end(launch, count);
    for (uint64_t i = launch->progress; i < end; i++)
        ((uint32_t *)to)[i] = ((uint32_t *)a)[i] + ((uint32_t *)b)[i];
    launch->progress = end;
    return end == count ? SIM_DONE : SIM_MORE;
}

static int check_u32(struct sim_launch *launch, void **params) {
    CUdeviceptr from = PARAM(CUdeviceptr, 0), errors = PARAM(CUdeviceptr, 3);
    uint64_t count = PARAM(uint64_t, 2);
    uint32_t wrong = 0;

    if (!sim_accessible(launch, from, count * 4) || !sim_accessible(launch, errors, 4))
        return SIM_FAULT;
    uint64_t end = piece_end(launch, count);
    for (uint64_t i = launch->progress; i < end; i++)
        wrong += ((uint32_t *)from)[i] != PARAM(uint32_t, 1);
    if (wrong)
        __atomic_fetch_add((uint32_t *)errors, wrong, __ATOMIC_SEQ_CST);
    launch->progress = end;
    return end == count ? SIM_DONE : SIM_MORE;
}

static int spin_until(struct sim_launch *launch, void **params) {
    CUdeviceptr flag = PARAM(CUdeviceptr, 0);

    if (!sim_accessible(launch, flag, 4))
        return SIM_FAULT;
    bool set = __atomic_load_n((uint32_t *)flag, __ATOMIC_SEQ_CST) == PARAM(uint32_t, 1);
    return set ? SIM_DONE : SIM_SPIN;
}

static int set_u32(struct sim_launch *launch, void **params) {
    CUdeviceptr to = PARAM(CUdeviceptr, 0);

    if (!sim_accessible(launch, to, 4))
        return SIM_FAULT;
    __atomic_store_n((uint32_t *)to, PARAM(uint32_t, 1), __ATOMIC_SEQ_CST);
    return SIM_DONE;
}

/* Runs for `us` microseconds of real time, for tests that measure time. */
static int sleep_us(struct sim_launch *launch, void **params) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    if (launch->progress == 0)
        launch->progress = us;
    uint64_t until = launch->progress + PARAM(uint64_t, 0);
    sim.sleeps_until_us = until > sim.sleeps_until_us ? until : sim.sleeps_until_us;
    return us >= until ? SIM_DONE : SIM_SPIN;
}

static int fault(struct sim_launch *launch, void **params) {
    (void)launch;
    (void)params;
    return SIM_FAULT;
}

static const struct known built_in[] = {
    {NULL, (char *)"fill_u32", fill_u32, 3, {8, 4, 8}},
    {NULL, (char *)"add_u32", add_u32, 4, {8, 8, 8, 8}},
    {NULL, (char *)"check_u32", check_u32, 4, {8, 4, 8, 8}},
    {NULL, (char *)"spin_until", spin_until, 2, {8, 4}},
    {NULL, (char *)"set_u32", set_u32, 2, {8, 4}},
    {NULL, (char *)"sleep_us", sleep_us, 1, {8}},
    {NULL, (char *)"fault", fault, 0, {0}},
};

/* ---- finding them ---------------------------------------------------------------------------- */

SIM_EXPORT int sim_register_kernel(const char *name, sim_kernel kernel, unsigned nparams,
                                   const size_t *sizes) {
    struct known *known = nparams <= MAX_PARAMS ? calloc(1, sizeof(*known)) : NULL;

    if (!known)
        return -1;
    known->name = strdup(name);
    known->kernel = kernel;
    known->nparams = nparams;
    for (unsigned i = 0; i < nparams; i++)
        known->sizes[i] = sizes[i];
    pthread_mutex_lock(&sim.lock);
    known->next = registered;
    registered = known;
    pthread_mutex_unlock(&sim.lock);
    return 0;
}

static bool find_known(const char *name, struct known *found) {
    for (const struct known *known = registered; known; known = known->next)
        if (strcmp(known->name, name) == 0)
            return *found = *known, true;
    for (size_t i = 0; i < sizeof(built_in) / sizeof(*built_in); i++)
        if (strcmp(built_in[i].name, name) == 0)
            return *found = built_in[i], true;
    void *symbol = dlsym(RTLD_DEFAULT, name);
    if (!symbol)
        return false;
    *found = (struct known){0};
    memcpy(&found->kernel, &symbol, sizeof(symbol));
    return true;
}

static CUresult get_function(struct module *module, const char *name, struct function **out) {
    struct known known;

    if (!out || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_live(module, &module_slab))
        return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < function_slab.count; i++) {
        struct function *function = (struct function *)function_slab.all[i];
        if (function->object.live && function->module == module &&
            strcmp(function->name, name) == 0)
            return *out = function, CUDA_SUCCESS;
    }
    if (!find_known(name, &known))
        return CUDA_ERROR_NOT_FOUND;
    struct function *function = slab_get(&function_slab);
    function->name = strdup(name);
    function->kernel = known.kernel;
    function->nparams = known.nparams;
    function->module = module;
    for (unsigned i = 0; i < known.nparams; i++) {
        function->sizes[i] = known.sizes[i];
        function->bytes = round_up(function->bytes, known.sizes[i] < 8 ? known.sizes[i] : 8);
        function->bytes += known.sizes[i];
    }
    *out = function;
    return CUDA_SUCCESS;
}

static CUresult load(struct module **out, const void *image, bool library) {
    struct context *context = context_owner(context_current());

    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    struct module *module = slab_get(&module_slab);
    if (sim.options.module_bytes && context_check(context) == CUDA_SUCCESS) {
        CUresult result = own_take(context, sim.options.module_bytes);
        if (result != CUDA_SUCCESS) {
            slab_put(&module_slab, module);
            return result;
        }
        module->charged = context;
        module->life = context->id;
    }
    module->context = library ? NULL : context;
    *out = module;
    /* Loading and unloading code waits for the device; a library's comes later, when it is used. */
    return library ? CUDA_SUCCESS : context_wait(context);
}

static void forget_function(struct function *function) {
    free(function->name);
    slab_put(&function_slab, function);
}

static void forget_module(struct module *module) {
    for (unsigned i = 0; i < function_slab.count; i++) {
        struct function *function = (struct function *)function_slab.all[i];
        if (function->object.live && function->module == module)
            forget_function(function);
    }
    const struct context *charged = module->charged;
    if (charged && charged->object.live && charged->alive && charged->id == module->life)
        own_give(module->charged, sim.options.module_bytes);
    slab_put(&module_slab, module);
}

static CUresult unload(struct module *module) {
    if (!is_live(module, &module_slab))
        return CUDA_ERROR_INVALID_HANDLE;
    if (module->context && context_check(module->context) != CUDA_ERROR_CONTEXT_IS_DESTROYED)
        context_wait(module->context);
    if (module->object.live) /* the context may have ended */
        forget_module(module);
    return CUDA_SUCCESS;
}

void kernel_forget_context(const struct context *context) {
    for (unsigned i = 0; i < module_slab.count; i++) {
        struct module *module = (struct module *)module_slab.all[i];
        if (module->object.live && module->context == context)
            forget_module(module);
    }
}

void kernel_forget_all(void) {
    for (unsigned i = 0; i < module_slab.count; i++)
        if (module_slab.all[i]->live)
            forget_module((struct module *)module_slab.all[i]);
}

#define AS(type, handle) ((struct type *)(handle))

ENTRY(cuModuleLoad, (CUmodule * module, const char *file), CONTEXT,
      load((struct module **)module, file, false))
ENTRY(cuModuleLoadData, (CUmodule * module, const void *image), CONTEXT,
      load((struct module **)module, image, false))
ENTRY(cuModuleLoadDataEx,
      (CUmodule * module, const void *image, unsigned count, CUjit_option *options, void **values),
      CONTEXT,
      ((void)count, (void)options, (void)values, load((struct module **)module, image, false)))
ENTRY(cuModuleLoadFatBinary, (CUmodule * module, const void *image), CONTEXT,
      load((struct module **)module, image, false))
ENTRY(cuModuleUnload, (CUmodule module), CONTEXT, unload(AS(module, module)))
ENTRY(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name), CONTEXT,
      get_function(AS(module, module), name, (struct function **)function))
ENTRY(cuLibraryLoadData,
      (CUlibrary * library, const void *code, CUjit_option *jit, void **jit_values,
       unsigned jit_count, CUlibraryOption *options, void **values, unsigned count),
      INITIALISED,
      ((void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count,
       load((struct module **)library, code, true)))
ENTRY(cuLibraryLoadFromFile,
      (CUlibrary * library, const char *file, CUjit_option *jit, void **jit_values,
       unsigned jit_count, CUlibraryOption *options, void **values, unsigned count),
      INITIALISED,
      ((void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count,
       load((struct module **)library, file, true)))
ENTRY(cuLibraryUnload, (CUlibrary library), INITIALISED, unload(AS(module, library)))
ENTRY(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name), INITIALISED,
      get_function(AS(module, library), name, (struct function **)kernel))
ENTRY(cuLibraryGetModule, (CUmodule * module, CUlibrary library), CONTEXT,
      !module ? CUDA_ERROR_INVALID_VALUE : (*module = (CUmodule)library, CUDA_SUCCESS))
ENTRY(cuKernelGetFunction, (CUfunction * function, CUkernel kernel), CONTEXT,
      !function ? CUDA_ERROR_INVALID_VALUE : (*function = (CUfunction)kernel, CUDA_SUCCESS))

/* ---- what one may ask about a function ------------------------------------------------------- */

static CUresult function_check(const void *handle) {
    return is_live(handle, &function_slab) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult function_attribute(int *value, CUfunction_attribute name, const void *handle) {
    if (!value || name < 0 || name >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = name == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
             : name == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
             : name <= CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES    ? 0
             : name <= CU_FUNC_ATTRIBUTE_BINARY_VERSION      ? 90
                                                             : 0;
    return function_check(handle);
}

static CUresult function_name(const char **name, const void *handle) {
    CUresult result = function_check(handle);

    if (result == CUDA_SUCCESS && !name)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *name = ((const struct function *)handle)->name;
    return result;
}

static CUresult function_module(CUmodule *module, CUfunction handle) {
    CUresult result = function_check(handle);

    if (result == CUDA_SUCCESS && !module)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *module = (CUmodule)((const struct function *)handle)->module;
    return result;
}

static size_t offset_of(const struct function *function, unsigned index) {
    size_t offset = 0;

    for (unsigned i = 0; i <= index; i++) {
        size_t size = function->sizes[i];
        offset = round_up(offset, size < 8 ? size : 8);
        offset += i < index ? size : 0;
    }
    return offset;
}

static CUresult param_info(const void *handle, size_t index, size_t *offset, size_t *size) {
    const struct function *function = handle;

    if (function_check(handle) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_HANDLE;
    if (index >= function->nparams || !offset)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = offset_of(function, (unsigned)index);
    if (size)
        *size = function->sizes[index];
    return CUDA_SUCCESS;
}

static CUresult occupancy(int *blocks) {
    if (!blocks)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = 1;
    return CUDA_SUCCESS;
}

ENTRY(cuFuncGetAttribute, (int *value, CUfunction_attribute name, CUfunction function), INITIALISED,
      function_attribute(value, name, function))
ENTRY(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute name, int value), INITIALISED,
      ((void)name, (void)value, function_check(function)))
ENTRY(cuFuncSetCacheConfig, (CUfunction function, CUfunc_cache config), INITIALISED,
      ((void)config, function_check(function)))
ENTRY(cuFuncGetName, (const char **name, CUfunction function), INITIALISED,
      function_name(name, function))
ENTRY(cuFuncGetModule, (CUmodule * module, CUfunction function), INITIALISED,
      function_module(module, function))
ENTRY(cuFuncGetParamInfo, (CUfunction function, size_t index, size_t *offset, size_t *size),
      INITIALISED, param_info(function, index, offset, size))
ENTRY(cuKernelGetAttribute,
      (int *value, CUfunction_attribute name, CUkernel kernel, CUdevice device), INITIALISED,
      ((void)device, function_attribute(value, name, kernel)))
ENTRY(cuKernelSetAttribute,
      (CUfunction_attribute name, int value, CUkernel kernel, CUdevice device), INITIALISED,
      ((void)name, (void)value, (void)device, function_check(kernel)))
ENTRY(cuKernelGetName, (const char **name, CUkernel kernel), INITIALISED,
      function_name(name, kernel))
ENTRY(cuKernelGetParamInfo, (CUkernel kernel, size_t index, size_t *offset, size_t *size),
      INITIALISED, param_info(kernel, index, offset, size))
ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor,
      (int *blocks, CUfunction function, int size, size_t shared), CONTEXT,
      ((void)function, (void)size, (void)shared, occupancy(blocks)))
ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
      (int *blocks, CUfunction function, int size, size_t shared, unsigned flags), CONTEXT,
      ((void)function, (void)size, (void)shared, (void)flags, occupancy(blocks)))

/* ---- launching ------------------------------------------------------------------------------- */

enum verdict kernel_run(struct kernel_call *call, struct context *context, uint64_t *progress) {
    const struct function *function = call->function;
    void *params[MAX_PARAMS];

    for (unsigned i = 0; i < function->nparams; i++)
        params[i] = call->arguments + offset_of(function, i);
    call->launch.progress = *progress;
    running_in = context;
    int answer = function->kernel(&call->launch, params);
    running_in = NULL;
    *progress = call->launch.progress;
    switch (answer) {
    case SIM_DONE:
        return DONE;
    case SIM_SPIN:
        return SPIN;
    case SIM_MORE:
        return MORE;
    default:
        return FAULT;
    }
}

/* Copies the arguments of a launch, from pointers to each one or from one buffer with the layout
 * of the kernel's parameters. */
static unsigned char *copy_arguments(const struct function *function, void **params, void **extra) {
    unsigned char *arguments = calloc(1, function->bytes ? function->bytes : 1);

    if (!arguments)
        return NULL;
    for (unsigned i = 0; params && i < function->nparams; i++)
        memcpy(arguments + offset_of(function, i), params[i], function->sizes[i]);
    const void *buffer = NULL;
    size_t size = 0;
    for (; !params && extra && *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = *(const size_t *)extra[1];
    if (buffer)
        memcpy(arguments, buffer, size < function->bytes ? size : function->bytes);
    return arguments;
}

CUresult kernel_call_make(struct kernel_call *call, CUfunction handle, const unsigned grid[3],
                          const unsigned block[3], unsigned shared, void **params, void **extra) {
    struct function *function = (struct function *)handle;

    if (function_check(handle) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2] ||
        (uint64_t)block[0] * block[1] * block[2] > 1024 || (function->nparams && !params && !extra))
        return CUDA_ERROR_INVALID_VALUE;
    *call = (struct kernel_call){.function = function};
    memcpy(call->launch.grid, grid, sizeof(call->launch.grid));
    memcpy(call->launch.block, block, sizeof(call->launch.block));
    call->launch.shared_bytes = shared;
    call->arguments = copy_arguments(function, params, extra);
    return call->arguments ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3],
                       unsigned shared, CUstream handle, bool per_thread, void **params,
                       void **extra) {
    struct work work = {.kind = WORK_KERNEL};
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result == CUDA_SUCCESS)
        result = own_take_local(context_owner(stream->context));
    if (result == CUDA_SUCCESS)
        result = kernel_call_make(&work.kernel, function, grid, block, shared, params, extra);
    if (result != CUDA_SUCCESS)
        return result;
    work.kernel.launch.device = stream->context->device->ordinal;
    work.kernel.launch.context = (CUcontext)stream->context;
    return submit(stream, work);
}

#define DIM(x, y, z) ((const unsigned[3]){x, y, z})

ENTRY_PTSZ(cuLaunchKernel,
           (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
            unsigned bz, unsigned shared, CUstream stream, void **params, void **extra),
           SUBMIT,
           launch(function, DIM(gx, gy, gz), DIM(bx, by, bz), shared, stream, per_thread, params,
                  extra))
ENTRY_PTSZ(cuLaunchCooperativeKernel,
           (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
            unsigned bz, unsigned shared, CUstream stream, void **params),
           SUBMIT,
           launch(function, DIM(gx, gy, gz), DIM(bx, by, bz), shared, stream, per_thread, params,
                  NULL))
ENTRY_PTSZ(cuLaunchKernelEx,
           (const CUlaunchConfig *c, CUfunction function, void **params, void **extra), SUBMIT,
           !c ? CUDA_ERROR_INVALID_VALUE
              : launch(function, DIM(c->gridDimX, c->gridDimY, c->gridDimZ),
                       DIM(c->blockDimX, c->blockDimY, c->blockDimZ), c->sharedMemBytes, c->hStream,
                       per_thread, params, extra))
