#!/bin/bash
# arm64.sh build | run COMMAND...: builds library, command and tests for aarch64 in build/arm64, with
# the cross compiler of the distribution; or runs a command whose aarch64 programs qemu-user emulates:
#
#   scripts/arm64.sh build
#   scripts/arm64.sh run meson test -C build/arm64 arena
#   scripts/arm64.sh run build/arm64/tests/unit/test_arena
#
# build/arm64-root has the libraries of aarch64 and qemu. Programs start other programs, which only the
# kernel can hand to qemu (binfmt_misc). A kernel from 6.7 on lets a user namespace have its own table;
# else root adds qemu to the table of the machine.
#
# Ends with 77 and one line where this machine cannot have the cross compiler, the packages or binfmt_misc.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -u
. "$(dirname "$(readlink -f "$0")")/common.sh"

arm64_root=$build_root/arm64-root
qemu=$arm64_root/usr/bin/qemu-aarch64
debian_keys=/usr/share/keyrings/debian-archive-keyring.gpg
# libunwind8 needs liblzma5. qemu before version 8 takes minutes to reserve addresses as the pages backend does.
packages=({libcmocka0,libcmocka-dev,libunwind8,liblzma5}:arm64/bookworm qemu-user/trixie)

# Says in one line what this machine cannot have, which is no failure of the project's.
cannot() {
    echo "$*"
    exit 77
}

# Fetches the packages from Debian with lists of packages of its own: the machine gets no second architecture.
make_root() {
    local folder=$arm64_root.apt options package suite
    [ ! -d "$arm64_root" ] || return 0
    rm -rf "$folder" "$arm64_root.part"
    mkdir -p "$folder"/{state/lists/partial,cache/archives/partial,debs} "$arm64_root.part/lib"
    touch "$folder/status"
    for suite in bookworm trixie; do
        echo "deb [signed-by=$debian_keys] http://deb.debian.org/debian $suite main"
    done >"$folder/sources"
    options=(-qq -o "Dir::State=$folder/state" -o "Dir::State::status=$folder/status" -o "Dir::Cache=$folder/cache"
        -o "Dir::Etc::sourcelist=$folder/sources" -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root
        -o "APT::Architectures::=$(dpkg --print-architecture)" -o APT::Architectures::=arm64)
    apt-get "${options[@]}" update && (cd "$folder/debs" && apt-get "${options[@]}" download "${packages[@]}") ||
        cannot "the packages of aarch64 cannot be had from Debian: ${packages[*]}"
    for package in "$folder"/debs/*.deb; do
        dpkg -x "$package" "$arm64_root.part" || die "cannot unpack $package"
    done
    rm -rf "$folder"
    ln -sf /usr/aarch64-linux-gnu/lib/* "$arm64_root.part/lib/" # libc and what gcc brings
    mv "$arm64_root.part" "$arm64_root"
}

# Installs the cross compiler and what make_root needs. Tools that every build needs are not among them.
need_cross() {
    [ "$(uname -m)" != aarch64 ] || cannot "this machine is aarch64: the other stages test it"
    command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
        cannot "the cross compiler and the libraries of aarch64 come from Debian's packages, and there is no apt-get and dpkg"
    need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    [ -d "$arm64_root" ] || [ -f "$debian_keys" ] || missing_packages+=(debian-archive-keyring)
    (install_missing) || cannot "the cross compiler cannot be had: ${missing_packages[*]}"
    missing_packages=()
}

build() {
    need_build_tools
    install_missing
    need_cross
    find_meson
    find_cuda_header
    make_root
    cat >"$build_root/arm64.ini" <<INI
[binaries]
c = 'aarch64-linux-gnu-gcc'
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['$qemu', '-L', '$arm64_root']
[properties]
sys_root = '$arm64_root'
pkg_config_libdir = '$arm64_root/usr/lib/aarch64-linux-gnu/pkgconfig'
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'armv8-a'
endian = 'little'
INI
    setup_build "$build_root/arm64" --buildtype=release --werror --cross-file "$build_root/arm64.ini" &&
        ninja -C "$build_root/arm64"
}

# Says whether the kernel starts aarch64 programs.
starts() {
    "$build_root/arm64/tests/programs/load_without_cuda" >/dev/null 2>&1
}

# The head of an ELF file of aarch64, its mask, qemu. P keeps the program's own name, F opens qemu now.
register="mount -t binfmt_misc none /proc/sys/fs/binfmt_misc 2>/dev/null || true
printf %s ':libgpucache-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:$qemu:PF' \
    >/proc/sys/fs/binfmt_misc/register"

# Runs a command in a user namespace with a table of its own, as the user of the script. Tests of root need
# all users: another process maps them, and the shell gains root's capabilities by the exec after it.
# shellcheck disable=SC2016 # for the other shells
in_namespace() {
    if [ "$(id -u)" = 0 ]; then
        (
            until [ "$(readlink "/proc/$$/ns/user")" != "$(readlink /proc/self/ns/user)" ]; do sleep 0.1; done
            echo "0 0 4294967295" | tee "/proc/$$/gid_map" >"/proc/$$/uid_map"
        ) 2>/dev/null &
        exec unshare --user --mount sh -ec 'until [ "$(id -u)" = 0 ]; do sleep 0.1; done; exec "$@"' sh sh -ec "$register; exec \"\$@\"" sh "$@"
    fi
    exec unshare --user --map-root-user --mount sh -ec "$register"'; exec unshare --user --map-user='"$(id -u) --map-group=$(id -g)"' "$@"' sh "$@"
}

# Runs a command where qemu starts aarch64 programs. Tests that qemu would let run for minutes are shorter
# with GPUCACHE_TEST_EMULATED.
run() {
    export QEMU_LD_PREFIX=$arm64_root GPUCACHE_TEST_EMULATED=1 POOL_TEST_OPS=${POOL_TEST_OPS:-20000} FUZZ_ITERATIONS=${FUZZ_ITERATIONS:-500}
    starts && exec "$@"
    unshare --user --map-root-user --mount sh -ec "$register" 2>/dev/null && in_namespace "$@"
    # An older kernel has one table for the whole machine: the row is removed at the end.
    if [ "$(id -u)" = 0 ] && sh -ec "$register" 2>/dev/null; then
        local status=0
        if starts; then "$@" || status=$?; else status=127; fi
        echo -1 >/proc/sys/fs/binfmt_misc/libgpucache-aarch64
        [ $status = 127 ] || exit $status
    fi
    cannot "programs for aarch64 cannot be started here: no binfmt_misc in a user namespace, nor as root"
}

case ${1:-} in
build) build ;;
run) run "${@:2}" ;;
*) die "build or run; --help says more" ;;
esac
