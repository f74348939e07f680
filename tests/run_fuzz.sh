#!/bin/sh
# Runs each fuzz target for some seconds, two at a time: run_fuzz.sh SECONDS LOG-FOLDER [NAME…]
#
# A target tests/fuzz/fuzz_NAME.c starts from its seeds in tests/fuzz/corpus/NAME, copied to a
# scratch folder so that the seeds stay as they are. One line for each with its executions and
# coverage (cov: edges, ft: features). An input that crashes, leaks, or takes over 10 seconds is
# kept as LOG-FOLDER/fuzz-NAME-…; run it again with `build/fuzz/NAME FILE`.
seconds=$1 logs=$2
shift 2
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

if [ $# -eq 0 ]; then
    for target in tests/fuzz/fuzz_*.c; do
        name=${target##*/fuzz_}
        set -- "$@" "${name%.c}"
    done
fi

run_target() {
    name=$1 code=0
    log=$logs/fuzz-$name.log
    mkdir -p "$scratch/$name"
    [ ! -d "tests/fuzz/corpus/$name" ] || cp -R "tests/fuzz/corpus/$name/." "$scratch/$name"
    "build/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="$logs/fuzz-$name-" "$scratch/$name" \
        >"$log" 2>&1 </dev/null || code=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
    covered=$(sed -n 's/.*\(cov: [0-9]* ft: [0-9]*\).*/\1/p' "$log" | tail -n 1)
    word=ok
    if [ "$code" -ne 0 ] || [ "${runs:-0}" -eq 0 ]; then
        word=FAILED
        tail -n 40 "$log"
        : >"$scratch/$name.failed"
    fi
    printf '%-7s %-20s %s runs, %s\n' "$word" "$name" "${runs:-0}" "${covered:-no coverage}"
}

rm -f "$logs"/fuzz-*
total=$#
while [ $# -gt 0 ]; do
    run_target "$1" >"$scratch/first" &
    first=$!
    second=
    [ $# -eq 1 ] || second=$2
    [ -z "$second" ] || run_target "$second"
    wait "$first"
    cat "$scratch/first"
    shift
    [ -z "$second" ] || shift
done
failed=$(find "$scratch" -name '*.failed' | wc -l)
echo "$((total - failed)) passed, $((failed)) failed, 0 skipped"
[ "$failed" -eq 0 ]
