#!/usr/bin/env python3
"""report_schema.py [--check]: writes docs/report-schema.md from docs/report-schema.json, or checks that they agree."""
import json
import os
import sys

DOCS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs")
HEAD = """# The report as JSON

With `GPUCACHE_REPORT_FORMAT=json` a report is one object on one line. [report-schema.json](report-schema.json) is its JSON Schema; this
page is made from it by `scripts/report_schema.py`. `devices[].x` is the field `x` of each element of a list.

A later version of libgpucache may add fields. It renames none and gives none another meaning; `"schema"` would change then.
A field is in every report unless its meaning says with what.

| field | type | meaning |
| --- | --- | --- |
"""


def resolved(schema, root):
    """A schema with what it refers to; its own description is the one that counts."""
    if "$ref" not in schema:
        return schema
    return {**root["$defs"][schema["$ref"].rsplit("/", 1)[1]], **schema}


def kind(schema):
    if "const" in schema:
        return '`"%s"`' % schema["const"]
    if "enum" in schema:
        return " ".join('`"%s"`' % value for value in schema["enum"])
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return " or ".join(names)


def rows(schema, root, path):
    for name, field in schema.get("properties", {}).items():
        whole = resolved(field, root)
        where = path + name
        is_metric = field.get("$ref") == "#/$defs/metric"
        yield "| `%s` | %s | %s |" % (where, "metric" if is_metric else kind(whole), whole["description"])
        if is_metric:
            continue
        if whole.get("type") == "array":
            yield from rows(resolved(whole["items"], root), root, where + "[].")
        yield from rows(whole, root, where + ".")


def page():
    with open(os.path.join(DOCS, "report-schema.json")) as file:
        root = json.load(file)
    metric = root["$defs"]["metric"]
    return HEAD + "\n".join(rows(root, root, "")) + (
        "\n\nA *metric* is an object of four numbers, in bytes where the name ends in `_bytes`:\n\n| field | meaning |\n| --- | --- |\n" +
        "".join("| `%s` | %s |\n" % (name, field["description"]) for name, field in metric["properties"].items()))


def main():
    path, text = os.path.join(DOCS, "report-schema.md"), page()
    if sys.argv[1:] == ["--check"]:
        with open(path) as file:
            if file.read() != text:
                sys.exit("docs/report-schema.md is not what docs/report-schema.json makes: python3 scripts/report_schema.py")
        return
    with open(path, "w") as file:
        file.write(text)


main()
