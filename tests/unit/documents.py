#!/usr/bin/env python3
"""documents.py ROOT: refuses names in the documentation that the code does not have.

Checked are, in every Markdown file and manual page: functions in code spans, paths of the repository, names of source
files in code spans, anchors of links to other pages, and constants in code spans. ELSEWHERE lists names of other projects.
"""
import pathlib
import re
import sys

FOLDERS = ("src", "include", "tests", "scripts", "docs")
SOURCES = {".c", ".h", ".def", ".S", ".py", ".sh", ".cu", ".cuh", ".cpp", ".js", ".txt", ".build"}
# Placeholders of recipes, and names of CUDA, Linux or ELF.
ELSEWHERE = re.compile(r"(?:^|/|[a-z]_)(SYMBOL|SUBJECT|NAME)(?:$|\.)|^cuda\.h$|^(CUDA|STT|SIG|RTLD|NVML|PYTORCH|XLA|SLURM)_?[A-Z_]*$")
SPANS = (("function", re.compile(r"`(?:struct )?([A-Za-z_]\w+)\(\)`")),
         ("file", re.compile(r"`([\w-]+\.(?:c|h|def|py|cu|sh))`")),
         ("constant", re.compile(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`")))
PATH = re.compile(r"(?<![\w./-])((?:src|include|tests|scripts)/[\w./-]*\w)(?![\w*]|/[\w*])")  # no pattern with a star
LINK = re.compile(r"\]\(([\w./-]+\.md)?(?:#([^)]+))?\)")


def anchors(text):
    """Returns the anchors of the headings of a Markdown page, as GitHub makes them."""
    titles = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", text))
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def check(root):
    """Returns a line for each name that does not exist."""
    files = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.is_file()]
    files += [path for path in sorted(root.iterdir()) if path.is_file()]
    names = {path.name for path in files}
    code = "\n".join(path.read_text(errors="replace") for path in files
                     if path.suffix in SOURCES and "docs" not in path.relative_to(root).parts)
    words = set(re.findall(r"[A-Za-z_]\w+", code))
    options = (root / "src/options/options.def").read_text()  # names the variables without their prefix
    words |= {"GPUCACHE_" + name for name in re.findall(r"(?m)^\w+\((\w+),", options)}
    bad = []
    for page in files:
        if page.suffix not in (".md", ".1", ".3", ".7"):
            continue
        text = page.read_text()
        for number, line in enumerate(text.splitlines(), 1):
            missing = [(kind, name) for kind, span in SPANS for name in span.findall(line)
                       if name not in (names if kind == "file" else words) and not ELSEWHERE.search(name)]
            missing += [("path", path) for path in PATH.findall(line)
                        if not (root / path).exists() and not ELSEWHERE.search(path)
                        and not any((root / path).parent.glob((root / path).name + ".*"))]
            for target, anchor in LINK.findall(line) if page.suffix == ".md" else ():
                to = page.parent / target if target else page
                if not to.is_file():
                    missing.append(("page", target))
                elif anchor and anchor not in anchors(to.read_text()):
                    missing.append(("heading", f"{target}#{anchor}"))
            bad += [f"{page.relative_to(root)}:{number}: there is no {kind} {name}" for kind, name in missing]
    return bad


bad = check(pathlib.Path(sys.argv[1]))
print("\n".join(bad) if bad else "every name in the documentation exists")
sys.exit(1 if bad else 0)
