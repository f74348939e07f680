#!/bin/sh
# scripts/demo on a system that has nothing: tests/fresh_chroot.sh [SUITE [COMMAND…]]
#
# As root, with debootstrap: makes a minimal bookworm (or SUITE: trixie, noble …), copies the working
# tree into it, runs scripts/demo twice and says how long each took. The first has to stay below
# 60 s on 2 cores, the second below 4 s. COMMAND, such as scripts/test, is run after that. The
# system is made in FRESH_FOLDER (default: a new folder in /var/tmp) and removed at the end.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

suite=${1:-bookworm}
[ $# -eq 0 ] || shift
if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null 2>&1; then
    echo "fresh_chroot: wanted to be root, and the package debootstrap" >&2
    exit 1
fi
# Ubuntu keeps utf8proc in universe, which its images have switched on
case $suite in
jammy | noble | plucky | questing) mirror=http://archive.ubuntu.com/ubuntu parts=main,universe ;;
*) mirror=http://deb.debian.org/debian parts=main ;;
esac
# a debootstrap older than the suite: the script that all newer suites share
script=
if [ ! -e "/usr/share/debootstrap/scripts/$suite" ]; then
    case $mirror in
    *ubuntu) script=gutsy ;;
    *) script=sid ;;
    esac
fi

folder=${FRESH_FOLDER:-$(mktemp -d /var/tmp/calla-fresh.XXXXXX)}
root=$folder/$suite
mounted=
finish() {
    for place in $mounted; do
        umount "$place" || return # never remove what is still the host's
    done
    rm -rf --one-file-system "$root"
    rmdir "$folder" 2>/dev/null || true
}
trap finish EXIT
trap 'exit 1' INT TERM

if [ -e "$root" ]; then
    trap - EXIT
    echo "fresh_chroot: $root is there already" >&2
    exit 1
fi
mkdir -p "$folder"
start=$(now)
debootstrap --variant=minbase --components="$parts" "$suite" "$root" "$mirror" $script \
    >"$folder/$suite.log" 2>&1 || {
    tail -n 20 "$folder/$suite.log" >&2
    exit 1
}
rm "$folder/$suite.log"
echo "fresh_chroot: minimal $suite made in $(between "$start" "$(now)") s"
# a container has these two; tests of what a terminal shows need the second
if mount -t proc proc "$root/proc" 2>/dev/null; then
    mounted="$root/proc"
fi
mkdir -p "$root/dev/pts"
if mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts" 2>/dev/null; then
    mounted="$mounted $root/dev/pts"
    ln -sf pts/ptmx "$root/dev/ptmx"
fi
cp /etc/resolv.conf "$root/etc/resolv.conf"
mkdir "$root/calla"
# what git tracks or would track, not what was built here
git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C "$root/calla"

# behind a proxy with a certificate of its own pip needs it inside, too
certificate=
if [ -f "${PIP_CERT-}" ]; then
    cp "$PIP_CERT" "$root/certificate.crt"
    certificate=PIP_CERT=/certificate.crt
fi

# Runs a command in the system with a bare environment; prints the seconds it took.
inside() {
    start=$(now)
    chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin $certificate \
        sh -c 'cd /calla && "$@"' sh "$@"
    took=$(between "$start" "$(now)")
    echo "fresh_chroot: $suite: $*: $took s"
}

# below LIMIT: fails when the last command took longer
below() {
    if ! echo "$took $1" | awk '{ exit !($1 < $2) }'; then
        echo "fresh_chroot: found $took s, wanted less than $1 s" >&2
        exit 1
    fi
}

inside scripts/demo
below 60
inside scripts/demo
below 4
[ $# -eq 0 ] || inside "$@"
