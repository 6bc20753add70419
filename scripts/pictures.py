#!/usr/bin/env python3
"""pictures.py record [--program COMMAND] [--ranks N] [--seconds N] BUILD FOLDER: runs a program, and keeps what the tools show of it.
pictures.py draw FOLDER: makes the pictures in docs/pictures from that.

    docs/pictures/top.svg       gpucache top, as a terminal shows it
    docs/pictures/report.svg    the report of a program
    docs/pictures/page.png      the page of gpucache report --html, and page-dark.png
    docs/pictures/page-*.png    parts of it: a trace, the flame graph, holders and libraries, ranks side by side, the page on a telephone

`record` runs where the GPU is. BUILD is a build folder with the library and the command. The program is
tests/demo/gpt.py, for --seconds (40), if none is named. Any program has to run that long. --ranks is the number of its
processes (4). Needs tmux. FOLDER gets top.txt, report.txt, process.html, ranks.html and device.txt.

`draw` needs chromium.
"""
import argparse
import html
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "programs"))
import browser

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PICTURES = os.path.join(ROOT, "docs", "pictures")
COLUMNS = 160


def environment(folder):
    """Returns the environment of the program and of the tools: no other process's page is seen, and reports are JSON."""
    env = {k: v for k, v in os.environ.items() if not re.match("GPUCACHE_(?!SIM_)|LD_PRELOAD$", k)}
    return {**env, "XDG_RUNTIME_DIR": folder, "GPUCACHE_REPORT_FORMAT": "json", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}


def terminal(name, lines, title, reverse=()):
    """Writes the lines of a terminal as an SVG, which has the colours that the reader's browser prefers."""
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


def start(wanted, env, rank):
    """Starts a process of the program. It writes reports rank0.1, rank0.2, ..., and rank 0 a trace."""
    more = {"GPUCACHE_REPORT": "%s/rank%d.%%n" % (wanted.folder, rank), "RANK": str(rank), "WORLD_SIZE": str(wanted.ranks),
            "GPUCACHE_REPORT_INTERVAL": "%g" % max(0.25, wanted.seconds / 30), "GPUCACHE_STACKS": "16",
            "GPUCACHE_TRACE": "%s/trace0" % wanted.folder if rank == 0 else ""}
    command = shlex.split(wanted.program) if wanted.program else [sys.executable, "gpt.py", str(wanted.seconds)]
    return subprocess.Popen([wanted.command, "run", "--", *command], env={**env, **more}, stdout=subprocess.DEVNULL,
                            start_new_session=True, cwd=None if wanted.program else os.path.join(ROOT, "tests", "demo"))


def screen(wanted, env, pids):
    """Returns the lines of gpucache top, after the program has run for a while."""
    socket = os.path.join(env["XDG_RUNTIME_DIR"], "tmux")

    def tmux(*arguments):
        return subprocess.run(["tmux", "-S", socket, "-f", "/dev/null", *arguments], env=env, capture_output=True, text=True)

    time.sleep(wanted.seconds * 0.25)  # the processes have begun to use the device
    tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(wanted.ranks + 3), wanted.command, "top", "--interval=0.5", *map(str, pids))
    time.sleep(wanted.seconds * 0.6)
    lines = tmux("capture-pane", "-p").stdout.rstrip("\n").split("\n")
    tmux("kill-server")
    return lines


def keep(wanted, name, text):
    with open(os.path.join(wanted.folder, name), "w", encoding="utf-8") as out:
        out.write(text)


