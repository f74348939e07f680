#!/bin/sh
# Installs what is missing to build or to test: setup.sh build|test
#
# Called by scripts/demo and scripts/test. Says what it installs, and does nothing, quickly, when
# all is there: tests for commands and files, no package manager. Exits 1 with one line when
# something is missing and cannot be installed. Knows Debian and Ubuntu (apt), Fedora (dnf) and
# macOS (brew); elsewhere it names what is wanted.
set -eu

case ${1-} in
build | test) set=$1 ;;
*)
    echo "setup.sh: found '${1-}', wanted build or test" >&2
    exit 2
    ;;
esac
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/scripts/common.sh"

have() {
    command -v "$1" >/dev/null 2>&1
}

# True when one of the given paths exists; for patterns that the shell has expanded.
any() {
    for path; do
        [ -e "$path" ] && return 0
    done
    return 1
}

find_manager() {
    if have apt-get; then
        manager=apt
    elif have dnf; then
        manager=dnf
    elif have brew; then
        manager=brew
    else
        manager=none
    fi
}

# clang's runtime with the fuzzer and the sanitizers lies in a package of its own on Debian, Fedora.
have_clang_runtime() {
    have clang || return 1
    home=$(dirname -- "$(dirname -- "$(readlink -f "$(command -v clang)")")")
    any "$home"/lib*/clang/*/lib/*/libclang_rt.fuzzer*
}

have_venv() {
    [ -x "$root/.venv/bin/python" ] && return 0
    have python3 || return 1
    home=$(dirname -- "$(dirname -- "$(command -v python3)")")
    any "$home"/lib*/python3*/ensurepip/__init__.py || python3 -c 'import ensurepip' 2>/dev/null
}

# The names of what is missing, which are those of Debian's packages where there is no better one.
missing() {
    have cc && any /usr/include/stdio.h /Library/Developer/CommandLineTools /Applications/Xcode*.app ||
        echo compiler
    have make || echo make
    if have pkg-config; then
        pkg-config --exists jansson || echo jansson
        pkg-config --exists libutf8proc || echo utf8proc
        pkg-config --exists nettle || echo nettle
        pkg-config --exists libedit || echo libedit
        pkg-config --exists libmicrohttpd || echo libmicrohttpd
    else
        echo pkg-config jansson utf8proc nettle libedit libmicrohttpd
    fi
    [ "$set" = test ] || return 0
    any /usr/include/cmocka.h /usr/local/include/cmocka.h /opt/homebrew/include/cmocka.h || echo cmocka
    [ "$(uname -m)" != x86_64 ] || any /usr/include/simde/x86/avx512.h \
        /usr/local/include/simde/x86/avx512.h || echo simde
    have g++ || echo g++
    have clang || echo clang
    have_clang_runtime || echo clang-runtime
    have clang-format-14 || have clang-format || echo clang-format
    have cppcheck || echo cppcheck
    have patch || echo patch
    have valgrind || [ "$(uname -s)" = Darwin ] || echo valgrind # there is none for macOS
    if have apt-get; then # elsewhere there is no C library for it
        have aarch64-linux-gnu-gcc && any /usr/aarch64-linux-gnu/include/stdio.h \
            /usr/include/aarch64-linux-gnu || echo arm64-compiler
        have qemu-aarch64 || echo qemu-user
    fi
    have zsh || echo zsh
    have fish || echo fish
    have mandoc || echo mandoc
    have_venv || echo python-venv
}

