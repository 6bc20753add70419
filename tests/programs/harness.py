"""Runs the programs natively and under the library, on the simulator or on a GPU.

meson sets the paths: GPUCACHE_TEST_PROGRAMS (the built programs), GPUCACHE_TEST_LIBRARY (libgpucache.so),
GPUCACHE_TEST_SIM and GPUCACHE_TEST_SIM_OLD (the folders of the two simulated drivers). By hand: `meson devenv`, or the
same four variables. Programs run on pages, the library's default backend, unless a script sets another one; with
GPUCACHE_TEST_BACKEND=segments on segments. `--gpu` selects the machine's driver; `scripts/gpu-check.sh answers alone`
runs all scripts so. At the time GPUCACHE_TEST_END (of time.monotonic()) a script prints that it stops, and ends.
"""
import concurrent.futures
import ctypes
import inspect
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

GPU = "--gpu" in sys.argv
PROGRAMS = os.environ.get("GPUCACHE_TEST_PROGRAMS", ".")
LIBRARY = os.environ.get("GPUCACHE_TEST_LIBRARY", "libgpucache.so")
SIM = os.environ.get("GPUCACHE_TEST_SIM", "")
SIM_OLD = os.environ.get("GPUCACHE_TEST_SIM_OLD", "")
HERE = os.path.dirname(os.path.abspath(__file__))
END = float(os.environ.get("GPUCACHE_TEST_END", "inf"))
EMULATED = "GPUCACHE_TEST_EMULATED" in os.environ  # scripts/arm64.sh sets it: aarch64 programs run under qemu
# Messages that qemu prints at a signal, and that this machine's loader prints about a library of aarch64.
FROM_EMULATION = re.compile(r"qemu: uncaught target signal .*\n|ERROR: ld\.so: object .* from LD_PRELOAD cannot be preloaded .*\n")
VARIANT = os.environ.get("GPUCACHE_TEST_BACKEND", "")
BACKEND = VARIANT or "pages"  # the backend of a run that sets none
TIMEOUT = 150 if GPU else 480 if EMULATED else 120  # seconds for one process; three processes may share a GPU
# Variables of the caller that change the output of the library or the tool: ranks of a job, and settings.
FOREIGN = re.compile("(GPUCACHE|SLURM|OMPI|PMIX?|MV2|PYTORCH|XLA|TF|NV_SANITIZER|CUDA_INJECTION64)_|"
                     "CUDA_DEVICE_MEMORY_LIMIT|(RANK|WORLD_SIZE|LD_PRELOAD|LD_LIBRARY_PATH)$")
# Many programs crash on purpose. A core would contain the memory of all simulated devices.
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

# Every reuse mode, with and without pressure.
MODES = {
    "barrier": {},
    "barrier, tight": {"GPUCACHE_BUDGET": "0"},
    "wait": {"GPUCACHE_REUSE": "wait"},
    "wait, tight": {"GPUCACHE_REUSE": "wait", "GPUCACHE_BUDGET": "0"},
    "sync": {"GPUCACHE_REUSE": "sync"},
}
if not VARIANT:
    MODES["segments"] = {"GPUCACHE_BACKEND": "segments"}
    MODES["segments, tight"] = {"GPUCACHE_BACKEND": "segments", "GPUCACHE_BUDGET": "0"}


def in_pages(options):
    return (options or {}).get("GPUCACHE_BACKEND", BACKEND) == "pages"


# The modes of tests that take long on a GPU: each reuse mode once, with or without pressure.
FEW = {name: MODES[name] for name in (("barrier", "wait, tight", "sync", "segments") if GPU else MODES)
       if name in MODES}


class OutOfTime(Exception):
    pass


def program(name):
    return os.path.join(PROGRAMS, name)


def environment(under, options=None, old=False, preload=None):
    """Returns this process's environment without FOREIGN variables, with the driver's folder and, if `under`, the library."""
    env = {k: v for k, v in os.environ.items() if not FOREIGN.match(k)}
    # comes before the run path of the programs, which names the simulator's folder
    env["LD_LIBRARY_PATH"] = REAL_DRIVER if GPU else SIM_OLD if old else SIM
    libraries = preload if preload is not None else [LIBRARY] if under else []
    if libraries:
        env["LD_PRELOAD"] = ":".join(libraries)
    if VARIANT:
        env["GPUCACHE_BACKEND"] = VARIANT
    env.update(options or {})
    return env


