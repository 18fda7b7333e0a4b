//! Failures as the user sees them: what failed and why, the remedy, and the exit code.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::unistd::Uid;

use crate::error_chain::chain;
use crate::notices::print;
use crate::session::{self, BoundError, NoAllocator, NoJavaHeap, SavedFileError};
use crate::{allocators, attach, live, processes, render, reports, store};

pub(super) const DONE: u8 = 0;
pub(super) const OTHER: u8 = 1;
pub(super) const USAGE: u8 = 2;
pub(super) const PREFLIGHT: u8 = 3;
pub(super) const NO_TARGET: u8 = 4;
pub(super) const LOSS: u8 = 5;

/// A failure of jjleak.
#[derive(Debug)]
pub(super) struct Failure {
    what: String,
    remedy: String,
    code: u8,
}

impl Failure {
    pub(super) fn new(code: u8, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), code }
    }

    pub(super) fn usage(what: String) -> Self {
        Self::new(USAGE, what, "see jjleak --help")
    }

    /// Remedy for the user.
    pub(super) fn remedy(&self) -> &str {
        &self.remedy
    }

    /// Prints the failure to stderr.
    pub(super) fn report(&self) -> ExitCode {
        print(&self.what);
        print(&format!("to do: {}", self.remedy));
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// Returns true if a cause in the chain is a missing permission.
fn is_forbidden(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::PermissionDenied)
    })
}

/// Returns true if a cause in the chain is that bpf(2) requires privileges (EPERM). EACCES, in contrast, means that the verifier
/// rejects a program, regardless of privileges.
fn is_bpf_forbidden(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| cause.raw_os_error() == Some(Errno::EPERM as i32))
    })
}

/// Remedy for a missing permission.
pub(super) fn allowance() -> &'static str {
    if Uid::effective().is_root() {
        "root is not allowed to do this here, so kernel lockdown or a sandbox (seccomp) forbids it: run jjleak on the host, outside \
         containers"
    } else {
        "run jjleak with sudo, on the host or in the same PID namespace"
    }
}

impl From<processes::Error> for Failure {
    fn from(error: processes::Error) -> Self {
        use processes::Error as E;
        let (code, remedy) = match &error {
            E::NoSuchProcess(_) | E::Gone(_) => (NO_TARGET, "check the PID with ps".to_owned()),
            E::IsThread { process, .. } => (NO_TARGET, format!("use -p {process}")),
            E::Narrow { .. } => (OTHER, "profile the 64-bit build of this program".to_owned()),
            E::NoProgram(_) => (NO_TARGET, "choose a process that runs a program".to_owned()),
            E::Read { .. } | E::Trace { .. } if is_forbidden(&error) => (PREFLIGHT, allowance().to_owned()),
            E::Read { .. } => (OTHER, "check that proc(5) is mounted on /proc".to_owned()),
            E::Trace { .. } => (OTHER, "check that no other tool traces the command".to_owned()),
            E::Watch { .. } => (OTHER, "check the limit of open files (ulimit -n)".to_owned()),
            E::TooLong { .. } => (OTHER, "profile a process with fewer mappings".to_owned()),
            E::Malformed { .. } => (OTHER, "please report this line and the kernel version".to_owned()),
            E::Start { .. } => (NO_TARGET, "check that the command exists and can be run".to_owned()),
            E::EndedEarly { .. } => (NO_TARGET, "check that the command runs without jjleak".to_owned()),
        };
        Self::new(code, chain(&error), remedy)
    }
}

