#!/bin/bash
# peers.sh: fetches the allocators that the benchmarks compare with and that no CUDA or PyTorch
# installation brings, from PyPI to .peers/: RMM. Only headers and shared libraries are kept, some
# 15 MiB. Nothing of it belongs into the repository.
#
# RMM_VERSION: another release than the one the benchmarks were written for. 26.06 is the last one
# whose CUDA runtime is 13.0's, so it asks no driver of CUDA 13.0 for anything newer.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -eu
. "$(dirname "$(readlink -f "$0")")/common.sh"

rmm=${RMM_VERSION:-26.6.0}
place=$root/.peers/rmm

need python3 python3
need_pip
install_missing
if [ "$(cat "$place/VERSION" 2>/dev/null)" = "$rmm" ]; then
    echo "RMM $rmm is there"
    exit
fi
fetched=$(mktemp -d)
trap 'rm -rf "$fetched"' EXIT
echo "fetching RMM $rmm"
python3 -m pip download --quiet --disable-pip-version-check --only-binary=:all: --dest "$fetched" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 "librmm-cu13==$rmm" ||
    die "could not fetch librmm-cu13 $rmm"
rm -rf "$place"
mkdir -p "$place"
python3 - "$fetched" "$place" "$rmm" <<'PYTHON'
import glob, os, re, sys, zipfile

fetched, place, version = sys.argv[1:]
# CUB and Thrust of the same release are in there too; RMM's resources need neither.
wanted = re.compile(r"[^/]+/(include/(?!rapids/(?:cub|thrust)/).+[^/]|lib64/[^/]+\.so[.0-9]*)$")
for path in glob.glob(fetched + "/*.whl"):
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            found = wanted.match(name)
            licence = re.search(r"\.dist-info/licenses/(.*[^/])$", name)
            if found:
                target = os.path.join(place, found.group(1))
            elif licence:
                target = os.path.join(place, "licenses", name.split("-")[0], licence.group(1))
            else:
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(wheel.read(name))
with open(os.path.join(place, "VERSION"), "w") as file:
    file.write(version + "\n")
PYTHON
du -sh "$place" | sed 's/^/RMM: /'
