"""Programs that are ended by a signal while kernels run: a report, the status that they have natively, no hang."""

import concurrent.futures
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness.build import HERE
from harness.process import SAFE, SCRATCH, Settings

FRAMEWORKS = {"torch": "PyTorch, caching off", "cupy": "CuPy, pool off", "jax": "JAX, platform allocator"}
SIGNALS = ("TERM", "INT", "HUP", "ABRT", "SEGV", "BUS", "FPE", "ILL", "USR2")
START_S, END_S = 90, 30
AT_ONCE = 8


def end(framework, name, library):
    """(status, reasons of the reports); a status "hangs" or "does not start"."""
    folder = tempfile.mkdtemp(dir=SCRATCH)
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUCACHE_")}
    env.update(SAFE, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    if library:
        env.update(
            LD_PRELOAD=library, GPUCACHE_REPORT=folder + "/report-%n", GPUCACHE_REPORT_FORMAT="json"
        )
        env.update(Settings.everywhere)
    command = [sys.executable, os.path.join(HERE, "ending_loop.py"), framework]
    with open(folder + "/err", "wb") as err:
        child = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=err, stdin=subprocess.DEVNULL, cwd=folder
        )
    watch = time.monotonic() + START_S
    os.set_blocking(child.stdout.fileno(), False)
    status = None
    while b"ready" not in (child.stdout.read() or b""):
        if child.poll() is not None or time.monotonic() > watch:
            status = "does not start"
            break
        time.sleep(0.02)
    if status is None:
        time.sleep(random.random() / 20)
        child.send_signal(getattr(signal, "SIG" + name))
        if name == "USR2" and library:  # it goes on
            time.sleep(1)
            status = "goes on" if child.poll() is None else "ends: %s" % child.returncode
            child.terminate()
        try:
            status = status or child.wait(END_S)
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            status = "hangs"
    child.kill()
    child.wait()
    reasons = []
    for number in range(1, 10):
        path = "%s/report-%d" % (folder, number)
        if os.path.exists(path):
            with open(path) as file:
                try:
                    reasons.append(json.loads(file.read())["reason"])
                except ValueError:
                    reasons.append("broken")
    shutil.rmtree(folder, ignore_errors=True)
    return status, reasons


def check(c, tries):
    """`tries` of each framework, spread over the signals."""
    for framework, label in FRAMEWORKS.items():
        if not importlib.util.find_spec(framework):
            c.table.add("ended: " + label, None, None, None, None, "not here")
            continue
        names = [SIGNALS[i % len(SIGNALS)] for i in range(tries)]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            natively = {n: pool.submit(end, framework, n, None) for n in SIGNALS}
            runs = [(n, pool.submit(end, framework, n, c.library)) for n in names]
        for name in SIGNALS:
            native = natively[name].result()[0]
            wanted = "goes on" if name == "USR2" else native
            word = "signal" if name == "USR2" else name
            results = [run.result() for n, run in runs if n == name]
            good = [r for r in results if r[0] == wanted and word in r[1]]
            bad = [r for r in results if r not in good]
            c.table.add(
                "ended: %s, %s" % (label, name),
                str(native),
                "%d of %d" % (len(good), len(results)),
                None,
                not bad,
                "" if not bad else "status and reports: %s" % (bad[0],),
                "\n".join(map(str, bad)),
            )
