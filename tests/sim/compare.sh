#!/bin/sh
# compare.sh PROBE RECORD: compares the answers of the driver that PROBE runs on with RECORD, those of a GPU. The status
# is not 0 if they differ, or if PROBE fails.
answers=$("$1") || { echo "$1 ended with status $?" >&2; exit 1; }
printf '%s\n' "$answers" | diff "$2" - >&2
