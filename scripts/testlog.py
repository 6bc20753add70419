#!/usr/bin/env python3
"""testlog.py TESTLOG.JSON: counts the single tests of a meson run, as "PASSED FAILED".

A program that uses cmocka counts as many tests as it says it ran; any other one counts as one. A
program that ends badly without a failed test (a crash, a timeout, a sanitizer's report) is one
failure more.
"""
import json
import re
import sys

GROUP = re.compile(r"^\[  (PASSED|FAILED)  \] (\d+) test\(s\)", re.MULTILINE)

passed = failed = 0
with open(sys.argv[1], encoding="utf-8") as log:
    for line in log:
        test = json.loads(line)
        if test["result"] == "SKIP":
            continue
        good = test["result"] in ("OK", "EXPECTEDFAIL")
        counts = {"PASSED": 0, "FAILED": 0}
        for what, number in GROUP.findall(test.get("stdout", "") + "\n" + test.get("stderr", "")):
            counts[what] += int(number)
        if good:
            passed += counts["PASSED"] or 1
        else:
            passed += counts["PASSED"]
            failed += counts["FAILED"] or 1
print(passed, failed)
