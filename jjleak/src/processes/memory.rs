//! Memory limits of a process.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Pid, cgroup_mounts};

/// The limit of a process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// True if it is the limit of a control group, false if it is the machine's memory.
    pub is_cgroup: bool,
    /// In bytes.
    pub limit: u64,
    /// Remaining bytes.
    pub available: u64,
}

impl MemoryLimit {
    /// The limit with the least memory remaining: of the process's control group, of an ancestor, or of the machine. `None` if
    /// nothing can be read, such as after the end of the process.
    #[must_use]
    pub fn of(pid: Pid) -> Option<Self> {
        limits(pid).into_iter().min_by_key(|limit| limit.available)
    }

    /// The lowest limit in bytes: of the process's control group, of an ancestor, or of the machine. `None` if nothing can be read.
    #[must_use]
    pub fn lowest(pid: Pid) -> Option<u64> {
        limits(pid).into_iter().map(|limit| limit.limit).min()
    }
}

fn limits(pid: Pid) -> Vec<MemoryLimit> {
    let Some(groups) = groups(pid) else { return Vec::new() };
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|meminfo| of_machine(&meminfo));
    groups.iter().filter_map(|group| of_cgroup(group)).chain(machine).collect()
}

/// Folders of the control groups that account for a process's memory, the innermost first. `None` if it has ended.
pub(super) fn groups(pid: Pid) -> Option<Vec<PathBuf>> {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    Some(hierarchies(&cgroups).flat_map(|(root, path)| with_ancestors(&root, &path)).collect())
}

/// Mount point and path of each control group that can limit memory. Lines are `hierarchy:controllers:path` (cgroups(7)).
fn hierarchies(cgroups: &str) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    cgroups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let root = match controllers {
            "" => "/sys/fs/cgroup",
            _ if controllers.split(',').any(|controller| controller == "memory") => "/sys/fs/cgroup/memory",
            _ => return None,
        };
        Some((PathBuf::from(root), PathBuf::from(path.trim_start_matches('/'))))
    })
}

/// Folders of a group and its ancestors.
fn with_ancestors(root: &Path, path: &Path) -> Vec<PathBuf> {
    if let Some(path) = path.to_str().filter(|path| cgroup_mounts::is_outside(path)) {
        let Some((mount, folder)) = cgroup_mounts::find(path) else { return Vec::new() };
        let groups = folder.ancestors().take_while(|group| group.starts_with(&mount));
        return groups.map(Path::to_owned).collect();
    }
    let is_hostile = path.components().any(|part| part.as_os_str() == "..");
    path.ancestors().filter(|_| !is_hostile).map(|group| root.join(group)).collect()
}

fn of_cgroup(folder: &Path) -> Option<MemoryLimit> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // Version 2, then version 1, whose "no limit" is a number close to the largest possible.
    let limit = read("memory.max").or_else(|| read("memory.limit_in_bytes"))?;
    let used = read("memory.current").or_else(|| read("memory.usage_in_bytes"))?;
    // Inactive file pages, which the kernel reclaims before memory runs out.
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let field = |name: &str| {
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok();
        stat.lines().find_map(value)
    };
    // In version 1, the sum over all descendants has another name.
    let reclaimable = field("total_inactive_file").or_else(|| field("inactive_file")).unwrap_or_default();
    let available = limit.saturating_sub(used.saturating_sub(reclaimable));
    (limit < 1 << 60).then_some(MemoryLimit { is_cgroup: true, limit, available })
}

fn of_machine(meminfo: &str) -> Option<MemoryLimit> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        kibibytes.checked_mul(1024)
    };
    Some(MemoryLimit { is_cgroup: false, limit: field("MemTotal")?, available: field("MemAvailable")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_limits_the_own_process() {
        let limit = MemoryLimit::of(Pid::new(std::process::id()).unwrap()).unwrap();
        assert!(limit.available <= limit.limit && limit.limit > 0, "{limit:?}");
    }

    #[test]
    fn groups_of_both_versions_limit_memory() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("outer/inner");
        fs::create_dir_all(&group).unwrap();
        let write = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
        write("outer/memory.max", "1000\n");
        write("outer/memory.current", "900\n");
        write("outer/inner/memory.max", "max\n");
        write("outer/inner/memory.current", "800\n");
        let limits = |path: &str| -> Vec<_> {
            let groups = with_ancestors(root.path(), Path::new(path));
            groups.iter().filter_map(|group| of_cgroup(group)).collect()
        };
        assert_eq!(limits("outer/inner"), [MemoryLimit { is_cgroup: true, limit: 1000, available: 100 }]);
        write("outer/inner/memory.limit_in_bytes", "500\n");
        write("outer/inner/memory.usage_in_bytes", "600\n");
        fs::remove_file(group.join("memory.max")).unwrap();
        fs::remove_file(group.join("memory.current")).unwrap();
        assert_eq!(limits("outer/inner").len(), 2);
        assert_eq!(limits("../outer"), []);
    }

    #[test]
    fn pages_of_files_that_can_be_taken_back_are_left_of_a_limit() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(group.path().join(name), text).unwrap();
        let available = || of_cgroup(group.path()).unwrap().available;
        write("memory.max", "1000\n");
        write("memory.current", "900\n");
        assert_eq!(available(), 100);
        write("memory.stat", "file 700\ninactive_file_x 1\nactive_file 100\ninactive_file 600\n");
        assert_eq!(available(), 700);
        write("memory.stat", "inactive_file 5\ntotal_inactive_file 300\n");
        assert_eq!(available(), 400);
        write("memory.stat", "inactive_file 5000\n");
        assert_eq!(available(), 1000);
    }

    #[test]
    fn only_groups_that_can_limit_memory_are_examined() {
        let cgroups = "5:cpu,cpuacct:/a\n4:memory:/b\n0::/c/d\n";
        let found: Vec<_> = hierarchies(cgroups).collect();
        let expected = [("/sys/fs/cgroup/memory", "b"), ("/sys/fs/cgroup", "c/d")];
        assert_eq!(found, expected.map(|(root, path)| (PathBuf::from(root), PathBuf::from(path))));
    }
}
