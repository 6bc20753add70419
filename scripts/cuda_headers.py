#!/usr/bin/env python3
"""cuda_headers.py fetch FOLDER [VERSION]: NVIDIA's headers from PyPI, as FOLDER/include/cuda.h.
cuda_headers.py check FOLDER: builds against one header of each version, below FOLDER.

The check compiles the library against the newest header of every major.minor that PyPI offers, and
links it. Its exported names and its tables of entries must be the same with each header: one library
knows every entry. The syntax of simulator and tests is checked with the oldest and the newest header
of each major: a major only adds names, so the oldest lacks the most and the newest has the most. If
clang is there, the syntax of the programs for a GPU is checked with the oldest and the newest of all.
A header that is too old must be named. Headers are kept below FOLDER; without a network those are
used, and the last line says so.
"""
import glob
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGES = {11: "nvidia-cuda-runtime-cu11", 12: "nvidia-cuda-runtime-cu12"}
NEWER = "nvidia-cuda-runtime"  # from 13 on one package for all
OLDEST = (11, 8)
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
# of each version the headers are the same on every platform
PLATFORMS = ["--platform", "manylinux1_x86_64", "--platform", "manylinux2014_x86_64"]
# these also need CUB or Thrust
NEED_CCCL = ("by_library.cu", "thrust_loop.cu", "pairs.cu")


def text(version):
    return "%d.%d" % version


def parsed(string):
    return tuple(int(part) for part in string.split("."))


def fetch(folder, version):
    """The header of a version; nothing of it is there if that fails."""
    if os.path.exists(folder + "/include/cuda.h"):
        return
    package = PACKAGES.get(version[0], NEWER)
    os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(folder))) as work:
        wanted = "%s==%s.*" % (package, text(version))
        pip = subprocess.run([*PIP, "download", "--quiet", "--no-deps", "--only-binary=:all:", *PLATFORMS,
                              "--dest", work + "/wheel", wanted], stderr=subprocess.PIPE, text=True)
        if pip.returncode != 0:
            said = [line for line in pip.stderr.splitlines() if line.startswith("ERROR: ")]
            raise OSError("pip could not download %s: %s" % (wanted, said[-1][7:] if said else "status %d" % pip.returncode))
        with zipfile.ZipFile(glob.glob(work + "/wheel/*.whl")[0]) as wheel:
            for name in wheel.namelist():
                _, found, after = name.partition("/include/")
                if found and after and not name.endswith("/"):
                    path = os.path.join(work, "include", after)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "wb") as file:
                        file.write(wheel.read(name))
        os.makedirs(folder, exist_ok=True)
        shutil.rmtree(folder + "/include", ignore_errors=True)
        os.rename(work + "/include", folder + "/include")


def offered():
    """Returns every (major, minor) that PyPI has, 11.7 too, or None without a network."""
    versions = set()
    for package in [*PACKAGES.values(), NEWER]:
        asked = subprocess.run([*PIP, "index", "versions", package], capture_output=True, text=True)
        found = re.search(r"^Available versions: (.*)$", asked.stdout, re.M)
        if not found:
            return None
        versions |= {parsed(v)[:2] for v in found.group(1).split(", ") if re.match(r"\d+\.\d+", v)}
    return sorted(versions)


