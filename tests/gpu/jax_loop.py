"""jax_loop.py [steps]: a jitted training step and un-jitted arithmetic of changing shapes."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", ".10")
# Autotuning measures, so it chooses other kernels from run to run, and the last digits of results differ.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")
import jax
import jax.numpy as jnp

from pytime import argument, print_time, timed_steps

keys = jax.random.split(jax.random.PRNGKey(0), 4)
params = [
    jax.random.normal(keys[0], (256, 512)) * 0.05,
    jax.random.normal(keys[1], (512, 16)) * 0.05,
]
x = jax.random.normal(keys[2], (1024, 256))
y = jax.random.normal(keys[3], (1024, 16))


@jax.jit
def train(params, x, y):
    def loss(p):
        return jnp.mean((jnp.tanh(x @ p[0]) @ p[1] - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return value, [p - 0.05 * g for p, g in zip(params, grads)]


losses = []


def step(i):
    global params
    value, params = train(params, x, y)
    z = jnp.ones((1000 + 100 * (i % 5), 64)) * i
    losses.append((value, (z + 1).sum()))


median = timed_steps(step, argument(1, 200), lambda: losses[-1][1].block_until_ready(), warmup=20)
print_time("per_step", median * 1e3, "us")
print(" ".join(f"{float(a):.5f}/{float(b):.1f}" for a, b in losses[::20]))
