/*
 * cuGetProcAddress: the driver answers, and where its answer is an entry that we replace, ours
 * takes its place.
 *
 * Both ABIs. Everything about names, versions, flags and the status is the driver's; so is the
 * answer to an empty name, or to one that nobody has heard of yet.
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
