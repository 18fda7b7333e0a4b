#!/bin/sh
# Installs, upgrades and removes jjleak's RPM package in a copy of this system, and fails unless each leaves what it should.
#
#   unshare --mount --propagation private rpm.sh PACKAGE LATER_PACKAGE
set -eu
. "$(dirname "$0")/copy.sh"
cp "$1" "$root/tmp/jjleak.rpm"
cp "$2" "$root/tmp/later.rpm"

within dpkg --purge jjleak >/dev/null 2>&1 || true
# This system's own packages are in no database of rpm, so that it knows no systemd.
within rpm --install --nodeps /tmp/jjleak.rpm
for file in /usr/bin/jjleak /usr/bin/memleak /usr/lib/systemd/system/jjleak.service /etc/jjleak/jjleak.toml \
    /usr/share/man/man1/jjleak.1 /usr/share/licenses/jjleak/THIRD-PARTY-LICENSES.txt; do
    there "$file" "after installation"
done
within id jjleak >/dev/null || fail "there is no user jjleak"
has_modes "after installation"
within memleak --version >/dev/null
samples "after installation"
within setpriv --reuid jjleak --regid jjleak --clear-groups jjleak daemon --config /etc/jjleak/jjleak.toml --check-config

within sh -c 'echo "# changed" >>/etc/jjleak/jjleak.toml && mkdir -p /var/lib/jjleak && touch /var/lib/jjleak/index'
within rpm --upgrade --nodeps /tmp/later.rpm
within grep -q '^# changed$' /etc/jjleak/jjleak.toml || fail "the upgrade has overwritten the configuration"
there /usr/bin/memleak "after the upgrade"
there /var/lib/jjleak/index "after the upgrade"

within rpm --erase jjleak
for file in /usr/bin/jjleak /usr/bin/memleak /usr/lib/systemd/system/jjleak.service /usr/share/doc/jjleak/README.md; do
    gone "$file" "after removal"
done
there /etc/jjleak/jjleak.toml.rpmsave "after removal"
there /var/lib/jjleak/index "after removal"
echo "rpm: installed, upgraded and removed"
