"""cupy_loop.py uncached|default [steps] [n]: elementwise work; every temporary is allocated."""

import sys

import cupy

from pytime import argument, print_time, timed_steps

if sys.argv[1] == "uncached":
    cupy.cuda.set_allocator(None)
n = argument(3, 100_000)
a = cupy.arange(n, dtype=cupy.float32) / n
total = 0.0


def step(i):
    global total
    b = a * 2 + 1
    c = cupy.sqrt(b) - a * b
    d = c * c + b
    total += float(d[i % n])


median = timed_steps(step, argument(2, 400), cupy.cuda.get_current_stream().synchronize, warmup=20)
print_time("per_step", median * 1e3, "us")
print(f"total {total:.5f}")
