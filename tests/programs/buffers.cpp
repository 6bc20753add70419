/*
 * Three call sites allocate buffers that C++ objects own: on the host, or with -DDEVICE on the
 * device. report_inlined.py checks the sites in a report; docs/stacks.md compares them with those
 * that heaptrack shows for the host.
 */
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, std::size_t bytes);
int cuMemFree_v2(unsigned long long address);
}

class Buffer {
  public:
    explicit Buffer(std::size_t bytes) {
#ifdef DEVICE
        cuMemAlloc_v2(&address, bytes);
#else
        address = reinterpret_cast<std::uintptr_t>(std::malloc(bytes));
#endif
        if (address == 0)
            std::abort();
    }
    Buffer(Buffer &&other) noexcept : address(other.address) {
        other.address = 0;
    }
    ~Buffer() {
#ifdef DEVICE
        if (address != 0)
            cuMemFree_v2(address);
#else
        std::free(reinterpret_cast<void *>(address));
#endif
    }

  private:
    unsigned long long address = 0;
};

struct Layer {
    Buffer weights;
    explicit Layer(std::size_t width) : weights(width * width) {}
};

static std::vector<Layer> load(int count) {
    std::vector<Layer> layers;
    for (int i = 0; i < count; i++)
        layers.emplace_back(1024); // line load
    return layers;
}

static Buffer *cache(std::size_t bytes) {
    return new Buffer(bytes); // line cache
}

static void step() {
    Buffer scratch(3 << 20); // line step
}

int main() {
#ifdef DEVICE
    void *context = nullptr;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
#endif
    std::vector<Layer> layers = load(12);
    for (int i = 0; i < 5; i++)
        cache(2 << 20); // never freed
    for (int i = 0; i < 100; i++)
        step();
}
