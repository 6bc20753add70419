"""Shows which call stacks hold the memory of a PyTorch program (docs/stacks.md).

torch_stacks.py --check BUILD [OUT]
                  runs itself under BUILD/libgpucache.so with and without GPUCACHE_STACKS=16, and out of memory; checks
                  the reports, prints times and bytes, and leaves reports and folded stacks in OUT. Exit status 0, or 1
torch_stacks.py STEPS
                  trains a small net that keeps the graph of every loss, and prints the time of a step
"""
import json
import os
import re
import subprocess
import sys
import tempfile


def train(steps):
    import torch
    from torch import nn
    from pytime import print_time, timed_steps

    torch.manual_seed(0)
    device = torch.device("cuda")
    net = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(2048, 2048), nn.GELU())]).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    data = torch.randn(512, 2048, device=device)
    history = []

    def step(i):
        optimizer.zero_grad(set_to_none=True)
        out = net(data)  # line out
        loss = (out - data).square().mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss)  # the loss keeps its whole graph alive

    def clean_step(i):
        step(i)
        history.clear()

    print_time("per_step", timed_steps(clean_step, steps, torch.cuda.synchronize, warmup=8), "ms")
    for i in range(steps):
        step(i)
    torch.cuda.synchronize()
    print("kept", len(history))
    sys.stdout.flush()
    os._exit(0)  # ends without freeing memory, like a job that its launcher kills


def run(build, options, steps, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUCACHE_")}
    env.update({"LD_PRELOAD": os.path.join(build, "libgpucache.so"), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
                "GPUCACHE_BACKEND": "segments", "TOKENIZERS_PARALLELISM": "false", **options})
    return subprocess.run([sys.executable, __file__, str(steps)], env=env, capture_output=True, text=True, **more)


def line_of(name):
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.endswith("# line %s\n" % name))


def check(build, out):
    failed = 0

    def must(good, what, detail=""):
        nonlocal failed
        failed += not good
        print("%s  %s%s" % ("ok  " if good else "FAIL", what, "" if good else "\n" + str(detail)[-3000:]))

    tool = os.path.join(build, "gpucache")
    path = os.path.join(out, "stacks.json")
    times = {}
    for frames in (0, 16, 0, 16):
        ran = run(build, {"GPUCACHE_STACKS": str(frames), "GPUCACHE_REPORT": "off"}, 20)
        must(ran.returncode == 0, "runs with %d frames" % frames, ran.stderr)
        found = re.search(r"per_step\S* ([\d.]+)", ran.stdout)
        times.setdefault(frames, []).append(float(found[1]) if found else 0)
    print("ms per step: without stacks %s, with 16 frames %s" % (times[0], times[16]))

    ran = run(build, {"GPUCACHE_STACKS": "16", "GPUCACHE_REPORT": path, "GPUCACHE_REPORT_FORMAT": "json"}, 20)
    must(ran.returncode == 0 and os.path.exists(path), "reports", ran.stderr)
    with open(path) as file:
        report = json.loads(file.read().splitlines()[-1])
    device = report["devices"][0]
    holders = sorted(device["holders"], key=lambda h: -h["live_bytes"])
    must(report["stacks"]["python"] is not None, "lines of Python are read", report["stacks"])
    for key in ("live_bytes", "peak_bytes"):
        must(sum(h[key] for h in holders) == device["held"][key], "sums: %s" % key, device["held"])
    must(device["held"]["live_bytes"] == device["requested_bytes"]["current"], "live is what is requested",
         (device["held"], device["requested_bytes"]))
    must(device["held"]["peak_bytes"] >= device["requested_bytes"]["peak"] * 0.999, "the peak is that of the table",
         (device["held"], device["requested_bytes"]))
    mine = "%s:%d)" % (__file__, line_of("out"))
    at_line = sum(h["live_bytes"] for h in holders if any(f.endswith(mine) for f in h["stack"]))
    share = at_line / max(1, device["held"]["live_bytes"])
    must(share > 0.5, "more than half of what is live was asked for below `out = net(data)`: %.0f %%" % (100 * share),
         json.dumps(holders[:5], indent=1))
    print("unwinder %s, %d different stacks, lost %d and %d, report of %d KiB" % (
        report["stacks"]["unwinder"], len(holders), report["stacks"]["lost_stacks"], report["stacks"]["lost_blocks"],
        os.path.getsize(path) >> 10))
    text = subprocess.run([tool, "report", path], capture_output=True, text=True)
    print(text.stdout, text.stderr)
    must(text.returncode == 0 and all(len(line) == 75 for line in text.stdout.splitlines()), "the tool's report")
    for weight in ("byte-seconds", "peak"):
        folded = subprocess.run([tool, "report", "--folded=" + weight, path], capture_output=True, text=True)
        with open(os.path.join(out, weight + ".folded"), "w") as file:
            file.write(folded.stdout)
        must(folded.returncode == 0 and folded.stdout.count("\n") > 5, "folded: " + weight, folded.stderr)

    ran = run(build, {"GPUCACHE_STACKS": "16", "GPUCACHE_MEMORY_LIMIT": "2G"}, 200)
    must("out of memory" in ran.stderr and "torch_stacks.py:%d)" % line_of("out") in ran.stderr,
         "out of memory: the report names the line", ran.stderr)
    print("\n".join(line for line in ran.stderr.splitlines() if line.startswith(("|", "gpucache")))[:6000])
    return failed


if sys.argv[1:2] == ["--check"]:
    build = os.path.abspath(sys.argv[2])
    out = sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp()
    sys.exit(1 if check(build, out) else 0)
train(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
