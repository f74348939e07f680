#!/bin/sh
# Proves that each fuzz target finds bugs: prove.sh LOG-FOLDER [NAME…], from the repository root
#
# For each target, in a scratch copy of the tree: plants tests/fuzz/planted/NAME.patch, builds the
# target, and runs it from its seeds for 60 seconds at most. It must fail, and on an input that the
# unpatched target takes. The seeds as they are should not show the bug; the line says when they do.
# One line for each target; exits 1 unless all bugs were found. Logs: LOG-FOLDER/prove-NAME.log.
mkdir -p "$1" || exit 1
logs=$(cd "$1" && pwd) root=$(pwd) jobs=${JOBS:-2}
shift
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

if [ $# -eq 0 ]; then
    for target in tests/fuzz/fuzz_*.c; do
        name=${target##*/fuzz_}
        set -- "$@" "${name%.c}"
    done
fi

# the clean build goes along: only what a patch touches is compiled again
make -j"$jobs" fuzz >"$logs/prove-build.log" 2>&1 || {
    cat "$logs/prove-build.log"
    exit 1
}
mkdir "$scratch/tree" "$scratch/tree/build"
cp -Rp Makefile src include tests "$scratch/tree"
cp -Rp build/fuzz "$scratch/tree/build"
rm -rf "$scratch/tree/tests/fuzz/corpus"
ln -s "$root/models" "$scratch/tree/models"
cd "$scratch/tree" || exit 1

run() {
    "build/fuzz/$name" -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$scratch/found-$name-" "$@" \
        >>"$log" 2>&1 </dev/null
}

# Prints what became of one target; fails unless it found its bug.
prove() {
    seeds=$scratch/seeds-$name remark=
    mkdir -p "$seeds"
    cp -R "$root/tests/fuzz/corpus/$name/." "$seeds"
    make -j"$jobs" fuzz FUZZERS="$name" >>"$log" 2>&1 || {
        echo "NOT FOUND (does not compile)"
        return 1
    }
    run -runs=0 "$seeds" || remark=" (a seed alone shows it)"
    rm -f "$scratch/found-$name-"*
    if run -seed=1 -max_total_time=60 -print_final_stats=1 "$seeds"; then
        echo "NOT FOUND"
        return 1
    fi
    for found in "$scratch/found-$name-"*; do
        if ! [ -f "$found" ] || ! "$root/build/fuzz/$name" "$found" >>"$log" 2>&1 </dev/null; then
            echo "NOT FOUND (it failed, but not because of the planted bug)"
            return 1
        fi
    done
    echo "found after $(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1) runs$remark"
}

failed=0
for name; do
    log=$logs/prove-$name.log
    patch=$root/tests/fuzz/planted/$name.patch
    if patch --dry-run -p1 <"$patch" >"$log" 2>&1; then
        patch -p1 <"$patch" >>"$log" 2>&1
        line=$(prove) || failed=$((failed + 1))
        patch -R -p1 <"$patch" >>"$log" 2>&1 || exit 1
    else
        line="NOT FOUND (the patch does not apply)" failed=$((failed + 1))
    fi
    echo "$name: $line"
done
echo "$(($# - failed)) passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
