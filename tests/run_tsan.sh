#!/bin/sh
# A whole run of the program under ThreadSanitizer, for several numbers of threads: run_tsan.sh
# PATH-OF-CALLA. The text must be the same for all of them; a data race fails (exit code 66).
calla=${1:-build-tsan/calla}
wanted='' failed=0 passed=0
for threads in 1 2 3 8; do
    code=0
    text=$("$calla" run models/tiny "Define hot." --no-think --temperature 0 --backend cpu \
        --threads "$threads") || code=$?
    [ -n "$wanted" ] || wanted=$text
    if [ "$code" -eq 0 ] && [ -n "$text" ] && [ "$text" = "$wanted" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$threads threads: exit code $code, '$text'; with 1 thread '$wanted'"
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
