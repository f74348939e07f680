#!/bin/sh
# A whole run of the program under valgrind: run_valgrind.sh PATH-OF-CALLA. Invalid reads and
# writes, use of what was never written, and leaks of any kind fail.
calla=${1:-build/calla}
if ! command -v valgrind >/dev/null 2>&1; then
    echo "skipped: there is no valgrind here"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
if valgrind -q --leak-check=full --show-leak-kinds=all --errors-for-leak-kinds=all \
    --error-exitcode=99 "$calla" run models/tiny "Hi" --max-tokens 4 --temperature 0; then
    echo "1 passed, 0 failed, 0 skipped"
else
    echo "valgrind: exit code $?"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
