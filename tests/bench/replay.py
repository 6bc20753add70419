#!/usr/bin/env python3
"""replay.py BUILD [LAG_US...]: the recorded traces of tests/data/traces through the pool, as a table.

Runs the Meson target `replay` of the build folder with each trace, each backend and each time that the device is
behind (0, 500, 2000 and 20 000 us if none is named), prints what was reserved at its peak over what was requested
at its peak, and fails where that exceeds the bound of the trace.
"""

import lzma
import os
import re
import subprocess
import sys

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "traces")
BOUNDS = {  # a single figure of segments is much chance
    "segments": {"gpt": 1.40, "resnet": 1.15, "gnn": 1.30},
    "pages": {"gpt": 1.05, "resnet": 1.05, "gnn": 1.05},
}
LAGS = (0, 500, 2000, 20000)


def ratio(program, trace, lag, backend):
    with lzma.open(os.path.join(DATA, trace + ".csv.xz")) as file:
        done = subprocess.run(
            [program, "-", str(lag), "0", backend], input=file.read(), capture_output=True, timeout=300
        )
    found = re.search(r"ratio ([\d.]+)", done.stdout.decode())
    if done.returncode != 0 or not found:
        sys.exit("%s, %d us: %s%s" % (trace, lag, done.stdout.decode(), done.stderr.decode()))
    return float(found.group(1))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program = os.path.join(sys.argv[1], "tests", "bench", "replay")
    lags = [int(lag) for lag in sys.argv[2:]] or LAGS
    failed = 0
    print("| trace | backend | " + " | ".join("%d us" % lag for lag in lags) + " |")
    print("| --- | --- " + "| --- " * len(lags) + "|")
    for trace, backend in [(t, b) for t in BOUNDS["segments"] for b in BOUNDS]:
        ratios = [ratio(program, trace, lag, backend) for lag in lags]
        print("| %s | %s | %s |" % (trace, backend, " | ".join("%.3f" % r for r in ratios)))
        for lag, r in zip(lags, ratios):
            if r > BOUNDS[backend][trace]:
                print("FAIL %s, %d us: %.3f, at most %.2f" % (trace, lag, r, BOUNDS[backend][trace]))
                failed += 1
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
