"""The table of programs, and building them."""

import concurrent.futures
import glob
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(os.path.dirname(HERE))
BENCH = os.path.join(ROOT, "tests", "bench")
BUILD = os.path.join(ROOT, "build", "gpu")
CUDA = os.environ.get("CUDA_HOME", "/usr/local/cuda")
NVCC = os.path.join(CUDA, "bin", "nvcc")
CUDA_DIRS = [
    d
    for p in (
        CUDA + "/lib64/stubs",
        CUDA + "/targets/*/lib/stubs",
        CUDA + "/compat",
        "/usr/local/nvidia/lib64",
        "/usr/local/nvidia/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/wsl/lib",
    )
    for d in glob.glob(p)
]
RMM = os.path.join(ROOT, ".peers", "rmm")  # scripts/peers.sh puts it there
WARNINGS = ["-Wall", "-Wextra"]

# name: (source, how, further flags)
PROGRAMS = {
    "facts_order": ("gpu/facts_order.cu", "nvcc", ["-lcuda"]),
    "facts_held": ("gpu/facts_held.cu", "nvcc", ["-lcuda"]),
    "facts_memory": ("gpu/facts_memory.cu", "nvcc", ["-lcuda"]),
    "facts_pools": ("gpu/facts_pools.cu", "nvcc", ["-lcuda"]),
    "busy": ("gpu/busy.cu", "nvcc", ["-lcuda"]),
    "facts_release": ("gpu/facts_release.cu", "nvcc", ["-lcuda"]),
    "facts_arrays": ("gpu/facts_arrays.cu", "nvcc", ["-lcuda"]),
    "alloc_mix": ("gpu/alloc_mix.cu", "nvcc", []),
    "alloc_mix_shared": (
        "gpu/alloc_mix.cu",
        "nvcc",
        ["-cudart", "shared", "-Xlinker", "-rpath=" + CUDA + "/lib64"],
    ),
    "driver_linked": ("gpu/driver_linked.c", "gcc", ["-lcuda"]),
    "driver_dlopen": ("gpu/driver_dlopen.c", "gcc", ["-ldl"]),
    "thrust_loop": ("gpu/thrust_loop.cu", "nvcc", []),
    "pitch_loop": ("gpu/pitch_loop.cu", "nvcc", []),
    "by_library": ("gpu/by_library.cu", "nvcc", ["-lcublas", "-ldl"]),
    "last_free": ("gpu/last_free.cu", "nvcc", []),
    "spin": ("gpu/spin.cu", "nvcc", []),
    "ended": ("gpu/ended.cu", "nvcc", ["-lcuda"]),
    "errors": ("gpu/errors.cu", "nvcc", ["-lcuda"]),
    "queries": ("gpu/queries.cu", "nvcc", ["-lcuda"]),
    "capture": ("gpu/capture.cu", "nvcc", ["-lcuda"]),
    "contexts": ("gpu/contexts.cu", "nvcc", ["-lcuda"]),
    "limit": ("gpu/limit.cu", "nvcc", ["-lcuda"]),
    "decay": ("gpu/decay.cu", "nvcc", ["-lcuda"]),
    "ipc": ("gpu/ipc.cu", "nvcc", []),
    "peers": ("gpu/peers.cu", "nvcc", []),
    "pairs": ("bench/pairs.cu", "nvcc", ["-lcuda", "-ldl"]),
    "pairs_rmm.so": ("bench/pairs_rmm.cpp", "rmm", []),
    "pairs_torch": ("bench/pairs_torch.cpp", "torch", []),
    "overlap": ("bench/overlap.cu", "nvcc", []),
    "shrink": ("bench/shrink.cu", "nvcc", []),
}

# The programs of tests/programs, linked with the driver instead of the simulator.
GCC_ARGS = ["-D_GNU_SOURCE", "-I" + os.path.join(ROOT, "include"), "-I" + os.path.join(ROOT, "src")]
AREAS = "pointers mixes contexts current capture faults peers ipc outside old async bounds across"
for area in AREAS.split():
    PROGRAMS["programs/diff_" + area] = ("programs/diff_%s.c" % area, "gcc", ["-lcuda"])
