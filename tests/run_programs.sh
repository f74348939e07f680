#!/bin/sh
# Runs unit test programs (cmocka) one after another: run_programs.sh PROGRAM…
#
# One line for each program with its counts; all of its output when something failed in it, or
# with V=1. The last line is "P passed, F failed, S skipped"; exits 1 when F is not 0. A program
# that crashes, hangs for 10 minutes or runs no test counts as one failure.
passed=0 failed=0 skipped=0
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
limit=$(command -v timeout >/dev/null 2>&1 && echo "timeout 600")

# The number in a line of cmocka's summary such as "[  PASSED  ] 12 test(s)."
count() {
    n=$(sed -n "s/^\[  $1 *\] *\([0-9][0-9]*\) test(s).*/\1/p" "$output" | awk '{ n += $1 } END { print n + 0 }')
}

for program; do
    name=${program#*/tests/}
    code=0
    $limit "$program" >"$output" 2>&1 </dev/null || code=$?
    count PASSED; p=$n
    count FAILED; f=$n
    count SKIPPED; s=$n
    note=
    if [ "$f" -eq 0 ] && [ "$code" -ne 0 ]; then
        f=1 note=" (exit code $code)"
    elif [ $((p + f + s)) -eq 0 ]; then
        f=1 note=" (no test was run)"
    fi
    word=ok
    [ "$f" -eq 0 ] || word=FAILED
    [ "$word" = ok ] && [ -z "$V" ] || cat "$output"
    printf '%-7s %-32s %d passed, %d failed, %d skipped%s\n' "$word" "$name" "$p" "$f" "$s" "$note"
    [ "$s" -eq 0 ] || [ -n "$V" ] || grep '^\[  SKIPPED \] [^0-9]' "$output" | sort -u
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
