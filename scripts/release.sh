#!/bin/bash
# release.sh [SUITE...]: all that a release has, in build/dist/: tarball, wheels for x86_64 and
# aarch64, the Debian package of this distribution. Each is then tried in a bare root (scripts/bare.sh)
# on the simulated driver: the wheel of this architecture in every SUITE (bookworm, jammy and noble
# if none is named), tarball and package in this distribution's. First of all the version has to be the
# same everywhere, with its part in CHANGELOG.md. Nothing is tagged or published.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -u
. "$(dirname "$(readlink -f "$0")")/common.sh"

[ $# -gt 0 ] || set -- bookworm jammy noble
version=$(sed -n "s/^  version: '\(.*\)',$/\1/p" "$root/meson.build")
grep -q "^/\*\* \"$version\"; a constant" "$root/include/gpucache.h" || die "include/gpucache.h does not say $version"
grep -q "^## $version" "$root/CHANGELOG.md" || die "CHANGELOG.md has no part for $version"
[ -z "$(git -C "$root" status --porcelain)" ] || die "the tree has changes that are not committed"
host=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ "$(uname -m)" = x86_64 ] || die "the simulated driver for the roots is built for x86_64 only"

need_build_tools
install_missing
find_meson
find_cuda_header
dist=$build_root/dist work=$build_root/release
rm -rf "$dist" "$work"
mkdir -p "$dist/sim" "$work"
setup_build "$work/tarball" -Dtests=false >"$build_root/log/release.log" &&
    meson dist -C "$work/tarball" --no-tests --formats gztar >>"$build_root/log/release.log" || die "no tarball, see $build_root/log/release.log"
cp "$work"/tarball/meson-dist/libgpucache-"$version".tar.gz "$dist/"
"$root/scripts/wheel.sh" x86_64 aarch64 || exit 1
"$root/scripts/deb.sh" || exit 1

# The simulated driver for every root: it needs memfd_create, which is of glibc 2.27.
fetch_tool ziglang 0.17.1
awk -v max=13000 -f "$root/tests/sim/export_map.awk" "$root/tests/sim/sim_entries.def" >"$work/libcuda.map" || exit 1
sources=()
for source in "$root"/tests/sim/*.c; do
    [[ $source == */test_*.c || $source == */probe.c ]] || sources+=("$source")
done
ZIG_GLOBAL_CACHE_DIR=$build_root/wheel/zig ZIG_LOCAL_CACHE_DIR=$build_root/wheel/zig PYTHONPATH=$fetched python3 -m ziglang cc \
    -target x86_64-linux-gnu.2.28 -O2 -std=gnu17 -shared -fPIC -fvisibility=hidden -D_GNU_SOURCE -DSIM_MAX_VERSION=13000 \
    -I"$root/src" -I"$root/tests/sim" -isystem "${toolkit:-${CUDA_HOME:-/usr/local/cuda}}/include" "${sources[@]}" \
    -o "$dist/sim/libcuda.so.1" -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,-z,nodelete \
    -Wl,--version-script="$work/libcuda.map" -lpthread -ldl || die "the simulated driver did not build"

failed=()
for suite; do
    [ "$suite" = "$host" ] && package=deb || package=
    "$root/scripts/bare.sh" "$suite" tests/wheel/bare.sh $package >"$build_root/log/release-$suite.log" 2>&1 || {
        tail -n 30 "$build_root/log/release-$suite.log"
        failed+=("the wheel in $suite")
        continue
    }
    tail -n 1 "$build_root/log/release-$suite.log"
done
# shellcheck disable=SC2016 # in the root
"$root/scripts/bare.sh" "$host" sh -ec 'mkdir /release && tar xzf /dist/libgpucache-*.tar.gz -C /release --strip-components=1 && /release/scripts/demo.sh' \
    >"$build_root/log/release-tarball.log" 2>&1 || failed+=("the tarball in $host")
rm -rf "$dist/sim"
(cd "$dist" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
[ ${#failed[@]} = 0 ] || die "not fit for a release: $(printf '%s; ' "${failed[@]}")"
echo "release $version: all in $dist"
