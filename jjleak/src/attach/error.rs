//! Errors of this stage.

use aya::maps::MapError;
use aya::programs::ProgramError;
use aya::sys::SyscallError;
use aya::{BtfError, EbpfError};
use nix::libc::{EINVAL, EIO, ENOEXEC, ERANGE, ESRCH};

use super::{Missing, Scope};
use crate::allocators::ProbeSite;
use crate::processes::Pid;

/// First words of statistics in a verifier's log, which give no reason (`print_verification_stats` in `kernel/bpf/verifier.c`).
const VERIFIER_STATISTICS: [&str; 3] = ["verification time ", "stack depth ", "processed "];
/// Used if the verifier did not run or its log has no reason.
const NOTHING_SAID: &str = "the verifier gave no reason";

/// Attaching failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel lacks a feature, or jjleak a privilege.
    #[error(transparent)]
    Preflight(#[from] Missing),
    /// This binary contains no BPF object.
    #[error("this jjleak was built without its BPF programs")]
    NoObject,
    /// The BPF object does not match this binary.
    #[error("the BPF object has no {what} named {name}")]
    ObjectLacks {
        /// Map or program.
        what: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// The BPF object could not be loaded.
    #[error("loading the BPF programs into the kernel failed")]
    Load(#[source] Box<EbpfError>),
    /// The kernel rejected the BTF of the BPF object.
    #[error("loading the type information (BTF) of the BPF programs into the kernel failed")]
    Types(#[source] std::io::Error),
    /// Out of file descriptors for the maps of the programs.
    #[error("duplicating the file descriptors of the BPF maps failed")]
    Descriptors(#[source] std::io::Error),
    /// The kernel's verifier rejected a program. The debug log has the full verifier log.
    #[error("the kernel rejected the BPF program {name} ({said})")]
    Verify {
        /// Its name.
        name: &'static str,
        /// The verifier's reason.
        said: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Probes could not be attached.
    #[error("attaching to {places} failed")]
    Attach {
        /// The functions, and the offset of the probed instruction in each. The kernel attaches them together, so they fail
        /// together.
        places: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A tracepoint of process events is unavailable.
    #[error("attaching to the tracepoint {name} failed")]
    Tracepoint {
        /// Its name.
        name: &'static str,
        /// The cause.
        #[source]
        source: Box<ProgramError>,
    },
    /// The kernel's BTF cannot be read.
    #[error("reading the kernel's type information (BTF) failed")]
    KernelTypes(#[source] Box<BtfError>),
    /// System calls could not be traced.
    #[error("tracing system calls at {place} in the kernel failed")]
    Follow {
        /// Name of the function or tracepoint.
        place: &'static str,
        /// The cause.
        #[source]
        source: Box<ProgramError>,
    },
    /// The blocks that do not fit the live table could not be read.
    #[error("reading the map SPILL failed")]
    Spill(#[source] std::io::Error),
    /// Chunks of unwind rows could not be added or removed.
    #[error("changing the map ROWS failed")]
    Chunks(#[source] std::io::Error),
    /// The test of return probes on a process with a system call filter failed.
    #[error("testing a return probe on a child process with a seccomp filter failed")]
    Trial(#[source] std::io::Error),
    /// jjleak's own PID namespace is unknown.
    #[error("reading /proc/self/ns/pid failed")]
    Namespace(#[source] std::io::Error),
    /// The kernel side could not recognize the process.
    #[error("process {0} is in a nested PID namespace, and jjleak is not in the initial PID namespace")]
    NestedNamespace(Pid),
    /// The process ended in the meantime.
    #[error("process {0} ended while jjleak was attaching to it")]
    Gone(Pid),
    /// Only uprobe-multi links can be attached and detached quickly, and the kernel binds them to the main thread.
    #[error(
        "the main thread of the process has ended: the probes of thread {0} cannot be inserted and removed quickly"
    )]
    NoMainThread(Pid),
    /// More programs with samples than anybody has.
    #[error("the probes at which programs announce samples pass their arguments in too many ways")]
    ManySampleSites,
    /// A BPF map could not be read or written.
    #[error("accessing a BPF map failed")]
    Table(#[source] Box<MapError>),
    /// A BPF map could not be mapped into memory.
    #[error("mapping a BPF map into memory failed")]
    Map(#[source] std::io::Error),
}

impl Error {
    pub(crate) fn table(source: MapError) -> Self {
        Self::Table(Box::new(source))
    }

    pub(super) fn verify(name: &'static str, error: ProgramError) -> Self {
        match error {
            ProgramError::LoadError { io_error, verifier_log } => {
                Self::refused(name, &verifier_log.to_string(), io_error)
            }
            other => Self::refused(name, "", std::io::Error::other(other)),
        }
    }

    /// Builds the error for a program that the kernel rejected, from the verifier's log.
    pub(super) fn refused(name: &'static str, log: &str, source: std::io::Error) -> Self {
        tracing::debug!("verifier log of {name}:\n{log}");
        Self::Verify { name, said: last_words(log).to_owned(), source }
    }

    pub(super) fn follow(place: &'static str, source: ProgramError) -> Self {
        Self::Follow { place, source: Box::new(source) }
    }

    pub(super) fn attach(
        scope: Scope,
        sites: &[ProbeSite],
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        if let Scope::Process { thread, .. } = scope
            && thread.proc_file("exe").read_link().is_err()
        {
            return Self::Gone(thread);
        }
        let places: Vec<_> = sites
            .iter()
            .map(|site| format!("{} (file offset {:#x})", site.names.join("/"), site.offset()))
            .collect();
        Self::Attach { places: places.join(", "), source: Box::new(source) }
    }

    /// Returns true if the kernel refused probes because of what is at their sites: a symbol can point to anything.
    #[must_use]
    pub fn is_about_sites(&self) -> bool {
        /// Linux's own ENOTSUPP, which has no number in libc (include/linux/errno.h): for an instruction that cannot be probed.
        const ENOTSUPP: i32 = 524;
        if matches!(self, Self::ManySampleSites) {
            return true;
        }
        let Self::Attach { source, .. } = self else { return false };
        let number = source.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        number.is_some_and(|number| [ENOTSUPP, ENOEXEC, EINVAL, EIO, ERANGE].contains(&number))
    }

    /// Builds the error for links that cannot be attached again.
    pub(super) fn wake(scope: Scope, sites: &[ProbeSite], source: std::io::Error) -> Self {
        let has_no_such_process = source.raw_os_error() == Some(ESRCH);
        match (scope, Self::attach(scope, sites, source)) {
            (Scope::Process { thread, .. }, Self::Attach { .. }) if has_no_such_process => {
                Self::NoMainThread(thread)
            }
            (_, error) => error,
        }
    }
}

/// Last line of a verifier's log, without its statistics.
fn last_words(log: &str) -> &str {
    let is_about_the_work = |line: &&str| VERIFIER_STATISTICS.iter().any(|start| line.starts_with(start));
    let mut lines = log.lines().map(str::trim).filter(|line| !line.is_empty() && !is_about_the_work(line));
    lines.next_back().unwrap_or(NOTHING_SAID)
}

/// Returns true if a map has no such key; the kernel side may just have removed it. Aya has an error of its own for lookups; for
/// removals it passes on the kernel's.
pub(crate) fn is_missing_key(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound => true,
        MapError::SyscallError(SyscallError { io_error, .. }) => {
            io_error.kind() == std::io::ErrorKind::NotFound
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_refused_with_the_verifiers_reason() {
        let refused = |log| {
            let source = std::io::Error::from_raw_os_error(EINVAL);
            Error::refused("enter", log, source).to_string()
        };
        assert_eq!(
            refused(
                "10: (0f) r1 += r2\nmath between map_value pointer and register with unbounded min value is not allowed\n\
                 verification time 9 usec\nstack depth 16+0\n\
                 processed 11 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n"
            ),
            "the kernel rejected the BPF program enter \
             (math between map_value pointer and register with unbounded min value is not allowed)"
        );
        assert_eq!(refused(""), "the kernel rejected the BPF program enter (the verifier gave no reason)");
    }

    #[test]
    fn a_key_that_somebody_else_has_removed_is_missing_and_no_failure_of_the_kernels_is() {
        let failed = |number| {
            MapError::SyscallError(SyscallError {
                call: "bpf_map_delete_elem",
                io_error: std::io::Error::from_raw_os_error(number),
            })
        };
        assert!(is_missing_key(&MapError::KeyNotFound) && is_missing_key(&failed(nix::libc::ENOENT)));
        assert!(!is_missing_key(&failed(nix::libc::ENOMEM)));
    }
}
