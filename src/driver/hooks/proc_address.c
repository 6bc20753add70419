/*
 * Hooks of cuGetProcAddress, in both of its ABIs. The driver answers each request: names, versions,
 * flags, status and errors are the driver's. If the answer is an entry that the library replaces,
 * the hook returns the replacement. An entry is recognised by its address, so unknown names need no
 * rule. Takes no lock.
 */
#include "driver/table/entries.h"
#include "loader/loader.h"

static CUresult routed(CUresult r, void **pfn) {
    if (r == CUDA_SUCCESS && pfn && *pfn) {
        *pfn = loader_route(*pfn);
    }
    return r;
}

CUresult hook_cuGetProcAddress(const char *name, void **pfn, int version, cuuint64_t flags) {
    loader_find_driver();
    return routed(REAL(cuGetProcAddress)(name, pfn, version, flags), pfn);
}

CUresult hook_cuGetProcAddress_v2(const char *name, void **pfn, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status) {
    loader_find_driver();
    return routed(REAL(cuGetProcAddress_v2)(name, pfn, version, flags, status), pfn);
}
