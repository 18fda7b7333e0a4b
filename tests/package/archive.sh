#!/bin/sh
# Installs jjleak from its archive in a copy of this system, in several ways, removes it, and fails unless each leaves what it should.
#
#   unshare --mount --propagation private archive.sh ARCHIVE
set -eu
. "$(dirname "$0")/copy.sh"
archive=$(realpath "$1")
tar --extract --file "$archive" --directory "$root/tmp"
folder=/tmp/$(basename "$archive" .tar.gz)
within dpkg --purge jjleak >/dev/null 2>&1 || true

# With the service.
within "$folder/install.sh"
for file in bin/jjleak bin/memleak share/man/man1/jjleak-daemon.1 share/bash-completion/completions/jjleak \
    share/doc/jjleak/THIRD-PARTY-LICENSES.txt; do
    there "/usr/local/$file" "after installation"
done
within grep -q '^ExecStart=/usr/local/bin/jjleak ' /etc/systemd/system/jjleak.service || fail "the unit starts another program"
within systemd-analyze verify /etc/systemd/system/jjleak.service
has_modes "after installation"
samples "after installation"
within sh -c 'echo "# changed" >>/etc/jjleak/jjleak.toml'
# Once more: an upgrade.
within "$folder/install.sh"
within grep -q '^# changed$' /etc/jjleak/jjleak.toml || fail "the upgrade has overwritten the configuration"
within "$folder/install.sh" --uninstall
for file in /usr/local/bin/jjleak /usr/local/bin/memleak /etc/systemd/system/jjleak.service /usr/local/share/jjleak /usr/local/lib/jjleak \
    /usr/local/share/doc/jjleak; do
    gone "$file" "after removal"
done
there /etc/jjleak/jjleak.toml "after removal"

# The command alone, elsewhere.
within "$folder/install.sh" --prefix "/opt/a folder" --no-service
within "/opt/a folder/bin/jjleak" --version >/dev/null
gone /etc/systemd/system/jjleak.service "though nobody asked for it"
within "$folder/install.sh" --prefix "/opt/a folder" --uninstall --purge
gone "/opt/a folder/bin/jjleak" "after removal"
gone /etc/jjleak "after purging"

# By the shell of small systems.
within busybox sh "$folder/install.sh" --prefix /opt/small --no-service
within /opt/small/bin/memleak --version >/dev/null
within busybox sh "$folder/install.sh" --prefix /opt/small --uninstall
gone /opt/small/share/jjleak "after removal"

# What cannot be done is said.
for wrong in "--prefix relative" "--uninstall" "--unknown" "--prefix"; do
    # shellcheck disable=SC2086 # several words
    if within "$folder/install.sh" $wrong 2>/dev/null; then
        fail "install.sh $wrong did not fail"
    fi
done
echo "archive: installed, upgraded and removed"
