#!/usr/bin/env python3
"""pictures.py [--program COMMAND] [--seconds N] [BUILD]: makes the pictures in docs/pictures.

    docs/pictures/top.svg       gpucache top, as a terminal shows it
    docs/pictures/report.svg    the report of a program
    docs/pictures/page.png      the page of gpucache report --html, and page-dark.png
    docs/pictures/page-*.png    parts of it: a trace, the flame graph, holders and libraries, ranks side by side, the page on a telephone

BUILD is a build folder, build/gcc if it is not named. Without --program the pictures show eight processes of
tests/demo/training.py on one device of 80 GiB. Driver and NVML are simulated then, and the pictures say so. On a machine
with a GPU:

    LD_LIBRARY_PATH= python3 scripts/pictures.py --gpu --program 'python3 train.py'

The program should run for --seconds (24 if that is not named) at least. Needs tmux for top.svg, and chromium for the page.
"""
import argparse
import html
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "programs"))
import browser

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PICTURES = os.path.join(ROOT, "docs", "pictures")
COLUMNS, LINES = 160, 11
MEMORY, CONTEXT = 80 << 30, 512 << 20  # of the simulated device; of a context, as the simulated NVML counts it


def environment(folder, wanted):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUCACHE_") and k != "LD_PRELOAD"}
    env.update({"XDG_RUNTIME_DIR": folder, "GPUCACHE_REPORT_FORMAT": "json", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"})
    if not wanted.gpu:
        sim = os.path.join(wanted.build, "tests", "sim")
        env.update({"LD_LIBRARY_PATH": sim + ":" + os.path.join(sim, "nvml"), "GPUCACHE_SIM_MEMORY": str(MEMORY),
                    "GPUCACHE_SIM_NVML": os.path.join(folder, "nvml")})
        library = os.path.join(folder, "liboptimizer.so")
        if shutil.which("cc"):
            subprocess.run(["cc", "-O2", "-fno-optimize-sibling-calls", "-shared", "-fPIC", "-o", library,
                            os.path.join(ROOT, "tests", "demo", "optimizer.c")], check=True)
            env["TRAINING_LIBRARY"] = library
    return env


def terminal(name, lines, title, reverse=()):
    """Text as an SVG; it follows the colours of who looks at it."""
    width, height = 8.43, 18
    rows = []
    for i, line in enumerate(lines):
        y = 52 + i * height
        if i in reverse:
            rows.append('<rect class="bar" x="12" y="%d" width="%.0f" height="%d"/>' % (y - 13, width * COLUMNS + 8, height))
        # blocks of the history in a colour of their own
        for part in re.finditer(r"[▁-█]+|[^▁-█]+", line):
            text = part.group()
            if text.strip():
                lead = len(text) - len(text.lstrip())
                rows.append('<text class="%s" x="%.1f" y="%d" textLength="%.1f" xml:space="preserve">%s</text>' % (
                    "h" if text[0] in "▁▂▃▄▅▆▇█" else "r" if i in reverse else "t", 16 + (part.start() + lead) * width, y,
                    len(text.strip()) * width, html.escape(text.strip())))
    columns = max(len(line) for line in lines) if "report" in name else COLUMNS
    w, h = 32 + columns * width, 66 + len(lines) * height
    svg = ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" font-size="14" role="img" aria-label="%s">\n'
           "<style>\n.f{fill:#fbfcfd;stroke:#d5dde6}.t{fill:#17212d}.d{fill:#66758a}.h{fill:#2f6fde}.bar{fill:#17212d}.r{fill:#fbfcfd}\n"
           "text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}\n"
           "@media (prefers-color-scheme:dark){.f{fill:#10161d;stroke:#2b3744}.t{fill:#e7edf4}.d{fill:#93a1b1}.h{fill:#5c97ff}"
           ".bar{fill:#e7edf4}.r{fill:#10161d}}\n</style>\n"
           '<rect class="f" x="1" y="1" width="%.0f" height="%d" rx="10"/>\n'
           '<text class="d" x="16" y="24">%s</text>\n%s\n</svg>\n' % (
               w, h, html.escape(title), w - 2, h - 2, html.escape(title), "\n".join(rows)))
    with open(os.path.join(PICTURES, name), "w", encoding="utf-8") as out:
        out.write(svg)


def start(wanted, env, rank, folder):
    more = {"GPUCACHE_REPORT": "%s/rank%d.%%n" % (folder, rank), "RANK": str(rank), "WORLD_SIZE": str(wanted.ranks),
            "GPUCACHE_REPORT_INTERVAL": "%g" % max(0.25, wanted.seconds / 60), "GPUCACHE_STACKS": "16",
            "GPUCACHE_TRACE": "%s/trace%d" % (folder, rank) if rank == 0 else ""}
    command = shlex.split(wanted.program) if wanted.program else [
        "python3", "training.py", str(wanted.seconds + 4)]
    return subprocess.Popen([os.path.join(wanted.build, "gpucache"), "run", "--", *command], env={**env, **more},
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                            cwd=None if wanted.program else os.path.join(ROOT, "tests", "demo"))


def answer_for_nvml(env, pids):
    """Writes the answers of the simulated NVML: each process has its reserved memory and a context."""
    text = subprocess.run([env["COMMAND"], "metrics"], env=env, capture_output=True, text=True).stdout
    rows = re.findall(r'^gpucache_reserved_bytes\{[^}]*pid="(\d+)"[^}]*\} (\d+)', text, re.M)
    bytes_of = {int(pid): int(float(value)) + CONTEXT for pid, value in rows if int(pid) in pids}
    new = env["GPUCACHE_SIM_NVML"] + ".new"
    with open(new, "w") as out:
        out.write("GPU %d %d 71\n" % (sum(bytes_of.values()), MEMORY) + "".join("%d %d\n" % row for row in bytes_of.items()))
    os.replace(new, env["GPUCACHE_SIM_NVML"])


def top(wanted, env, pids):
    socket = os.path.join(env["XDG_RUNTIME_DIR"], "tmux")

    def tmux(*arguments):
        return subprocess.run(["tmux", "-S", socket, "-f", "/dev/null", *arguments], env=env, capture_output=True, text=True)

    if not wanted.gpu:
        time.sleep(2)  # gpucache top asks once whether there is an NVML: the processes have to be in its answers
        answer_for_nvml(env, pids)
    tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), env["COMMAND"], "top", "--interval=0.5", *map(str, pids))
    end = time.monotonic() + wanted.seconds * 0.6
    while time.monotonic() < end:
        time.sleep(0.5)
        if not wanted.gpu:
            answer_for_nvml(env, pids)
    screen = tmux("capture-pane", "-p").stdout.rstrip("\n").split("\n")
    tmux("kill-server")
    screen = [re.sub(r", of other versions \d+", "", line) for line in screen]
    terminal("top.svg", screen, "gpucache top" + wanted.note, reverse=(1, 2))


