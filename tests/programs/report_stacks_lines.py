"""A program in Python whose lines a report must name. It runs under every installed version of Python, so it uses only
ctypes. Arguments: the number of rounds, and "oom" for an out of memory at the end."""
import ctypes
import sys
import threading

cuda = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20


def check(code):
    if code:
        raise MemoryError("CUDA error %d" % code)


def allocate(size):
    pointer = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))  # line allocate
    return pointer


class Model:
    def __init__(self):
        self.weights = [allocate(8 * MIB) for _ in range(4)]  # line weights
        self.kept = []

    def forward(self):
        activations = [allocate(3 * MIB) for _ in range(8)]
        self.kept.append(allocate(16 * MIB))  # line kept
        return activations

    def step(self):
        for block in self.forward():  # line step
            check(cuda.cuMemFree_v2(block))


def naïve_generator():
    while True:
        yield allocate(1 * MIB)  # line generator


def in_thread(context):
    check(cuda.cuCtxSetCurrent(context))
    allocate(5 * MIB)  # line thread


def main():
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    model = Model()
    for _ in range(int(sys.argv[1])):
        model.step()  # line main
    kept = next(naïve_generator())
    (lambda: allocate(6 * MIB))()  # line lambda
    thread = threading.Thread(target=in_thread, args=(context,))
    thread.start()
    thread.join()
    for blank in range(6):  # each code object reuses the address of an earlier one
        exec(compile("\n" * blank + "allocate(2 * MIB)", "cell.py", "exec"))
    if sys.argv[2:] == ["oom"]:
        allocate(1 << 50)


main()
