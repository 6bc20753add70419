"""torch_compile.py: torch.compile(mode="reduce-overhead"), which replays CUDA graphs from pools of
its own, with allocations between the steps. If the compiler does not work, the program prints only a
note."""

import sys

import torch
from torch import nn

from pytime import argument, print_time, timed_steps

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 64)).cuda()
compiled = torch.compile(net, mode="reduce-overhead", dynamic=False)
inputs = [
    torch.randn(n, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(n))
    for n in (16, 128)
]


def scratch(i):
    torch.empty(1 << (10 + i % 14), device="cuda").fill_(float(i))


def infer(x):
    torch.compiler.cudagraph_mark_step_begin()
    with torch.no_grad():
        return compiled(x).clone()


try:
    infer(inputs[0])
except Exception as error:  # no Triton, no C compiler, no headers of Python
    why = (type(error).__name__ + ": " + str(error).strip()).splitlines()[0]
    print("note: torch.compile does not work here: %s" % why[:200])
    sys.exit(0)

for x in inputs:  # the first run warms up, the second records, later ones replay
    for i in range(4):
        infer(x)
        scratch(i)


def step(i):
    infer(inputs[i % 2])
    scratch(i)


print_time("per_step", timed_steps(step, argument(1, 200), torch.cuda.synchronize), "ms")
with torch.no_grad():
    for x in inputs:
        out = infer(x)
        scratch(5)
        alike = torch.allclose(out, net(x), atol=1e-3, rtol=1e-3)
        print(f"{len(x)} rows: {out.double().sum().item():.3f}, as without: {alike}")

model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8)).cuda()
trained = torch.compile(model, mode="reduce-overhead", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(32, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(5))
for i in range(30):
    torch.compiler.cudagraph_mark_step_begin()
    optimizer.zero_grad(set_to_none=True)
    loss = trained(data).square().mean()
    loss.backward()
    optimizer.step()
    scratch(i)
print(f"trained {loss.item():.4f}")

try:
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    print("note: %s" % ("graphs were recorded" if manager and manager.roots else "no graphs"))
except Exception as error:
    print("note: whether there were graphs is not known: %s" % error)
