#!/bin/sh
# Whole runs of the program under valgrind: run_valgrind.sh PATH-OF-CALLA. One by default settings,
# and at each level of the cpu backend that valgrind knows a prompt longer than a chunk of 64 with
# tokens after it. Invalid reads and writes, use of what was never written, and leaks of any kind
# fail.
calla=${1:-build/calla}
case $(uname -m) in
x86_64) levels="avx2 portable" ;; # no AVX-512 and no tiles in valgrind
*) levels="neon portable" ;;
esac
if ! command -v valgrind >/dev/null 2>&1; then
    echo "skipped: there is no valgrind here"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

passed=0 failed=0 skipped=0
check() {
    code=0
    valgrind -q --leak-check=full --show-leak-kinds=all --errors-for-leak-kinds=all \
        --error-exitcode=99 "$calla" "$@" || code=$?
    [ "$code" -eq 0 ] && passed=$((passed + 1)) && return
    failed=$((failed + 1))
    echo "valgrind: calla $*: exit code $code" >&2
}

check run models/tiny "Hi" --max-tokens 4 --temperature 0 --backend cpu
line=$(dirname "$calla")/valgrind-ids.jsonl
echo "{\"ids\": [$(seq -s ', ' 7 40 3000)]}" >"$line"
for level in $levels; do
    if "$calla" run models/tiny "Hi" --max-tokens 1 --cpu "$level" >/dev/null 2>&1; then
        check score models/tiny --greedy 2 --max-context 256 --cpu "$level" <"$line" >/dev/null
    else
        skipped=$((skipped + 1))
        echo "skipped: this CPU cannot run $level"
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
