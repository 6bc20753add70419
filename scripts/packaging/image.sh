#!/bin/bash
# image.sh FOLDER: the files of the container image, below FOLDER, which must not exist. /gpucache/
# has library and command of the wheel, which need nothing but a glibc of 2.17 or later; the image
# has this machine's, so that the command runs in the image itself. /bin/cp is for init containers.
# Builds the wheel unless build/dist/ has it.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -u
. "$(dirname "$(readlink -f "$0")")/../common.sh"

[ $# = 1 ] || die "usage: image.sh FOLDER"
[ ! -e "$1" ] || die "$1 exists already"
[ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1 || missing_packages+=(busybox-static)
need python3 python3
install_missing
wheel=$(echo "$build_root"/dist/libgpucache-*_"$(uname -m)".whl)
[ -f "$wheel" ] || "$root/scripts/wheel.sh" || exit 1
wheel=$(echo "$build_root"/dist/libgpucache-*_"$(uname -m)".whl)

mkdir -p "$1/gpucache" "$1/bin" "$1/tmp" && chmod 1777 "$1/tmp" || exit 1
for file in gpucache libgpucache.so; do
    python3 -c 'import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read("libgpucache/" + sys.argv[2]))' \
        "$wheel" "$file" >"$1/gpucache/$file" || die "$wheel has no $file"
done
chmod 755 "$1/gpucache/gpucache"
cp /bin/busybox "$1/bin/cp"
# the dynamic linker and the parts of glibc, where the linker looks for them
ldd "$1/gpucache/gpucache" | grep -o '/[^ ]*' | while read -r file; do
    mkdir -p "$1$(dirname "$file")" && cp -L "$file" "$1$file"
done
"$1/bin/cp" --help >/dev/null 2>&1 && chroot "$1" /gpucache/gpucache --version || die "the command does not run in $1"
