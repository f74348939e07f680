#!/bin/sh
# Runs the programs of `make arm` under qemu's user emulation: run_arm.sh FOLDER. Three CPUs, so that
# each level of the cpu backend's kernels is the one that is chosen: int8 matrix products, dot
# products without these, neither. The last line is "P passed, F failed, S skipped"; exits 1 when F
# is not 0. A program that crashes or hangs counts as one failure.
folder=$1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

# run LOG CPU PROGRAM…
run() {
    log=$scratch/$1 cpu=$2 code=0
    shift 2
    echo "-- $cpu: $*" >"$log"
    timeout 600 qemu-aarch64 -cpu "$cpu" "$@" >>"$log" 2>&1 </dev/null || code=$?
    if [ "$code" -ne 0 ] && ! grep -q '^[0-9]* passed, [1-9][0-9]* failed, 0 skipped$' "$log"; then
        echo "FAILED: exit code $code" >>"$log"
        echo "0 passed, 1 failed, 0 skipped" >>"$log"
    fi
}

run 4 max "$folder/fidelity" models/tiny models/tiny/reference/eval.json 256 i8mm dotprod neon &
run 1 max "$folder/ops" i8mm dotprod neon portable
run 2 neoverse-n1 "$folder/ops" dotprod neon portable
run 3 cortex-a72 "$folder/ops" neon portable
wait
cat "$scratch"/*
# four programs: one that printed no counts has failed
cat "$scratch"/* | awk '
    /^[0-9]+ passed, [0-9]+ failed, 0 skipped$/ { n++; p += $1; f += $3 }
    END { f += n < 4 ? 4 - n : 0; printf "%d passed, %d failed, 0 skipped\n", p, f; exit f > 0 }'
