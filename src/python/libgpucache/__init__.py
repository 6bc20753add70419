"""Figures and control of libgpucache, from inside a Python program that runs under it.

    gpucache run -- python app.py             # or: python -m libgpucache run app.py

    import libgpucache
    libgpucache.memory_allocated()            # bytes, as torch.cuda.memory_allocated()

The functions have the names of ``torch.cuda`` and count the memory of the whole process, whichever library
asked for it. All sizes are bytes. A device is a number, a string such as ``"cuda:1"``, a ``torch.device``, ``ALL``
for all devices together, or None for the current device of the calling thread. Devices are the ordinals of the
CUDA driver in this process, as PyTorch counts them.

Importing the module loads nothing and changes nothing. Where the library was not preloaded, ``is_loaded()`` is False,
``preload_env()`` and ``library_path()`` work, and all other functions raise ``NotLoadedError``.
"""
from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
import tempfile
from typing import Any, BinaryIO, Dict, Mapping, Optional, Tuple, Union

__all__ = [
    "ALL", "NotLoadedError", "dump_snapshot", "empty_cache", "is_loaded", "library_path", "mark", "max_memory_allocated",
    "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats", "memory_summary",
    "preload_env", "reset_peak_memory_stats", "set_memory_limit", "set_per_process_memory_fraction", "version",
    "write_report",
]

ALL = -1
"""All devices together, where a function takes a device."""

Device = Union[None, int, str, Any]

_LIBRARY = "libgpucache.so"
_FOLDER = os.path.dirname(os.path.abspath(__file__))


class NotLoadedError(RuntimeError):
    """The process runs without the library. The message says how to start the program."""


class _Stats(ctypes.Structure):
    """``struct gpucache_stats`` of gpucache.h."""
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in (
        "requested", "requested_peak", "allocated", "allocated_peak", "active", "active_peak", "reserved", "reserved_peak",
        "outside", "outside_peak", "largest_free", "limit", "total", "allocations", "hits", "misses", "ooms")]


# ---- the library and the driver ----

_ARGUMENTS = {
    "gpucache_get_stats": (ctypes.c_int, ctypes.POINTER(_Stats)),
    "gpucache_reset_peak_stats": (ctypes.c_int,),
    "gpucache_empty_cache": (ctypes.c_int,),
    "gpucache_set_memory_fraction": (ctypes.c_int, ctypes.c_double),
    "gpucache_set_memory_limit": (ctypes.c_int, ctypes.c_uint64),
    "gpucache_write_report": (ctypes.c_int, ctypes.c_int),
    "gpucache_mark": (ctypes.c_char_p,),
}
_REPORT_TEXT, _REPORT_JSON = 0, 1


def _entry(name: str) -> Any:
    """Returns a function of the preloaded library; raises NotLoadedError where there is none."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except AttributeError:
        raise NotLoadedError("libgpucache is not loaded: start the program with `gpucache run -- python app.py` "
                             "or `python -m libgpucache run app.py`") from None


def _call(name: str, *arguments: Any) -> None:
    """Calls a function of gpucache.h; raises ValueError for EINVAL and OSError for all other errors."""
    entry = _entry(name)
    entry.argtypes, entry.restype = _ARGUMENTS[name], ctypes.c_int
    status = -entry(*arguments)
    if status == errno.EINVAL:
        raise ValueError("%s%r: an argument makes no sense" % (name, arguments))
    if status == errno.ENODEV:
        raise OSError(status, "there is no device %s, or this process has not used the device yet" % arguments[0])
    if status == errno.EBUSY:
        raise OSError(status, "the device is busy, or memory cannot be given back yet")
    if status != 0:
        raise OSError(status, os.strerror(status))


def _driver() -> Optional[ctypes.CDLL]:
    """Returns the CUDA driver if this process has loaded it, and never loads it."""
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def _current_device() -> int:
    """Returns the device of the thread's current context, and 0 where the thread has none, as CUDA's runtime does."""
    driver, device = _driver(), ctypes.c_int(0)
    if driver is None or driver.cuCtxGetDevice(ctypes.byref(device)) != 0:
        return 0
    return device.value


def _ordinal(device: Device) -> int:
    """Returns the ordinal that a device argument names; raises ValueError if the argument names none."""
    if isinstance(device, str):
        kind, _, number = device.partition(":")
        if kind != "cuda" or (number and not number.isdigit()):
            raise ValueError("%r is no device: a number or 'cuda:NUMBER' is needed" % device)
        device = int(number) if number else None
    elif device is not None and not isinstance(device, int):  # torch.device
        if getattr(device, "type", "cuda") != "cuda" or not hasattr(device, "index"):
            raise ValueError("%r is no CUDA device" % (device,))
        device = device.index
    ordinal = _current_device() if device is None else int(device)
    _refuse_overflow(ordinal, "device")
    return ordinal


def _refuse_overflow(number: int, what: str) -> None:
    """Raises ValueError for a number that does not fit a C int: ctypes would pass its lower bits."""
    if not -1 << 31 <= number < 1 << 31:
        raise ValueError("%d is no %s" % (number, what))


def _stats(device: Device) -> _Stats:
    """Returns the metrics of a device; of one that the process has not used yet, zeros."""
    _entry("gpucache_get_stats")
    stats = _Stats(size=ctypes.sizeof(_Stats))
    try:
        _call("gpucache_get_stats", _ordinal(device), ctypes.byref(stats))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
    return stats


def _report(format: int) -> str:
    with tempfile.TemporaryFile() as file:
        _call("gpucache_write_report", file.fileno(), format)
        file.seek(0)
        return file.read().decode("utf-8", "replace")


# ---- starting programs under the library ----

def is_loaded() -> bool:
    """Returns whether this process runs under the library."""
    return hasattr(ctypes.CDLL(None), "gpucache_version")


def version() -> str:
    """Returns the version of the preloaded library, such as ``"0.2.0"``."""
    entry = _entry("gpucache_version")
    entry.argtypes, entry.restype = (), ctypes.c_char_p
    return entry().decode()


def library_path() -> str:
    """Returns the path of this package's libgpucache.so; raises FileNotFoundError if the package has none."""
    path = os.path.join(_FOLDER, _LIBRARY)
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, "this package has no library: install libgpucache from a wheel of scripts/wheel.sh",
                                path)
    return path