impl From<attach::Error> for Failure {
    fn from(error: attach::Error) -> Self {
        use attach::Error as E;
        let (code, remedy) = match &error {
            E::Preflight(missing) => return Self::new(PREFLIGHT, chain(&error), missing.remedy()),
            E::NestedNamespace(_) => {
                (PREFLIGHT, "run jjleak on the host or in a container with the host's PIDs (--pid=host)")
            }
            E::NoObject => (PREFLIGHT, "build jjleak with cargo xtask build"),
            E::ObjectLacks { .. } => (OTHER, "rebuild jjleak with cargo xtask build"),
            E::Load(_) | E::Verify { .. } if is_bpf_forbidden(&error) => (PREFLIGHT, allowance()),
            E::Types(_) | E::Tracepoint { .. } | E::Attach { .. } if is_forbidden(&error) => {
                (PREFLIGHT, allowance())
            }
            E::Load(_) | E::Types(_) | E::Verify { .. } | E::Tracepoint { .. } => (
                PREFLIGHT,
                "check that the kernel is 5.17 or newer and not locked down; if so, report the messages of -vv",
            ),
            E::KernelTypes(_) | E::Follow { .. } => (
                PREFLIGHT,
                "omit --mmap, or boot a kernel built with CONFIG_DEBUG_INFO_BTF=y and CONFIG_FTRACE_SYSCALLS=y",
            ),
            E::NoMainThread(_) => {
                (PREFLIGHT, "profile it without --max-overhead; --estimate predicts the cost")
            }
            E::ManySampleSites => (OTHER, "profile fewer programs, or select a file with -O"),
            E::Attach { .. } => (OTHER, "check that no other tool holds the process, and try again"),
            E::Gone(_) => (NO_TARGET, "check the PID with ps"),
            E::Descriptors(_) => (OTHER, "raise the limit of open files (ulimit -n)"),
            E::Trial(_) => (OTHER, "check the limits of processes and open files (ulimit -u, ulimit -n)"),
            E::Namespace(_) => (OTHER, "mount proc(5) on /proc"),
            E::Table(_) | E::Map(_) | E::Spill(_) | E::Chunks(_) => {
                (OTHER, "check that memory is not exhausted, and try again")
            }
        };
        Self::new(code, chain(&error), remedy)
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        let remedy = match &error {
            store::Error::Create { .. } | store::Error::NotAFile { .. } | store::Error::Open { .. } => {
                "choose another destination with --out"
            }
            store::Error::IsFolder { .. } => "name a file, or end the folder's name with /",
            store::Error::Write { .. } => "free some space, or choose another destination with --out",
        };
        Self::new(OTHER, chain(&error), remedy)
    }
}

impl From<render::Error> for Failure {
    fn from(error: render::Error) -> Self {
        Self::new(OTHER, chain(&error), "please report this")
    }
}

impl From<session::Error> for Failure {
    fn from(error: session::Error) -> Self {
        use session::Error as E;
        let (code, remedy) = match error {
            E::Process(error) => return error.into(),
            E::Attach(error) => return error.into(),
            E::Bound(error) => return error.into(),
            E::NoAllocator(error) => return error.into(),
            E::NoJavaHeap(error) => return error.into(),
            E::NoSamples(_) => (
                OTHER,
                "omit --sampled: jjleak -p PID counts allocations without the program's help; a library with such probes has to be \
                 part of the program",
            ),
            E::NotLoaded(_) => (
                OTHER,
                "omit --load, and start the JVM with LD_PRELOAD (docs/samples.md); or omit --sampled: jjleak -p PID counts allocations \
                 without the program's help",
            ),
            E::SavedFile(error) => return error.into(),
            E::TooManyProcesses(_) => (OTHER, "profile fewer processes, or raise --max-processes"),
            E::CountCalls => (
                PREFLIGHT,
                "use Linux 6.6 or newer; or profile the process briefly: reports include the cost",
            ),
            E::BreakpointCost => {
                (OTHER, "try again; or profile the process briefly: reports include the cost")
            }
            E::Setup { .. } => (OTHER, "check the limits of this session (ulimit -a)"),
        };
        Self::new(code, chain(&error), remedy)
    }
}

impl From<BoundError> for Failure {
    fn from(error: BoundError) -> Self {
        let remedy = match &error {
            BoundError::BreakpointCost => "try again, or omit --max-overhead; --estimate predicts the cost",
            BoundError::MeasureForbidden(_) => "run jjleak as root",
            BoundError::SlowProbes | BoundError::Measure(_) => "use Linux 6.6 or newer",
        };
        Self::new(PREFLIGHT, format!("--max-overhead: {}", chain(&error)), remedy)
    }
}

impl From<SavedFileError> for Failure {
    fn from(error: SavedFileError) -> Self {
        let (code, remedy) = match &error {
            SavedFileError::Read(path, _) if session::is_address(path) => {
                (OTHER, "check the address, and whether the server wants a --header")
            }
            SavedFileError::Read(..) => (OTHER, "name a readable file"),
            SavedFileError::Parse(..) => {
                (USAGE, "name a file written with --format pprof, or a pprof heap profile of another tool")
            }
            SavedFileError::Heap(..) => (USAGE, "name a heap profile of jemalloc, gperftools or tcmalloc"),
            SavedFileError::WithoutThreads(_) => {
                (USAGE, "record the profile with --threads, or omit --threads here")
            }
        };
        let option = if matches!(error, SavedFileError::WithoutThreads(_)) { "--threads: " } else { "" };
        Self::new(code, format!("{option}{}", chain(&error)), remedy)
    }
}

