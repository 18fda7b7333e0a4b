# A copy of a system in which packages are tried: sourced by the scripts beside it, in a mount namespace of its own.
#
# $lower is the system's folder, by default this system. Sets $root, and defines within, fail, there, gone, has_modes and samples.

copy=$(mktemp -d)
mount -t tmpfs none "$copy"
mkdir "$copy/upper" "$copy/work" "$copy/root"
mount -t overlay overlay -o "lowerdir=${lower:-/},upperdir=$copy/upper,workdir=$copy/work" "$copy/root"
root=$copy/root
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
export SYSTEMD_OFFLINE=1 DEBIAN_FRONTEND=noninteractive LC_ALL=C
cd /

within() {
    chroot "$root" "$@"
}
fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}
there() {
    within test -e "$1" || fail "$1 is missing $2"
}
gone() {
    if within test -e "$1"; then
        fail "$1 is still there $2"
    fi
}
# has_modes WHEN: the configuration may hold a token.
has_modes() {
    for wanted in "750 root:jjleak /etc/jjleak" "640 root:jjleak /etc/jjleak/jjleak.toml"; do
        found=$(within stat -c '%a %U:%G %n' "${wanted##* }")
        [ "$found" = "$wanted" ] || fail "$found $1, not $wanted"
    done
}
# samples WHEN: the installed library samples a command.
samples() {
    [ -e "$root/sys/kernel" ] || mount --rbind /sys "$root/sys"
    within jjleak --sampled --strict --format json --out /tmp/sampled.json 60 -- perl -e 'push @kept, "x" x 1000 for 1 .. 10000' \
        2>"$copy/said" || { cat "$copy/said"; fail "a command is not sampled $1"; }
    grep -q "otel_memory in libjjleak_preload.so" "$copy/said" || { cat "$copy/said"; fail "the library is not found $1"; }
}
