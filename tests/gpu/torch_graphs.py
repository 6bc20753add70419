"""torch_graphs.py: CUDA graphs of PyTorch, with allocations between and during captures."""

import torch
from torch import nn

from pytime import argument, print_time, timed_steps

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
graphs = []
for n in (16, 64, 128):
    static = torch.randn(n, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(n))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            net(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = net(static)
    graphs.append((graph, static, out))
    scratch = [torch.empty(1 << k, device="cuda") for k in range(8, 24)]
    del scratch


def step(i):
    graph, static, out = graphs[i % 3]
    static.add_(0.01)
    graph.replay()
    torch.empty(1 << (10 + i % 14), device="cuda").fill_(float(i))


print_time("per_step", timed_steps(step, argument(1, 300), torch.cuda.synchronize), "ms")
with torch.no_grad():
    for graph, static, out in graphs:
        graph.replay()
        print(f"{out.double().sum().item():.4f} {(out - net(static)).abs().max().item():.1e}")

model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
graphed = torch.cuda.make_graphed_callables(
    model, (torch.randn(32, 64, device="cuda", requires_grad=True),)
)
data = torch.randn(32, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(5))
for _ in range(20):
    optimizer.zero_grad(set_to_none=True)
    loss = graphed(data).square().mean()
    loss.backward()
    optimizer.step()
print(f"trained {loss.item():.5f}")
