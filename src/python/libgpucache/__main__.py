"""The command: `gpucache COMMAND ...`, and `python -m libgpucache run app.py`.

    python -m libgpucache run [OPTION...] app.py [ARGUMENT...]
    python -m libgpucache run [OPTION...] -m MODULE [ARGUMENT...]

run a Python script or module under the library with this Python. All else is as with `gpucache`.
"""
from __future__ import annotations

import os
import sys
from typing import List

_COMMAND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpucache")
_FLAGS = ("--one-pool", "--help")  # options of `gpucache run` that take no value


def _become(arguments: List[str]) -> None:
    """Replaces this process by the command; ends it with status 125 where the package has no command."""
    try:
        os.execv(_COMMAND, ["gpucache"] + arguments)
    except OSError as error:
        sys.stderr.write("gpucache: %s: %s; install the wheel with `pip install libgpucache`\n" % (_COMMAND, error.strerror))
        sys.exit(125)


def with_python(arguments: List[str]) -> List[str]:
    """Returns the arguments of `run` with this Python in front of a script or module; a script has a name that ends in .py."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("--") and arguments[at] != "--":
        at += 1 if "=" in arguments[at] or arguments[at] in _FLAGS else 2
    options, program = arguments[:at], arguments[at:]
    if program[:1] == ["--"]:
        program = program[1:]
    if program and (program[0].endswith(".py") or program[0] in ("-m", "-c")):
        program = [sys.executable] + program
    return options + (["--"] + program if program else [])


def command() -> None:
    """Becomes `gpucache` with the arguments of this process."""
    _become(sys.argv[1:])


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"]:
        arguments = ["run"] + with_python(arguments[1:])
    _become(arguments)


if __name__ == "__main__":
    main()
