#!/usr/bin/env python3
"""Checks that reports follow docs/report-schema.json, and that the schema has all their fields."""
import copy
import glob
import json
import os
import subprocess
import sys
import tempfile

from harness import LIBRARY, Tally, program, run_with_reports, run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# where scripts/test.sh puts it
sys.path += glob.glob(os.path.join(os.path.dirname(os.path.dirname(LIBRARY)), "tools", "jsonschema-*"))
try:
    import jsonschema
except ImportError:
    print("SKIPPED: jsonschema is not here (PyPI)")
    sys.exit(77)

tally = Tally()


def strict(schema):
    """Returns the schema with additional fields forbidden."""
    if isinstance(schema, dict):
        schema = {name: strict(part) for name, part in schema.items()}
        if "properties" in schema and isinstance(schema["properties"], dict) and "type" in schema:
            schema["additionalProperties"] = False
    elif isinstance(schema, list):
        schema = [strict(part) for part in schema]
    return schema


with open(os.path.join(ROOT, "docs", "report-schema.json")) as file:
    SCHEMA = json.load(file)
jsonschema.Draft202012Validator.check_schema(SCHEMA)
STRICT = jsonschema.Draft202012Validator(strict(SCHEMA))


def valid(what, report):
    for error in STRICT.iter_errors(report):
        tally.check(False, "%s: %s at %s" % (what, error.message[:200], list(error.absolute_path)))
    tally.check(True, what)


def refused(what, report, change):
    wrong = copy.deepcopy(report)
    change(wrong)
    tally.check(not STRICT.is_valid(wrong), "not refused: " + what)


def main():
    commands = [[program("report_contents"), "full"], [program("report_contents"), "pairs"], [program("example")]]
    seen = set()
    last = None
    for backend in ("segments", "pages"):
        for more in ({}, {"GPUCACHE_STACKS": "8"}, {"GPUCACHE_MEMORY_LIMIT": "1G"}, {"GPUCACHE_DISABLE": "1"}, {"GPUCACHE_SIM_DEVICES": "2"}):
            for command in commands:
                what = "%s, %s, %s" % (os.path.basename(" ".join(command)), backend, more)
                _, reports = run_with_reports(command, options={"GPUCACHE_BACKEND": backend, "SLURM_PROCID": "3", **more})
                for report in reports:
                    valid(what, report)
                    seen |= set(report) | set(report["devices"][0] if report["devices"] else [])
                    if report["devices"]:
                        last = report
    # Every field of the schema was in a report, except one for long command lines and one that only the command writes.
    expected = set(SCHEMA["properties"]) | set(SCHEMA["$defs"]["device"]["properties"])
    tally.check(expected - seen <= {"command_cut", "segment_map"}, "fields that no report had", expected - seen)

    refused("a field that is missing", last, lambda report: report.pop("pid"))
    refused("a new field", last, lambda report: report.update(new=1))
    refused("a new field of a device", last, lambda report: report["devices"][0].update(new=1))
    refused("text for a number", last, lambda report: report["devices"][0]["requested_bytes"].update(peak="1"))

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report")
        run([program("report_contents"), "pairs"], options={"GPUCACHE_REPORT": path, "GPUCACHE_REPORT_FORMAT": "json"})
        again = subprocess.run([os.path.join(os.path.dirname(LIBRARY), "gpucache"), "report", "--format=json", path],
                               stdout=subprocess.PIPE, universal_newlines=True)
        valid("written again by gpucache report", json.loads(again.stdout))
        with open(path) as file:
            libraries = [json.loads(text)["devices"][0]["libraries"] for text in (file.readline(), again.stdout)]
        tally.check(libraries[0] and libraries[0] == libraries[1], "libraries, written again", libraries)
    page = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "report_schema.py"), "--check"],
                          stderr=subprocess.PIPE, universal_newlines=True)
    tally.check(page.returncode == 0, page.stderr)


tally.run(main)
