//! Errors of this stage.

use std::io;
use std::path::PathBuf;

use super::Pid;

/// A process could not be inspected or started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such process.
    #[error("no process has the PID {0}")]
    NoSuchProcess(Pid),
    /// The process ended while jjleak inspected it.
    #[error("process {0} ended before jjleak was attached")]
    Gone(Pid),
    /// The PID is that of a thread.
    #[error("{thread} is a thread of process {process}, not a process")]
    IsThread {
        /// The given PID.
        thread: Pid,
        /// The process it belongs to.
        process: Pid,
    },
    /// The process has no memory of its own.
    #[error("process {0} is a kernel thread or a zombie: it maps no program")]
    NoProgram(Pid),
    /// The process runs a program whose pointers are not 64 bits wide.
    #[error("process {pid} runs a {program}, and jjleak profiles 64-bit programs only")]
    Narrow {
        /// The process.
        pid: Pid,
        /// The kind of its program.
        program: super::Narrow,
    },
    /// A file under /proc could not be read.
    #[error("reading {path} failed")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file under /proc does not have the format of proc(5).
    #[error("{path} has an unexpected format: {line:?}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The offending line.
        line: String,
    },
    /// A file under /proc is longer than jjleak reads: the process controls its length.
    #[error("{path} has more than {} MiB", most >> 20)]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Maximum length in bytes.
        most: u64,
    },
    /// A watch for the end of the process could not be set up.
    #[error("watching for the end of process {pid} failed")]
    Watch {
        /// The process.
        pid: Pid,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A command could not be started.
    #[error("starting {command:?} failed")]
    Start {
        /// Its first word.
        command: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A started command could not be traced.
    #[error("tracing {command:?} failed")]
    Trace {
        /// Its first word.
        command: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A started command ended before its first allocator was loaded.
    #[error("{command:?} ended before it loaded an allocator: {status}")]
    EndedEarly {
        /// Its first word.
        command: String,
        /// Its exit status or signal.
        status: String,
    },
}

impl Error {
    /// Error of a failed read of a /proc file. If the file has vanished, so has the process.
    pub(super) fn read(pid: Pid, path: PathBuf, source: io::Error) -> Self {
        const NO_SUCH_PROCESS: i32 = 3;
        match (source.kind(), source.raw_os_error()) {
            (io::ErrorKind::NotFound, _) | (_, Some(NO_SUCH_PROCESS)) => Self::Gone(pid),
            _ => Self::Read { path, source },
        }
    }
}
