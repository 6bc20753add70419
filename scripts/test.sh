#!/bin/bash
# test.sh [STAGE...]: installs what is missing, builds and tests this machine's library; or runs only
# the named stages. Without a stage it takes at most 15 minutes on two cores.
#
#   gcc       release build, all tests           clang     debug build, which checks lock ranks
#   asan      gcc, address and undefined         tsan      gcc, threads: the pool's core, and
#             behaviour sanitizers: unit, sim,             contexts that come and go
#             contexts that come and go          valgrind  unit tests of the gcc build
#   cost      gcc build: instructions counted    arm64     unit, sim and programs for aarch64 under
#             under callgrind                              qemu-user, but for tests/arm64.txt;
#                                                        where its packages cannot be had, the
#                                                        last lines say so
#   format    clang-format                       tidy      clang-tidy over src/
#   headers   library compiled with each         scripts   these scripts in the ways they are called,
#             cuda.h, tests with some                      meson install and meson dist
#   wheel     scripts/wheel.sh for x86_64 and aarch64; this machine's wheel in a fresh venv under
#             the oldest and the newest Python from 3.9 on that is here, on the simulated driver; the
#             aarch64 wheel's library under qemu, after the stage arm64
#   deb       scripts/deb.sh: the Debian package builds, and lintian finds no fault in it
#   short     the gcc stage, but for tests that find the same with every compiler or on every Linux:
#             only if named
#   debian13  demo and the stage short in a bare Debian 13, made with debootstrap: only if named;
#             where that cannot be made, the last lines say so
#   compilers unit and sim with each of COMPILERS (gcc-11 to gcc-14, clang-14 to clang-19) that is
#             here or that apt has: only if named
#   all       all of them but short, debian13 and compilers, as .ci/run does. Without a stage: gcc, asan,
#             tsan, cost and format, each of which finds what the others cannot
#
# A stage that fails does not stop the others; one that checks nothing fails. Logs:
# build/log/STAGE.log. BUILD_ROOT names another place than build/.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -u
. "$(dirname "$(readlink -f "$0")")/common.sh"

