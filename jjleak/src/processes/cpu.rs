//! CPU time of a process.

use std::time::Duration;

use nix::time::ClockId;

use super::Pid;

/// CPU time used by all threads of a process, ended ones included, in nanoseconds, as the scheduler counts it
/// (`clock_getcpuclockid(3)`). `None` if the process is gone.
#[must_use]
pub fn cpu_time(pid: Pid) -> Option<Duration> {
    let number = i32::try_from(pid.number().get()).ok()?;
    let clock = ClockId::pid_cpu_clock_id(nix::unistd::Pid::from_raw(number)).ok()?;
    clock.now().ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_time_is_known_and_grows() {
        let own = Pid::new(std::process::id()).unwrap();
        let before = cpu_time(own).unwrap();
        while cpu_time(own).unwrap() < before + Duration::from_micros(100) {}
    }

    #[test]
    fn a_process_that_does_nothing_uses_none() {
        let mut idle = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::new(idle.id()).unwrap();
        assert!(cpu_time(pid).unwrap() < Duration::from_secs(1));
        idle.kill().unwrap();
        idle.wait().unwrap();
        assert_eq!(cpu_time(pid), None);
    }
}
