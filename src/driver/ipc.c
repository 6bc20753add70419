#include "driver/device.h"
#include "driver/entries.h"
#include "driver/outside.h"
#include "pool/pool.h"
#include "process/process.h"

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr) {
    return REAL(cuIpcGetMemHandle)(handle, dptr);
}

CUresult hook_cuIpcOpenMemHandle(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    return REAL(cuIpcOpenMemHandle)(dptr, handle, flags);
}

CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    return REAL(cuIpcOpenMemHandle_v2)(dptr, handle, flags);
}

CUresult hook_cuIpcCloseMemHandle(CUdeviceptr dptr) {
    return REAL(cuIpcCloseMemHandle)(dptr);
}
