"""torch_wheel.py WHEEL: installs a wheel of scripts/wheel.sh without a network, and compares its figures with PyTorch's.

The wheel goes into a fresh venv, which PYTHONPATH lets see the PyTorch of this Python. A training step runs there three times: natively, and by
`gpucache run` of the wheel with PyTorch's own cache and without it. These equations must hold within 1 %, for what the step adds:

    cached     libgpucache.memory_allocated() = torch.cuda.memory_reserved()
    uncached   libgpucache.memory_allocated() = torch.cuda.memory_allocated() of the native run
    both       libgpucache.memory_stats()["allocated_bytes.all.current"] = libgpucache.memory_allocated()

Exit status 0, or 1.
"""
import json
import os
import subprocess
import sys
import tempfile
import venv

WITHIN = 0.01
FIGURES = "figures:"


def step():
    """Trains a small net, keeps what it made, and prints what that added to each counter."""
    import torch

    ours = None
    if "libgpucache.so" in open("/proc/self/maps").read():
        import libgpucache as ours

        if not ours.is_loaded():
            sys.exit("the library is mapped, but libgpucache.is_loaded() is False")
    torch.manual_seed(0)
    warm = torch.randn(256, 256, device="cuda", requires_grad=True)
    (warm @ warm).sum().backward()  # cuBLAS takes its own memory now, once for each thread that multiplies
    torch.cuda.synchronize()

    def counters():
        found = {"torch_allocated": torch.cuda.memory_allocated(), "torch_reserved": torch.cuda.memory_reserved()}
        if ours:
            found["allocated"] = ours.memory_allocated()
            found["stats"] = ours.memory_stats().get("allocated_bytes.all.current", -1)
        return found

    before = counters()
    net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(24)]).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for i in range(4):
        optimizer.zero_grad(set_to_none=True)
        loss = net(torch.randn(256 + 64 * i, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    added = {name: value - before[name] for name, value in counters().items()}
    print(FIGURES, json.dumps(dict(added, loss=loss.item())), flush=True)


def figures(command, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUCACHE_", "PYTORCH_")) and k != "LD_PRELOAD"}
    done = subprocess.run(command, env={**env, **more}, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith(FIGURES)]
    if done.returncode != 0 or len(lines) != 1:
        sys.exit("%s: status %d\n%s%s" % (" ".join(command), done.returncode, done.stdout[-2000:], done.stderr[-2000:]))
    return json.loads(lines[0][len(FIGURES):])


def main(wheel):
    failed = 0

    def equal(what, ours, theirs):
        nonlocal failed
        good = theirs > 0 and abs(ours - theirs) <= WITHIN * theirs
        failed += not good
        print("%s  %s: %d and %d bytes, ratio %.4f" % ("ok  " if good else "FAIL", what, ours, theirs, ours / max(theirs, 1)))

    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        binary = os.path.join(folder, "bin")
        python, gpucache = os.path.join(binary, "python"), os.path.join(binary, "gpucache")
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel], check=True)
        print("ok    pip install --no-index %s" % os.path.basename(wheel))
        inside = [python, os.path.abspath(__file__), "--step"]
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path[1:] if os.path.basename(path).endswith("-packages"))
        native = figures(inside)
        quiet = {"GPUCACHE_REPORT": "off"}
        cached = figures([gpucache, "run", "--", *inside], **quiet)
        uncached = figures([gpucache, "run", "--", *inside], PYTORCH_NO_CUDA_MEMORY_CACHING="1", **quiet)
    equal("cached: memory_allocated() and torch.cuda.memory_reserved()", cached["allocated"], cached["torch_reserved"])
    equal("cached: torch.cuda.memory_allocated() under the library and natively", cached["torch_allocated"],
          native["torch_allocated"])
    equal("uncached: memory_allocated() and torch.cuda.memory_allocated() natively", uncached["allocated"],
          native["torch_allocated"])
    for name, run in (("cached", cached), ("uncached", uncached)):
        equal("%s: memory_stats() and memory_allocated()" % name, run["stats"], run["allocated"])
        same = run["loss"] == native["loss"]
        failed += not same
        print("%s  %s: loss %r, natively %r" % ("ok  " if same else "FAIL", name, run["loss"], native["loss"]))
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--step"]:
        step()
    elif len(sys.argv) == 2 and sys.argv[1].endswith(".whl"):
        sys.exit(main(sys.argv[1]))
    else:
        sys.exit(__doc__.splitlines()[0])
