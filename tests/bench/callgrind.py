"""Runs a program of a build folder under the library and callgrind, on the simulated driver."""
import os
import subprocess
import sys


def run(build, words, out, settings, *options, timeout=300):
    """Runs the program tests/bench/WORDS[0] with the other words. `out`: callgrind's output file. `settings`: variables."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUCACHE_", "LD_"))}
    env.update(
        LD_PRELOAD=os.path.join(build, "libgpucache.so"),
        LD_LIBRARY_PATH=os.path.join(build, "tests", "sim"),
        GPUCACHE_REPORT="off",
        GPUCACHE_SIM_MEMORY="1G",  # valgrind has no addresses for more
        GPUCACHE_SIM_IDLE_MS="0",  # no queued work outside calls
        **settings)
    command = ["valgrind", "-q", "--tool=callgrind", "--callgrind-out-file=" + out, "--compress-strings=no", "--compress-pos=no"]
    program = os.path.join(build, "tests", "bench", words[0])
    done = subprocess.run([*command, *options, program, *words[1:]], env=env, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        sys.exit("%s: status %d\n%s" % (" ".join(words), done.returncode, done.stderr))