def record(wanted):
    wanted.command = os.path.join(os.path.abspath(wanted.build), "gpucache")
    wanted.folder = os.path.abspath(wanted.folder)
    os.makedirs(wanted.folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as private:
        os.chmod(private, 0o700)
        env = environment(private)
        running = [start(wanted, env, rank) for rank in range(wanted.ranks)]
        keep(wanted, "top.txt", "\n".join(screen(wanted, env, [one.pid for one in running])))
        if any(one.poll() is not None for one in running):
            sys.exit("a program ended before there was a picture of it")
        for one in running:
            try:
                one.wait(timeout=wanted.seconds * 2 + 60)
            except subprocess.TimeoutExpired:
                os.killpg(one.pid, signal.SIGTERM)
                one.wait()

        def reports(rank):
            names = [n for n in os.listdir(wanted.folder) if n.startswith("rank%d." % rank)]
            return [os.path.join(wanted.folder, n) for n in sorted(names, key=lambda n: int(n.rsplit(".", 1)[1]))]

        def run(*arguments):
            return subprocess.run([wanted.command, "report", *arguments], env=env, capture_output=True, text=True, check=True).stdout

        last = [reports(rank)[-1] for rank in range(wanted.ranks)]
        text = run(last[0])
        keep(wanted, "report.txt", text)
        keep(wanted, "device.txt", re.search(r"device 0: ([^,]*)", text)[1] + "\n")
        run("--html=%s/process.html" % wanted.folder, *reports(0), os.path.join(wanted.folder, "trace0"))
        run("--html=%s/ranks.html" % wanted.folder, *last)
        for name in os.listdir(wanted.folder):
            if re.match(r"(rank\d+\.|trace0)", name):
                os.remove(os.path.join(wanted.folder, name))


WAIT = "new Promise((done) => setTimeout(done, 600))"  # until the drawing is there
PARTS = [  # picture, page, columns, dark, how to come there, the part shown
    ("page.png", "process", 1280, False, "", None),
    ("page-dark.png", "process", 1280, True, "", None),
    ("page-phone.png", "process", 390, False, "", None),
    ("page-trace.png", "process", 1280, False, "for (let i = 0; i < 4; i++) document.querySelector('.part:has(> .trace) [aria-label=\"zoom in\"]').click();", ".part:has(> .trace)"),
    ("page-flame.png", "process", 1280, False, "const search = document.querySelector('input[type=search]'); search.value = 'evaluate';"
     "search.dispatchEvent(new Event('input'));", ".part:has(> .flame)"),
    ("page-holders.png", "process", 1280, False, "", ".columns"),
    ("page-ranks.png", "ranks", 1280, False, "", "#side"),
]


def draw(wanted):
    def read(name):
        with open(os.path.join(wanted.folder, name), encoding="utf-8") as file:
            return file.read().rstrip("\n").split("\n")

    on = " on an " + read("device.txt")[0]
    terminal("top.svg", read("top.txt"), "gpucache top" + on, reverse=(1, 2))
    terminal("report.svg", read("report.txt"), "the report at the end of a process" + on)
    with browser.Browser() as chromium:
        for name, of, columns, dark, come, part in PARTS:
            chromium.look(columns, 1150 if columns > 500 else 844, dark, touch=columns < 500, scale=0.75 if columns > 500 else 1)
            chromium.open(os.path.join(os.path.abspath(wanted.folder), of + ".html"))
            chromium.run(WAIT)
            chromium.run(come + WAIT)
            if part:
                box = chromium.run("(() => { const box = document.querySelector('%s').getBoundingClientRect(), edge = 6; return {x: box.x - edge + scrollX,"
                                   " y: box.y - edge + scrollY, width: box.width + 2 * edge, height: box.height + 2 * edge}; })()" % part)
                chromium.picture(os.path.join(PICTURES, name), clip=box)
            else:
                chromium.picture(os.path.join(PICTURES, name))
    for name in sorted(os.listdir(PICTURES)):
        print("%-16s %6d bytes" % (name, os.path.getsize(os.path.join(PICTURES, name))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("record")
    one.set_defaults(do=record)
    one.add_argument("--program")
    one.add_argument("--seconds", type=float, default=40)
    one.add_argument("--ranks", type=int, default=4)
    one.add_argument("build")
    one.add_argument("folder")
    one = commands.add_parser("draw")
    one.set_defaults(do=draw)
    one.add_argument("folder")
    wanted = parser.parse_args()
    wanted.do(wanted)


main()
