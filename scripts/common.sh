# What demo.sh and test.sh share: sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_root=${BUILD_ROOT:-$root/build}
cuda_wheel='nvidia-cuda-runtime==13.0.*'

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# need COMMAND PACKAGE...: remembers the packages if the command is missing.
missing_packages=()
need() {
    command -v "$1" >/dev/null || missing_packages+=("${@:2}")
}

# need_package PACKAGE: for what has no command.
need_package() {
    dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed' || missing_packages+=("$1")
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
    "${as_root[@]}" apt-get update -qq &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "${missing_packages[@]}" >/dev/null ||
        die "could not install ${missing_packages[*]}"
    missing_packages=()
}

need_build_tools() {
    need cc build-essential
    need gcc build-essential
    need meson meson
    need ninja ninja-build
    need pkg-config pkg-config
    need python3 python3
}

# Sets toolkit to what -Dtoolkit= needs: nothing where meson finds cuda.h by itself, else a folder
# with the header from NVIDIA's own package.
toolkit=
find_cuda_header() {
    local place
    for place in "${CUDA_HOME:-}" /usr/local/cuda; do
        [ -n "$place" ] && [ -f "$place/include/cuda.h" ] && return
    done
    for place in cuda cuda-13.0 cuda-12.8; do
        pkg-config --exists "$place" 2>/dev/null && return
    done
    toolkit=$build_root/cuda-headers
    [ -f "$toolkit/include/cuda.h" ] && return
    python3 -m pip --version >/dev/null 2>&1 || missing_packages+=(python3-pip)
    install_missing
    echo "fetching cuda.h: $cuda_wheel"
    mkdir -p "$toolkit/wheel"
    python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux2014_x86_64 \
        --dest "$toolkit/wheel" "$cuda_wheel" &&
        python3 - "$toolkit" <<'PYTHON' || die "could not fetch cuda.h; set CUDA_HOME to a CUDA toolkit"
import glob, os, sys, zipfile
folder = sys.argv[1]
with zipfile.ZipFile(glob.glob(folder + "/wheel/*.whl")[0]) as wheel:
    for name in wheel.namelist():
        before, found, after = name.partition("/include/")
        if found and after and not name.endswith("/"):
            path = os.path.join(folder, "include", after)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(wheel.read(name))
PYTHON
}

# setup_build FOLDER ARGUMENT...: configures it unless that has been done.
setup_build() {
    [ -f "$1/build.ninja" ] || meson setup "$1" "$root" ${toolkit:+-Dtoolkit="$toolkit"} "${@:2}"
}
