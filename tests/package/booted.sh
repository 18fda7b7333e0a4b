#!/bin/sh
# In the machine that boot.sh has made: starts the service as its unit says, has it profile a program, stops it, and says what came of
# each on the console. Nothing is judged here.
say() {
    echo "jjleak-vm: $*"
}
shown() {
    systemctl show --property "$1" --value jjleak
}
status() {
    sed -n "s/^$1:[[:space:]]*\([0-9a-f]*\).*/\1/p" "/proc/$(shown MainPID)/status"
}
uptime_ms() {
    sed 's/^\([0-9]*\)\.\([0-9]*\) .*/\1\20/' /proc/uptime
}

say kernel "$(uname -r)"
say pid1 "$(readlink /proc/1/exe)"
say version "$(systemctl --version | head -n 1)"
# There are no manual pages in this machine.
systemd-analyze verify --man=no /lib/systemd/system/jjleak.service
say verified "$?"
say exposure "$(systemd-analyze security --no-pager jjleak.service | sed -n 's/.*exposure level.*: \([0-9.]*\) .*/\1/p')"

# With a Type of notify, it comes back when the daemon has said that it is ready.
systemctl start jjleak
say started "$(shown ActiveState)"
say user "$(getent passwd "$(status Uid)" | cut -d: -f1)"
say capabilities "$(status CapEff)"
say ambient "$(status CapAmb)"
say bounding "$(status CapBnd)"
say no_new_privileges "$(status NoNewPrivs)"
say seccomp "$(status Seccomp)"
say state "$(stat -c '%a:%U:%G' /var/lib/jjleak)"
say socket "$(stat -c '%a:%U:%G' /run/jjleak/jjleak.sock)"
say status "$(shown StatusText)"
systemctl reload jjleak
say reloaded "$?"
systemctl stop jjleak
say stopped "$(shown Result)"

# This kernel is an old one.
install -D -m 644 /root/older-kernels.conf /etc/systemd/system/jjleak.service.d/older-kernels.conf
systemctl daemon-reload
# Another user's program.
(echo pace 1000000 200; sleep infinity) | setpriv --reuid 65534 --regid 65534 --clear-groups leaking >/dev/null &
systemctl start jjleak
say restarted "$(shown ActiveState)"
say capabilities_with_more "$(status CapEff)"
say bounding_with_more "$(status CapBnd)"
systemctl kill --signal USR1 jjleak
waited=0
while [ "$waited" -lt 240 ] && ! ls /var/lib/jjleak/profiles/*.pb.gz >/dev/null 2>&1; do
    sleep 1
    waited=$((waited + 1))
done
say profiling "$(shown StatusText)"
profile=$(ls /var/lib/jjleak/profiles/*.pb.gz | head -n 1)
say profile "$(stat -c '%a:%U:%G' "$profile")"
say names "$(jjleak report --full "$profile" 2>/dev/null | grep -c forget_message)"
begin=$(uptime_ms)
systemctl stop jjleak
say stopping_ms "$(($(uptime_ms) - begin))"
say ended "$(shown Result)"
say status_at_end "$(shown ExecMainStatus)"
say left "$(ls /run/jjleak 2>/dev/null | wc -l)"
journalctl --no-pager --unit jjleak --output cat
