"""Functions that the Python programs share: the `time:` line of check.h and the median time of a step."""

import statistics
import sys
import time


def argument(index, otherwise):
    return int(sys.argv[index]) if len(sys.argv) > index else otherwise


def print_time(name, value, unit):
    print(f"time: {name} {value:.6g} {unit}", flush=True)


def timed_steps(step, steps, synchronize, warmup=3):
    """Runs step(i) for each i. Returns the median time of the steps after the warm-up, in milliseconds."""
    times = []
    for i in range(steps):
        start = time.perf_counter()
        step(i)
        synchronize()
        if i >= warmup:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)
