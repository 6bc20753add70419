/*
 * Hooks of cuGetProcAddress, in both of its ABIs. The driver answers each request: names, versions,
 * flags, status and errors are the driver's. If the answer is an entry that the library replaces,
 * the hook returns the replacement. An entry is recognised by its address, so unknown names need no
 * rule. Takes no lock.
 */
#include "driver/table/entries.h"
#include "loader/loader.h"

/* Replaces the entry in *pfn by its replacement, if it has one. Returns `answer`. */
static CUresult account_found(CUresult answer, void **pfn) {
    if (answer == CUDA_SUCCESS && pfn && *pfn)
        *pfn = loader_route(*pfn);
    return answer;
}

CUresult hook_cuGetProcAddress(const char *name, void **pfn, int version, cuuint64_t flags) {
    loader_find_driver();
    CUresult answer = REAL(cuGetProcAddress)(name, pfn, version, flags);
    return account_found(answer, pfn);
}

CUresult hook_cuGetProcAddress_v2(const char *name, void **pfn, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status) {
    loader_find_driver();
    CUresult answer = REAL(cuGetProcAddress_v2)(name, pfn, version, flags, status);
    return account_found(answer, pfn);
}
