#!/bin/bash
# demo.sh [command...]: installs what is missing, builds, and runs an unmodified CUDA program under
# the library, whose report appears at its end. With arguments, runs that command instead of the
# project's own example. Without a GPU the program runs on the simulated driver.
#
# BUILD_ROOT names another place than build/ for what is built.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -u
. "$(dirname "$(readlink -f "$0")")/common.sh"

need_build_tools
need_library cmocka libcmocka-dev
install_missing
find_meson
find_cuda_header
build=$build_root/demo
log=$build_root/log/demo.log
(setup_build "$build" --buildtype=release && ninja -C "$build" libgpucache.so gpucache tests/demo/demo) \
    >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    die "the library did not build; $log has all of it"
}

# On WSL the driver lies where only its own linker configuration looks.
wsl=/usr/lib/wsl/lib
if [ -e /dev/dxg ] && [ -e "$wsl/libcuda.so.1" ]; then
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wsl
fi
# The driver itself knows best whether there is a GPU: no device file is the same everywhere.
if python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL("libcuda.so.1").cuInit(0))' 2>/dev/null; then
    echo "demo: on this machine's GPU"
else
    echo "demo: there is no GPU here; this is the simulated driver, and its times and the reserve mean nothing"
    export LD_LIBRARY_PATH=$build/tests/sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
[ $# -gt 0 ] || set -- "$build/tests/demo/demo"
echo "demo: $build/gpucache run -- $*"
"$build/gpucache" run -- "$@"
