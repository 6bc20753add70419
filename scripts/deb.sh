#!/bin/bash
# deb.sh: the Debian package gpucache, for the distribution and architecture of this machine, to
# build/dist/. debhelper builds it from a copy of the tree with scripts/packaging/debian/, lintian
# checks it; a warning of lintian's fails. BUILD_ROOT names another place than build/.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -u
. "$(dirname "$(readlink -f "$0")")/common.sh"

command -v dpkg >/dev/null || die "there is no dpkg: this is neither Debian nor Ubuntu"
need_build_tools
need dh debhelper
need dpkg-buildpackage dpkg-dev
need fakeroot fakeroot
need lintian lintian
need_library ncursesw libncurses-dev
need_library libdw libdw-dev
need_library liblzma liblzma-dev
need_library libzstd libzstd-dev
install_missing
find_meson
find_cuda_header

version=$(sed -n "s/^  version: '\(.*\)',$/\1/p" "$root/meson.build")
source=$build_root/deb/libgpucache-$version
log=$build_root/log/deb.log
rm -rf "$build_root/deb"
mkdir -p "$source"
(cd "$root" && tar cf - --exclude='./build*' --exclude='./.[!.]*' --exclude=__pycache__ .) | tar xf - -C "$source"
cp -R "$root/scripts/packaging/debian" "$source/debian"
printf 'libgpucache (%s) unstable; urgency=medium\n\n  * Changes: /usr/share/doc/gpucache/CHANGELOG.md.gz\n\n -- %s  %s\n' "$version" \
    "$(sed -n 's/^Maintainer: //p' "$source/debian/control")" "$(date -R -r "$root/CHANGELOG.md")" >"$source/debian/changelog"
printf 'CHANGELOG.md\nREADME.md\n' >"$source/debian/gpucache.docs"

# -d: meson may be PyPI's, which dpkg does not know; what else the package needs was installed above
(cd "$source" && GPUCACHE_TOOLKIT=$toolkit dpkg-buildpackage -b -us -uc -d) >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    die "the package did not build; $log has all of it"
}
package=$(echo "$build_root"/deb/gpucache_*.deb)
lintian --allow-root --fail-on error,warning "$package" || die "lintian finds faults in $package"
mkdir -p "$build_root/dist"
rm -f "$build_root"/dist/gpucache_*.deb
cp "$package" "$build_root/dist/"
echo "deb: $build_root/dist/$(basename "$package")"
