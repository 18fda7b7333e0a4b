# After installation ($1 is 1) and upgrade (2).
systemd-sysusers jjleak.conf || :
systemd-tmpfiles --create jjleak.conf || :
[ -e /usr/bin/memleak ] || ln -s jjleak /usr/bin/memleak
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    [ "$1" -lt 2 ] || systemctl try-restart jjleak.service || :
fi
