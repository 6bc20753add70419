#!/bin/bash
# test_scripts.sh FOLDER: the scripts in the ways people call them, and what is installed and
# released. Everything is made below FOLDER, from a copy of the tree. One line for each check.
set -u
[ $# = 1 ] || { echo "usage: test_scripts.sh FOLDER" >&2; exit 2; }
tree=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
rm -rf "$1"
mkdir -p "$1" && cd "$1" || exit 1
work=$PWD
failed=0
unset BUILD_ROOT LD_PRELOAD
seconds=300 # for one call of a script, however loaded the machine is

# check WHAT STATUS PATTERN COMMAND...: the command's status (+ for any but 0), and a line of its
# output. With ONE_LINE=1 it has to be the only one.
check() {
    local what=$1 expected=$2 pattern=$3 status good=1
    shift 3
    timeout "$seconds" "$@" >output 2>&1 </dev/null
    status=$?
    if [ "$expected" = + ]; then [ $status != 0 ] || good=0; else [ $status = "$expected" ] || good=0; fi
    grep -qE -- "$pattern" output || good=0
    [ -z "${ONE_LINE:-}" ] || [ "$(wc -l <output)" = 1 ] || good=0
    if [ $good = 1 ]; then
        echo "ok    $what"
    else
        echo "FAIL  $what: status $status"
        sed 's/^/      /' output | tail -n 20
        failed=$((failed + 1))
    fi
}

copy="$work/a tree"
mkdir "$copy"
(cd "$tree" && tar cf - --exclude='./build*' --exclude=./.git --exclude=./.peers --exclude=__pycache__ .) |
    tar xf - -C "$copy"

for script in demo.sh test.sh gpu-check.sh peers.sh soak.sh wheel.sh deb.sh bare.sh release.sh arm64.sh packaging/image.sh; do
    check "$script --help" 0 "${script##*/}" "$copy/scripts/$script" --help
done
ONE_LINE=1 check "a stage that there is not" 1 "no stage 'nonsense'" env BUILD_ROOT="$work/out" "$copy/scripts/test.sh" nonsense
ONE_LINE=1 check "a time that is none" 1 "'soon' is no time" env BUILD_ROOT="$work/out" "$copy/scripts/soak.sh" soon
ONE_LINE=1 check "a fuzz target that there is not" 1 "no target 'nonsense'" env BUILD_ROOT="$work/out" "$copy/scripts/soak.sh" 1 nonsense

# by sh, from elsewhere, a relative BUILD_ROOT, spaces in every path, no git
check "demo.sh by sh, spaces, a relative BUILD_ROOT" 0 'Requested memory' \
    env BUILD_ROOT="a build" sh "a tree/scripts/demo.sh"
check "nothing was built in the tree" 2 'No such file' ls "$copy/build/demo"
ln -s "$copy/scripts/demo.sh" "$work/link"
check "demo.sh by a symbolic link, with a command" 7 'gpucache run -- sh' \
    env BUILD_ROOT="a build" "$work/link" sh -c 'exit 7'
ONE_LINE=1 check "test.sh where LD_PRELOAD cannot work" 1 'path with a space' \
    env BUILD_ROOT="$work/a build" "$copy/scripts/test.sh" gcc
check "a driver without a device file of its own (WSL)" 0 "on this machine's GPU" \
    env BUILD_ROOT="a build" LD_LIBRARY_PATH="$work/a build/demo/tests/sim" sh "$copy/scripts/demo.sh"

# Neither root nor its capabilities may write there.
if [ "$(id -u)" = 0 ]; then
    read_only=(unshare -m sh -c 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"' sh "$copy")
else
    read_only=()
    mkdir -p "$copy/build" && chmod a-w "$copy" "$copy/build"
fi
if ! ${read_only[@]+"${read_only[@]}"} true 2>/dev/null; then
    echo "      a read-only tree was not checked: mounts of its own are not allowed here"
else
    ONE_LINE=1 check "a read-only tree" 1 'cannot write to .*BUILD_ROOT=' ${read_only[@]+"${read_only[@]}"} "$copy/scripts/demo.sh"
    check "a read-only tree, and BUILD_ROOT" 0 'Requested memory' ${read_only[@]+"${read_only[@]}"} \
        env BUILD_ROOT="$work/a build" "$copy/scripts/demo.sh"
fi
chmod -R u+w "$copy"

# A machine like this one, but not Debian's.
mkdir bin
for command in /usr/local/sbin/* /usr/local/bin/* /usr/sbin/* /usr/bin/*; do
    case ${command##*/} in
    apt* | dpkg* | sudo) ;;
    *) ln -sf "$command" "bin/${command##*/}" ;;
    esac
done
for command in python3 pip3 meson ninja; do # which pip may have installed
    ln -sf "$(command -v $command)" "bin/$command" 2>/dev/null
done
check "no apt, and everything is there" 0 'Requested memory' \
    env PATH="$work/bin" BUILD_ROOT="a build" "$copy/scripts/demo.sh"
rm bin/ninja
ONE_LINE=1 check "no apt, and something is missing" 1 'no apt-get to install them: ninja-build' \
    env PATH="$work/bin" BUILD_ROOT="a build" "$copy/scripts/demo.sh"

