"""A training loop that runs out of memory: docs/stacks.md finds out why. Plain calls of the driver, so that it also
runs on the simulated one."""
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20


def check(code):
    if code:
        raise MemoryError("CUDA error %d" % code)


class Tensor:
    def __init__(self, size):
        self.pointer = ctypes.c_uint64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.pointer), ctypes.c_size_t(size)))

    def __del__(self):
        cuda.cuMemFree_v2(self.pointer)


class Model:
    def __init__(self):
        self.weights = [Tensor(8 * MIB) for _ in range(4)]

    def forward(self, batch):
        hidden = [Tensor(3 * MIB) for _ in self.weights]
        return Tensor(12 * MIB)


def train(model, steps):
    losses = []
    for step in range(steps):
        batch = Tensor(2 * MIB)
        loss = model.forward(batch)
        losses.append(loss)  # the whole tensor, and not its value
    return losses


context = ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
train(Model(), steps=100)