def real_driver():
    """Returns the folder of the libcuda.so.1 that the loader finds, and the loader's other folders. Starts the driver too,
    because a device without users sleeps and takes some time to start."""
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    with open("/proc/self/maps") as maps:
        found = re.search(r"(/\S*)/libcuda\.so[.\d]*$", maps.read(), re.M)
    return ":".join([found.group(1)] + [f for f in [os.environ.get("LD_LIBRARY_PATH")] if f])


REAL_DRIVER = real_driver() if GPU else ""


class Ran:
    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds


def run(command, under=True, options=None, old=False, timeout=TIMEOUT, preload=None, **more):
    """Runs a command until it ends, and returns a Ran. A program that exceeds the time limit has the status "timeout"."""
    start = time.monotonic()
    if start > END:
        raise OutOfTime("no time left for %s" % " ".join(command))
    child = subprocess.Popen(command, env=environment(under, options, old, preload),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             stdin=subprocess.DEVNULL, start_new_session=True, **more)
    try:
        out, err = child.communicate(timeout=min(timeout, END + 5 - start))
        status = child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # the children too: they hold the pipes open
        out, err = child.communicate()
        status = "timeout"
    decode = lambda text: text.decode("utf-8", "replace")
    err = decode(err)
    if EMULATED:
        err = FROM_EMULATION.sub("", err)
    return Ran(status, decode(out), err, time.monotonic() - start)


class Parts:
    """The output of a program: its lines by part, and the status of each part that crashed."""

    def __init__(self):
        self.lines, self.died, self.err = {}, {}, ""


def run_parts(command, options=None, skip=(), **more):
    """Runs a program that prints "# NAME" at the begin of each part (section() in program.h). Returns its Parts.

    A GPU's driver may end or hang the program in one part: the program then runs again without that part. On the
    simulator the program runs once. Lines before the first part have the name ""."""
    parts, skip = Parts(), list(skip)
    while True:
        ran = run(command, options={**(options or {}), "PROGRAM_SKIP": ",".join(skip)}, **more)
        at, lines = "", {"": []}
        for line in ran.out.splitlines():
            if line.startswith("# "):
                at = line[2:]
                lines[at] = []
            else:
                lines[at].append(line)
        for name, said in lines.items():
            parts.lines.setdefault(name, said)
        parts.err += ran.err
        if ran.status == 0:
            return parts
        parts.died[at] = ran.status
        if not at or not GPU:
            return parts
        skip.append(at)


def side_by_side(jobs, width=6, simulated=1):
    """Calls all jobs, `width` of them at a time on a GPU and `simulated` on the simulator. Raises the first exception of a
    job at the end. On the simulator, only jobs whose programs mostly sleep should run in parallel."""
    with concurrent.futures.ThreadPoolExecutor(width if GPU else simulated) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.result()


def run_with_report(command, options=None, **more):
    """Runs a command under the library. Returns its Ran, and the last report as JSON, or None without a report."""
    ran, reports = run_with_reports(command, options, **more)
    return ran, reports[-1] if reports else None


def run_with_reports(command, options=None, **more):
    """Runs a command under the library. Returns its Ran, and all reports of the process and its children in their order."""
    with tempfile.TemporaryDirectory() as folder:
        options = dict(options or {})
        options.update({"GPUCACHE_REPORT": folder + "/%n", "GPUCACHE_REPORT_FORMAT": "json"})
        ran = run(command, options=options, **more)
        ran.err = re.sub("^gpucache: report written to %s/.*\n" % re.escape(folder), "", ran.err, flags=re.M)
        names = sorted(os.listdir(folder), key=int)
        reports = []
        for name in names:
            with open(os.path.join(folder, name)) as file:
                text = file.read()
            reports.append(json.loads(text) if text else None)
    return ran, reports


