"""numba_loop.py [steps]: Numba's own way of using the driver: device arrays, views, explicit copies.

No kernel: Numba's compiler does not load with every NumPy, its memory management does."""

import warnings

import numpy as np
from numba import cuda

from pytime import argument, print_time, timed_steps

warnings.simplefilter("ignore")
total = 0.0


def step(i):
    global total
    n = 10_000 * (1 + i % 7)
    a = cuda.to_device(np.arange(n, dtype=np.float32))
    b = cuda.device_array(n, dtype=np.float32)
    c = cuda.device_array_like(a)
    b.copy_to_device(a)
    c[: n // 2].copy_to_device(b[n // 2 : n // 2 * 2])
    total += float(c[: n // 2].copy_to_host()[n // 4])


print_time("per_step", timed_steps(step, argument(1, 200), cuda.synchronize, warmup=10) * 1e3, "us")
print(f"total {total:.1f}")