here_stages=(gcc asan tsan cost format)
all_stages=(gcc clang asan tsan valgrind cost format tidy scripts headers arm64 wheel deb)
named_stages=(short debian13 compilers)
stages=()
[ $# -gt 0 ] || set -- "${here_stages[@]}"
for stage; do
    [ "$stage" != all ] && stages+=("$stage") || stages+=("${all_stages[@]}")
done
for stage in "${stages[@]}"; do
    [[ " ${all_stages[*]} ${named_stages[*]} " == *" $stage "* ]] ||
        die "no stage '$stage'; there are: ${all_stages[*]} ${named_stages[*]}"
done
# LD_PRELOAD, which the tests set, parts its libraries by colons and spaces.
[[ $build_root != *[[:space:]:]* ]] ||
    die "the tests cannot run below a path with a space or a colon; BUILD_ROOT=/another/folder builds there"
has_stage() { [[ " ${stages[*]} " == *" $1 "* ]]; }

need_build_tools
need_library cmocka libcmocka-dev
has_stage clang && need clang clang
has_stage valgrind && need valgrind valgrind
has_stage cost && need valgrind valgrind
if has_stage tidy; then # which reads what is only built where these are, too
    need clang clang
    need_library ncursesw libncurses-dev
    need_library libdw libdw-dev
    need_library liblzma liblzma-dev
    need_library libzstd libzstd-dev
fi
has_stage headers && need_pip
has_stage scripts && need git git
has_stage wheel && ! python3 -c 'import ensurepip, venv' 2>/dev/null && missing_packages+=(python3-venv)
install_missing
# The test of gpucache metrics asks Prometheus itself, where the distribution has it.
if (has_stage gcc || has_stage short) && ! command -v promtool >/dev/null && apt-cache show prometheus >/dev/null 2>&1; then
    (missing_packages=(prometheus) && install_missing) || echo "without prometheus the test of gpucache metrics leaves its part out"
fi
find_meson
find_cuda_header
cd "$root" || exit 1
logs=$build_root/log

# Test programs wait for most of their time: for events, timers and other processes. So twice as many run as there are
# processors. Sanitizers and valgrind compute instead.
waiting=(--num-processes "$((2 * $(nproc)))")

# run_tests FOLDER LOGBASE ARGUMENT...: runs meson test, which builds what these tests need, under a command if $under has
# one. The tests are counted from the log of this run alone; meson adds the wrapper's name to it.
under=()
run_tests() {
    local folder=$1 name=$2 status
    shift 2
    rm -f "$folder/meson-logs/$name"*.json
    ${under[@]+"${under[@]}"} meson test -C "$folder" --print-errorlogs --logbase "$name" "$@"
    status=$?
    count_from=$(echo "$folder/meson-logs/$name"*.json)
    if [ ! -s "$count_from" ]; then
        echo "nothing was checked: no test ran"
        return 1
    fi
    [ $status = 0 ] # meson returns the number of failures, which may be 77
}

build() { # FOLDER ARGUMENT...
    setup_build "$@" && ninja -C "$1"
}

stage_gcc() {
    (fetch_tool prometheus_client 0.21.1) || echo "without it the test of gpucache metrics leaves that parser out"
    (fetch_tool jsonschema 4.26.0) || echo "without it no report is compared with docs/report-schema.json"
    CC=gcc build "$build_root/gcc" --buildtype=release --werror &&
        run_tests "$build_root/gcc" all --no-suite cost "$@" "${waiting[@]}"
}

# For a second distribution on the same machine, where half of the time of the gcc stage would show nothing new.
stage_short() {
    stage_gcc --no-suite one-compiler --no-suite one-system --no-suite replay
}

# Builds with debug information, where the library checks the ranks of its locks; the gcc stage builds a release. Leaves out the
# suites whose results depend neither on the compiler nor on these checks.
stage_clang() {
    export POOL_TEST_OPS=120000
    CC=clang build "$build_root/clang" --buildtype=debugoptimized --werror &&
        run_tests "$build_root/clang" all --no-suite one-compiler --no-suite tool "${waiting[@]}"
}

# At -O1: the checks are the same, and the whole stage takes a quarter less time.
stage_asan() {
    export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1
    export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
    export POOL_TEST_OPS=120000
    CC=gcc setup_build "$build_root/asan" --buildtype=debugoptimized -Doptimization=1 -Db_sanitize=address,undefined &&
        run_tests "$build_root/asan" asan --suite unit --suite sim --suite inside -t 3
}

# gcc 12's ThreadSanitizer cannot live with more than 28 bits of address randomisation.
stage_tsan() {
    export POOL_TEST_OPS=30000
    export TSAN_OPTIONS=halt_on_error=0:second_deadlock_stack=1
    local plain=()
    setarch "$(uname -m)" -R true 2>/dev/null && plain=(--wrap "setarch $(uname -m) -R")
    CC=gcc setup_build "$build_root/tsan" --buildtype=debugoptimized -Db_sanitize=thread &&
        run_tests "$build_root/tsan" tsan --suite pool --suite threads --suite inside -t 5 "${plain[@]}"
}

# The gcc build: this valgrind may be too old for clang's DWARF 5. The asan stage reads all 4000 changed inputs of each fuzz
# target. Valgrind adds only the use of values that nobody wrote: the whole corpus and 500 changed inputs suffice for that.
# In the tests of the suite spinning a thread or process computes without end. Valgrind would give it most of the time.
stage_valgrind() {
    export POOL_TEST_OPS=20000 FUZZ_ITERATIONS=500
    CC=gcc setup_build "$build_root/gcc" --buildtype=release --werror &&
        run_tests "$build_root/gcc" valgrind --suite unit --no-suite spinning --no-suite python -t 10 \
            --wrap 'valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite --fair-sched=yes'
}

# Fails when an allocation costs more than tests/bench/instructions.txt allows.
stage_cost() {
    CC=gcc setup_build "$build_root/gcc" --buildtype=release --werror &&
        run_tests "$build_root/gcc" cost --suite cost
}

# Runs the tests of an aarch64 build, except those that tests/arm64.txt names by test or suite. A row that
# names nothing is a failure.
stage_arm64() {
    local chosen
    "$root/scripts/arm64.sh" build || return
    "$root/scripts/arm64.sh" run true || return
    chosen=$(meson introspect --tests "$build_root/arm64" | python3 -c 'import json, sys
rows = {line.split(": ")[0] for line in open(sys.argv[1]) if line.strip() and line[0] != "#"}
names = {test["name"]: {test["name"], *("suite " + suite.split(":")[-1] for suite in test["suite"])} for test in json.load(sys.stdin)}
unknown = sorted(rows.difference(*names.values()))
if unknown:
    sys.exit("tests/arm64.txt names no tests: " + "; ".join(unknown))
chosen = [name for name in names if not rows & names[name]]
print("left out %d tests: tests/arm64.txt has the reasons" % (len(names) - len(chosen)), file=sys.stderr)
print(*chosen, sep="\n")' "$root/tests/arm64.txt") || return 1
    mapfile -t chosen <<<"$chosen"
    under=("$root/scripts/arm64.sh" run)
    run_tests "$build_root/arm64" arm64 -t 6 "${chosen[@]}"
}

# sources FOLDER... PATTERN: files of git and of a tarball alike, to $found; none is a failure.
sources() {
    mapfile -d '' found < <(find "${@:1:$#-1}" -regextype posix-extended -regex "${@:$#}" -print0)
    echo "${#found[@]} files"
    [ ${#found[@]} -gt 0 ]
}

stage_format() {
    find_clang_tool clang-format
    sources src include tests '.*\.[ch]' && "$tool" --dry-run --Werror "${found[@]}"
}

# Only our own sources, with the flags of a clang build.
stage_tidy() {
    CC=clang setup_build "$build_root/tidy" --buildtype=release -Dtests=false || return 1
    find_clang_tool clang-tidy
    # PyPI's clang-tidy has no headers of its own
    local own=()
    [[ $tool != "$build_root"/* ]] || own=(--extra-arg=-resource-dir="$(clang -print-resource-dir)")
    # one file at a time, and once if two programs have it: clang-tidy 14 forgets what va_start is
    # after the first one
    # after a change of meson.build; and the header that is made
    ninja -C "$build_root/tidy" build.ninja html_page.h >/dev/null || return 1
    mkdir -p "$build_root/tidy/once"
    python3 -c 'import json, sys
commands = json.load(open(sys.argv[1] + "/compile_commands.json"))
once = {c["file"]: c for c in reversed(commands)}
json.dump(list(once.values()), open(sys.argv[1] + "/once/compile_commands.json", "w"))' "$build_root/tidy" || return 1
    sources src '.*\.c' &&
        printf '%s\0' "${found[@]}" | xargs -0 -n 1 -P "$(nproc)" "$tool" --quiet "${own[@]}" -p "$build_root/tidy/once"
}

stage_headers() {
    python3 "$root/scripts/cuda_headers.py" check "$build_root/cuda-headers"
}

stage_scripts() {
    "$root/tests/scripts/test_scripts.sh" "$build_root/scripts"
}

# pythons: those from 3.9 on that start, oldest first, one a line: version and path.
pythons() {
    local python version
    for python in $(compgen -c python3. | grep -x 'python3\.[0-9]*' | sort -u) "$HOME"/.pyenv/versions/3.*/bin/python3 python3; do
        version=$("$python" -c 'import sys, ensurepip, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        [ "$(printf '%s\n' 3.9 "$version" | sort -V | head -n 1)" != 3.9 ] || echo "$version $python"
    done | sort -V -u -k 1,1
}

# test_wheel_library LIBRARY BUILD SCRIPT...: test scripts with the programs of a build and the library of a wheel, which is another
# compiler's. Under $under, if that is set.
test_wheel_library() {
    local script
    for script in "${@:3}"; do
        # shellcheck disable=SC2086 # a script and its argument
        GPUCACHE_TEST_LIBRARY=$1 GPUCACHE_TEST_PROGRAMS=$2/tests/programs GPUCACHE_TEST_SIM=$2/tests/sim \
            GPUCACHE_TEST_SIM_OLD=$2/tests/sim/old ${under[@]+"${under[@]}"} python3 "$root/tests/programs/"$script || return 1
    done
}

stage_wheel() {
    local python folder=$build_root/wheel/installed arm64=$build_root/wheel/aarch64
    CC=gcc setup_build "$build_root/gcc" --buildtype=release --werror &&
        ninja -C "$build_root/gcc" tests/programs/{reuse_never_early,limit_threads,load_entries} tests/sim/libcuda.so.1 tests/sim/old/libcuda.so.1 || return 1
    "$root/scripts/wheel.sh" x86_64 aarch64 || return 1
    for python in $(pythons | sed -n '1p;$p' | cut -d ' ' -f 2); do
        rm -rf "$folder"
        # without a network, and without what else may be installed
        "$python" -m venv "$folder" &&
            "$folder/bin/pip" install --quiet --disable-pip-version-check --no-index "$build_root"/dist/libgpucache-*_"$(uname -m)".whl &&
            "$folder/bin/python" "$root/tests/wheel/check.py" "$build_root/gcc/tests/sim" || return 1
    done
    # as an image has it, and in a root of its own, where nothing else is; then the manifests that use it
    if [ "$(id -u)" = 0 ]; then
        rm -rf "$folder-image"
        "$root/scripts/packaging/image.sh" "$folder-image" || return 1
    fi
    fetch_tool kubernetes-validate 1.37.0
    PYTHONPATH=$fetched python3 "$root/tests/wheel/manifests.py" "$root"/docs/kubernetes/*.yaml || return 1
    # few schedules: the gcc stage runs all of them on the same sources
    test_wheel_library "$(echo "$folder"/lib/python3*/site-packages/libgpucache/libgpucache.so)" "$build_root/gcc" \
        load_entries.py "reuse_never_early.py 100" limit_threads.py || return 1
    # the other wheel, under qemu, where the stage arm64 has built its programs
    if [ -x "$build_root/arm64/tests/sim/probe" ] && "$root/scripts/arm64.sh" run true; then
        rm -rf "$arm64"
        python3 -m zipfile -e "$build_root"/dist/libgpucache-*_aarch64.whl "$arm64" || return 1
        under=("$root/scripts/arm64.sh" run)
        test_wheel_library "$arm64/libgpucache/libgpucache.so" "$build_root/arm64" \
            load_entries.py "reuse_never_early.py 20" report_libraries.py report_contents.py || return 1
    fi
}

stage_deb() {
    command -v dpkg >/dev/null || {
        echo "there is no dpkg: this is neither Debian nor Ubuntu"
        return 77
    }
    "$root/scripts/deb.sh"
}

stage_debian13() {
    "$root/scripts/debian.sh" trixie short
}

# No distribution has all of them. Missing compilers are named; at least one must be there.
stage_compilers() {
    local compiler used=() absent=() red=() counted=()
    mkdir -p "$build_root/compilers"
    for compiler in ${COMPILERS:-$(echo gcc-{11..14} clang-{14..19})}; do
        if ! command -v "$compiler" >/dev/null && ! (need "$compiler" "$compiler" && install_missing); then
            absent+=("$compiler")
            continue
        fi
        "$compiler" --version | head -n 1
        count_from=
        CC=$compiler build "$build_root/compilers/$compiler" --buildtype=release --werror &&
            run_tests "$build_root/compilers/$compiler" compilers --suite unit --suite sim || red+=("$compiler")
        [ ! -s "$count_from" ] || counted+=("$count_from")
        used+=("$compiler")
    done
    count_from=$build_root/compilers/all.json
    cat /dev/null ${counted[@]+"${counted[@]}"} >"$count_from"
    echo "built and tested with ${used[*]:-none}; not here: ${absent[*]:-none}; failed: ${red[*]:-none}"
    [ ${#used[@]} -gt 0 ] && [ ${#red[@]} = 0 ]
}

# running_tests: the tests that meson runs in a folder of this build, by the last argument that is a
# program or a script of the tests. Only children of meson count: tests start programs too.
running_tests() {
    local file words word name names= meson=
    for file in /proc/[0-9]*/cmdline; do
        mapfile -d '' words 2>/dev/null <"$file" || continue
        [[ "${words[*]:0:5}" != *"meson test -C $build_root/"* ]] || meson=${file//[^0-9]/}
    done
    [ -n "$meson" ] || return
    for file in /proc/[0-9]*/cmdline; do
        grep -qs "^PPid:[[:space:]]$meson\$" "${file%cmdline}status" || continue
        mapfile -d '' words 2>/dev/null <"$file" || continue
        name=
        for word in "${words[@]}"; do
            [[ $word != "$root"/*tests/* && $word != "$build_root"/*tests/* ]] || name=${word##*/}
        done
        names+=${name:+, ${name%.py}}
    done
    printf '%s' "${names#, }"
}

# show_progress STAGE LOG: until it is killed or this script ends, one line with the steps that are done,
# their total and the tests that run: rewritten each second on a terminal, else a new one each minute.
show_progress() {
    local stage=$1 log=$2 began=$SECONDS said=$SECONDS step now line columns=80
    [ ! -t 1 ] || columns=$(stty size <&1 2>/dev/null | cut -d ' ' -f 2)
    [ "${columns:-0}" -ge 40 ] || columns=80
    while sleep 1 && kill -0 $$ 2>/dev/null; do
        if [ -t 1 ] || [ $((SECONDS - said)) -ge 60 ]; then
            # ninja writes [12/908], meson 12/127
            step=$(tail -n 40 "$log" 2>/dev/null | grep -oE '^ *\[?[0-9]+/[0-9]+' | tail -n 1 | tr -d ' [')
            now=$(running_tests)
            line="   $stage: ${step:-started}${now:+, running $now}, $((SECONDS - began)) s"
            if [ -t 1 ]; then
                printf '\r\033[K%.*s' "$((columns - 1))" "$line"
            else
                printf '%s\n' "$line"
                said=$SECONDS
            fi
        fi
    done
}

total_passed=0 total_failed=0
table=() not_run=()
for stage in "${stages[@]}"; do
    printf '== %s\n' "$stage"
    log=$logs/$stage.log
    started=$SECONDS
    rm -f "$logs/$stage.counts" "$log"
    show_progress "$stage" "$log" &
    progress=$!
    # in a subshell: what a stage exports is its own
    (
        count_from=
        stage_"$stage" >"$log" 2>&1
        status=$?
        [ ! -s "$count_from" ] || python3 "$root/scripts/testlog.py" "$count_from" >"$logs/$stage.counts"
        exit $status
    )
    status=$?
    kill "$progress"
    wait "$progress" 2>/dev/null
    [ ! -t 1 ] || printf '\r\033[K'
    passed=0 failed=0
    if [ -s "$logs/$stage.counts" ]; then
        read -r passed failed <"$logs/$stage.counts"
    elif [ $status = 0 ]; then
        passed=1
    fi
    if [ $status = 0 ] && [ "$passed" = 0 ]; then
        echo "nothing was checked" >>"$log"
        status=1
    fi
    [ $status = 0 ] || [ "$failed" -gt 0 ] || failed=1
    result=ok
    if [ $status = 77 ]; then # what the stage needs cannot be had on this machine
        result='not run' failed=0
        not_run+=("$stage was not run: $(tail -n 1 "$log")")
    elif [ $status != 0 ] || [ "$failed" -gt 0 ]; then
        result=FAILED
        tail -n "${LOG_LINES:-60}" "$log"
    fi
    total_passed=$((total_passed + passed))
    total_failed=$((total_failed + failed))
    table+=("$(printf '%-9s %-7s %6d passed %4d failed %5d s' "$stage" "$result" "$passed" "$failed" $((SECONDS - started)))")
done

echo
printf '%s\n' "${table[@]}"
[ ${#not_run[@]} = 0 ] || printf '%s\n' "${not_run[@]}"
has_stage compilers && tail -n 1 "$logs/compilers.log"
has_stage arm64 && sed -n 's/^left out [0-9]* tests: /arm64 &/p' "$logs/arm64.log"
echo "$total_passed passed, $total_failed failed"
[ $total_failed = 0 ]