for name in ("reuse_never_early", "ctx_lifecycles", "mem_overhead_refused"):
    PROGRAMS["programs/" + name] = (
        "programs/%s.c" % name,
        "gcc",
        ["-I" + os.path.join(ROOT, "tests", "sim"), "-lcuda"],
    )
LINKED = (
    "reuse_never_hanging reuse_program_events mem_misuse reuse_pinned reuse_pinned_threads "
    "ctx_peers ctx_activation limit_driver_pools limit_neighbours ctx_changes ipc_exports ipc_misuse "
    "ctx_forked report_output api_requests ipc_pages trace_records"
)
for name in LINKED.split():
    PROGRAMS["programs/" + name] = (
        "programs/%s.c" % name,
        "gcc",
        ["-lcuda"],
    )
for name in ("load_without_cuda", "load_entries"):
    PROGRAMS["programs/" + name] = ("programs/%s.c" % name, "gcc", [])
PROGRAMS["programs/chain_host"] = ("programs/load_chain/host.c", "gcc", [])
for level in ("0", "2"):
    level_args = ["-O" + level, "-U_FORTIFY_SOURCE"]
    for layer in ("1", "2"):
        for kind, kind_args in (
            ("plain", []),
            ("override", ["-DOVERRIDE=NEXT"]),
            ("default", ["-DOVERRIDE=DEFAULT"]),
            ("libc", ["-DOVERRIDE=LIBC"]),
            ("version", ["-DOVERRIDE_VERSION"]),
        ):
            PROGRAMS["programs/libchain_%s_%s_O%s.so" % (layer, kind, level)] = (
                "programs/load_chain/layer.c",
                "gcc",
                [*level_args, *kind_args, "-DLAYER=" + layer, "-shared", "-fPIC"],
            )
    PROGRAMS["programs/chain_O" + level] = (
        "programs/load_chain/program.c",
        "gcc",
        [*level_args, "-lcuda"],
    )
    PROGRAMS["programs/chain_own_O" + level] = (
        "programs/load_chain/program.c",
        "gcc",
        [*level_args, '-DOVERRIDE="GLIBC_2.34"', "-rdynamic", "-lcuda"],
    )
    PROGRAMS["programs/libchain_twin_O%s.so" % level] = (
        "programs/load_chain/program.c",
        "gcc",
        [*level_args, "-DTWIN", "-shared", "-fPIC", "-lcuda"],
    )
PROGRAMS["programs/chain_own_old"] = (
    "programs/load_chain/program.c",
    "gcc",
    ["-DOVERRIDE=FIRST_GLIBC", "-rdynamic", "-lcuda"],
)
PROGRAMS["programs/libchain_early.so"] = (
    "programs/load_chain/early.c",
    "gcc",
    ["-shared", "-fPIC", "-lcuda"],
)
EARLY = os.path.join(BUILD, "programs", "libchain_early.so")  # has to be there to link with it
PROGRAMS["programs/chain_with_early"] = (
    "programs/load_chain/program.c",
    "gcc",
    ["-DEARLY", EARLY, "-Wl,-rpath,$ORIGIN", "-lcuda"],
)
PROGRAMS["programs/libchain_opened.so"] = (
    "programs/load_chain/opened.c",
    "gcc",
    ["-DOPENED", "-shared", "-fPIC", "-lcuda"],
)
PROGRAMS["programs/chain_opener"] = ("programs/load_chain/opened.c", "gcc", ["-lcuda", "-ldl"])
ANSWERS = [name for name in PROGRAMS if name.startswith("programs/")]


def architecture():
    try:
        if subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30).stdout.startswith(
            b"GPU"
        ):
            return "native"
    except (OSError, subprocess.TimeoutExpired):
        pass
    return "sm_90"


def torch_flags():
    """Flags before and after the source, for a program that uses PyTorch's C++ libraries."""
    code = "import torch; print(torch.__file__); print(int(torch._C._GLIBCXX_USE_CXX11_ABI))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    if out.returncode != 0:
        raise RuntimeError("no PyTorch here")
    file, abi = out.stdout.split()[-2:]
    root = os.path.dirname(file)
    libs = [root + "/lib", *glob.glob(os.path.dirname(root) + "/nvidia/*/lib"), CUDA + "/lib64"]
    runtime = [f for d in libs for f in sorted(glob.glob(d + "/libcudart.so*"))] or ["-lcudart"]
    headers = [root + "/include", root + "/include/torch/csrc/api/include", CUDA + "/include"]
    before = ["-D_GLIBCXX_USE_CXX11_ABI=" + abi]
    for h in headers:
        before += ["-isystem", h]
    after = ["-L" + libs[0], "-Wl,--no-as-needed", "-lc10_cuda", "-lc10", runtime[0]]
    after += ["-Wl,--allow-shlib-undefined"] + ["-Wl,-rpath," + d for d in libs]
    return before, after


