#!/usr/bin/env python3
"""Writes the list of the programs in `tests/README.md` from the first sentences of the scripts.

index.py [--check]: with --check nothing is written, and the status is 1 if the list is not current.
"""
import ast
import glob
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
README = os.path.join(HERE, "..", "README.md")
BEGIN = "<!-- Begin: programs, made by tests/programs/index.py -->\n"
END = "<!-- End: programs -->\n"
NO_TESTS = {"harness.py", "index.py", "pseudo_terminal.py", "report_stacks_lines.py", "snapshots.py"}


def head(path):
    """Returns the first paragraph of a script's docstring, which has to be one line."""
    with open(path) as file:
        found = ast.get_docstring(ast.parse(file.read()))
    first = (found or "").split("\n\n")[0]
    if not first.endswith(".") or "\n" in first:
        sys.exit("%s: the docstring does not begin with one sentence in one line" % path)
    return first


def main():
    lines = ["| program | what the test does |\n", "| --- | --- |\n"]
    for path in sorted(glob.glob(os.path.join(HERE, "*.py"))):
        if os.path.basename(path) not in NO_TESTS:
            lines.append("| `%s` | %s |\n" % (os.path.basename(path)[:-3], head(path)))
    with open(README) as file:
        old = file.read()
    made = BEGIN + "".join(lines) + END
    new = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: made, old, flags=re.S)
    if made not in new:
        sys.exit("tests/README.md has no place for the list of the programs")
    if "--check" not in sys.argv:
        with open(README, "w") as file:
            file.write(new)
    elif new != old:
        sys.exit("the list in tests/README.md is not current: run tests/programs/index.py")


main()
