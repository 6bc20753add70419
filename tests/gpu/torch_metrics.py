"""torch_metrics.py BUILD [NAME]...: compares the library's metrics with PyTorch's own and NVML's.

Each named program of tests/bench/workloads.py (gpt, resnet and gnn if none is named) runs with PyTorch's own cache and,
uncached, on segments and on pages, all under BUILD/libgpucache.so. These equations must hold within 1 %:

    cached     requested_bytes of the library = PyTorch's reserved_bytes + requests of others, at the peak and now
    uncached   requested_bytes of the library = PyTorch's allocated_bytes in the cached run + requests of others, at the peak
    all        reserved_bytes + outside_bytes of the library + the context = memory of the process as NVML sees it

The others are libraries that allocate for themselves: cublasCreate() takes 64 MiB for each thread that multiplies.
Their requests and the context are measured in a process of its own that only multiplies two small matrices.

No other process may use the GPU: NVML in a container knows processes by the numbers of the host. Exit status 0, or 1.
"""
import ctypes
import json
import os
import subprocess
import sys

import nvml

HERE = os.path.dirname(os.path.abspath(__file__))
METRICS = ("requested requested_peak allocated allocated_peak active active_peak reserved reserved_peak outside outside_peak "
           "largest_free limit total allocations hits misses ooms").split()
WITHIN = 0.01


class Stats(ctypes.Structure):
    """struct gpucache_stats of gpucache.h."""
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in METRICS]


def ours():
    found = Stats(size=ctypes.sizeof(Stats))
    assert ctypes.CDLL(None).gpucache_get_stats(0, ctypes.byref(found)) == 0
    return {name: getattr(found, name) for name in METRICS}


def small(_):
    import torch

    weights = torch.randn(64, 64, device="cuda", requires_grad=True)
    (weights @ weights).sum().backward()


def held(moment):
    return moment["ours"]["reserved"] + moment["ours"]["outside"]


def child(name):
    used = nvml.Used()
    before = used.now()
    sys.path.insert(0, os.path.join(HERE, "..", "bench"))
    import torch
    import workloads

    torch.manual_seed(0)
    step, period = (small, 1) if name == "context" else workloads.PROGRAMS[name][0]()
    moments = []
    for round in range(3):
        for i in range(period):
            step(i)
        torch.cuda.synchronize()
        metrics, stats = ours(), torch.cuda.memory_stats() if torch.cuda.is_initialized() else {}
        moments.append({"ours": metrics, "nvml": used.now() - before,
                        "torch": {key: stats.get(key + ".all.peak", 0) for key in ("reserved_bytes", "allocated_bytes", "requested_bytes")},
                        "torch_reserved": stats.get("reserved_bytes.all.current", 0)})
    used.close()
    print(json.dumps(moments))


def run(build, name, **options):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUCACHE_")}
    environment.update(LD_PRELOAD=os.path.join(build, "libgpucache.so"), GPUCACHE_REPORT="off", GPUCACHE_BACKEND="segments")
    environment.update(options)
    done = subprocess.run([sys.executable, __file__, "--child", name], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("%s %s: %s" % (name, options, done.stderr[-2000:]))
    return json.loads(done.stdout.splitlines()[-1])


def main():
    build, names, wrong = os.path.abspath(sys.argv[1]), sys.argv[2:] or ["gpt", "resnet", "gnn"], 0

    def compare(what, our_value, other):
        nonlocal wrong
        ratio = our_value / other if other else 0.0
        far = abs(ratio - 1) > WITHIN
        wrong += far
        print("%-48s %14d %14d %.4f%s" % (what, our_value, other, ratio, "  FAIL" if far else ""), flush=True)

    alone = run(build, "context")[-1]
    context, others = alone["nvml"] - held(alone), alone["ours"]["requested"] - alone["torch_reserved"]
    print("the context: %.1f MiB; requested by others than PyTorch: %.1f MiB" % (context / 2**20, others / 2**20))
    for name in names:
        cached = run(build, name)
        last = cached[-1]
        compare(name + ", cached: requested, reserved_bytes now", last["ours"]["requested"], last["torch_reserved"] + others)
        compare(name + ", cached: requested, reserved_bytes peak", last["ours"]["requested_peak"],
                last["torch"]["reserved_bytes"] + others)
        runs = [(name + ", cached", cached)]
        for backend in ("segments", "pages"):
            uncached = run(build, name, GPUCACHE_BACKEND=backend, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
            compare("%s, %s: requested peak, requested_bytes" % (name, backend), uncached[-1]["ours"]["requested_peak"],
                    last["torch"]["requested_bytes"] + others)
            compare("%s, %s: requested peak, allocated_bytes" % (name, backend), uncached[-1]["ours"]["requested_peak"],
                    last["torch"]["allocated_bytes"] + others)
            runs.append((name + ", " + backend, uncached))
        for what, moments in runs:
            last = moments[-1]
            print("%s: reserved %.1f, past the pool %.1f MiB" % (
                what, last["ours"]["reserved"] / 2**20, last["ours"]["outside"] / 2**20))
            compare(what + ": all we know of, NVML", held(last) + context, last["nvml"])
    return wrong > 0


if __name__ == "__main__":
    sys.exit(child(sys.argv[2]) if sys.argv[1] == "--child" else main())
