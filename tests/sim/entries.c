/*
 * cuGetProcAddress: from name, version and flags to an exported symbol.
 *
 * A driver keeps every variant that an entry ever had. A request gets the newest variant that is
 * not newer than the requested version. With the flag for per-thread default streams only the
 * variants for those count, if the entry has any. The answer is always the address of an exported
 * symbol, so a caller can compare it with dlsym's. Variants newer than the simulated driver do not
 * exist.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

int sim_stub(int at);

int sim_stub(int at) {
    CUresult result = sim_enter((enum entry)at, ANYTIME);

    return (int)(result != CUDA_SUCCESS ? result : sim_leave(CUDA_ERROR_NOT_SUPPORTED));
}

int entry_find(const char *symbol) {
    for (int i = 0; i < ENTRY_COUNT; i++)
        if (strcmp(entry_table[i].symbol, symbol) == 0)
            return i;
    return -1;
}

static int by_name(const void *name, const void *row) {
    return strcmp(name, ((const struct entry_row *)row)->name);
}

/* Returns the first row of a name. The rows of one name are adjacent. */
static const struct entry_row *first_of(const char *name) {
    const struct entry_row *row =
        bsearch(name, entry_table, ENTRY_COUNT, sizeof(*entry_table), by_name);

    while (row && row > entry_table && strcmp(row[-1].name, name) == 0)
        row--;
    return row;
}

static CUresult look_up(const char *name, void **address, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status) {
    const cuuint64_t known =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!name || !address || (flags & ~known) || version > sim.options.driver_version)
        return CUDA_ERROR_INVALID_VALUE;
    const struct entry_row *best[2] = {NULL, NULL}; /* legacy, per thread */
    bool exists[2] = {false, false};
    const struct entry_row *end = entry_table + ENTRY_COUNT;
    for (const struct entry_row *row = first_of(name); row && row < end; row++) {
        if (strcmp(row->name, name) != 0)
            break;
        if (row->since > sim.options.driver_version)
            continue;
        bool per_thread = row->stream != LEGACY;
        exists[per_thread] = true;
        if (row->since <= version && (!best[per_thread] || best[per_thread]->since < row->since))
            best[per_thread] = row;
    }
    bool own = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) && exists[1];
    *address = NULL;
    if (best[own])
        memcpy(address, &best[own]->address, sizeof(*address));
    if (status)
        *status = best[own]                ? CU_GET_PROC_ADDRESS_SUCCESS
                  : exists[0] || exists[1] ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                           : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

/* Looks an entry up by the first version of this ABI. It has no status, so a missing entry is an
 * error. */
static CUresult look_up_old(const char *name, void **address, int version, cuuint64_t flags) {
    void *found = NULL;
    CUresult result =
        address ? look_up(name, &found, version, flags, NULL) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS && !found)
        result = CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS)
        *address = found;
    return result;
}

ENTRY(cuGetProcAddress, (const char *name, void **address, int version, cuuint64_t flags),
      ANYTIME | QUIET, look_up_old(name, address, version, flags))
ENTRY(cuGetProcAddress_v2,
      (const char *name, void **address, int version, cuuint64_t flags,
       CUdriverProcAddressQueryResult *status),
      ANYTIME | QUIET, look_up(name, address, version, flags, status))
ENTRY(cuGetExportTable, (const void **table, const CUuuid *id), ANYTIME | QUIET,
      ((void)table, (void)id, CUDA_ERROR_NOT_SUPPORTED))

SIM_EXPORT int sim_symbol_available(const char *symbol) {
    int at = entry_find(symbol);

    return at >= 0 && entry_table[at].since <= sim.options.driver_version;
}
