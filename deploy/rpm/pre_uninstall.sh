# Before removal ($1 is 0) and upgrade (1).
if [ "$1" -eq 0 ]; then
    [ -d /run/systemd/system ] && systemctl disable --now jjleak.service || :
    [ "$(readlink /usr/bin/memleak)" != jjleak ] || rm -f /usr/bin/memleak
fi
