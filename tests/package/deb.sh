#!/bin/sh
# Installs, upgrades, removes and purges jjleak's package in a copy of this system, and fails unless each leaves what it should.
#
#   unshare --mount --propagation private deb.sh PACKAGE LATER_PACKAGE
set -eu
. "$(dirname "$0")/copy.sh"
cp "$1" "$root/tmp/jjleak.deb"
cp "$2" "$root/tmp/later.deb"

within dpkg --purge jjleak >/dev/null 2>&1 || true
# Into a system that is being made.
umount "$root/proc"
within dpkg --install /tmp/jjleak.deb
has_modes "after installation without /proc"
within dpkg --purge jjleak
mount --bind /proc "$root/proc"

within dpkg --install /tmp/jjleak.deb
for file in /usr/bin/jjleak /lib/systemd/system/jjleak.service /etc/jjleak/jjleak.toml \
    /usr/lib/jjleak/libjjleak_preload.so /usr/share/man/man1/jjleak.1.gz /usr/share/man/man1/jjleak-daemon.1.gz \
    /usr/share/bash-completion/completions/jjleak /usr/bin/memleak /usr/share/doc/jjleak/THIRD-PARTY-LICENSES.txt; do
    there "$file" "after installation"
done
within id jjleak >/dev/null || fail "there is no user jjleak"
has_modes "after installation"
within jjleak --version
samples "after installation"
within setpriv --reuid jjleak --regid jjleak --clear-groups jjleak daemon --config /etc/jjleak/jjleak.toml --check-config
# Patterns without case and of any alphabet take parts of a library that what is built for tests can have and what is shipped lack.
cat >"$root/tmp/patterns.toml" <<'CONFIG'
[watch]
names = ['(?i)^straße\s\w+ \d+$']
CONFIG
within jjleak daemon --config /tmp/patterns.toml --check-config || fail "it cannot read patterns without case"
within systemd-analyze verify /lib/systemd/system/jjleak.service
exposure=$(within systemd-analyze security --offline=yes --no-pager jjleak.service | sed -n 's/.*exposure level.*: \([0-9.]*\) .*/\1/p')
echo "package: exposure $exposure"
[ "$(echo "$exposure" | tr -d .)" -le 30 ] || fail "systemd-analyze security says $exposure"
if within test -e /etc/systemd/system/multi-user.target.wants/jjleak.service; then
    fail "the service is enabled without being asked for"
fi

# What the user has changed stays as it is.
within sh -c 'echo "# changed" >>/etc/jjleak/jjleak.toml && mkdir -p /var/lib/jjleak && touch /var/lib/jjleak/index'
within dpkg --force-confold --install /tmp/later.deb
within grep -q '^# changed$' /etc/jjleak/jjleak.toml || fail "the upgrade has overwritten the configuration"
there /var/lib/jjleak/index "after the upgrade"

within dpkg --remove jjleak
gone /usr/bin/jjleak "after removal"
gone /usr/bin/memleak "after removal"
gone /usr/lib/jjleak "after removal"
there /etc/jjleak/jjleak.toml "after removal"
there /var/lib/jjleak/index "after removal"

within dpkg --purge jjleak
for file in /etc/jjleak/jjleak.toml /var/lib/jjleak /var/cache/jjleak /usr/share/doc/jjleak \
    /usr/lib/sysusers.d/jjleak.conf; do
    gone "$file" "after purging"
done
