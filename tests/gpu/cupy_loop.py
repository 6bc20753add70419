"""cupy_loop.py uncached|default [steps] [n]: elementwise work; every temporary is allocated."""

import sys

import cupy

from pytime import argument, print_time, timed_steps

if sys.argv[1] == "uncached":
    cupy.cuda.set_allocator(None)
n = argument(3, 2_000_000)
a = cupy.arange(n, dtype=cupy.float32) / n
last = a


def step(i):
    global last
    b = a * 2 + 1
    c = cupy.sqrt(b) - a * b
    last = c * c + b


median = timed_steps(step, argument(2, 400), cupy.cuda.get_current_stream().synchronize, warmup=20)
print_time("per_step", median * 1e3, "us")
print(f"last {float(last[n // 2]):.5f} {float(last[-1]):.5f}")
