/*
 * report_inlined: allocates memory that C++ objects own. At -O2 all calls are inlined in main().
 * report_inlined.py checks that a report distinguishes the three buffers.
 */
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>

extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, std::size_t bytes);
int cuMemFree_v2(unsigned long long address);
}

#define INLINED inline __attribute__((always_inline))

class Buffer {
  public:
    INLINED explicit Buffer(std::size_t bytes) {
        std::invoke(cuMemAlloc_v2, &address, bytes); // line constructor
    }
    INLINED ~Buffer() {
        cuMemFree_v2(address);
    }

  private:
    unsigned long long address = 0;
};

static INLINED std::unique_ptr<Buffer> tensor(std::size_t mib) {
    return std::unique_ptr<Buffer>(new Buffer(mib << 20)); // line tensor
}

int main() {
    void *context = nullptr;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    auto weights = tensor(8);    // line weights
    auto gradients = tensor(4);  // line gradients
    Buffer activations(2 << 20); // line activations
    std::exit(0);                // the buffers are live in the report
}
