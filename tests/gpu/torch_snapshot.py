"""torch_snapshot.py GPUCACHE [NAME]: compares `gpucache replay` of a real memory snapshot with PyTorch's statistics.

Runs a program of tests/bench/workloads.py (gpt) with PyTorch's own cache, records its history, and dumps the snapshot.
Compares PyTorch's peaks with those that the replay reads, and PyTorch's reserve with that of the model of its policy.
Run by hand on a machine with a GPU:

    python3 tests/gpu/torch_snapshot.py build/gcc/gpucache gpt
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python3 tests/gpu/torch_snapshot.py build/gcc/gpucache gpt
"""

import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
import torch
import workloads

STEPS = 24


def main():
    command, name = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "gpt"
    torch.cuda.memory._record_memory_history(max_entries=10_000_000, stacks="python")
    torch.manual_seed(0)
    step, period = workloads.PROGRAMS[name][0]()
    for i in range(STEPS):
        step(i)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        print("snapshot of %.1f MiB" % (os.path.getsize(path) / 2**20))
        done = subprocess.run([command, "replay", path], capture_output=True, text=True)
        print(done.stdout + done.stderr)
        done = subprocess.run([command, "replay", "--format=json", "--backend=pytorch,expandable", path],
                              capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[0])
    expandable = "expandable" in answer["recorded_by"]
    model = answer["rows"][expandable]["reserved_peak_bytes"]
    pairs = [("requested at its peak", stats["requested_bytes.all.peak"], answer["requested_peak_bytes"]),
               ("reserved at its peak", stats["reserved_bytes.all.peak"], answer["recorded_reserved_peak_bytes"]),
               ("reserved, by the model", stats["reserved_bytes.all.peak"], model)]
    for what, torch_says, replay_says in pairs:
        print("%s: PyTorch %d, replay %d, %.4f" % (what, torch_says, replay_says, replay_says / torch_says))
    exact = all(a == b for _, a, b in pairs[:2])
    return not (exact and 0.95 < model / pairs[2][1] < 1.05)


if __name__ == "__main__":
    sys.exit(main())
