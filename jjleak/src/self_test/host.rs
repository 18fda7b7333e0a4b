//! Facts about this host that decide what works.

use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use nix::sys::utsname::uname;
use nix::unistd::Uid;
use serde::Serialize;

use crate::cache_folder::CacheFolder;
use crate::distribution::Distribution;
use crate::processes::{ControlGroup, GroupMemory, Pid};

/// Settings of the kernel, by the name in the report.
const SETTINGS: [(&str, &str); 6] = [
    ("lockdown", "/sys/kernel/security/lockdown"),
    ("security modules", "/sys/kernel/security/lsm"),
    ("kernel.unprivileged_bpf_disabled", "/proc/sys/kernel/unprivileged_bpf_disabled"),
    ("kernel.perf_event_paranoid", "/proc/sys/kernel/perf_event_paranoid"),
    ("kernel.yama.ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope"),
    ("net.core.bpf_jit_enable", "/proc/sys/net/core/bpf_jit_enable"),
];

/// Lines of `/proc/self/status` on privileges.
const STATUS: [&str; 3] = ["CapEff", "Seccomp", "NoNewPrivs"];

/// Facts about this host.
#[derive(Debug, Serialize)]
pub struct HostFacts {
    /// Release of the kernel.
    pub kernel: String,
    /// Name of the distribution; in a container, that of the container.
    pub distribution: String,
    /// Processor architecture.
    pub machine: String,
    /// The C library of this jjleak.
    pub c_library: &'static str,
    /// Number of CPUs.
    pub cpus: usize,
    /// Memory of the machine.
    pub memory_bytes: Option<u64>,
    /// Effective user ID.
    pub user: u32,
    /// Settings of the kernel and privileges of this process by name; those that cannot be read are left out.
    pub settings: Vec<(&'static str, String)>,
    /// Control groups.
    pub cgroup: CgroupFacts,
    /// Folder of the cache, and the reason if it cannot be used: unwind tables are then compiled anew in each run.
    pub cache: CacheFacts,
}

/// Facts about the cache.
#[derive(Debug, Serialize)]
pub struct CacheFacts {
    /// The folder; empty without a home.
    pub folder: String,
    /// Reason why nothing can be written there; empty if it can.
    pub why_not: String,
}

/// Facts about control groups.
#[derive(Debug, Serialize)]
pub struct CgroupFacts {
    /// `v2`, `v1`, `v1 and v2`, or `none`.
    pub hierarchy: &'static str,
    /// Group of jjleak.
    pub own: String,
    /// Memory that is charged to it, if known.
    pub memory_bytes: Option<u64>,
    /// True if groups of other processes can be read.
    pub reads_others: bool,
}

impl HostFacts {
    /// Reads the facts.
    #[must_use]
    pub fn read() -> Self {
        let name = uname().ok();
        let text = |field: &std::ffi::OsStr| field.to_string_lossy().into_owned();
        let distribution = Distribution::this().name;
        Self {
            kernel: name.as_ref().map(|it| text(it.release())).unwrap_or_default(),
            distribution: if distribution.is_empty() { "unknown".to_owned() } else { distribution },
            machine: name.as_ref().map(|it| text(it.machine())).unwrap_or_default(),
            c_library: if cfg!(target_env = "musl") { "musl, static" } else { "glibc" },
            cpus: available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
            user: Uid::effective().as_raw(),
            settings: settings(),
            cgroup: CgroupFacts::read(),
            cache: CacheFacts::read(),
        }
    }
}

impl CacheFacts {
    fn read() -> Self {
        let Some(cache) = CacheFolder::of_user() else {
            return Self {
                folder: String::new(),
                why_not: "neither HOME nor XDG_CACHE_HOME is set".to_owned(),
            };
        };
        let why_not = cache.check().err().map(|error| error.to_string()).unwrap_or_default();
        Self { folder: cache.path("").display().to_string().trim_end_matches('/').to_owned(), why_not }
    }
}

impl CgroupFacts {
    fn read() -> Self {
        let exists = |path: &str| Path::new(path).exists();
        let has_new = exists("/sys/fs/cgroup/cgroup.controllers");
        let has_old = exists("/sys/fs/cgroup/memory");
        let has_both = has_old && exists("/sys/fs/cgroup/unified");
        let group = |pid: u32| Pid::new(pid).map(ControlGroup::of);
        let this = std::process::id();
        Self {
            hierarchy: match (has_new, has_old) {
                (true, _) => "v2",
                (false, true) if has_both => "v1 and v2",
                (false, true) => "v1",
                (false, false) => "none",
            },
            own: group(this).map(|it| it.path).unwrap_or_default(),
            memory_bytes: Pid::new(this).and_then(GroupMemory::of).map(|it| it.current),
            reads_others: group(1).is_some_and(|it| !it.is_unknown()),
        }
    }
}

fn settings() -> Vec<(&'static str, String)> {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
    let of_kernel = SETTINGS.into_iter().filter_map(|(name, path)| Some((name, read(path).ok()?)));
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of_status = |name: &'static str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some((name, value.trim().to_owned()))
    };
    of_kernel.chain(STATUS.into_iter().filter_map(of_status)).collect()
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_bytes() {
        assert_eq!(memory("MemTotal:       24609468 kB\nMemFree: 1 kB\n"), Some(24_609_468 << 10));
        assert_eq!(memory(""), None);
    }

    #[test]
    fn this_host_has_a_kernel_and_privileges() {
        let host = HostFacts::read();
        assert!(!host.kernel.is_empty() && host.cpus > 0);
        assert!(host.settings.iter().any(|(name, _)| *name == "CapEff"));
    }
}
