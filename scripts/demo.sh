#!/bin/bash
# demo.sh [command...]: installs what is missing, builds, and runs an unmodified CUDA program under
# the library, whose report appears at its end. With arguments, runs that command instead of the
# project's own example. Where there is no GPU, the simulated driver takes its place.
set -u
. "$(dirname "$0")/common.sh"

need_build_tools
need_package libcmocka-dev
install_missing
find_cuda_header
build=$build_root/demo
log=$build_root/log/demo.log
mkdir -p "$build_root/log"
(setup_build "$build" --buildtype=release && ninja -C "$build" libgpucache.so tests/demo/demo) \
    >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    die "the library did not build"
}

if [ -e /dev/nvidiactl ] && ldconfig -p | grep -q 'libcuda\.so\.1'; then
    echo "demo: on this machine's GPU"
else
    echo "demo: there is no GPU here; this is the simulated driver, and its times mean nothing"
    export LD_LIBRARY_PATH=$build/tests/sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
[ $# -gt 0 ] || set -- "$build/tests/demo/demo"
LD_PRELOAD=$build/libgpucache.so${LD_PRELOAD:+:$LD_PRELOAD} "$@"