def preload_env(environment: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """Returns a copy of an environment, with the library in front of LD_PRELOAD: for frameworks that start workers themselves.

    Without an argument the copy is of ``os.environ``. An environment that has the library already is copied as it is.

        subprocess.Popen(command, env=libgpucache.preload_env())
    """
    result = dict(os.environ if environment is None else environment)
    preloaded = result.get("LD_PRELOAD", "")
    if any(os.path.basename(name) == _LIBRARY for name in preloaded.replace(":", " ").split()):
        return result
    library = library_path()
    if set(library) & set(": "):  # LD_PRELOAD cannot hold such a path
        if ":" in library:
            raise ValueError("the dynamic linker takes no path with a colon: %s" % library)
        folders = result.get("LD_LIBRARY_PATH", "")
        result["LD_LIBRARY_PATH"] = os.path.dirname(library) + (":" + folders if folders else "")
        library = _LIBRARY
    result["LD_PRELOAD"] = library + (":" + preloaded if preloaded else "")
    return result


# ---- metrics ----

def memory_allocated(device: Device = None) -> int:
    """Returns the bytes of the blocks that hold what the program allocated and has not freed."""
    return _stats(device).allocated


def max_memory_allocated(device: Device = None) -> int:
    """Returns the highest ``memory_allocated()`` since the start or the last ``reset_peak_memory_stats()``, in bytes."""
    return _stats(device).allocated_peak


def memory_reserved(device: Device = None) -> int:
    """Returns the bytes that the pool holds from the driver."""
    return _stats(device).reserved


def max_memory_reserved(device: Device = None) -> int:
    """Returns the highest ``memory_reserved()`` since the start or the last ``reset_peak_memory_stats()``, in bytes."""
    return _stats(device).reserved_peak


def reset_peak_memory_stats(device: Device = None) -> None:
    """Sets the peaks of a device to the current values. A device that was not used yet has none."""
    _entry("gpucache_reset_peak_stats")
    try:
        _call("gpucache_reset_peak_stats", _ordinal(device))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise


# Of torch.cuda.memory_stats(), and where a report has them.
_METRICS = {"allocated_bytes": "allocated_bytes", "reserved_bytes": "reserved_bytes", "active_bytes": "active_bytes",
            "requested_bytes": "requested_bytes", "allocation": "allocations", "segment": "segments"}
_PARTS = {"current": "current", "peak": "peak", "allocated": "total", "freed": "freed"}
_COUNTERS = {"num_alloc_retries": "oom_retries", "num_ooms": "ooms", "num_device_alloc": "driver_allocs",
             "num_device_free": "driver_frees", "inactive_split_bytes.all.current": "non_releasable_bytes"}


def memory_stats(device: Device = None) -> Dict[str, Any]:
    """Returns the metrics of a device: first under the names of ``torch.cuda.memory_stats()``, then all that a report has.

    ``"allocated_bytes.all.current"``, ``.peak``, ``.allocated`` and ``.freed`` are bytes, as are those of ``reserved_bytes``,
    ``active_bytes`` and ``requested_bytes``; ``allocation`` and ``segment`` are numbers. ``inactive_split_bytes`` is idle
    memory that cannot go back to the driver. The rest has the names of the report's JSON (gpucache(7)). The dictionary of a
    device that was not used yet is empty. ``ALL`` is refused with ValueError: a report has one part for each device.
    """
    _entry("gpucache_write_report")
    ordinal = _ordinal(device)
    if ordinal == ALL:
        raise ValueError("memory_stats() takes one device")
    for part in json.loads(_report(_REPORT_JSON))["devices"]:
        if part["device"] == ordinal:
            stats = {"%s.all.%s" % (name, ours): part[key][theirs] for name, key in _METRICS.items()
                     for ours, theirs in _PARTS.items()}
            stats.update({name: part[key] for name, key in _COUNTERS.items()})
            stats.update(part)
            return stats
    return {}


def memory_summary() -> str:
    """Returns the report as text: one table for each device that the process has used."""
    return _report(_REPORT_TEXT)


def mem_get_info(device: Device = None) -> Tuple[int, int]:
    """Returns free and total memory of a device in bytes, as ``cuMemGetInfo`` answers under the library: within the limit.

    A device other than the current one gets its primary context for the question, as with ``torch.cuda.mem_get_info()``.
    Raises OSError where the driver is not loaded or refuses. ``ALL`` is refused with ValueError.
    """
    _entry("gpucache_version")
    ordinal, driver = _ordinal(device), _driver()
    if ordinal == ALL:
        raise ValueError("mem_get_info() takes one device")
    if driver is None:
        raise OSError(errno.ENODEV, "this process has not used CUDA yet")
    current, context = ctypes.c_int(-1), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    pushed = driver.cuCtxGetDevice(ctypes.byref(current)) != 0 or current.value != ordinal
    if pushed:
        _ask(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    try:
        if pushed:
            _ask(driver, "cuCtxPushCurrent_v2", context)
        try:
            _ask(driver, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        finally:
            if pushed:
                driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        if pushed:
            driver.cuDevicePrimaryCtxRelease_v2(ordinal)
    return free.value, total.value


def _ask(driver: ctypes.CDLL, name: str, *arguments: Any) -> None:
    status = getattr(driver, name)(*arguments)
    if status != 0:
        raise OSError(errno.EIO, "%s: the driver answers %d" % (name, status))


# ---- control ----

def empty_cache(device: Device = ALL) -> None:
    """Gives idle memory back to the driver, after waiting up to a second for work in flight; raises OSError (EBUSY) if none can go."""
    _call("gpucache_empty_cache", _ordinal(device))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits the process to a share of the device's memory, in (0, 1]; 1 lifts the limit. Everything counts, not only the pool.

    With ``ALL`` the share is that of every device, those as well that are used later.
    """
    _call("gpucache_set_memory_fraction", _ordinal(device), fraction)


def set_memory_limit(limit: int, device: Device = None) -> None:
    """Limits the process to so many bytes of the device's memory; 0 lifts the limit.

    Raises ValueError if the limit is no int from 0 to 2**64 - 1: ctypes would pass the lower bits of a larger one.
    """
    if not isinstance(limit, int) or not 0 <= limit < 1 << 64:
        raise ValueError("a limit is a number of bytes below 2**64, or 0 for none")
    _call("gpucache_set_memory_limit", _ordinal(device), limit)


def mark(label: str) -> None:
    """Names this moment in the log and the trace: the first 159 bytes of the text."""
    _call("gpucache_mark", label.encode())


def write_report(file: Union[str, "os.PathLike[str]", int, BinaryIO], format: str = "text") -> None:
    """Writes a report to a path, which is overwritten, a descriptor or an open file; ``format`` is "text" or "json"."""
    if format not in ("text", "json"):
        raise ValueError("format is 'text' or 'json', not %r" % format)
    kind = _REPORT_JSON if format == "json" else _REPORT_TEXT
    _entry("gpucache_write_report")
    if isinstance(file, (str, os.PathLike)):
        with open(file, "wb") as opened:
            _call("gpucache_write_report", opened.fileno(), kind)
    else:
        if not isinstance(file, int):
            file.flush()
            file = file.fileno()
        _refuse_overflow(file, "descriptor")
        _call("gpucache_write_report", file, kind)


def dump_snapshot(filename: Union[str, "os.PathLike[str]"] = "dump_snapshot.pickle") -> None:
    """Writes a memory snapshot for PyTorch's viewer (pytorch.org/memory_viz), as ``torch.cuda.memory._dump_snapshot()``.

    The program has to record a trace: start it with GPUCACHE_TRACE. The snapshot has its last 200000 events at most.
    Raises OSError with the messages of `gpucache snapshot` if that fails, as it does without a trace.
    """
    _entry("gpucache_version")
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    made = subprocess.run([os.path.join(_FOLDER, "gpucache"), "snapshot", str(os.getpid())], env=environment,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if made.returncode != 0:
        raise OSError(errno.EIO, made.stderr.decode("utf-8", "replace").strip())
    with open(filename, "wb") as file:
        file.write(made.stdout)
