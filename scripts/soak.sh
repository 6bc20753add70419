#!/bin/bash
# soak.sh [TIME [TARGET...]]: runs the fuzz targets of tests/fuzz for TIME in all: 600 or 600s, 30m, 8h. Ten
# minutes if nothing is said. All targets, or those named (report, trace, page, ...).
#
# Two targets run at a time (JOBS), and each has an equal share. The inputs follow from tests/fuzz/corpus. With clang's
# libFuzzer what leads to new code is kept in build/soak/corpus for the next run. Without it the targets' own driver runs
# under gcc, with another seed in each run. Address and undefined behaviour sanitizers are on in both.
#
# Prints inputs, seconds and findings of each target. Ends with status 1 if there is a finding: its input is named, and
#     build/soak/tests/fuzz/fuzz_TARGET FILE
# repeats it. BUILD_ROOT names another place than build/.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -u
. "$(dirname "$(readlink -f "$0")")/common.sh"

seconds_of() {
    [[ $1 =~ ^([0-9]+)([smh]?)$ ]] || die "'$1' is no time; wanted is 600, 30m or 8h"
    case ${BASH_REMATCH[2]} in
    m) echo $((10#${BASH_REMATCH[1]} * 60)) ;;
    h) echo $((10#${BASH_REMATCH[1]} * 3600)) ;;
    *) echo $((10#${BASH_REMATCH[1]})) ;;
    esac
}

time=$(seconds_of "${1:-600}") || exit 1
[ "$time" -gt 0 ] || die "'$1' is no time"
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls "$root/tests/fuzz/corpus")
for target in "${targets[@]}"; do
    [ -d "$root/tests/fuzz/corpus/$target" ] || die "no target '$target'; there are: $(cd "$root/tests/fuzz/corpus" && echo *)"
done
jobs=${JOBS:-2}
[ "$jobs" -le "${#targets[@]}" ] || jobs=${#targets[@]}
share=$((time * jobs / ${#targets[@]}))
[ "$share" -gt 0 ] || share=1

need_build_tools
need_library cmocka libcmocka-dev
install_missing
find_meson
find_cuda_header

# has_libfuzzer: whether clang is here and links a program with libFuzzer and both sanitizers.
has_libfuzzer() {
    local program
    program=$(mktemp) || return 1
    printf 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 99; }\n' |
        clang -x c -fsanitize=fuzzer,address,undefined -o "$program" - >/dev/null 2>&1
    local status=$?
    rm -f "$program"
    return $status
}

folder=$build_root/soak findings=$build_root/soak/findings log=$build_root/log
arguments=(--buildtype=debugoptimized -Db_sanitize=address,undefined)
if has_libfuzzer; then
    export CC=clang
    arguments+=(-Db_lundef=false -Dlibfuzzer=true)
    by=libFuzzer
else
    export CC=gcc
    folder=$build_root/soak-gcc findings=$build_root/soak-gcc/findings
    by="the own driver"
fi
echo "building the targets, driven by $by"
{ setup_build "$folder" "${arguments[@]}" && ninja -C "$folder" fuzz; } >"$log/soak.log" 2>&1 ||
    { tail -n 40 "$log/soak.log"; die "the targets could not be built, see $log/soak.log"; }
mkdir -p "$findings"
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1

# wait_for PID: sets $status to that of a process, which ends with this job.
wait_for() {
    trap "kill $1 2>/dev/null; exit 130" INT TERM
    wait "$1"
    status=$?
}

# run_target TARGET: writes its log, and its counts to a file.
run_target() {
    local target=$1 corpus=$root/tests/fuzz/corpus/$1 own=$folder/corpus/$1 output=$log/soak-$1.log began=$SECONDS status
    rm -f "$findings/fuzz_$target-"*
    if [ "$by" = libFuzzer ]; then
        mkdir -p "$own"
        "$folder/tests/fuzz/fuzz_$target" -max_total_time="$share" -max_len=16384 -timeout=60 -rss_limit_mb=4096 -entropic=0 \
            -print_final_stats=1 -verbosity=1 -artifact_prefix="$findings/fuzz_$target-" "$own" "$corpus" >"$output" 2>&1 &
        wait_for $!
        inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$output")
    else
        FUZZ_SEED=$RANDOM$RANDOM FUZZ_SECONDS=$share FUZZ_FINDINGS=$findings "$folder/tests/fuzz/fuzz_$target" "$corpus" >"$output" 2>&1 &
        wait_for $!
        inputs=$(sed -n 's/^fuzz_[a-z]*: \([0-9]*\) inputs in .*/\1/p' "$output")
    fi
    echo "$status ${inputs:-0} $((SECONDS - began))" >"$log/soak-$target.counts"
}

# Each job takes the targets whose place is its own.
pids=()
for ((job = 0; job < jobs; job++)); do
    (for ((i = job; i < ${#targets[@]}; i += jobs)); do run_target "${targets[i]}"; done) &
    pids+=($!)
done
trap 'kill "${pids[@]}" 2>/dev/null; exit 130' INT TERM
echo "${#targets[@]} targets, $jobs at a time, $share s each"
wait

total=0 red=0
printf '%-10s %12s %8s  %s\n' target inputs seconds findings
for target in "${targets[@]}"; do
    read -r status inputs took <"$log/soak-$target.counts" || status=1 inputs=0 took=0
    found=none
    if [ "$status" != 0 ]; then
        red=$((red + 1))
        found=$(ls "$findings/fuzz_$target-"* 2>/dev/null | head -n 1)
        found="${found:-no input was kept}; $log/soak-$target.log"
    fi
    total=$((total + inputs))
    printf '%-10s %12d %8d  %s\n' "$target" "$inputs" "$took" "$found"
done
printf '%-10s %12d\n' total "$total"
[ $red = 0 ]
