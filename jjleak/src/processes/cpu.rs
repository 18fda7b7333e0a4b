//! How much CPU time a process has used.

use std::fs;
use std::time::Duration;

use super::Pid;

/// CPU time of all threads of a process, those that have ended included; `None` when it cannot be read any more.
#[must_use]
pub fn cpu_time(pid: Pid) -> Option<Duration> {
    let stat = fs::read(pid.proc_file("stat")).ok()?;
    let ticks = user_and_system(&String::from_utf8_lossy(&stat))?;
    let milliseconds = ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis(milliseconds))
}

/// Fields 14 and 15 of `/proc/PID/stat`. The second field, the name in parentheses, may hold anything, parentheses too.
fn user_and_system(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_ascii_whitespace().skip(14 - 3);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_found_behind_a_hostile_name() {
        let stat =
            "42 (a) b) S 1 42 42 0 -1 4194560 1 0 0 0 70 7 0 0 20 0 1 0 777 100 10 18446744073709551615";
        assert_eq!(user_and_system(stat), Some(77));
        assert_eq!(user_and_system("42 (x) S 1"), None);
    }

    #[test]
    fn our_own_time_is_known_and_grows() {
        let own = Pid::new(std::process::id()).unwrap();
        let before = cpu_time(own).unwrap();
        while cpu_time(own).unwrap() == before {}
    }
}
