"""A CUDA program in plain Python: takes 300 MiB, asks the module for its metrics, prints what it learnt.

    python app.py            natively: prints that the library is not loaded
    gpucache run -- python app.py
"""
import ctypes
import json
import os
import sys
import tempfile

import libgpucache

MIB = 1 << 20


def not_loaded():
    """Every function but those for starting a program says in one line how to start it."""
    lines = set()
    for call in (libgpucache.memory_allocated, libgpucache.max_memory_allocated, libgpucache.memory_reserved,
                 libgpucache.max_memory_reserved, libgpucache.reset_peak_memory_stats, libgpucache.empty_cache,
                 lambda: libgpucache.set_per_process_memory_fraction(0.5), lambda: libgpucache.set_memory_limit(1),
                 libgpucache.memory_stats, libgpucache.memory_summary, libgpucache.mem_get_info, lambda: libgpucache.mark("x"),
                 lambda: libgpucache.write_report(os.devnull), libgpucache.dump_snapshot, libgpucache.version):
        try:
            call()
            lines.add("%r ran" % call)
        except libgpucache.NotLoadedError as error:
            lines.add(str(error))
    assert len(lines) == 1 and "`gpucache run -- python app.py`" in lines.copy().pop(), lines
    assert "libcuda" not in open("/proc/self/maps").read()
    print("not loaded")


def refused(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        return error
    raise AssertionError("%r%r ran" % (call, arguments))


def loaded():
    assert libgpucache.memory_allocated() == 0 and libgpucache.memory_stats() == {}  # before the first use of CUDA
    libgpucache.reset_peak_memory_stats()
    assert refused(OSError, libgpucache.mem_get_info).errno == 19

    cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(300 * MIB)) == 0
    for device in (None, 0, "cuda", "cuda:0", libgpucache.ALL):
        assert libgpucache.memory_allocated(device) == 300 * MIB, device
    assert libgpucache.memory_reserved() >= 300 * MIB

    assert cuda.cuMemFree_v2(memory) == 0
    assert libgpucache.memory_allocated() == 0
    assert libgpucache.max_memory_allocated() == 300 * MIB
    assert libgpucache.max_memory_reserved() >= 300 * MIB
    stats = libgpucache.memory_stats()
    assert stats["allocated_bytes.all.peak"] == stats["allocated_bytes.all.freed"] == 300 * MIB, stats
    assert stats["allocation.all.allocated"] == 1 and stats["num_ooms"] == 0 and stats["device"] == 0
    for one_device in (libgpucache.memory_stats, libgpucache.mem_get_info):
        refused(ValueError, one_device, libgpucache.ALL)
    libgpucache.reset_peak_memory_stats()
    assert libgpucache.max_memory_allocated() == 0
    libgpucache.empty_cache()
    assert libgpucache.memory_reserved() == 0

    free, total = libgpucache.mem_get_info()
    assert 0 < free <= total
    libgpucache.set_memory_limit(64 * MIB)
    assert libgpucache.mem_get_info("cuda:0")[0] <= 64 * MIB
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(300 * MIB)) == 2
    libgpucache.set_memory_limit(0)
    libgpucache.set_per_process_memory_fraction(0.5)
    assert abs(libgpucache.mem_get_info()[0] - total // 2) <= 64 * MIB
    for wrong in (0.0, 1.5):
        refused(ValueError, libgpucache.set_per_process_memory_fraction, wrong)
    for wrong in (-1, 1 << 64, (1 << 64) + 4096, 1.5, "8G"):
        refused(ValueError, libgpucache.set_memory_limit, wrong)
    for wrong in ("cpu", "cuda:x", "cuda:4294967296", 1 << 32, object()):
        refused(ValueError, libgpucache.memory_allocated, wrong)
    assert refused(OSError, libgpucache.empty_cache, 77).errno == 19
    refused(ValueError, libgpucache.write_report, os.devnull, "xml")
    refused(ValueError, libgpucache.write_report, (1 << 32) + 2)

    libgpucache.mark("halfway")
    assert "Allocated memory" in libgpucache.memory_summary()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report")
        libgpucache.write_report(path, "json")
        assert json.load(open(path))["reason"] == "request"
        with open(path, "wb") as file:
            file.write(b"first\n")
            libgpucache.write_report(file)
        assert open(path).read().startswith("first\n|==")
        if os.environ.get("GPUCACHE_TRACE"):
            libgpucache.dump_snapshot(path)
            assert open(path, "rb").read(1) == b"\x80"
        else:
            assert str(refused(OSError, libgpucache.dump_snapshot, path)) != ""
    assert libgpucache.preload_env()["LD_PRELOAD"] == os.environ["LD_PRELOAD"]  # it is there already
    print("loaded %s %s" % (libgpucache.version(), sys.argv[1:]))


if libgpucache.is_loaded():
    loaded()
else:
    not_loaded()
