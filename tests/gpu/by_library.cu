/* by_library: memory of several libraries and kinds, taken step by step. Under the library the
 * program writes a report into the file report-steps after each step. Natively it writes none.
 * In each report the rows of memory by library add up to requested and unpooled memory. */
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <thrust/device_vector.h>
#include <thrust/sort.h>

#include "check.h"

typedef int write_report(int fd, int json);

static void step(const char *name) {
    static int fd = -1;
    write_report *write = (write_report *)dlsym(RTLD_DEFAULT, "gpucache_write_report");
    printf("%s\n", name);
    if (!write)
        return;
    if (fd < 0)
        fd = open("report-steps", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, 1) != 0)
        DIE("no report after %s", name);
}

int main(void) {
    thrust::device_vector<float> keys(5000000, 1.5f);
    step("vector");
    thrust::sort(keys.begin(), keys.end());
    thrust::device_vector<double> small(1000);
    step("sort");

    cublasHandle_t handle;
    float one = 1, zero = 0;
    CHECK(cublasCreate(&handle));
    thrust::device_vector<float> product(1024 * 1024);
    CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1024, 1024, 1024, &one, keys.data().get(),
                      1024, keys.data().get(), 1024, &zero, product.data().get(), 1024));
    step("cuBLAS");

    void *stream_ordered, *managed, *pinned;
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocAsync(&stream_ordered, 7 << 20, 0));
    CHECK(cudaMallocArray(&array, &format, 512, 512));
    CHECK(cudaMallocManaged(&managed, 3 << 20));
    CHECK(cudaMallocHost(&pinned, 1 << 20));
    CHECK(cudaDeviceSynchronize());
    step("unpooled");

    CHECK(cudaFreeAsync(stream_ordered, 0));
    CHECK(cudaFreeArray(array));
    CHECK(cudaFree(managed));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaDeviceSynchronize());
    keys.clear();
    keys.shrink_to_fit();
    step("freed");
    CHECK(cublasDestroy(handle));
    return 0;
}
