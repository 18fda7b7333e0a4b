#!/bin/sh
# Installs jjleak from this folder, and removes it. Needs no network.
#
#   ./install.sh                     into /usr/local; with systemd also the service, which stays off
#   ./install.sh --prefix DIR        into another folder
#   ./install.sh --no-service        the command alone
#   ./install.sh --uninstall         removes what was installed; configuration and profiles stay
#   ./install.sh --uninstall --purge removes these, too
set -eu

prefix=/usr/local
service=yes
action=install
purge=no
fail() {
    echo "install.sh: $1" >&2
    echo "to do: $2" >&2
    exit 1
}
while [ $# -gt 0 ]; do
    case $1 in
    --prefix)
        [ $# -ge 2 ] || fail "--prefix names no folder" "name one: --prefix /opt/jjleak"
        prefix=$2
        shift
        ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    --no-service) service=no ;;
    --uninstall) action=uninstall ;;
    --purge) purge=yes ;;
    -h | --help)
        sed -n '2,/^set/{s/^# \{0,1\}//;/^set/d;p;}' "$0"
        exit 0
        ;;
    *) fail "unknown option $1" "see ./install.sh --help" ;;
    esac
    shift
done
case $prefix in
/*) ;;
*) fail "--prefix $prefix is no absolute path" "begin it with /" ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
# What was installed, a path a line.
list=$prefix/share/jjleak/installed
# Where systemd looks for what is not a package's.
units=/etc/systemd/system
if [ "$service" = yes ] && ! { [ -d /run/systemd/system ] || [ -d /lib/systemd/system ] || [ -d /usr/lib/systemd/system ]; }; then
    service=no
fi

remove() {
    [ -f "$list" ] || fail "there is no $list: nothing was installed below $prefix" "name the folder with --prefix"
    if [ -d /run/systemd/system ] && grep -q "^$units/jjleak.service\$" "$list"; then
        systemctl disable --now jjleak.service >/dev/null 2>&1 || true
    fi
    while IFS= read -r file; do
        rm -f "$file"
    done <"$list"
    rm -f "$list"
    rmdir "$prefix/share/jjleak" "$prefix/share/doc/jjleak" "$prefix/lib/jjleak" 2>/dev/null || true
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload || true
    fi
    if [ "$purge" = yes ]; then
        rm -rf /etc/jjleak /var/lib/jjleak /var/cache/jjleak
        echo "jjleak is removed, with its configuration and profiles"
    else
        echo "jjleak is removed; /etc/jjleak and /var/lib/jjleak stay, if they are there (--purge removes them)"
    fi
}

# put MODE FILE PLACE
put() {
    mkdir -p "$(dirname "$3")"
    # A new file instead of the old one's content: the old program may be running.
    rm -f "$3"
    cp "$here/$2" "$3"
    chmod "$1" "$3"
    echo "$3" >>"$list"
}

install_files() {
    put 755 bin/jjleak "$prefix/bin/jjleak"
    put 644 lib/jjleak/libjjleak_preload.so "$prefix/lib/jjleak/libjjleak_preload.so"
    rm -f "$prefix/bin/memleak"
    ln -s jjleak "$prefix/bin/memleak"
    echo "$prefix/bin/memleak" >>"$list"
    for page in "$here"/share/man/man1/*.1; do
        put 644 "share/man/man1/${page##*/}" "$prefix/share/man/man1/${page##*/}"
    done
    put 644 share/completions/jjleak.bash "$prefix/share/bash-completion/completions/jjleak"
    put 644 share/completions/_jjleak "$prefix/share/zsh/site-functions/_jjleak"
    put 644 share/completions/jjleak.fish "$prefix/share/fish/vendor_completions.d/jjleak.fish"
    for file in "$here"/share/doc/jjleak/* "$here"/*.md "$here"/LICENSE-* "$here"/THIRD-PARTY-LICENSES.txt; do
        put 644 "${file#"$here"/}" "$prefix/share/doc/jjleak/${file##*/}"
    done
}

install_service() {
    put 644 lib/systemd/system/jjleak.service "$units/jjleak.service"
    sed -i "s|/usr/bin/jjleak|$prefix/bin/jjleak|" "$units/jjleak.service"
    put 644 lib/sysusers.d/jjleak.conf /etc/sysusers.d/jjleak.conf
    put 644 lib/tmpfiles.d/jjleak.conf /etc/tmpfiles.d/jjleak.conf
    # The configuration of an earlier version stays, and is not on the list.
    if ! [ -e /etc/jjleak/jjleak.toml ]; then
        mkdir -p /etc/jjleak
        cp "$here/etc/jjleak.toml" /etc/jjleak/jjleak.toml
    fi
    systemd-sysusers jjleak.conf || fail "the user jjleak could not be made" "make it, or install with --no-service"
    systemd-tmpfiles --create jjleak.conf || true
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
    fi
}

if [ "$action" = uninstall ]; then
    remove
    exit 0
fi
mkdir -p "$prefix/share/jjleak" || fail "cannot write below $prefix" "run it as root, or name another folder with --prefix"
: >"$list" || fail "cannot write $list" "run it as root, or name another folder with --prefix"
install_files
if [ "$service" = yes ]; then
    install_service
    echo "jjleak is in $prefix/bin; the service is off: systemctl enable --now jjleak"
else
    echo "jjleak is in $prefix/bin"
fi
echo "next: sudo $prefix/bin/jjleak self-test"
