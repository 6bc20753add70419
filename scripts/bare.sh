#!/bin/bash
# bare.sh SUITE COMMAND...: runs a command, in a copy of this tree, in a bare Debian or Ubuntu (bookworm,
# trixie, focal, jammy, noble). Made with debootstrap below build/debian/, kept there for the next
# time, and copied for each run, so that what is missing in a bare system has to be installed by the
# command. The command finds build/dist/ of this tree as /dist. COMPILERS is handed on.
# Needs root, and a kernel that allows chroot and mounts; ends with 77 if it cannot.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -u
. "$(dirname "$(readlink -f "$0")")/common.sh"

# 77 is for "not here", which is no failure of the project's.
cannot() {
    echo "bare.sh: a bare $suite cannot be made here: $*" >&2
    exit 77
}

[ $# -ge 2 ] || die "usage: bare.sh SUITE COMMAND..."
suite=$1
mirror=http://deb.debian.org/debian components=main
case $suite in
focal | jammy | noble) mirror=http://archive.ubuntu.com/ubuntu components=main,universe ;;
esac
# An older debootstrap does not know newer releases by name; all of Ubuntu's are made alike.
script=()
[ "$components" = main ] || script=(/usr/share/debootstrap/scripts/gutsy)
base=$build_root/debian/$suite
run=$build_root/debian/$suite.run

[ "$(id -u)" = 0 ] || cannot "debootstrap and chroot need root"
unshare -m chroot / true 2>/dev/null || cannot "chroot and mounts are not allowed"
need debootstrap debootstrap
install_missing
if [ ! -f "$base.made" ]; then
    echo "making a bare $suite"
    mkdir -p "$base"
    debootstrap --variant=minbase --components="$components" "$suite" "$base" "$mirror" "${script[@]}" >"$build_root/log/debootstrap.log" 2>&1 ||
        cannot "debootstrap failed, see $build_root/log/debootstrap.log"
    touch "$base.made"
fi
rm -rf "$run"
cp -a --reflink=auto "$base" "$run" || die "cannot copy $base"
# The folder has the name that a clone of the project has: tests must not take it for the library's file.
source=/src/libgpucache
mkdir -p "$run$source"
(cd "$root" && tar cf - --exclude='./build*' --exclude=./.git --exclude=./.peers --exclude=__pycache__ .) | tar xf - -C "$run$source"
cp -L /etc/resolv.conf "$run/etc/resolv.conf" 2>/dev/null
[ ! -d /etc/apt/apt.conf.d ] || grep -ls Proxy /etc/apt/apt.conf.d/* | while read -r file; do cp "$file" "$run/etc/apt/apt.conf.d/"; done
[ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$run/etc/pip.conf"
mkdir -p "$run/dist"
[ ! -d "$build_root/dist" ] || cp -R "$build_root/dist/." "$run/dist/"
# mounts of its own, which end with it
exec unshare -mpf --kill-child sh -eu -c '
    run=$1 source=$2
    shift 2
    mount -t proc proc "$run/proc"
    mount --rbind /dev "$run/dev"
    for folder in /etc/ssl/certs /usr/local/share/ca-certificates; do
        [ ! -d "$folder" ] || { mkdir -p "$run$folder"; mount --bind "$folder" "$run$folder"; }
    done
    exec chroot "$run" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} ${PIP_CERT:+PIP_CERT="$PIP_CERT"} ${COMPILERS:+COMPILERS="$COMPILERS"} \
        sh -c "cd $source && exec \"\$@\"" sh "$@"
' sh "$run" "$source" "${@:2}"
