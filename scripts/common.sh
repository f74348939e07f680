# shellcheck shell=sh
# Sourced by the scripts: time, the number of processors, and where Homebrew keeps its clang, which
# unlike Apple's has the fuzzer and is not in PATH.

for folder in /opt/homebrew/opt/llvm/bin /usr/local/opt/llvm/bin; do
    [ ! -d "$folder" ] || PATH=$folder:$PATH
done

# In seconds, with hundredths where the system shows them; POSIX's date does not.
now() {
    if [ -r /proc/uptime ]; then
        read -r clock_now clock_rest </proc/uptime && echo "$clock_now"
    else
        date +%s
    fi
}

# Seconds from one time to another: between START END
between() {
    echo "$1 $2" | awk '{ printf "%.1f", $2 - $1 }'
}

processors() {
    nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2
}
