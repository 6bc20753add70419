"""nvml.py: asks NVML how much of the first device is used, from a process of its own, without the library.

Within a process under the library the library answers for NVML: idle memory of the pool counts as free, as after a
native free. Other processes see all memory of the pool.
"""

import ctypes
import os
import select
import subprocess
import sys


class Memory(ctypes.Structure):
    """The structure nvmlMemory_t."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def watch():
    """Queries NVML every 20 ms. Answers each line of stdin with the bytes used now, and their maximum since the last answer."""
    nvml, handle, memory, most = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), Memory(), 0
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    while True:
        asked = select.select([sys.stdin], [], [], 0.02)[0]
        assert nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
        most = max(most, memory.used)
        if asked:
            if not sys.stdin.readline():
                return
            print(memory.used, most, flush=True)
            most = 0


class Used:
    """Queries the bytes of the first device that all processes use."""

    def __init__(self):
        removed = ("LD_PRELOAD", "PYTORCH_NO_CUDA_MEMORY_CACHING")
        environment = {k: v for k, v in os.environ.items() if k not in removed and not k.startswith("GPUCACHE_")}
        self.watcher = subprocess.Popen([sys.executable, os.path.abspath(__file__)], env=environment, text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self):
        """Returns the bytes used now, and their maximum since the last query."""
        self.watcher.stdin.write("\n")
        self.watcher.stdin.flush()
        return [int(word) for word in self.watcher.stdout.readline().split()]

    def now(self):
        return self.ask()[0]

    def most(self):
        return self.ask()[1]

    def close(self):
        self.watcher.stdin.close()
        self.watcher.wait()
        self.watcher.stdout.close()


if __name__ == "__main__":
    watch()