class Check:
    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        self.failures = []
        self.pool = ThreadPoolExecutor(os.cpu_count())

    def header(self, version):
        return os.path.join(self.folder, text(version))

    def run(self, command, where):
        done = subprocess.run(command, cwd=where, capture_output=True, text=True)
        if done.returncode != 0:
            self.failures.append("%s\n%s" % (shlex.join(command), done.stdout + done.stderr))
        return done

    def configure(self, version):
        """A build without optimisation, with the newest header; its commands serve for all."""
        self.build = os.path.join(self.folder, "build-" + text(version))
        if not os.path.exists(self.build + "/build.ninja"):
            self.run(["meson", "setup", self.build, ROOT, "--buildtype=debug", "--werror",
                      "-Dtoolkit=" + self.header(version)], ROOT)
        self.run(["ninja", "-C", self.build, "libgpucache.so"], ROOT)
        if self.failures:
            return
        self.newest = self.header(version) + "/include"
        deps = subprocess.run(["ninja", "-C", self.build, "-t", "deps"], capture_output=True,
                              text=True).stdout
        self.needs_header = {part.split(":")[0] for part in deps.split("\n\n") if "/cuda.h" in part}
        with open(self.build + "/compile_commands.json", encoding="utf-8") as file:
            self.commands = {}
            for entry in json.load(file):
                # one build of each source is enough: what they differ in is no header's business
                if self.newest in entry["command"] and entry["file"].endswith(".c"):
                    self.commands.setdefault(entry["file"], entry)
        listed = subprocess.run(["ninja", "-C", self.build, "-t", "commands", "libgpucache.so"],
                                capture_output=True, text=True).stdout
        self.link = next(shlex.split(line) for line in listed.splitlines()
                         if "-o libgpucache.so " in line)

    def compile(self, version, entry):
        """One source: to an object if it is the library's, else its syntax alone."""
        command = []
        arguments = iter(shlex.split(entry["command"].replace(self.newest, self.header(version) + "/include")))
        target = None
        for argument in arguments:
            if argument in ("-MQ", "-MF"):
                next(arguments)
            elif argument == "-o":
                target = next(arguments)
            elif argument not in ("-MD", "-c"):
                command.append(argument)
        if target.startswith("libgpucache.so.p/"):
            if target not in self.needs_header:
                return None
            made = os.path.join(self.header(version), "objects", os.path.basename(target))
            self.run([*command, "-c", "-o", made], self.build)
            return target, made
        self.run([*command, "-fsyntax-only"], self.build)
        return None

    def gpu_program(self, version, path):
        stubs = os.path.join(self.folder, "stubs")
        self.run(["clang++", "-x", "cuda", "--cuda-host-only", "-nocudainc", "-nocudalib", "-std=c++17",
                  "-fsyntax-only", "-Wno-unknown-cuda-version", "-D_GNU_SOURCE",
                  "-include", ROOT + "/tests/gpu/compile_only.h", "-I" + ROOT + "/src",
                  "-I" + ROOT + "/include", "-isystem", stubs,
                  "-isystem", self.header(version) + "/include", path], ROOT)

    def exported(self, library):
        listed = self.run(["nm", "-D", "--defined-only", library], self.build).stdout
        return sorted(line.split(maxsplit=2)[2] for line in listed.splitlines())

    def table(self, made):
        """The names and sizes of what is made from the table of entries."""
        listed = self.run(["nm", "-S", "--defined-only", made], self.build).stdout
        return sorted((fields[-1], fields[1]) for fields in map(str.split, listed.splitlines())
                      if fields[-1] in ("entries", "real_entries") or fields[-1].startswith("first_"))

    def version(self, version, tests, programs):
        """Builds the library against one header; with `tests` the simulator and the tests too, and these programs for a GPU.
        Returns (sources, exported symbols, table)."""
        os.makedirs(os.path.join(self.header(version), "objects"), exist_ok=True)
        commands = [entry for entry in self.commands.values() if tests or entry["output"].startswith("libgpucache.so.p/")]
        results = list(self.pool.map(lambda entry: self.compile(version, entry), commands))
        list(self.pool.map(lambda path: self.gpu_program(version, path), programs))
        made = dict(filter(None, results))
        library = os.path.join(self.header(version), "libgpucache.so")
        link = [made.get(argument, argument) for argument in self.link]
        link[link.index("-o") + 1] = library
        self.run(link, self.build)
        entries = next((o for t, o in made.items() if t.endswith("entries.c.o")), None)
        if self.failures or not entries:
            return None
        return len(results) + len(programs), self.exported(library), self.table(entries)

    def too_old(self, version):
        """Neither meson nor the compiler goes on with it, and both say why."""
        path = tempfile.mkdtemp(dir=self.folder)
        meson = subprocess.run(["meson", "setup", path, ROOT, "-Dtests=false",
                                "-Dtoolkit=" + self.header(version)], capture_output=True, text=True)
        shutil.rmtree(path)
        plain = subprocess.run(["cc", "-fsyntax-only", "-I" + ROOT + "/src", "-isystem",
                                self.header(version) + "/include", ROOT + "/src/driver/table/entries.c"],
                               capture_output=True, text=True)
        if "is of CUDA " + text(version) not in meson.stdout or meson.returncode == 0:
            self.failures.append("meson does not name a header of CUDA %s:\n%s" % (text(version), meson.stdout))
        if "#error" not in plain.stderr:
            self.failures.append("the compiler takes a header of CUDA %s:\n%s" % (text(version), plain.stderr))