# The package of a thing, apt. Called after `apt-get update`, so that versions can be looked up.
apt_package() {
    case $1 in
    compiler) echo gcc libc6-dev ;;
    jansson) echo libjansson-dev ;;
    utf8proc) echo libutf8proc-dev ;;
    nettle) echo nettle-dev ;;
    libedit) echo libedit-dev ;;
    libmicrohttpd) echo libmicrohttpd-dev ;;
    cmocka) echo libcmocka-dev ;;
    simde) echo libsimde-dev ;;
    # of the version that is, or with it will be, installed as `clang`
    clang-runtime)
        version=$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9][0-9]*\)$/\1/p' | head -n 1)
        if have clang; then
            version=$(clang --version | sed -n 's/.*version \([0-9][0-9]*\).*/\1/p' | head -n 1)
        fi
        # before version 14 it came with clang
        apt-cache show "libclang-rt-$version-dev" >/dev/null 2>&1 && echo "libclang-rt-$version-dev"
        ;;
    # the sources are formatted by version 14
    clang-format)
        if apt-cache show clang-format-14 >/dev/null 2>&1; then
            echo clang-format-14
        else
            echo clang-format
        fi
        ;;
    arm64-compiler) echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross ;;
    python-venv) echo python3 python3-venv ;;
    *) echo "$1" ;;
    esac
}

# untested
dnf_package() {
    case $1 in
    compiler) echo gcc glibc-devel ;;
    pkg-config) echo pkgconf-pkg-config ;;
    jansson) echo jansson-devel ;;
    utf8proc) echo utf8proc-devel ;;
    nettle) echo nettle-devel ;;
    libedit) echo libedit-devel ;;
    libmicrohttpd) echo libmicrohttpd-devel ;;
    cmocka) echo libcmocka-devel ;;
    simde) echo simde-devel ;;
    clang-runtime) echo compiler-rt ;;
    clang-format) echo clang-tools-extra ;;
    g++) echo gcc-c++ ;;
    python-venv) echo python3 ;;
    *) echo "$1" ;;
    esac
}

# untested
brew_package() {
    case $1 in
    compiler | g++) ;; # Apple's, see install()
    clang | clang-runtime) echo llvm ;; # Apple's clang has no fuzzer
    clang-format) echo clang-format ;;
    python-venv) echo python3 ;;
    *) echo "$1" ;;
    esac
}

packages() {
    for thing in $things; do
        "${manager}_package" "$thing" || true
    done | tr ' ' '\n' | sort -u | tr '\n' ' ' | sed 's/ *$//'
}

# Runs a command, as root, and shows its output only when it fails.
as_root() {
    "$@" >"$log" 2>&1 </dev/null && return 0
    tail -n 15 "$log" >&2
    echo "calla: set-up: '$*' failed; see the lines above" >&2
    return 1
}

install() {
    admin=
    if { [ "$manager" = apt ] || [ "$manager" = dnf ]; } && [ "$(id -u)" -ne 0 ]; then
        if have sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
            admin=sudo
            sudo -v -p "calla: set-up installs packages; password for sudo: " || return 1
        else
            echo "calla: set-up: missing: $names; run 'scripts/setup.sh $set' as root," \
                "or install them and start again" >&2
            return 1
        fi
    fi
    case $manager in
    apt)
        echo "set-up: apt-get update"
        as_root $admin apt-get -qq -o Acquire::Languages=none update || return 1
        list=$(packages)
        echo "set-up: apt-get install $list"
        as_root $admin env DEBIAN_FRONTEND=noninteractive \
            apt-get -qq -y --no-install-recommends install $list
        ;;
    dnf) # untested
        list=$(packages)
        echo "set-up: dnf install $list"
        as_root $admin dnf -q -y --setopt=install_weak_deps=False install $list
        ;;
    brew) # untested
        if ! xcode-select -p >/dev/null 2>&1; then
            echo "calla: set-up: there is no compiler; run 'xcode-select --install' first" >&2
            return 1
        fi
        list=$(packages)
        echo "set-up: brew install $list"
        as_root brew install -q $list
        ;;
    *)
        echo "calla: set-up: missing: $names; found none of apt-get, dnf, brew to install them" >&2
        return 1
        ;;
    esac
}

things=$(missing)
[ -n "$things" ] || exit 0
names=$(echo "$things" | tr '\n' ' ' | sed 's/ *$//')
find_manager
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install