def frames(texts):
    """Converts frames from text, f (/a/f.py:3) or /a/lib.so+0x1, to the objects that the JSON of a report has."""
    made = []
    for text in texts:
        named = re.fullmatch(r"(.*) \((.*?)(?::(\d+))?\)", text, re.S)
        place = re.fullmatch(r"(.*)\+0x([0-9a-f]+)", text, re.S)
        if named:
            made.append({"function": named[1], "file": named[2], **({"line": int(named[3])} if named[3] else {}),
                         **({"python": True} if named[2].endswith(".py") else {})})
        elif place:
            made.append({"module": place[1], "offset": int(place[2], 16)})
        else:
            made.append({"function": text})
    return made


def check_books(report):
    """Checks the equations between the values of a report. Returns those that do not hold, as sentences."""
    broken = []
    for device in report["devices"]:
        def holds(condition, what):
            if not condition:
                broken.append("device %d: %s" % (device["device"], what))
        get = lambda name: device[name + "_bytes"]["current"]
        order = ["requested", "allocated", "active", "reserved"]
        for small, big in zip(order, order[1:]):
            holds(get(small) <= get(big),
                  "%s %d > %s %d" % (small, get(small), big, get(big)))
        if device["limit_bytes"] is not None:
            holds(get("reserved") <= device["limit_bytes"], "reserved is above the limit")
            holds(device["reserved_bytes"]["peak"] <= device["limit_bytes"],
                  "reserved was above the limit")
        parts = device["ready_bytes"] + device["pending_bytes"] + get("allocated")
        holds(parts == get("reserved"),
              "ready + pending + allocated = %d, reserved = %d" % (parts, get("reserved")))
        holds(device["releasable_bytes"] + device["non_releasable_bytes"] == device["ready_bytes"],
              "releasable + non_releasable is not what is ready")
        metrics = {name: device[name + "_bytes"] for name in order}
        metrics.update({name: device[name] for name in ("allocations", "segments")})
        metrics.update(device["outside_bytes"])
        for name, m in metrics.items():
            holds(m["total"] - m["freed"] == m["current"], "%s: total - freed is not current" % name)
            holds(m["peak"] >= m["current"], "%s: peak is below current" % name)
        outside = sum(m["current"] for name, m in device["outside_bytes"].items()
                      if name not in ("pinned_host", "ipc_imported"))
        taken = sum(row["current"] for row in device["libraries"])
        holds(taken == get("requested") + outside,
              "libraries have %d, requested + outside is %d" % (taken, get("requested") + outside))
        holds(device["cache_hits"] + device["cache_misses"] == device["allocations"]["total"],
              "hits + misses is not the number of allocations")
        holds(device["limit_refusals"] <= device["ooms"], "more refusals at the limit than OOMs")
        holds(device["active_bytes"]["total"] >= device["allocated_bytes"]["total"],
              "less was active than allocated in all")
    return broken


def part_names(accepted, names=None, matches=lambda name, known: name == known):
    """Returns `names`, by default the arguments that are no options. Ends the script with status 2 and one line if a name
    matches none of the accepted ones."""
    names = [a for a in sys.argv[1:] if not a.startswith("-")] if names is None else names
    for name in names:
        if not any(matches(name, known) for known in accepted):
            print("no part '%s'; there are: %s" % (name, ", ".join(dict.fromkeys(accepted))), file=sys.stderr)
            sys.exit(2)
    return names


class Tally:
    """Counts checks, prints each one that fails, and ends the script with a status."""

    def __init__(self):
        self.tried = self.failed = 0
        self.lock = threading.Lock()

    def check(self, good, what, detail=""):
        with self.lock:
            self.tried += 1
            if not good:
                self.failed += 1
                at = inspect.currentframe().f_back
                print("FAIL %s (%s:%d)" % (what, os.path.basename(at.f_code.co_filename), at.f_lineno))
                for line in str(detail).splitlines()[:40]:
                    print("     %s" % line)
                sys.stdout.flush()
        return good

    def note(self, text):
        """Prints a note that is no failure: on a GPU, which lines cannot be compared, and why."""
        with self.lock:
            print("note: %s" % text)
            sys.stdout.flush()

    def run(self, main):
        """Calls main() and ends the script, with status 1 if a check failed or none was made. Running out of time is a
        failed check."""
        try:
            main()
        except OutOfTime as error:
            self.check(False, error)
        print("%d checks, %d failed" % (self.tried, self.failed))
        sys.exit(1 if self.failed or not self.tried else 0)
