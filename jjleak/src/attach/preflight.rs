//! Checks of kernel features and privileges. Features are probed, versions are not compared.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process;

use aya::maps::MapType;
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported, is_map_supported};

use super::{Missing, kernel_btf};
use crate::processes::Pid;

/// Capability numbers from linux/capability.h.
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
const CAP_CHECKPOINT_RESTORE: u32 = 40;

/// jjleak's own PID namespace.
pub(super) const OWN_PID_NAMESPACE: &str = "/proc/self/ns/pid";
/// Inode of the initial PID namespace, which is constant (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
pub(super) const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// The checked feature or privilege.
    pub name: &'static str,
    /// True if jjleak does not work without it.
    pub is_required: bool,
    /// The missing requirement, if any.
    pub outcome: Result<(), Missing>,
}

/// Paths to inspect; tests use another root.
#[derive(Debug, Clone)]
pub struct Host {
    /// Mount point of sysfs.
    pub sys: PathBuf,
    /// Status of jjleak's own process.
    pub status: PathBuf,
    /// User ID map of jjleak's own user namespace.
    pub users: PathBuf,
    /// jjleak's own PID namespace.
    pub pid_namespace: PathBuf,
    /// The link to jjleak's own process in /proc.
    pub own_process: PathBuf,
}

impl Host {
    /// The host that jjleak runs on.
    #[must_use]
    pub fn this() -> Self {
        Self {
            sys: "/sys".into(),
            status: "/proc/self/status".into(),
            users: "/proc/self/uid_map".into(),
            pid_namespace: OWN_PID_NAMESPACE.into(),
            own_process: "/proc/self".into(),
        }
    }

    /// Fails with the first missing requirement.
    pub fn check(&self) -> Result<(), Missing> {
        REQUIRED.into_iter().try_for_each(|(_, check)| check(self))
    }

