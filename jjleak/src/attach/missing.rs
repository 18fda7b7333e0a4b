//! Requirements that a host may not meet, and what to do about each.

use crate::distribution::Distribution;

/// A requirement that this host does not meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No privilege to load and attach BPF programs.
    #[error("not allowed to load BPF programs: this needs root, or CAP_BPF and CAP_PERFMON")]
    BpfPrivilege,
    /// bpf(2) is blocked by a system call filter, whatever the privileges.
    #[error(
        "the system call bpf(2) is forbidden by a system call filter (seccomp), despite sufficient privileges"
    )]
    BpfFiltered,
    /// bpf(2) is denied despite the privileges and without a filter.
    #[error(
        "the system call bpf(2) is forbidden by kernel lockdown or a security module, despite sufficient privileges and \
         without a system call filter (seccomp)"
    )]
    BpfLocked,
    /// The privileges are limited to a user namespace, and the kernel requires them on the host.
    #[error(
        "the privileges to load BPF programs apply only inside a user namespace: the kernel requires them on the host"
    )]
    UserNamespace,
    /// No privilege to attach probes individually: the kernel requires `CAP_SYS_ADMIN` to place a uprobe through a perf event
    /// (`perf_uprobe_event_init` in kernel/events/core.c), while uprobe-multi links need only the privileges for programs.
    #[error("not allowed to attach uprobes one by one: this needs root or CAP_SYS_ADMIN")]
    PerfEventPrivilege,
    /// No privilege to read files and memory of other users.
    #[error("not allowed to read other users' memory and files: this needs root or CAP_DAC_READ_SEARCH")]
    ReadPrivilege,
    /// No privilege to open deleted files that are still mapped (`proc_map_files_get_link` in fs/proc/base.c).
    #[error("not allowed to open deleted files that are mapped: this needs root or CAP_CHECKPOINT_RESTORE")]
    MappedFilePrivilege,
    /// No privilege to inspect other processes.
    #[error("not allowed to inspect other processes: this needs root or CAP_SYS_PTRACE")]
    PtracePrivilege,
    /// PIDs in /proc differ from those of system calls.
    #[error(
        "/proc belongs to another PID namespace than jjleak, or is not mounted: its PIDs are not valid for jjleak"
    )]
    ForeignProc,
    /// The kernel has no BTF.
    #[error("this kernel has no BTF type information (/sys/kernel/btf/vmlinux is missing)")]
    Btf,
    /// The kernel has no uprobes.
    #[error("this kernel has no uprobes (/sys/bus/event_source/devices/uprobe is missing)")]
    Uprobes,
    /// The kernel has no `bpf_loop`.
    #[error("this kernel's BPF has no bpf_loop helper, which came with Linux 5.17")]
    BpfLoop,
    /// The kernel has no data per probe for BPF programs (`bpf_get_attach_cookie`).
    #[error("this kernel's BPF has no bpf_get_attach_cookie helper, which came with Linux 5.15")]
    AttachCookie,
    /// Lockdown keeps BPF programs from reading memory.
    #[error("this kernel is locked down for confidentiality: its BPF programs may not read memory")]
    Lockdown,
    /// The kernel's task structure has an unknown layout.
    #[error(
        "this kernel's type information (BTF) does not give the fields that link a task to its process (task_struct)"
    )]
    TaskFields,
    /// The kernel kills processes with a system call filter because of return probes.
    #[error(
        "the process, or any other to be profiled, may have a system call filter (seccomp), and this kernel kills such \
         processes at a return probe"
    )]
    HarmlessReturns,
    /// jjleak runs in a PID namespace of its own, such as in a container.
    #[error("following processes needs the host's PIDs, and jjleak runs in a separate PID namespace")]
    PidNamespace,
}

impl Missing {
    /// Remedy for the user.
    #[must_use]
    pub fn remedy(self) -> String {
        let general = self.general_remedy();
        let newer_kernel = Distribution::this().newer_kernel();
        match newer_kernel.filter(|_| self.is_of_old_kernel()) {
            Some(newer_kernel) => format!("{general}; here: {newer_kernel}"),
            None => general.to_owned(),
        }
    }

    /// Returns true if a newer kernel has what is missing.
    const fn is_of_old_kernel(self) -> bool {
        matches!(self, Self::BpfLoop | Self::AttachCookie | Self::Btf)
    }

    const fn general_remedy(self) -> &'static str {
        match self {
            Self::BpfPrivilege | Self::PtracePrivilege | Self::ReadPrivilege | Self::MappedFilePrivilege => {
                "run it with sudo; in a container, run it on the host or add CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, \
                 CAP_DAC_READ_SEARCH and CAP_CHECKPOINT_RESTORE"
            }
            Self::BpfFiltered => {
                "run it on the host; or give the container a seccomp profile that allows bpf(2) and perf_event_open(2) \
                 (--security-opt seccomp=FILE), or the service a SystemCallFilter= with both"
            }
            Self::Lockdown => {
                "boot without lockdown=confidentiality; lockdown=integrity, which secure boot sets, permits it"
            }
            Self::BpfLocked => {
                "boot without lockdown=confidentiality, or allow bpf(2) in the security module's policy"
            }
            Self::UserNamespace => {
                "run it on the host, or in a container without a user namespace (not rootless, no --userns)"
            }
            Self::PerfEventPrivilege => {
                "run it with sudo; on Linux 6.10 or newer, this is only needed for processes whose main thread has ended"
            }
            Self::Btf => {
                "in a container, mount the host's /sys/kernel/btf, or name a file of this kernel with --kernel-btf; otherwise \
                 boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (distribution kernels are)"
            }
            Self::Uprobes => {
                "boot a kernel built with CONFIG_UPROBE_EVENTS=y and mount sysfs on /sys (in a container: mount the host's)"
            }
            Self::BpfLoop | Self::AttachCookie => {
                "boot Linux 5.17 or newer, or a distribution's kernel with BPF of that version"
            }
            Self::TaskFields => "profile processes one by one with -p, and report this kernel's version",
            Self::ForeignProc => {
                "enter the PID namespace together with the mount namespace (nsenter -p -m), or mount proc(5) on /proc here"
            }
            Self::HarmlessReturns => {
                "boot a kernel with the fix of February 2025 (Linux 6.14, or an update of an older one); or profile a process \
                 without a filter, with -p and without --follow"
            }
            Self::PidNamespace => {
                "run it on the host, or the container with --pid=host; -p PID without --follow works here for processes of \
                 the same PID namespace"
            }
        }
    }
}
