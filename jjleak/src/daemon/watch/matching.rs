//! Rules for which processes to watch.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::daemon::config::{Pattern, Watching};
use crate::jvm::LIBRARY;
use crate::processes::{ControlGroup, Credentials, Pid, Process};

/// Maximum number of bytes read of `/proc/PID/maps`: a JVM maps its library early.
const MAX_MAPS_BYTES: u64 = 4 << 20;

/// Properties of a process, in increasing order of cost; each is read only if needed. None of them waits for the process.
pub(super) trait Traits {
    fn names(&self) -> [&str; 2];
    fn user(&self) -> Option<u32>;
    fn cgroup(&self) -> &str;
}

/// Result of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    /// The process is to be watched.
    Yes,
    /// It is not.
    No,
    /// It is to be watched if [`maps_jvm`].
    IfJvm,
}

/// Applies the rules to a process.
pub(super) fn matches(of: &impl Traits, rules: &Watching) -> Match {
    let any = |patterns: &[Pattern], text: &str| patterns.iter().any(|pattern| pattern.0.is_match(text));
    let is_named = |patterns: &[Pattern]| of.names().iter().any(|name| any(patterns, name));
    if is_named(&rules.exclude) {
        return Match::No;
    }
    let is_one_of = |user: u32| rules.users.iter().any(|wanted| u32::try_from(wanted.0) == Ok(user));
    let is_wanted = is_named(&rules.names)
        || (!rules.users.is_empty() && of.user().is_some_and(is_one_of))
        || (!rules.cgroups.is_empty() && any(&rules.cgroups, of.cgroup()));
    match (is_wanted, rules.jvms) {
        (true, _) => Match::Yes,
        (false, true) => Match::IfJvm,
        (false, false) => Match::No,
    }
}

/// A running process.
pub(super) struct Candidate<'a> {
    pub(super) process: &'a Process,
    pub(super) exe: &'a str,
    pub(super) group: &'a ControlGroup,
}

impl Traits for Candidate<'_> {
    fn names(&self) -> [&str; 2] {
        [&self.process.comm, self.exe]
    }

    fn user(&self) -> Option<u32> {
        Credentials::of(self.process.pid).ok().map(|credentials| credentials.user)
    }

    fn cgroup(&self) -> &str {
        &self.group.path
    }
}

/// Returns true if a process maps a JVM's library as code. Can wait for the process without a limit.
pub(super) fn maps_jvm(pid: Pid) -> bool {
    let Ok(maps) = File::open(pid.proc_file("maps")) else { return false };
    let lines = BufReader::new(maps.take(MAX_MAPS_BYTES)).split(b'\n').map_while(Result::ok);
    lines.into_iter().any(|line| maps_library(&String::from_utf8_lossy(&line)))
}

/// Returns true if a line of `/proc/PID/maps` is of a JVM's code, by file name alone, because every new process is checked.
/// Profilers map the file as well, but not executable.
fn maps_library(line: &str) -> bool {
    let is_code =
        line.split(' ').nth(1).is_some_and(|permissions| permissions.as_bytes().get(2) == Some(&b'x'));
    let path = line.find('/').map(|path| Path::new(line[path..].trim_end_matches(" (deleted)")));
    is_code && path.and_then(Path::file_name).is_some_and(|name| name == LIBRARY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::config::Count;
    use regex::Regex;

    struct Known(&'static str, u32, &'static str);

    impl Traits for Known {
        fn names(&self) -> [&str; 2] {
            [self.0, "/usr/bin/program"]
        }
        fn user(&self) -> Option<u32> {
            Some(self.1)
        }
        fn cgroup(&self) -> &str {
            self.2
        }
    }

    fn patterns(patterns: &[&str]) -> Vec<Pattern> {
        patterns.iter().map(|pattern| Pattern(Regex::new(pattern).unwrap())).collect()
    }

    #[test]
    fn each_rule_matches_and_exclusion_takes_precedence() {
        let java = Known("java", 1000, "/a.service");
        let nginx = Known("nginx", 33, "/b.service");
        let rules = Watching::default();
        assert_eq!(matches(&java, &rules), Match::IfJvm);
        for rules in [
            Watching { names: patterns(&["^nginx$"]), ..Watching::default() },
            Watching { names: patterns(&["/program$"]), ..Watching::default() },
            Watching { users: vec![Count(33)], ..Watching::default() },
            Watching { cgroups: patterns(&["b\\.service"]), ..Watching::default() },
        ] {
            assert_eq!(matches(&nginx, &rules), Match::Yes, "{rules:?}");
        }
        let rules = Watching { jvms: false, ..Watching::default() };
        assert_eq!(matches(&java, &rules), Match::No);
        let rules =
            Watching { exclude: patterns(&["java"]), users: vec![Count(1000)], ..Watching::default() };
        assert_eq!(matches(&java, &rules), Match::No);
    }

    #[test]
    fn a_process_is_a_jvm_if_it_maps_the_library_as_code() {
        let line = |permissions| {
            format!("7f00-7f10 {permissions} 00000000 fd:01 77   /usr/lib/j v m/server/libjvm.so")
        };
        assert!(maps_library(&line("r-xp")) && !maps_library(&line("r--p")));
        assert!(
            !maps_library("7f00-7f10 r-xp 00000000 fd:01 77   /usr/lib/libjvm.so.dbg") && !maps_library("")
        );
        assert!(!maps_jvm(Pid::new(std::process::id()).unwrap()));
    }
}
