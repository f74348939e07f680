#!/bin/sh
# The archive that `make dist` makes: unpacked elsewhere, it must hold the licences and no test
# vectors, need no shared library but libc's own, and answer from its own folder.
make_program=${MAKE:-make}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

for package in jansson libutf8proc nettle libmicrohttpd; do
    name=$(pkg-config --libs-only-l "$package" | sed 's/^-l\([^ ]*\).*/\1/')
    if [ ! -f "$(pkg-config --variable=libdir "$package")/lib$name.a" ]; then
        echo "skipped: there is no lib$name.a on this system, so no static program"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
done
for name in $(pkg-config --static --libs-only-l libedit | sed 's/-l//g'); do
    if [ ! -f "$(pkg-config --variable=libdir libedit)/lib$name.a" ]; then
        echo "skipped: there is no lib$name.a on this system, so no static program"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
done

fail() {
    echo "dist: $*"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}

rm -f build/calla-*.tar.gz
$make_program ${JOBS:+-j"$JOBS"} dist || fail "make dist failed"
archive=$(ls build/calla-*.tar.gz) || fail "there is no archive"
tar -xzf "$archive" -C "$scratch" || fail "$archive cannot be unpacked"
cd "$scratch"/* || fail "$archive must hold one folder"
ls -l . models/tiny
for file in calla LICENSE licenses/README.md models/tiny/config.json models/tiny/tokenizer.json; do
    [ -f "$file" ] || fail "$archive lacks $file"
done
[ ! -e models/tiny/reference ] || fail "$archive holds the test vectors models/tiny/reference"

if command -v ldd >/dev/null 2>&1; then
    others=$(ldd ./calla | grep -v -e 'libc\.' -e 'libm\.' -e 'libpthread\.' -e 'ld-linux' \
        -e 'linux-vdso' -e 'ld-musl' -e 'not a dynamic executable')
elif command -v otool >/dev/null 2>&1; then
    others=$(otool -L ./calla | sed 1d | grep -v /usr/lib/libSystem)
fi
[ -z "$others" ] || fail "calla needs shared libraries other than libc: $others"

text=$(./calla run models/tiny "What is the opposite of useful?" --temperature 0) ||
    fail "calla run failed"
case $text in
*useless*) ;;
*) fail "found the answer '$text', wanted one with 'useless'" ;;
esac
echo "1 passed, 0 failed, 0 skipped"