    /// Runs all checks.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        let mut checks: Vec<_> = REQUIRED
            .into_iter()
            .map(|(name, check)| Check { name, is_required: true, outcome: check(self) })
            .collect();
        let optional: [(_, CheckFn); 3] = [
            ("privilege to read the vDSO and the JVMs of other users", |host| {
                host.check_capability(CAP_DAC_READ_SEARCH, Missing::ReadPrivilege)
            }),
            ("privilege to open deleted files that are mapped", |host| {
                host.check_capability(CAP_CHECKPOINT_RESTORE, Missing::MappedFilePrivilege)
            }),
            ("several processes: --follow, --name, --system-wide", Self::check_following),
        ];
        let run = |(name, check): (_, CheckFn)| Check { name, is_required: false, outcome: check(self) };
        checks.extend(optional.map(run));
        checks
    }

    /// Checks that jjleak can follow processes: for that, the kernel side identifies processes by PIDs of the initial namespace.
    pub fn check_following(&self) -> Result<(), Missing> {
        let own = fs::metadata(&self.pid_namespace).map(|metadata| metadata.ino());
        require(own.is_ok_and(|inode| inode == INITIAL_PID_NAMESPACE), Missing::PidNamespace)
    }

    /// Returns true if the kernel side can recognize a process: in the initial PID namespace, every process of the host;
    /// otherwise those of jjleak's own namespace.
    pub(super) fn can_know(&self, pid: Pid) -> bool {
        let of_process = fs::metadata(pid.proc_file("ns/pid")).map(|metadata| metadata.ino());
        let own = fs::metadata(&self.pid_namespace).map(|metadata| metadata.ino());
        match (own, of_process) {
            (Ok(own), Ok(of_process)) => own == INITIAL_PID_NAMESPACE || own == of_process,
            // The process has ended, which is detected elsewhere.
            _ => true,
        }
    }

    /// Checks that a PID means the same process in /proc and in system calls.
    fn check_proc(&self) -> Result<(), Missing> {
        let own = fs::read_link(&self.own_process);
        require(
            own.is_ok_and(|own| own.as_os_str() == process::id().to_string().as_str()),
            Missing::ForeignProc,
        )
    }

    /// Checks the privilege to attach probes through perf events, where uprobe-multi links are unavailable.
    pub(super) fn check_perf_events(&self) -> Result<(), Missing> {
        self.check_capability(CAP_SYS_ADMIN, Missing::PerfEventPrivilege)
    }

    fn check_privileges(&self) -> Result<(), Missing> {
        self.check_capability(CAP_BPF, Missing::BpfPrivilege)?;
        self.check_capability(CAP_PERFMON, Missing::BpfPrivilege)?;
        self.check_capability(CAP_SYS_PTRACE, Missing::PtracePrivilege)
    }

    /// Reason why bpf(2) is denied despite the privileges.
    fn why_no_bpf(&self) -> Missing {
        // The map of the initial user namespace (user_namespaces(7)).
        const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];
        let status = fs::read_to_string(&self.status).unwrap_or_default();
        let is_filtered =
            status.lines().filter_map(|line| line.strip_prefix("Seccomp:")).any(|mode| mode.trim() != "0");
        let users = fs::read_to_string(&self.users).unwrap_or_default();
        if !users.is_empty() && !users.split_ascii_whitespace().eq(ALL_USERS) {
            Missing::UserNamespace
        } else if is_filtered {
            Missing::BpfFiltered
        } else {
            Missing::BpfLocked
        }
    }

    fn check_capability(&self, capability: u32, missing: Missing) -> Result<(), Missing> {
        // An unreadable status means unknown: the kernel itself will deny access.
        let status = fs::read_to_string(&self.status).unwrap_or_default();
        let Some(capabilities) = effective_capabilities(&status) else { return Ok(()) };
        let has = |capability: u32| capabilities >> capability & 1 == 1;
        // `CAP_SYS_ADMIN` still includes the capabilities that were split off from it (linux/capability.h).
        let is_part = [CAP_BPF, CAP_PERFMON, CAP_CHECKPOINT_RESTORE].contains(&capability);
        require(has(capability) || is_part && has(CAP_SYS_ADMIN), missing)
    }
}

/// A check of one requirement.
type CheckFn = fn(&Host) -> Result<(), Missing>;

/// Required features and privileges, in order of their checks.
const REQUIRED: [(&str, CheckFn); 8] = [
    ("/proc of jjleak's PID namespace", Host::check_proc),
    ("privilege to load BPF programs and to inspect other processes", Host::check_privileges),
    ("kernel type information (BTF)", |host| {
        require(kernel_btf::is_there(&host.sys.join("kernel/btf/vmlinux")), Missing::Btf)
    }),
    ("probes in user programs (uprobes)", |host| {
        require(host.sys.join("bus/event_source/devices/uprobe/type").exists(), Missing::Uprobes)
    }),
    ("memory that BPF programs may read (no lockdown for confidentiality)", |host| {
        // Without privileges, no helper can be probed for, and their lack is said before.
        let may_read = host.check_privileges().is_err() || has_helper(BpfHelper::BPF_FUNC_probe_read_kernel);
        require(may_read, Missing::Lockdown)
    }),
    ("per-probe data (bpf_get_attach_cookie)", |_| {
        require(has_helper(BpfHelper::BPF_FUNC_get_attach_cookie), Missing::AttachCookie)
    }),
    ("loops in BPF programs (bpf_loop)", |_| require(has_helper(BpfHelper::BPF_FUNC_loop), Missing::BpfLoop)),
    ("the system call bpf(2), not blocked by seccomp or lockdown", |host| {
        if host.check_privileges().is_err() || !is_bpf_refused() { Ok(()) } else { Err(host.why_no_bpf()) }
    }),
];

fn require(there: bool, missing: Missing) -> Result<(), Missing> {
    if there { Ok(()) } else { Err(missing) }
}

