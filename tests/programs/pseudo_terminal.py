"""A terminal for a program: a pseudo-terminal, and the screen that the program draws on it.

The terminal has a description of its own, with few capabilities, so that few sequences have to be understood. Its mouse
reports as xterm's does in SGR mode (1006).
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time

DESCRIPTION = r"""
gpucache-test|terminal of tests/programs/pseudo_terminal.py,
	am, cols#80, lines#24, bel=^G, cr=\r, cud1=\n, cub1=^H,
	clear=\E[H\E[2J, cup=\E[%i%p1%d;%p2%dH, el=\E[K, ed=\E[J,
	smcup=\E[?1049h, rmcup=\E[?1049l, smkx=\E[?1h, rmkx=\E[?1l, civis=\E[?25l, cnorm=\E[?25h,
	rev=\E[7m, bold=\E[1m, dim=\E[2m, smso=\E[7m, rmso=\E[m, sgr0=\E[m,
	kcuu1=\EOA, kcud1=\EOB, kcuf1=\EOC, kcub1=\EOD, kbs=\177,
	kmous=\E[<, XM=\E[?1006;1000%?%p1%{1}%=%th%el%;,
"""
UP, DOWN, RIGHT, LEFT, ESCAPE, BACKSPACE = "\033OA", "\033OB", "\033OC", "\033OD", "\033", "\177"
CURSOR, OTHER_SCREEN, CURSOR_KEYS, MOUSE, MOUSE_SGR = "25", "1049", "1", "1000", "1006"
NORMAL = {CURSOR: True}


def mouse(button, x, y):
    """Returns the sequence of a mouse button at a column and a line, counted from 0. Buttons 64 and 65 are the wheel, which has no release."""
    report = "\033[<%d;%d;%d" % (button, x + 1, y + 1)
    return report + "M" if button >= 64 else report + "M" + report + "m"


def described():
    """Returns the folder of the compiled description; None: there is no tic(1)."""
    folder = tempfile.TemporaryDirectory()
    source = os.path.join(folder.name, "source")
    with open(source, "w") as file:
        file.write(DESCRIPTION)
    try:
        done = subprocess.run(["tic", "-x", "-o", folder.name, source], capture_output=True)
    except FileNotFoundError:
        return None
    return folder if done.returncode == 0 else None


class Terminal:
    """Runs a program on a pseudo-terminal of its own."""

    def __init__(self, command, env, folder, columns=80, lines=24, **more):
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.modes, self.rest, self.outside = dict(NORMAL), b"", ""
        self.resize(columns, lines)

        def control():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            for number in signal.SIGHUP, signal.SIGINT, signal.SIGQUIT:  # ignored if a background job runs the test
                signal.signal(number, signal.SIG_DFL)
            more.get("first", lambda: None)()

        self.child = subprocess.Popen(
            command, stdin=self.slave, stdout=self.slave, stderr=self.slave, preexec_fn=control,
            env={**env, "TERM": "gpucache-test", "TERMINFO": folder.name, "LC_ALL": "C.UTF-8"})
        self.pid = self.child.pid

    def resize(self, columns, lines):
        """Changes the size and clears the screen: the program has to redraw all of it."""
        self.columns, self.lines = columns, lines
        self.clear()
        self.x = self.y = 0
        self.reversed = False
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def clear(self):
        self.cells = [[(" ", False)] * self.columns for _ in range(self.lines)]

    # ---- output of the program ----

    def text(self):
        return "\n".join("".join(c for c, _ in row).rstrip() for row in self.cells)

    def rows(self):
        return self.text().split("\n")

    def marked(self):
        """Returns the lines that begin in reverse video."""
        return [row for row, cells in zip(self.rows(), self.cells) if cells[0][1]]

    def put(self, character):
        if character == "\r":
            self.x = 0
        elif character == "\n":
            self.y = min(self.y + 1, self.lines - 1)
        elif character == "\b":
            self.x = max(self.x - 1, 0)
        elif character >= " ":
            if self.x == self.columns:  # behind the last column: the next character wraps
                self.x, self.y = 0, min(self.y + 1, self.lines - 1)
            if self.modes.get(OTHER_SCREEN):
                self.cells[self.y][self.x] = (character, self.reversed)
            else:
                self.outside += character
            self.x += 1

    def erase(self, first, last):
        for i in range(first, last):
            self.cells[i // self.columns][i % self.columns] = (" ", False)

    def obey(self, numbers, letter):
        if letter == "H":
            y, x = (int(n) for n in (numbers or "1;1").split(";"))
            self.y, self.x = min(y, self.lines) - 1, min(x, self.columns) - 1
        elif letter == "J":
            self.erase(0 if numbers == "2" else self.y * self.columns + self.x, self.lines * self.columns)
        elif letter == "K":
            self.erase(self.y * self.columns + self.x, (self.y + 1) * self.columns)
        elif letter == "m":
            self.reversed = numbers == "7" or (self.reversed and numbers not in ("", "0"))
        elif letter in "hl" and numbers.startswith("?"):
            self.modes.update({mode: letter == "h" for mode in numbers[1:].split(";")})
        else:
            raise AssertionError("a sequence that the terminal has not: %r" % (numbers + letter))

    def read(self, seconds):
        """Draws the program's output of that time. Returns whether there was any."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        self.rest += os.read(self.master, 65536)
        pattern = re.compile(rb"\033\[([?\d;]*)([A-Za-z])|[\xc0-\xff][\x80-\xbf]+|[^\033\x80-\xff]")
        while True:
            found = pattern.match(self.rest)
            if not found:
                return True
            end = found.end()
            if end == len(self.rest) and self.rest[:1] >= b"\x80" and len(self.rest) < 4:
                try:
                    self.rest.decode()
                except UnicodeDecodeError:
                    return True
            if found.group(2):
                self.obey(found.group(1).decode(), found.group(2).decode())
            else:
                self.put(found.group().decode("utf-8", "replace"))
            self.rest = self.rest[end:]

    def until(self, condition, seconds=60):
        """Draws until the condition holds. Returns whether it ever did."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            self.read(0.05)
        return True

    def shows(self, pattern, seconds=60):
        return self.until(lambda: re.search(pattern, self.text(), re.M), seconds)

    # ---- input of the user ----

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self, seconds=60):
        """Waits for the program's end. Returns its status, and draws the rest."""
        self.until(lambda: self.child.poll() is not None, seconds)
        while self.read(0):
            pass
        return self.child.poll()

    def is_restored(self):
        """Returns whether the terminal is as it was before the program: modes and settings."""
        on = {mode for mode, is_on in self.modes.items() if is_on}
        return on == {CURSOR} and termios.tcgetattr(self.slave) == self.before
