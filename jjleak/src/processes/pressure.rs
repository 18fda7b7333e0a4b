//! Control group of a process: memory usage, and time that its tasks wait for memory (pressure stall information).

use std::fs;
use std::path::{Path, PathBuf};

use super::{Pid, cgroup_mounts};

/// Mount points of the version 2 hierarchy, alone and beside version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Mount point of the memory controller of version 1.
const MOUNT_V1: &str = "/sys/fs/cgroup/memory";
/// Memory pressure of the whole machine.
const OF_MACHINE: &str = "/proc/pressure/memory";

/// A control group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlGroup {
    /// Path in the version 2 hierarchy, or in the one that accounts for memory; empty if unknown.
    pub path: String,
    /// `None` if unknown.
    pressure: Option<PathBuf>,
    usage: Option<PathBuf>,
    is_unknown: bool,
}

impl ControlGroup {
    /// The control group of a process.
    #[must_use]
    pub fn of(pid: Pid) -> Self {
        let lines = fs::read_to_string(pid.proc_file("cgroup")).unwrap_or_default();
        let path = path(&lines).unwrap_or_default().to_owned();
        if cgroup_mounts::is_outside(&path) {
            return Self::outside(path);
        }
        let inside = path.trim_start_matches('/');
        let is_hostile = Path::new(inside).components().any(|part| part.as_os_str() == "..");
        let is_group = !is_hostile && !inside.is_empty();
        let own = |file: &str| MOUNTS.map(|mount| Path::new(mount).join(inside).join(file));
        let there = |files: Vec<PathBuf>| files.into_iter().find(|file| is_group && file.exists());
        let pressure = there(own("memory.pressure").into());
        let of_v1 = Path::new(MOUNT_V1).join(inside).join("memory.usage_in_bytes");
        let usage = there(own("memory.current").into_iter().chain([of_v1]).collect());
        Self { path, pressure: Some(pressure.unwrap_or_else(|| OF_MACHINE.into())), usage, is_unknown: false }
    }

    /// A group outside of jjleak's cgroup namespace.
    fn outside(path: String) -> Self {
        let folder = cgroup_mounts::find(&path).map(|(_, folder)| folder);
        let file = |name: &str| folder.as_ref().map(|folder| folder.join(name)).filter(|file| file.exists());
        let is_unknown = folder.is_none();
        Self { path, pressure: file("memory.pressure"), usage: file("memory.current"), is_unknown }
    }

    /// Returns true if nothing can be known of the group: it is outside of jjleak's cgroup namespace, and not mounted.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Memory usage of its tasks in bytes, page cache included. `None` if the kernel does not report it.
    #[must_use]
    pub fn usage(&self) -> Option<u64> {
        fs::read_to_string(self.usage.as_ref()?).ok()?.trim().parse().ok()
    }

    /// Percentage of the last minute in which at least one task waited for memory: of the group, or of the machine if the group's
    /// value is unavailable. `None` if the kernel does not report it, or the group is unknown.
    #[must_use]
    pub fn pressure(&self) -> Option<f64> {
        some_avg60(&fs::read_to_string(self.pressure.as_ref()?).ok()?)
    }
}

/// Path in the version 2 line, or else in the line of version 1's memory controller (cgroups(7)).
fn path(lines: &str) -> Option<&str> {
    let fields = || lines.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let of = |controller: &str| {
        fields().find(|(names, _)| names.split(',').any(|name| name == controller)).map(|(_, path)| path)
    };
    match of("") {
        Some(path) if path != "/" => Some(path),
        root => of("memory").or(root),
    }
}

/// The `avg60` of `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` (the kernel's Documentation/accounting/psi.rst).
fn some_avg60(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|field| field.strip_prefix("avg60="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_version_2s_or_that_which_accounts_memory() {
        assert_eq!(path("0::/system.slice/a.service\n"), Some("/system.slice/a.service"));
        assert_eq!(path("5:cpu,memory:/b\n0::/\n"), Some("/b"));
        assert_eq!(path("1:name=systemd:/x\n"), None);
    }

    #[test]
    fn pressure_is_read_as_the_kernel_prints_it() {
        let text = "some avg10=1.00 avg60=12.34 avg300=0.00 total=7\nfull avg10=0.00 avg60=9.00 avg300=0.00 total=0\n";
        assert_eq!(some_avg60(text), Some(12.34));
        assert_eq!(some_avg60("nonsense"), None);
    }
}