# The files that an interrupted meson leaves.
interrupted() {
    mkdir -p half/demo/meson-private
    touch half/demo/meson-private/build.dat
    (cd "$copy/scripts" && BUILD_ROOT="$work/half" bash -c '
        . ./common.sh && find_cuda_header && setup_build "$build_root/demo" -Dtests=false &&
        rm "$build_root/demo/build.ninja" && setup_build "$build_root/demo" -Dtests=false &&
        ls "$build_root/demo/build.ninja"')
}
export -f interrupted
export copy work
check "a set-up that was interrupted" 0 'demo/build.ninja$' bash -c interrupted

# Tools of another version than the project's, as some distributions have them.
mkdir old
for command in meson clang-format clang-tidy; do
    printf '#!/bin/sh\necho 0.61.2\n' >"old/$command"
    chmod +x "old/$command"
done
from_pypi() {
    cd "$copy/scripts" && BUILD_ROOT="$work/half" && export PATH="$work/old:$PATH" && . ./common.sh && find_meson &&
        meson --version && clang_version=999 find_clang_tool clang-format && "$tool" --version
}
export -f from_pypi
check "an old meson, and another clang-format" 0 'version 14\.' bash -c from_pypi
grep -q "^1\.7" output || { echo "FAIL  meson was not fetched"; failed=$((failed + 1)); }

# Stages that could check nothing.
stage() { env BUILD_ROOT="$work/stages" "$copy/scripts/test.sh" "$@"; }
export -f stage
check "the format stage without git" 0 'format +ok' bash -c 'stage format'
check "a stage says how far it is on a terminal" 0 'format: started, [0-9]+ s' \
    script -qec "BUILD_ROOT='$work/stages' '$copy/scripts/test.sh' format" /dev/null
echo 'int   badly ;' >"$copy/src/pool/badly.c"
check "the format stage finds what is badly formatted, without git" 1 'badly.c' bash -c 'stage format'
rm "$copy/src/pool/badly.c"
mkdir fake
cat >fake/meson <<'SH'
#!/bin/sh
[ "$1" != --version ] || echo 1.7.0
[ "$1" != setup ] || { mkdir -p "$2" && touch "$2/build.ninja"; }
exit 0
SH
printf '#!/bin/sh\n' >fake/ninja
chmod +x fake/*
check "a stage in which no test ran" 1 'nothing was checked' \
    env PATH="$work/fake:$PATH" BUILD_ROOT="$work/fakes" "$copy/scripts/test.sh" cost
printf '#!/bin/sh\nexit 100\n' >fake/apt-get
chmod +x fake/apt-get
check "the arm64 stage where no package can be had" 0 'arm64 was not run: .* cannot be had' \
    env PATH="$work/fake:$PATH" BUILD_ROOT="$work/fakes" "$copy/scripts/test.sh" arm64
rm -rf "$copy/src" "$copy/include" "$copy/tests"
mkdir "$copy/src" "$copy/include" "$copy/tests"
check "the format stage without files" 1 '0 files' bash -c 'stage format'

# Installed: a command that works at once.
toolkit=()
header=$(ls -d "$work"/*/cuda-headers/*/include/cuda.h 2>/dev/null | head -n 1)
[ -z "$header" ] || toolkit=(-Dtoolkit="${header%/include/cuda.h}")
# Without optimisation: it takes half as long, and these checks are of files and not of code.
installed() {
    meson setup "$work/plain" "$tree" --prefix="$work/prefix" -Doptimization=0 -Dtests=false "$@" && meson install -C "$work/plain"
}
export -f installed
export tree
check "meson install" 0 'gpucache.1' bash -c 'installed "$@"' sh ${toolkit[@]+"${toolkit[@]}"}
check "the installed command" 0 'Requested memory' \
    env LD_LIBRARY_PATH="$work/a build/demo/tests/sim" "$work/prefix/bin/gpucache" run -- "$work/a build/demo/tests/demo/demo"
check "the header is installed" 0 gpucache_get_stats cat "$work/prefix/include/gpucache.h"

# Released: what is in the tarball builds.
if git -C "$tree" rev-parse --git-dir >/dev/null 2>&1 && [ -e "$tree/.git" ]; then
    released() {
        meson dist -C "$work/plain" --no-tests --allow-dirty --formats gztar &&
            mkdir released && tar xzf plain/meson-dist/*.tar.gz -C released --strip-components=1 &&
            meson setup released/build released -Doptimization=0 -Dtests=false --werror "$@" && ninja -C released/build &&
            python3 released/scripts/coverage.py --check && released/build/gpucache --version
    }
    export -f released
    check "meson dist, and a build of it" 0 '^gpucache [0-9]' bash -c 'released "$@"' sh ${toolkit[@]+"${toolkit[@]}"}
    # meson looks from the source folder, and the compiler from the build folder
    relative() {
        mkdir -p released/cuda/include && echo '#define CUDA_VERSION 12340' >released/cuda/include/cuda.h &&
            meson setup released/relative released -Dtests=false -Dtoolkit=cuda
    }
    export -f relative
    check "a toolkit in a folder of the tree" 0 'cuda.h is of CUDA 12.34' bash -c relative
else
    echo "      meson dist was not checked: it takes a git repository"
fi
[ $failed = 0 ] && echo "all good"
exit $((failed > 0))
