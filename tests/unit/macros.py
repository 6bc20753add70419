#!/usr/bin/env python3
"""macros.py SOURCE: refuses macros of SOURCE that have a return statement.

Such a macro ends the function that uses it, and the reader of that function does not see it. RETURNS lists the
exceptions, each with its reason; there may be MOST of them.
"""
import pathlib
import re
import sys

MOST = 3
RETURNS = {
    ("driver/hooks/hook.h", "HOOK"): "defines the whole function that returns",
    ("driver/table/entries.c", "FIRST"): "defines the whole function that returns",
    ("debug/check.h", "HOLDS"): "an assertion of the unit tests: returns where an invariant is broken",
}


def macros_of(text):
    """Yields (name, body) of each macro, comments and line ends removed."""
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    yield from re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(.*)$", text, re.M)


def look(source):
    """Returns a line for each macro that returns without a row of RETURNS, and for each row without a macro."""
    returning = {(str(path.relative_to(source)), name)
                 for path in sorted(source.rglob("*")) if path.suffix in (".c", ".h", ".def")
                 for name, body in macros_of(path.read_text()) if re.search(r"\breturn\b", body)}
    bad = [f"{file}: macro {name} has a return statement" for file, name in sorted(returning - RETURNS.keys())]
    bad += [f"{file}: macro {name} does not return any more: RETURNS" for file, name in sorted(RETURNS.keys() - returning)]
    return bad + [f"more than {MOST} rows of RETURNS"] * (len(RETURNS) > MOST)


bad = look(pathlib.Path(sys.argv[1]))
print("\n".join(bad) if bad else "no macro returns from the function that uses it")
sys.exit(1 if bad else 0)
