# Functions that the scripts share: sourced, never run. A script's first lines run it in bash, and find
# this file also if the script was called by a symbolic link.

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
build_root=${BUILD_ROOT:-$root/build}
case $build_root in
/*) ;;
*) build_root=$PWD/$build_root ;;
esac
cuda_version=13.0 # of the header that is fetched where there is no toolkit
meson_oldest=1.0 meson_fetched=1.7.2
clang_version=14 clang_fetched=14.0.6 # what .clang-format and .clang-tidy are written for

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# The script's own head is its help.
case ${1:-} in
-h | --help)
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac

# A build folder that cannot be written to is one line, not a page of meson's.
mkdir -p "$build_root/log" 2>/dev/null && [ -w "$build_root" ] && [ -w "$build_root/log" ] ||
    die "cannot write to $build_root; BUILD_ROOT=/another/folder builds there"

# need COMMAND PACKAGE...: remembers the packages if the command is missing.
missing_packages=()
need() {
    command -v "$1" >/dev/null || missing_packages+=("${@:2}")
}

# need_library NAME PACKAGE: what has no command is asked of pkg-config, which every distribution has.
need_library() {
    pkg-config --exists "$1" 2>/dev/null || missing_packages+=("$2")
}

need_pip() {
    python3 -m pip --version >/dev/null 2>&1 || missing_packages+=(python3-pip)
}

install_missing() {
    [ ${#missing_packages[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "missing here, and no apt-get to install them: ${missing_packages[*]}"
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "missing, and neither root nor sudo to install them: ${missing_packages[*]}"
        as_root=(sudo)
    fi
    echo "installing ${missing_packages[*]}"
    ${as_root[@]+"${as_root[@]}"} apt-get update -qq &&
        ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "${missing_packages[@]}" >/dev/null ||
        die "could not install ${missing_packages[*]}"
    missing_packages=()
}

need_build_tools() {
    need gcc build-essential
    need ninja ninja-build
    need pkg-config pkg-config
    need python3 python3
    command -v meson >/dev/null || missing_packages+=(meson)
}

# fetch_tool PACKAGE VERSION: from PyPI to $fetched, whole or not at all.
fetch_tool() {
    fetched=$build_root/tools/$1-$2
    [ ! -d "$fetched" ] || return 0
    need_pip
    install_missing
    echo "fetching $1 $2"
    rm -rf "$fetched.part"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --target "$fetched.part" "$1==$2" ||
        die "could not fetch $1 $2 from PyPI"
    mv "$fetched.part" "$fetched"
}

# Some distributions have a meson that is too old (Ubuntu 22.04: 0.61).
find_meson() {
    local oldest
    oldest=$(printf '%s\n' "$meson_oldest" "$(meson --version 2>/dev/null || echo 0)" | sort -V | head -n 1)
    [ "$oldest" != "$meson_oldest" ] || return 0
    fetch_tool meson "$meson_fetched"
    export PYTHONPATH=$fetched${PYTHONPATH:+:$PYTHONPATH} PATH=$fetched/bin:$PATH
}

# find_clang_tool COMMAND: sets $tool to the version the project is written for; others find other faults.
find_clang_tool() {
    for tool in "$1-$clang_version" "$1"; do
        ! "$tool" --version 2>/dev/null | grep -q "version $clang_version\." || return 0
    done
    fetch_tool "$1" "$clang_fetched"
    tool=$fetched/${1//-/_}/data/bin/$1
}

# header_will_do ARGUMENT...: whether the compiler finds a cuda.h that is not too old.
header_will_do() {
    printf '#include <cuda.h>\n#if CUDA_VERSION < 11080\n#error\n#endif\n' |
        cc "$@" -E -x c - >/dev/null 2>&1
}

# Sets toolkit to what -Dtoolkit= needs: nothing where meson finds cuda.h by itself, else a folder
# with the header from NVIDIA's own package.
toolkit=
find_cuda_header() {
    local place
    for place in "${CUDA_HOME:-}" /usr/local/cuda; do
        if [ -f "$place/include/cuda.h" ]; then
            header_will_do -I "$place/include" && return
            break # meson would take it too
        fi
    done
    header_will_do $(pkg-config --cflags cuda 2>/dev/null) && return
    toolkit=$build_root/cuda-headers/$cuda_version
    [ -f "$toolkit/include/cuda.h" ] && return
    need_pip
    install_missing
    echo "fetching cuda.h of CUDA $cuda_version"
    python3 "$root/scripts/cuda_headers.py" fetch "$toolkit" "$cuda_version" ||
        die "could not fetch cuda.h; set CUDA_HOME to a CUDA toolkit"
}

# setup_build FOLDER ARGUMENT...: configures it unless that has been done.
setup_build() {
    [ ! -f "$1/build.ninja" ] || return 0
    # an interrupted set-up leaves a folder that meson takes for configured
    [ ! -d "$1/meson-private" ] || rm -rf "$1"
    meson setup "$1" "$root" ${toolkit:+-Dtoolkit="$toolkit"} "${@:2}"
}