def rmm_version():
    try:
        return open(os.path.join(RMM, "VERSION")).read().strip()
    except OSError:
        return None


def rmm_flags():
    """As torch_flags. The libraries are found from wherever the repository is moved to."""
    before = []
    for h in (RMM + "/include", RMM + "/include/rapids", CUDA + "/include"):
        before += ["-isystem", h]
    libs = os.path.join(RMM, "lib64")
    after = ["-L" + libs, "-lrmm", "-lrapids_logger"]
    after += ["-Wl,-rpath,$ORIGIN/" + os.path.relpath(libs, BUILD)]
    after += ["-L" + CUDA + "/lib64", "-lcudart_static", "-Wl,--exclude-libs,ALL", "-ldl", "-lrt"]
    return before, after


def driver_library():
    """Returns the library to link for -lcuda: the toolkit's stub, else the driver itself."""
    found = [
        f
        for name in ("libcuda.so", "libcuda.so.1")
        for d in CUDA_DIRS
        for f in glob.glob(os.path.join(d, name))
    ]
    return found[0] if found else "-lcuda"


def build_command(name, arch):
    source, how, flags = PROGRAMS[name]
    flags = [driver_library() if f == "-lcuda" else f for f in flags]
    source, target = os.path.join(ROOT, "tests", source), os.path.join(BUILD, name)
    if how == "nvcc":
        return [
            NVCC,
            "-O2",
            "-std=c++17",
            "-arch=" + arch,
            "-I" + os.path.join(ROOT, "src"),
            "-Xcompiler",
            ",".join(WARNINGS),
            "-o",
            target,
            source,
            *flags,
            "-lpthread",
        ]
    if how == "gcc":
        return [
            "gcc",
            "-O2",
            *WARNINGS,
            "-I" + os.path.join(CUDA, "include"),
            *GCC_ARGS,
            "-o",
            target,
            source,
            *flags,
            "-ldl",
            "-lpthread",
        ]
    before, after = rmm_flags() if how == "rmm" else torch_flags()
    return [
        "g++",
        "-O2",
        "-std=c++17",
        *WARNINGS,
        *(("-shared", "-fPIC", "-fvisibility=hidden") if how == "rmm" else ()),
        *before,
        "-I" + HERE,
        "-o",
        target,
        source,
        *after,
        "-lpthread",
    ]


def build(names):
    """Builds what is not up to date, side by side; returns {name: why it could not be built}."""
    os.makedirs(os.path.join(BUILD, "programs"), exist_ok=True)
    shared = [
        os.path.getmtime(f)
        for d in (HERE, BENCH, os.path.join(ROOT, "tests", "programs"))
        for p in ("*.h", "*.cuh")
        for f in glob.glob(os.path.join(d, p))
    ]
    arch = architecture()

    def one(name):
        source, target = os.path.join(ROOT, "tests", PROGRAMS[name][0]), os.path.join(BUILD, name)
        if not os.path.exists(source):
            return "no " + source
        stamp = target + ".arch"
        made_for = arch + " " + str(rmm_version()) if PROGRAMS[name][1] == "rmm" else arch
        fresh = os.path.exists(target) and os.path.exists(stamp) and open(stamp).read() == made_for
        if fresh and os.path.getmtime(target) > max([os.path.getmtime(source), *shared]):
            return None
        try:
            done = subprocess.run(
                build_command(name, arch), capture_output=True, text=True, timeout=400
            )
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode != 0:
            return done.stderr[-3000:] or "status %d" % done.returncode
        open(stamp, "w").write(made_for)
        return None

    broken = {}
    last = [n for n in names if EARLY in PROGRAMS[n][2]]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        for wave in ([n for n in names if n not in last], last):
            broken.update({n: why for n, why in zip(wave, pool.map(one, wave)) if why})
    return broken
