//! Failures of a run.

use std::io;
use std::path::PathBuf;

use super::{NotLoaded, SavedFileError};
use crate::processes::Pid;
use crate::{attach, processes};

/// Reason why a run ended, or did not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A process cannot be examined, or the command cannot be started.
    #[error(transparent)]
    Process(#[from] processes::Error),
    /// The kernel side cannot be loaded, attached or read.
    #[error(transparent)]
    Attach(#[from] attach::Error),
    /// The cost of profiling cannot be kept within a bound.
    #[error(transparent)]
    Bound(#[from] BoundError),
    /// A process has nothing to count.
    #[error(transparent)]
    NoAllocator(#[from] NoAllocator),
    /// A process has no Java heap that can be followed.
    #[error(transparent)]
    NoJavaHeap(#[from] NoJavaHeap),
    /// A process announces no samples.
    #[error(transparent)]
    NoSamples(#[from] NoSamples),
    /// A process has not loaded the library that draws samples.
    #[error(transparent)]
    NotLoaded(#[from] NotLoaded),
    /// There is no room for another process.
    #[error("no room for process {0}: the process table is full")]
    TooManyProcesses(Pid),
    /// The calls of a process cannot be counted, for an estimate.
    #[error(
        "this kernel cannot count calls: counting needs uprobe-multi links and run-time statistics of BPF programs"
    )]
    CountCalls,
    /// The cost of a breakpoint is unknown, for an estimate.
    #[error(
        "the cost of a breakpoint on this machine cannot be measured: probes on jjleak itself are not hit"
    )]
    BreakpointCost,
    /// A saved profile cannot be used.
    #[error(transparent)]
    SavedFile(#[from] SavedFileError),
    /// The operating system refuses what a run needs for itself.
    #[error("{what} failed")]
    Setup {
        /// The step that failed.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
}

/// Reason why the cost of profiling cannot be kept within a bound.
#[derive(Debug, thiserror::Error)]
pub enum BoundError {
    /// Probes cannot be removed and inserted quickly.
    #[error("this kernel has no uprobe-multi links, and takes seconds to remove probes")]
    SlowProbes,
    /// The cost of a breakpoint is unknown.
    #[error("the cost of a breakpoint on this machine cannot be measured")]
    BreakpointCost,
    /// The run time of BPF programs may not be measured.
    #[error(
        "the run time of BPF programs cannot be measured without CAP_SYS_ADMIN, which profiling does not need otherwise"
    )]
    MeasureForbidden(#[source] io::Error),
    /// The kernel does not measure the run time of BPF programs.
    #[error("this kernel does not measure the run time of BPF programs")]
    Measure(#[source] io::Error),
}

impl BoundError {
    /// The error of enabling run time statistics.
    pub(super) fn measure(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::MeasureForbidden(error),
            _ => Self::Measure(error),
        }
    }
}

/// A process of which nothing is counted.
#[derive(Debug, thiserror::Error)]
#[error(
    "process {pid}{}{}",
    self.only.as_ref().map_or_else(
        || " maps no allocator that jjleak knows".to_owned(),
        |only| format!(": it does not map {}, or jjleak knows no allocation functions in it", only.display()),
    ),
    self.unopened.as_ref().map_or_else(String::new, |unopened| format!(
        "; {} of its files cannot be opened, such as {}: {}",
        unopened.number, unopened.example.display(), unopened.error,
    )),
)]
pub struct NoAllocator {
    /// The process.
    pub pid: Pid,
    /// The only file to profile, if the plan names one.
    pub only: Option<PathBuf>,
    /// Files of the process that cannot be opened, if there are any.
    pub unopened: Option<UnopenedFiles>,
}

/// A process without a Java heap that can be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoJavaHeap {
    /// It runs no HotSpot JVM.
    #[error("process {0} runs no HotSpot JVM: it does not map libjvm.so")]
    NoJvm(Pid),
    /// The functions that announce objects do not say which thread allocates.
    #[error("process {pid} runs JDK {version}, which does not say which thread allocates")]
    Old {
        /// The process.
        pid: Pid,
        /// The JDK's major version.
        version: u64,
    },
    /// Its library has no symbols.
    #[error("process {pid}: {} has no symbols of the functions that announce objects (AllocTracer::send_allocation_in_new_tlab)", library.display())]
    NoSymbols {
        /// The process.
        pid: Pid,
        /// The library.
        library: PathBuf,
    },
}

/// A process that announces no samples of its allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("process {0} maps no file with the probes of a heap sampler (otel_memory or ddheap)")]
pub struct NoSamples(pub Pid);

/// Files of a process that cannot be opened.
#[derive(Debug)]
pub struct UnopenedFiles {
    /// Number of files.
    pub number: usize,
    /// One of them.
    pub example: PathBuf,
    /// Error on opening the example.
    pub error: String,
    /// True if that is a missing permission.
    pub is_forbidden: bool,
}

impl Error {
    /// Returns true if there is no process to profile.
    #[must_use]
    pub const fn is_missing_process(&self) -> bool {
        use processes::Error as E;
        matches!(
            self,
            Self::Attach(attach::Error::Gone(_))
                | Self::Process(
                    E::NoSuchProcess(_)
                        | E::Gone(_)
                        | E::IsThread { .. }
                        | E::NoProgram(_)
                        | E::Start { .. }
                        | E::EndedEarly { .. }
                )
        )
    }

    pub(super) const fn setup(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Setup { what, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_capability_is_named_and_not_the_kernel() {
        let message = |code| BoundError::measure(io::Error::from_raw_os_error(code)).to_string();
        let forbidden = message(nix::libc::EPERM);
        assert!(forbidden.contains("CAP_SYS_ADMIN") && !forbidden.contains("kernel"), "{forbidden}");
        assert!(message(nix::libc::EINVAL).contains("kernel"));
    }
}