def check(folder):
    check = Check(folder)
    os.makedirs(check.folder, exist_ok=True)
    known = offered()
    versions = known or sorted(parsed(v) for v in os.listdir(check.folder)
                               if re.fullmatch(r"\d+\.\d+", v) and
                               os.path.exists(os.path.join(check.folder, v, "include", "cuda.h")))
    list(check.pool.map(lambda v: fetch(check.header(v), v), versions))
    good = [v for v in versions if v >= OLDEST]
    if not good:
        sys.exit("cuda_headers.py: PyPI cannot be reached, and there are no headers in " + folder)
    check.configure(good[-1])
    programs = []
    if shutil.which("clang++"):
        os.makedirs(check.folder + "/stubs/crt", exist_ok=True)
        for name in ("host_config.h", "host_defines.h"):
            with open("%s/stubs/crt/%s" % (check.folder, name), "w", encoding="utf-8"):
                pass
        programs = [p for p in sorted(glob.glob(ROOT + "/tests/gpu/*.cu") + glob.glob(ROOT + "/tests/bench/*.cu"))
                    if os.path.basename(p) not in NEED_CCCL]
    newest = None
    majors = {v[0] for v in good}
    ends = {end(v for v in good if v[0] == major) for major in majors for end in (min, max)}
    for version in reversed(good):
        on_gpu = programs if version in (good[0], good[-1]) else []
        result = None if check.failures else check.version(version, version in ends, on_gpu)
        if check.failures:
            sys.exit("cuda_headers.py: CUDA %s: %d failures\n%s" % (
                text(version), len(check.failures), "\n".join(check.failures[:4])))
        if not all(result):
            sys.exit("cuda_headers.py: CUDA %s: nothing was compiled, exported or listed" % text(version))
        newest = newest or result
        for what, mine, other in zip(("exported symbols", "table of entries"), result[1:], newest[1:]):
            if mine != other:
                sys.exit("cuda_headers.py: CUDA %s: other %s than with CUDA %s: %s" % (
                    text(version), what, text(good[-1]), sorted(set(mine) ^ set(other))))
        print("CUDA %-5s %4d sources, %d exported, %d in the table" % (
            text(version), result[0], len(result[1]), len(result[2]) - 2), flush=True)
    for version in versions:
        if version < OLDEST:
            check.too_old(version)
            print("CUDA %-5s too old, and it is said" % text(version))
    if check.failures:
        sys.exit("cuda_headers.py: " + "\n".join(check.failures))
    if not programs:
        print("the programs for a GPU were not checked: no clang++")
    if not known:
        print("PyPI could not be reached: these are the headers that were there")


if len(sys.argv) > 2 and not importlib.util.find_spec("pip"):
    sys.exit("cuda_headers.py: needs pip, which this python3 lacks: install the package python3-pip "
             "(apt install python3-pip, dnf install python3-pip)")
if len(sys.argv) in (3, 4) and sys.argv[1] == "fetch":
    try:
        fetch(sys.argv[2], parsed(sys.argv[3] if len(sys.argv) == 4 else "13.0"))
    except (OSError, IndexError, ValueError) as failure:
        sys.exit("cuda_headers.py: %s" % failure)
elif len(sys.argv) == 3 and sys.argv[1] == "check":
    check(sys.argv[2])
else:
    sys.exit(__doc__)
