#!/bin/sh
# Makes the files of a machine that boots systemd, with jjleak's package installed, into an archive that the kernel unpacks.
#
#   unshare --mount --propagation private boot.sh SYSTEM PACKAGE PROGRAM ARCHIVE
#
# SYSTEM is a folder with Debian and systemd, which is left as it is; PROGRAM leaks.
set -eu
system=$1
package=$2
program=$3
archive=$4
here=$(dirname "$(realpath "$0")")

lower=$system
. "$here/copy.sh"
# The archive has the system's own.
umount "$root/dev"
cp "$package" "$root/tmp/jjleak.deb"
within dpkg --install /tmp/jjleak.deb
rm "$root/tmp/jjleak.deb"
rm -rf "$root/usr/share/doc" "$root/usr/share/locale" "$root/var/cache/apt" "$root/var/lib/apt"
mkdir "$root/usr/share/doc"
cp "$here/../../deploy/older-kernels/older-kernels.conf" "$root/root"

cp "$program" "$root/usr/local/bin/leaking"
cp "$here/booted.sh" "$root/usr/local/bin/booted"
cat >"$root/etc/systemd/system/booted.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/usr/local/bin/booted
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
ExecStopPost=systemctl --no-block poweroff
UNIT
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -s ../booted.service "$root/etc/systemd/system/default.target.wants"
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
# Without udev, nobody would say that the terminal is there.
ln -s /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
ln -sf /lib/systemd/systemd "$root/init"
cat >"$root/etc/jjleak/jjleak.toml" <<'CONFIG'
[watch]
names = ["^leaking$"]
interval = "1s"
[profile]
duration = "5m"
settle = "1s"
snapshot = "1s"
CONFIG
cd "$root"
find . -xdev | cpio --quiet --create --format=newc >"$archive"