impl From<NoAllocator> for Failure {
    fn from(error: NoAllocator) -> Self {
        let remedy = if error.unopened.as_ref().is_some_and(|unopened| unopened.is_forbidden) {
            allowance().to_owned()
        } else if error.only.is_some() {
            "check /proc/PID/maps for the path, or name the functions (--allocators)".to_owned()
        } else {
            let known: BTreeSet<_> = allocators::profiled_families().collect();
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            format!(
                "profile a process that uses {known}; if the allocator is in a stripped executable, install its debug \
                 symbols, or name its functions (--allocators)"
            )
        };
        Self::new(OTHER, chain(&error), remedy)
    }
}

impl From<NoJavaHeap> for Failure {
    fn from(error: NoJavaHeap) -> Self {
        let remedy = match &error {
            NoJavaHeap::NoJvm(_) => {
                "name the process of a JVM; jjleak memory -p PID says what another process grows by"
            }
            NoJavaHeap::Old { .. } => "use JDK 11 or later; jjleak -p PID follows the JVM's native memory",
            NoJavaHeap::NoSymbols { .. } => {
                "install the debug symbols of exactly this JVM (in Debian, openjdk-17-dbg for openjdk-17), or use a JDK whose library \
                 has symbols, such as Temurin"
            }
        };
        Self::new(OTHER, error.to_string(), remedy)
    }
}

impl From<reports::Error> for Failure {
    fn from(error: reports::Error) -> Self {
        use reports::Error as E;
        match error {
            E::Session(error) => error.into(),
            E::Render(error) => error.into(),
            E::Store(error) => error.into(),
            E::Stdout(_) => Self::new(OTHER, chain(&error), "check where stdout goes"),
            E::Graphviz(_) => {
                Self::new(OTHER, chain(&error), "install the package graphviz, or use --format dot")
            }
            E::Several(first, others) => {
                others.into_iter().map(Self::from).fold((*first).into(), |all: Self, next| Self {
                    what: format!("{}; {}", all.what, next.what),
                    ..all
                })
            }
        }
    }
}

impl From<live::Error> for Failure {
    fn from(error: live::Error) -> Self {
        use live::Error as E;
        match error {
            E::Session(error) => error.into(),
            E::Reports(error) => error.into(),
            E::Terminal(_) => {
                let remedy = "check the terminal (TERM), or run jjleak without top for reports";
                Self::new(OTHER, chain(&error), remedy)
            }
            E::Render(error) => error.into(),
            E::Store(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::Pid;

    #[test]
    fn what_the_kernel_forbids_is_a_missing_privilege() {
        let failure = |code| {
            let source = std::io::Error::from_raw_os_error(code);
            Failure::from(processes::Error::Read { path: "/proc/1/exe".into(), source })
        };
        assert_eq!([1, 13].map(|code| failure(code).code), [PREFLIGHT; 2]);
        assert_eq!(failure(24).code, OTHER);
    }

    #[test]
    fn a_probe_that_the_kernel_forbids_is_a_missing_privilege() {
        let failure = |code| {
            let io_error = std::io::Error::from_raw_os_error(code);
            let source = aya::sys::SyscallError { call: "perf_event_open", io_error };
            Failure::from(attach::Error::Attach { places: "malloc".to_owned(), source: Box::new(source) })
        };
        assert_eq!([1, 13].map(|code| failure(code).code), [PREFLIGHT; 2]);
        assert_eq!(failure(24).code, OTHER);
    }

    #[test]
    fn a_program_that_may_not_be_loaded_is_a_missing_privilege_with_a_remedy_of_its_own() {
        let failure = |code| {
            let source = std::io::Error::from_raw_os_error(code);
            Failure::from(attach::Error::Verify { name: "enter", said: String::new(), source })
        };
        assert_eq!((failure(1).code, failure(1).remedy.as_str()), (PREFLIGHT, allowance()));
        // EACCES means that the verifier rejects a program: the remedy is a bug report.
        assert!([13, 22].iter().all(|code| failure(*code).remedy.contains("-vv")));
    }

    #[test]
    fn several_failures_are_named_and_the_first_gives_the_code() {
        let failed = |text: &str| reports::Error::Stdout(std::io::Error::other(text.to_owned()));
        let all = Failure::from(reports::Error::Several(Box::new(failed("a")), vec![failed("b")]));
        assert_eq!(all.what, "writing to stdout failed: a; writing to stdout failed: b");
        assert_eq!((all.code, all.remedy.as_str()), (OTHER, "check where stdout goes"));
    }

    #[test]
    fn a_missing_process_has_its_own_exit_code() {
        let pid = Pid::new(7).unwrap();
        assert_eq!(Failure::from(processes::Error::NoSuchProcess(pid)).code, NO_TARGET);
        assert_eq!(Failure::from(attach::Error::Gone(pid)).code, NO_TARGET);
        let missing = attach::Missing::Btf;
        assert_eq!(Failure::from(attach::Error::Preflight(missing)).code, PREFLIGHT);
    }
}