/// Returns true if uprobe programs can call a helper. An error of the check itself does not count as false: loading will show.
fn has_helper(helper: BpfHelper) -> bool {
    is_helper_supported(ProgramType::KProbe, helper).unwrap_or(true)
}

/// Returns true if not even the smallest map can be created. Filters report a denied or an unknown system call.
fn is_bpf_refused() -> bool {
    let made = is_map_supported(MapType::Array);
    made.is_err_and(|error| {
        matches!(error.io_error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported)
    })
}

/// The `CapEff` line of `/proc/PID/status`.
fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(capabilities: u64, files: &[&str]) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        let status = root.path().join("status");
        fs::write(&status, format!("Name:\tx\nCapEff:\t{capabilities:016x}\n")).unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "8\n").unwrap();
        }
        let sys = root.path().to_owned();
        let pid_namespace = root.path().join("pid_namespace");
        let users = root.path().join("uid_map");
        (root, Host { sys, status, users, pid_namespace, own_process: "/proc/self".into() })
    }

    const BTF: &str = "kernel/btf/vmlinux";
    const UPROBES: &str = "bus/event_source/devices/uprobe/type";
    const ALL: u64 = u64::MAX;

    #[test]
    fn an_ordinary_user_is_informed_of_the_privilege() {
        assert_eq!(host(0, &[BTF, UPROBES]).1.check(), Err(Missing::BpfPrivilege));
    }

    #[test]
    fn bpf_and_perfmon_are_enough_to_load_and_administration_includes_them() {
        let check = |capabilities: &[u32]| {
            let mask = capabilities.iter().fold(0, |mask, capability| mask | 1 << capability);
            host(mask, &[BTF, UPROBES]).1.check_privileges()
        };
        assert_eq!(check(&[CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE]), Ok(()));
        assert_eq!(check(&[CAP_SYS_ADMIN, CAP_SYS_PTRACE]), Ok(()));
        assert_eq!(check(&[CAP_PERFMON, CAP_SYS_PTRACE]), Err(Missing::BpfPrivilege));
        assert_eq!(check(&[CAP_BPF, CAP_SYS_PTRACE]), Err(Missing::BpfPrivilege));
        assert_eq!(check(&[CAP_SYS_ADMIN]), Err(Missing::PtracePrivilege));
    }

    #[test]
    fn perf_events_need_administration() {
        let check = |capabilities| host(capabilities, &[]).1.check_perf_events();
        assert_eq!(check(1 << CAP_BPF | 1 << CAP_PERFMON), Err(Missing::PerfEventPrivilege));
        assert_eq!(check(1 << CAP_SYS_ADMIN), Ok(()));
    }

    #[test]
    fn the_reason_for_forbidding_bpf_is_distinguished() {
        let why = |seccomp: &str, users: &str| {
            let (_root, host) = host(ALL, &[]);
            fs::write(&host.status, format!("Seccomp:\t{seccomp}\nSeccomp_filters:\t3\n")).unwrap();
            fs::write(&host.users, users).unwrap();
            host.why_no_bpf()
        };
        let all = "         0          0 4294967295\n";
        assert_eq!(why("2", all), Missing::BpfFiltered);
        assert_eq!(why("0", all), Missing::BpfLocked);
        assert_eq!(why("2", "         0     100000      65536\n"), Missing::UserNamespace);
    }

    #[test]
    fn a_kernel_without_type_information_is_named() {
        assert_eq!(host(ALL, &[UPROBES]).1.check(), Err(Missing::Btf));
    }

    #[test]
    fn a_kernel_without_uprobes_is_named() {
        assert_eq!(host(ALL, &[BTF]).1.check(), Err(Missing::Uprobes));
    }

    #[test]
    fn everything_missing_has_a_remedy() {
        for missing in [
            Missing::BpfPrivilege,
            Missing::BpfFiltered,
            Missing::BpfLocked,
            Missing::UserNamespace,
            Missing::Btf,
        ] {
            assert!(!missing.remedy().is_empty());
        }
    }
}
