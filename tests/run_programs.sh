#!/bin/sh
# Runs unit test programs (cmocka): run_programs.sh PROGRAM… As many at a time as JOBS or the
# processors say; those named *_time, which watch the clock, alone and last.
#
# One line for each program with its counts; all of its output when something failed in it, or
# with V=1. The last line is "P passed, F failed, S skipped"; exits 1 when F is not 0. A program
# that crashes, hangs for 10 minutes or runs no test counts as one failure.

# The number in a line of cmocka's summary such as "[  PASSED  ] 12 test(s)."
count() {
    n=$(sed -n "s/^\[  $1 *\] *\([0-9][0-9]*\) test(s).*/\1/p" "$2" | awk '{ n += $1 } END { print n + 0 }')
}

# One program; its line goes to stdout at once, its counts to a file of the folder.
run_program() {
    program=$2
    name=${program#*/tests/}
    file=$1/$(echo "$name" | tr '/' '.')
    output=$file.output
    limit=$(command -v timeout >/dev/null 2>&1 && echo "timeout 600")
    code=0
    $limit "$program" >"$output" 2>&1 </dev/null || code=$?
    count PASSED "$output"; p=$n
    count FAILED "$output"; f=$n
    count SKIPPED "$output"; s=$n
    note=
    if [ "$f" -eq 0 ] && [ "$code" -ne 0 ]; then
        f=1 note=" (exit code $code)"
    elif [ $((p + f + s)) -eq 0 ]; then
        f=1 note=" (no test was run)"
    fi
    word=ok
    [ "$p" -gt 0 ] || word=skipped
    [ "$f" -eq 0 ] || word=FAILED
    {
        [ "$f" -eq 0 ] && [ -z "$V" ] || cat "$output"
        printf '%-7s %-32s %d passed, %d failed, %d skipped%s\n' "$word" "$name" "$p" "$f" "$s" "$note"
        [ "$s" -eq 0 ] || [ -n "$V" ] || grep '^\[  SKIPPED \] [^0-9]' "$output" | sort -u
    } >"$file.text"
    cat "$file.text"
    echo "$p $f $s" >"$file.counts"
}

if [ "$1" = --one ]; then
    [ -z "$3" ] || run_program "$2" "$3" # GNU's xargs calls once for no program too
    exit 0
fi
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
jobs=${JOBS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}
for program; do
    case $program in
    *_time) ;;
    *) echo "$program" ;;
    esac
done | V=$V xargs -n 1 -P "$jobs" sh "$0" --one "$folder"
for program; do
    case $program in
    *_time) run_program "$folder" "$program" ;;
    esac
done
# a program whose counts are lost has failed, whatever the reason
cat "$folder"/*.counts 2>/dev/null | awk -v programs=$# '
    { p += $1; f += $2; s += $3 }
    END {
        if (NR != programs) f += programs - NR
        printf "%d passed, %d failed, %d skipped\n", p, f, s
        exit f > 0
    }'
