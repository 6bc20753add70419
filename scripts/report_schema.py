"""Makes the parts of docs/report-schema.json that src/stats/fields.def has, and docs/report-schema.md from the whole.

scripts/coverage.py calls schema() and page().
"""
import json
import re

HEAD = """# The report as JSON

With `GPUCACHE_REPORT_FORMAT=json` a report is one object on one line. [report-schema.json](report-schema.json) is its JSON Schema; this
page is made from it by `scripts/coverage.py`. `devices[].x` is the field `x` of each element of a list.

A later version of libgpucache may add fields. It renames none and gives none another meaning; `"schema"` would change then.
A field is in every report unless its meaning says with what. Members of a frame that are unknown or false are left out.

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


def fields(table):
    """(kind, name in the JSON, meaning) for each row of fields.def."""
    found = re.findall(r'^(METRIC|UNPOOLED|ELSEWHERE|GAUGE|COUNTER)\((\w+)(?:, "(\w+)")?.*\)(?: /\* (.*) \*/)?$', table, re.M)
    for kind, name, json_name, meaning in found:
        if not meaning:
            raise SystemExit("src/stats/fields.def: no meaning behind the row of " + name)
        yield kind, json_name or re.sub("_ns$", "_seconds", name), meaning


def with_fields(parent, rows, made):
    """Changes the properties of an object: each of `rows` as made(name, meaning), new ones behind the row before."""
    names, last = list(parent["properties"]), None
    for name, _ in rows:
        if name not in names:
            names.insert(names.index(last) + 1 if last else len(names), name)
        if name not in parent["required"]:
            parent["required"].insert(parent["required"].index(last) + 1, name)
        last = name
    parent["properties"] = {**parent["properties"], **{name: made(name, meaning) for name, meaning in rows}}
    parent["properties"] = {name: parent["properties"][name] for name in names}


def schema(text, table):
    """The text of the schema, with the statistics of fields.def."""
    root = json.loads(text)
    device = root["$defs"]["device"]
    shape = device["properties"]["fragmentation"]
    groups = {group: [(name, meaning) for kind, name, meaning in fields(table) if kind in group.split()]
              for group in ("METRIC", "UNPOOLED ELSEWHERE", "GAUGE", "COUNTER")}

    def metric(_, meaning):
        return {"description": meaning, "$ref": "#/$defs/metric"}

    def number(name, meaning):
        return {"description": meaning, "type": "number" if name.endswith("_seconds") else "integer", "minimum": 0}

    with_fields(device, groups["METRIC"], metric)
    with_fields(device["properties"]["outside_bytes"], groups["UNPOOLED ELSEWHERE"], metric)
    with_fields(shape, [row for row in groups["GAUGE"] if row[0] in shape["properties"]], number)
    with_fields(device, [row for row in groups["GAUGE"] if row[0] not in shape["properties"]], number)
    with_fields(device, groups["COUNTER"], number)
    return json.dumps(root, indent=1) + "\n"


def page(text):
    """The page of a schema."""
    root = json.loads(text)
    metric = root["$defs"]["metric"]
    return HEAD + "\n".join(rows(root, root, "")) + (
        "\n\nA *metric* is an object of four numbers, in bytes where the name ends in `_bytes`:\n\n| field | meaning |\n| --- | --- |\n" +
        "".join("| `%s` | %s |\n" % (name, field["description"]) for name, field in metric["properties"].items()))

