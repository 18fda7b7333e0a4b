#!/bin/sh
# Runs the portable binary where little is there, and fails unless it profiles to the byte.
#
#   unshare --mount --propagation private roots.sh BINARY LIBRARY OLD_SYSTEM
#
# LIBRARY is the one that samples malloc. OLD_SYSTEM is a folder with a Debian whose C library is older than this system's.
set -eu
binary=$1
library=$2
old=$3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
mount -t tmpfs none "$work"

fail() {
    echo "roots.sh: $*" >&2
    exit 1
}
# with_kernel ROOT: what the kernel provides.
with_kernel() {
    mkdir -p "$1/proc" "$1/sys" "$1/dev"
    mount --bind /proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount --bind /dev "$1/dev"
}
# works ROOT COMMAND...: the self-test, without terminal and environment.
works() {
    where=$1
    command=$(command -v "$2")
    shift 2
    env -i "$command" "$@" self-test >"$work/report" 2>&1 </dev/null || { cat "$work/report"; fail "the self-test fails in $where"; }
    grep -q '^jjleak works here' "$work/report" || { cat "$work/report"; fail "the self-test says otherwise in $where"; }
    echo "roots: $where: $(sed -n 's/^ *took //p' "$work/report")"
}

# samples ROOT BYTES COMMAND...: the library samples a command there, one allocation in so many bytes.
samples() {
    where=$1
    bytes=$2
    shift 2
    mkdir -p "$where/lib/jjleak"
    cp "$library" "$where/lib/jjleak/"
    env -i JJLEAK_SAMPLER=/lib/jjleak/libjjleak_preload.so "$(command -v chroot)" "$where" jjleak --sampled --sample-bytes "$bytes" \
        --strict --format json --out /tmp/sampled.json 3600 -- "$@" || fail "the library does not sample $* in $where"
}

# A busybox, without /etc, /var and /tmp, read-only. It is static itself.
box=$work/box
mkdir -p "$box/bin"
cp "$(command -v busybox)" "$box/bin/busybox"
ln -s busybox "$box/bin/sh"
cp "$binary" "$box/bin/jjleak"
mkdir "$box/proc" "$box/sys" "$box/dev"
mount --bind "$box" "$box"
mount -o remount,bind,ro "$box"
with_kernel "$box"
works "a read-only busybox" chroot "$box" /bin/jjleak

# Programs of musl: the loader and the C library are one file.
musl=$work/musl
mkdir -p "$musl/bin" "$musl/lib" "$musl/tmp"
cp /lib/ld-musl-x86_64.so.1 "$musl/lib/" 2>/dev/null || cp /usr/lib/x86_64-linux-musl/libc.so "$musl/lib/ld-musl-x86_64.so.1"
musl-gcc -O2 -g -fno-builtin -fomit-frame-pointer -o "$musl/bin/leak" "$here/../fixtures/vm/leak.c"
cp "$binary" "$musl/bin/jjleak"
with_kernel "$musl"
works "a root with musl" chroot "$musl" /bin/jjleak
env -i "$(command -v chroot)" "$musl" /bin/jjleak --strict --format json --out /tmp/report.json 3600 -- /bin/leak || fail "a program of musl is not profiled"
python3 "$here/leaked.py" "$musl/tmp/report.json" || fail "the figures of a program of musl are wrong"
# Each byte is a sample: the figures are exact.
samples "$musl" 1 /bin/leak
python3 "$here/leaked.py" "$musl/tmp/sampled.json" || fail "the samples of a program of musl are wrong"

# An older C library.
mkdir "$work/upper" "$work/work" "$work/old"
mount -t overlay overlay -o "lowerdir=$old,upperdir=$work/upper,workdir=$work/work" "$work/old"
cp "$binary" "$work/old/usr/bin/jjleak"
gcc -O2 -g -fno-builtin -fomit-frame-pointer -static -o "$work/old/usr/bin/leak-static" "$here/../fixtures/vm/leak.c"
with_kernel "$work/old"
works "Debian $(cat "$work/old/etc/debian_version")" chroot "$work/old" /usr/bin/jjleak
env -i "$(command -v chroot)" "$work/old" /usr/bin/jjleak --strict --out /tmp/perl.svg 3600 -- \
    /usr/bin/perl -e 'for (1..100000) { $known{$_} = $_ }' || fail "perl of an older system is not profiled"
env -i "$(command -v chroot)" "$work/old" /usr/bin/jjleak --strict --format json --out /tmp/report.json 3600 -- /usr/bin/leak-static ||
    fail "a static program is not profiled"
python3 "$here/leaked.py" "$work/old/tmp/report.json" || fail "the figures of a static program are wrong"
samples "$work/old" 65536 /usr/bin/perl -e 'for (1..100000) { $known{$_} = $_ }'
grep -q '"symbol": *"malloc"' "$work/old/tmp/sampled.json" || fail "there are no samples of perl"

# Capabilities alone, and through the programs that people become root with.
caps=+bpf,+perfmon,+sys_ptrace,+dac_read_search,+checkpoint_restore
chmod 755 "$work"
cp "$binary" "$work/jjleak"
works "a user with capabilities" setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps "$caps" --ambient-caps "$caps" "$work/jjleak"
echo "permit nopass root" >"$work/doas.conf"
if mount --bind "$work/doas.conf" /etc/doas.conf 2>/dev/null || { : >/etc/doas.conf && mount --bind "$work/doas.conf" /etc/doas.conf; }; then
    works "doas" doas "$work/jjleak"
fi
if command -v sudo >/dev/null; then
    works "sudo" sudo "$work/jjleak"
fi
