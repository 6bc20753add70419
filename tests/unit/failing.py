#!/usr/bin/env python3
"""failing.py PROGRAM: checks that a failed assertion prints its condition, values and line, also in the middle of a test."""
import os
import re
import resource
import subprocess
import sys

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
failed = 0
for how, what in (("lock", "answer == 42"), ("thread", "0x29 != 0x2a"), ("child", "answer == 42")):
    ran = subprocess.run([sys.argv[1], how], env={**os.environ, "CMOCKA_TEST_ABORT": "1"},
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    said = ran.stdout.decode()
    if what not in said or not re.search(r"failing\.c:\d+", said) or (how != "child" and ran.returncode == 0):
        print("%s: status %d\n%s" % (how, ran.returncode, said))
        failed = 1
sys.exit(failed)
