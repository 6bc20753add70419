"""Which library asked for the memory of a PyTorch program (docs/design/stacks.md, Memory by library).

torch_libraries.py --check BUILD [OUT]
                  runs itself under BUILD/libgpucache.so, with PyTorch's cache and without, on both backends; what has to be true
                  is checked and all rows are printed, reports are left in OUT. Exit status 0, or 1
torch_libraries.py STEPS
                  trains a small net with cuDNN and cuBLAS, and writes reports while it does
"""
import ctypes
import json
import os
import subprocess
import sys
import tempfile

from harness.process import library_sums


def train(steps):
    import torch
    from torch import nn

    torch.manual_seed(0)
    device = torch.device("cuda")
    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.AdaptiveAvgPool2d(8),
                        nn.Flatten(), nn.Linear(4096, 1024)).to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    report = ctypes.CDLL(None).gpucache_write_report
    fd = os.open(os.environ["REPORTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for i in range(steps):
        optimizer.zero_grad(set_to_none=True)
        net(torch.randn(32 + 8 * (i % 4), 3, 96, 96, device=device)).square().mean().backward()
        optimizer.step()
        report(fd, 1)
    runtime = next(name for name in map(str.split, open("/proc/self/maps")) if "libcudart.so" in name[-1])[-1]
    address = ctypes.c_void_p()  # from Python itself, through the runtime that PyTorch loaded
    if ctypes.CDLL(runtime).cudaMalloc(ctypes.byref(address), ctypes.c_size_t(96 << 20)) != 0:
        sys.exit("cudaMalloc fails")
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.fft.fft2(torch.randn(256, 512, 512, device=device))  # cuFFT
    torch.linalg.inv(torch.randn(1024, 1024, device=device))  # cuSOLVER or MAGMA
    torch.cuda.synchronize()
    report(fd, 1)
    os._exit(0)  # without freeing the memory


def check(build, out):
    failed = 0

    def must(good, what, detail=""):
        nonlocal failed
        failed += not good
        print("%s  %s%s" % ("ok  " if good else "FAIL", what, "" if good else "\n" + str(detail)[-3000:]))

    for backend in ("segments", "pages"):
        for cache in ("0", "1"):
            what = "%s, PyTorch's cache %s" % (backend, "off" if cache == "1" else "on")
            path = os.path.join(out, "libraries_%s_%s.json" % (backend, cache))
            env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUCACHE_", "PYTORCH_"))}
            env.update({"LD_PRELOAD": os.path.join(build, "libgpucache.so"), "GPUCACHE_BACKEND": backend, "GPUCACHE_REPORT": "off",
                        "REPORTS": path})
            if cache == "1":
                env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
            ran = subprocess.run([sys.executable, __file__, "30"], env=env, capture_output=True, text=True)
            must(ran.returncode == 0, what + ": runs", ran.stderr)
            if not os.path.exists(path):
                continue
            with open(path) as file:
                devices = [json.loads(line)["devices"][0] for line in file]
            must(len(devices) == 31, what + ": %d reports" % len(devices))
            wrong = []
            for device in devices:
                by_library, in_all = library_sums(device)
                if by_library != in_all:
                    wrong.append((by_library, in_all))
            must(not wrong, what + ": rows add up to requested + outside in every report", wrong)
            rows = devices[-1]["libraries"]
            for row in rows:
                print("      %14d  peak %14s  %s" % (row["current"], row["peak"], row["name"]))
            named = {row["name"] for row in rows if row["peak"] is not None}
            must(not named & {"unknown"}, what + ": no requester is unknown", rows)
            must(not any(name.startswith("libcudart") for name in named), what + ": the runtime is passed over", rows)
            # PyTorch's allocator is in libc10_cuda, which allocates for libtorch_cuda.
            must(any(name.startswith(("libc10_cuda", "libtorch_cuda")) for name in named), what + ": PyTorch is named", rows)
            must(any(name.startswith(("libffi", "_ctypes")) and row["current"] >= 96 << 20
                     for row in rows for name in [row["name"]]), what + ": Python's own 96 MiB have a row", rows)
            print("      NVIDIA's libraries among them: %s" % (sorted(
                name for name in named if name.startswith(("libcu", "libnv", "libnccl"))) or "none asked for large blocks itself"))
            most = max((row for row in rows if row["peak"] is not None), key=lambda row: row["peak"])
            must(most["name"].startswith(("libc10_cuda", "libtorch_cuda")), what + ": PyTorch has most at the peak", rows)
    return failed


if sys.argv[1:2] == ["--check"]:
    build = os.path.abspath(sys.argv[2])
    out = sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp()
    sys.exit(1 if check(build, out) else 0)
train(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
