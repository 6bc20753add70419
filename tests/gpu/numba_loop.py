"""numba_loop.py [steps]: Numba's own way of using the driver: arrays, a kernel, explicit copies."""

import warnings

import numpy as np
from numba import cuda

from pytime import argument, print_time, timed_steps

warnings.simplefilter("ignore")


@cuda.jit
def scale_add(a, b, out, k):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * k + b[i]


total = 0.0


def step(i):
    global total
    n = 10_000 * (1 + i % 7)
    a = cuda.to_device(np.arange(n, dtype=np.float32))
    b = cuda.device_array(n, dtype=np.float32)
    out = cuda.device_array_like(a)
    scale_add[(n + 255) // 256, 256](a, a, b, np.float32(2))
    scale_add[(n + 255) // 256, 256](b, a, out, np.float32(i))
    total += float(out.copy_to_host()[n // 2])


print_time("per_step", timed_steps(step, argument(1, 200), cuda.synchronize, warmup=10) * 1e3, "us")
print(f"total {total:.1f}")
