#!/bin/sh
# compare.sh PROBE RECORD: does the driver that PROBE runs on answer as RECORD says a GPU did?
"$1" | diff "$2" - >&2
