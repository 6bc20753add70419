"""check.py SIM: the installed wheel, with the Python that runs this, on the simulated driver in the folder SIM.

Runs app.py natively, by `gpucache run`, by `python -m libgpucache run`, and with preload_env(); compares the module with
gpucache.h and with the command's options, and leaves no process or file behind.
"""
import os
import re
import subprocess
import sys
import tempfile

import libgpucache
from libgpucache import __main__ as command

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
APP = os.path.join(HERE, "app.py")
SIM = sys.argv[1]
GPUCACHE = os.path.join(os.path.dirname(sys.executable), "gpucache")

tried = failed = 0


def check(good, what, detail=""):
    global tried, failed
    tried += 1
    if not good:
        failed += 1
        print("FAIL %s\n%s" % (what, detail))


def run(arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not re.match("GPUCACHE|LD_PRELOAD", name)}
    environment.update(variables, LD_LIBRARY_PATH=SIM)
    return subprocess.run(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True)


def app(what, expected, arguments, **variables):
    ran = run(arguments, **variables)
    check(ran.returncode == 0 and ran.stdout.strip() == expected, what, "%s\n%s%s" % (ran.returncode, ran.stdout, ran.stderr))
    return ran


def read(*path):
    with open(os.path.join(ROOT, *path)) as file:
        return file.read()


python = sys.executable
version = re.search(r"^  version: '([\d.]+)'", read("meson.build"), re.M).group(1)
app("natively", "not loaded", [python, APP])
said = app("the command", "loaded %s []" % version, [GPUCACHE, "run", "--", python, APP])
check("Allocated memory" in said.stderr, "a report at the end", said.stderr)
app("the module", "loaded %s ['a', '--b']" % version, [python, "-m", "libgpucache", "run", "--report=off", APP, "a", "--b"])
app("the module, an option with its value apart", "loaded %s []" % version,
    [python, "-m", "libgpucache", "run", "--report", "off", "--one-pool", "--", APP])
app("preload_env()", "loaded %s []" % version, [python, APP], **libgpucache.preload_env({}))
with tempfile.TemporaryDirectory() as folder:
    app("a snapshot", "loaded %s []" % version, [GPUCACHE, "run", "--", python, APP], GPUCACHE_TRACE=folder + "/%p.trace")
check(run([GPUCACHE, "--version"]).stdout.startswith("gpucache " + version), "gpucache --version")
check(run([python, "-m", "libgpucache", "options"]).stdout == run([GPUCACHE, "options"]).stdout != "", "the module's other commands")
check(run([GPUCACHE, "run", "--", "sh", "-c", "exit 7"]).returncode == 7, "the program's status")

check(libgpucache.preload_env({"LD_PRELOAD": "/a.so"})["LD_PRELOAD"] == libgpucache.library_path() + ":/a.so", "an LD_PRELOAD is kept")
check(libgpucache.preload_env({"LD_PRELOAD": "/b/libgpucache.so"}) == {"LD_PRELOAD": "/b/libgpucache.so"}, "no second library")

# Lists that agree.
fields = re.findall(r"\b(\w+)(?=[,;])", re.sub(r"/\*.*?\*/", "", re.search(
    r"struct gpucache_stats \{(.*?)\n\}", read("include", "gpucache.h"), re.S).group(1), flags=re.S))
check(fields == [name for name, _ in libgpucache._Stats._fields_], "struct gpucache_stats", fields)
entries = set(re.findall(r"GPUCACHE_API int (\w+)\(", read("include", "gpucache.h")))
check(entries == set(libgpucache._ARGUMENTS), "the functions of gpucache.h", entries)
flags = {"--" + name for name in re.findall(r'^FLAG\(run, \w+, "([\w-]+)"', read("src", "tool", "common", "commands.def"), re.M)}
check(flags | {"--help"} == set(command._FLAGS), "the flags of gpucache run", flags)
installed = os.listdir(os.path.dirname(os.path.dirname(os.path.abspath(libgpucache.__file__))))
check(not [name for name in installed if name.endswith(".pth") and "gpucache" in name], "no .pth file", installed)
check(all(libgpucache.__dict__[name].__doc__ for name in libgpucache.__all__ if name != "ALL"), "docstrings")

print("wheel under Python %s: %d passed, %d failed" % (sys.version.split()[0], tried - failed, failed))
sys.exit(failed > 0)
