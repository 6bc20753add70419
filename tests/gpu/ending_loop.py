"""ending_loop.py torch|cupy|jax: kernels and allocations without an end; says "ready" once they run."""

import os
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")


def torch_step():
    import torch

    x = torch.randn(1024, 1024, device="cuda")
    return (lambda: [torch.relu(x @ x) for _ in range(20)]), torch.cuda.synchronize


def cupy_step():
    import cupy

    cupy.cuda.set_allocator(None)
    x = cupy.ones((1024, 1024), dtype=cupy.float32)
    return (lambda: [cupy.sqrt(x * 2 + 1) for _ in range(20)]), cupy.cuda.Device().synchronize


def jax_step():
    import jax
    import jax.numpy as jnp

    x, last = jnp.ones((1024, 1024)), []
    work = jax.jit(lambda a: jnp.tanh(a @ a))

    def step():
        last[:] = [work(x) for _ in range(20)]

    return step, lambda: last[-1].block_until_ready()


step, wait = {"torch": torch_step, "cupy": cupy_step, "jax": jax_step}[sys.argv[1]]()
step()
wait()
print("ready", flush=True)
while True:
    for _ in range(50):
        step()
    wait()
