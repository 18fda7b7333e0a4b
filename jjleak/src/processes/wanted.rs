//! Selection of processes.

use regex::Regex;

use super::{Process, is_own_child, running};

/// Rule that selects processes.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// All but jjleak itself and its children.
    All,
    /// Those whose name, or executable's path, matches.
    Named(Regex),
}

impl Wanted {
    /// The running processes that the rule selects.
    pub fn running(&self) -> impl Iterator<Item = Process> {
        running().filter(|process| self.is_wanted(process))
    }

    /// Returns true if the rule selects a process.
    #[must_use]
    pub fn is_wanted(&self, process: &Process) -> bool {
        let is_own = process.pid.number().get() == std::process::id() || is_own_child(process.pid);
        !is_own
            && match self {
                Self::All => true,
                Self::Named(name) => {
                    name.is_match(&process.comm) || name.is_match(&process.exe.to_string_lossy())
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::Pid;

    #[test]
    fn a_process_is_wanted_by_its_name_or_its_executable_and_never_if_it_is_jjleak() {
        let process = |pid| Process {
            pid: Pid::new(pid).unwrap(),
            start_time: 1,
            comm: "worker".to_owned(),
            exe: "/usr/lib/jvm/bin/java".into(),
            container_pid: None,
        };
        let named = |pattern| Wanted::Named(Regex::new(pattern).unwrap());
        let other = process(std::process::id() + 1);
        for (pattern, is_wanted) in [("^java$", false), ("/java$", true), ("^worker", true), ("redis", false)]
        {
            assert_eq!(named(pattern).is_wanted(&other), is_wanted, "{pattern}");
        }
        assert!(Wanted::All.is_wanted(&other));
        assert!(!Wanted::All.is_wanted(&process(std::process::id())));
    }
}
