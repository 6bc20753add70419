#!/bin/sh
# gpu-check.sh [--out DIR] [part...]: the checks and benchmarks that need a real GPU; no network.
# tests/gpu/run.py says which parts there are. The library is built first, unless GPUCACHE_SO names
# one. The bench part compares with RMM too if scripts/peers.sh has fetched it to .peers/.
set -eu
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
case ${1:-} in
-h | --help)
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
log=${TMPDIR:-/tmp}/gpucache-build.$$.log

build_library() {
    cd "$root"
    if [ ! -f build/build.ninja ]; then
        meson setup build --buildtype=release -Dtests=false ||
            meson setup build --buildtype=release
    fi
    ninja -C build
}

# The facts are about the driver alone.
if [ -z "${GPUCACHE_SO:-}" ] && [ "$*" != facts ]; then
    (build_library) >"$log" 2>&1 || {
        tail -n 40 "$log" >&2
        echo "gpu-check: the library did not build" >&2
        exit 1
    }
    rm -f "$log"
    GPUCACHE_SO=$root/build/libgpucache.so
    export GPUCACHE_SO
fi
exec python3 "$root/tests/gpu/run.py" "$@"