WAIT = "new Promise((done) => setTimeout(done, 600))"  # until the drawing is there
PARTS = [  # picture, page, columns, dark, how to come there, the part shown
    ("page.png", "process", 1280, False, "", None),
    ("page-dark.png", "process", 1280, True, "", None),
    ("page-phone.png", "process", 390, False, "", None),
    ("page-trace.png", "process", 1280, False, "for (let i = 0; i < 4; i++) document.querySelector('.part:has(> .trace) [aria-label=\"zoom in\"]').click();", ".part:has(> .trace)"),
    ("page-flame.png", "process", 1280, False, "const width = document.querySelector('.flame').parentNode.querySelector('select'); width.value = 'total';"
     "width.dispatchEvent(new Event('change')); const search = document.querySelector('input[type=search]'); search.value = 'step';"
     "search.dispatchEvent(new Event('input'));", ".part:has(> .flame)"),
    ("page-holders.png", "process", 1280, False, "", ".columns"),
    ("page-ranks.png", "ranks", 1280, False, "", "#side"),
]


def page(wanted, env, files, newest, folder):
    trace = [os.path.join(folder, "trace0")] if os.path.exists(os.path.join(folder, "trace0")) else []
    for name, sources in (("process", files + trace), ("ranks", newest)):
        subprocess.run([os.path.join(wanted.build, "gpucache"), "report", "--html=%s/%s.html" % (folder, name), *sources], env=env, check=True)
    if not browser.PATH:
        print("SKIPPED: page*.png: there is no chromium here")
        return
    with browser.Browser() as chromium:
        for name, of, columns, dark, come, part in PARTS:
            chromium.look(columns, 1150 if columns > 500 else 844, dark, touch=columns < 500, scale=0.75 if columns > 500 else 1)
            chromium.open("%s/%s.html" % (folder, of))
            chromium.run(WAIT)
            chromium.run(come + WAIT)
            if part:
                box = chromium.run("(() => { const box = document.querySelector('%s').getBoundingClientRect(), edge = 6; return {x: box.x - edge + scrollX,"
                                   " y: box.y - edge + scrollY, width: box.width + 2 * edge, height: box.height + 2 * edge}; })()" % part)
                chromium.picture(os.path.join(PICTURES, name), clip=box)
            else:
                chromium.picture(os.path.join(PICTURES, name))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--seconds", type=float, default=24)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("build", nargs="?", default=os.path.join(ROOT, "build", "gcc"))
    wanted = parser.parse_args()
    wanted.build = os.path.abspath(wanted.build)
    wanted.note = "" if wanted.gpu else " (driver and NVML are simulated)"
    os.makedirs(PICTURES, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        env = environment(folder, wanted)
        env["COMMAND"] = os.path.join(wanted.build, "gpucache")
        running = [start(wanted, env, rank, folder) for rank in range(wanted.ranks)]
        if shutil.which("tmux"):
            top(wanted, env, [one.pid for one in running])
            if any(one.poll() is not None for one in running):
                sys.exit("a program had ended before there was a picture of it")
        else:
            print("SKIPPED: top.svg: there is no tmux here")
        for one in running:
            try:
                one.wait(timeout=wanted.seconds * 2 + 60)
            except subprocess.TimeoutExpired:
                os.killpg(one.pid, signal.SIGTERM)
                one.wait()
        files = sorted((os.path.join(folder, n) for n in os.listdir(folder) if n.startswith("rank0.")),
                       key=lambda n: int(n.rsplit(".", 1)[1]))
        text = subprocess.run([os.path.join(wanted.build, "gpucache"), "report", files[-1]], env=env, capture_output=True,
                              text=True).stdout
        terminal("report.svg", text.rstrip("\n").split("\n"), "the report at its end" + wanted.note)
        last = lambda rank: max((n for n in os.listdir(folder) if n.startswith("rank%d." % rank)), key=lambda n: int(n.rsplit(".", 1)[1]))
        page(wanted, env, files, [os.path.join(folder, last(rank)) for rank in range(wanted.ranks)], folder)
    for name in sorted(os.listdir(PICTURES)):
        print("%-16s %6d bytes" % (name, os.path.getsize(os.path.join(PICTURES, name))))


main()
