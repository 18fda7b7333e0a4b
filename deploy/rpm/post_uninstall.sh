# After removal ($1 is 0) and upgrade (1).
[ -d /run/systemd/system ] && systemctl daemon-reload || :
