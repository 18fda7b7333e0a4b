//! Starts a command so that its first allocation can be counted.
//!
//! The command is traced (ptrace(2)) while the dynamic loader maps its libraries, and stops after each one, so that
//! probes are in place before any code of the library runs. The first system call from outside the loader shows
//! that loading is over; then the command is let go and never stopped again.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid as RawPid;

use super::{Error, Mapping, Pid};

/// System call number of mmap on x86-64.
const SYS_MMAP: u64 = 9;
/// More system calls than any loader makes for its libraries; a program whose loader never lets go is not held up
/// for longer.
const MAX_LOADER_CALLS: u32 = 100_000;

/// A command that has been started and is stopped while it loads.
pub struct Launch {
    child: Child,
    name: String,
    pid: Pid,
    raw: RawPid,
    loader: Option<std::ops::Range<u64>>,
    calls: u32,
    /// A signal that stopped the command, to be delivered when it goes on.
    signal: Option<Signal>,
}

/// How far a launch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A file was mapped.
    Mapped,
    /// Everything is loaded.
    Loaded,
}

impl Launch {
    /// Starts a command; it is stopped before its first instruction.
    pub fn start(words: &[OsString]) -> Result<Self, Error> {
        let Some((program, arguments)) = words.split_first() else {
            return Err(Error::Start {
                command: String::new(),
                source: io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"),
            });
        };
        let name = program.to_string_lossy().into_owned();
        let failed = |source| Error::Start { command: name.clone(), source };
        let mut command = Command::new(program);
        command.args(arguments);
        // SAFETY: both calls are async-signal-safe system calls.
        unsafe {
            command.pre_exec(|| {
                SigSet::empty().thread_set_mask()?;
                ptrace::traceme().map_err(Into::into)
            });
        }
        let child = command.spawn().map_err(failed)?;
        let raw =
            i32::try_from(child.id()).map(RawPid::from_raw).map_err(io::Error::other).map_err(failed)?;
        let pid = Pid::new(child.id()).ok_or_else(|| failed(io::Error::other("PID 0")))?;
        let mut launch = Self { child, name, pid, raw, loader: None, calls: 0, signal: None };
        launch.wait()?;
        let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
        ptrace::setoptions(raw, options).map_err(|errno| launch.failed(errno))?;
        launch.loader = loader(&Mapping::all(pid)?, entry_of_loader(pid));
        Ok(launch)
    }

    /// The command's PID.
    #[must_use]
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets the command run until it has mapped another file or has loaded everything.
    pub fn advance(&mut self) -> Result<Progress, Error> {
        let Some(loader) = self.loader.clone() else { return Ok(Progress::Loaded) };
        while self.calls < MAX_LOADER_CALLS {
            self.calls += 1;
            ptrace::syscall(self.raw, self.signal.take()).map_err(|errno| self.failed(errno))?;
            if !self.wait()? {
                continue;
            }
            let registers = ptrace::getregs(self.raw).map_err(|errno| self.failed(errno))?;
            if !loader.contains(&registers.rip) {
                return Ok(Progress::Loaded);
            }
            // At its entry the call has not happened yet: rax is -ENOSYS there.
            let returned = registers.rax.cast_signed() != -i64::from(nix::libc::ENOSYS);
            if registers.orig_rax == SYS_MMAP && returned {
                return Ok(Progress::Mapped);
            }
        }
        Ok(Progress::Loaded)
    }

    /// Lets the command go.
    pub fn release(self) -> Result<Running, Error> {
        ptrace::detach(self.raw, self.signal).map_err(|errno| self.failed(errno))?;
        Ok(Running { child: self.child })
    }

    /// Waits for the next stop; whether it is at a system call.
    fn wait(&mut self) -> Result<bool, Error> {
        match waitpid(self.raw, Some(WaitPidFlag::__WALL)).map_err(|errno| self.failed(errno))? {
            WaitStatus::PtraceSyscall(_) => Ok(true),
            WaitStatus::Stopped(_, Signal::SIGTRAP) => Ok(false),
            WaitStatus::Stopped(_, signal) => {
                self.signal = Some(signal);
                Ok(false)
            }
            WaitStatus::Exited(_, code) => Err(self.ended(format!("exit status {code}"))),
            WaitStatus::Signaled(_, signal, _) => Err(self.ended(format!("killed by {signal}"))),
            _ => Ok(false),
        }
    }

    fn ended(&self, status: String) -> Error {
        Error::EndedEarly { command: self.name.clone(), status }
    }

    fn failed(&self, errno: nix::Error) -> Error {
        Error::Start { command: self.name.clone(), source: errno.into() }
    }
}

/// A command that runs on its own.
pub struct Running {
    child: Child,
}

impl Running {
    /// How the command ended; `None` while it runs.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until the command has ended.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        self.child.wait().ok()
    }
}

/// Where the dynamic loader's code is mapped: its base comes from the auxiliary vector (`AT_BASE`, getauxval(3)),
/// which is 0 for a static executable.
fn loader(mappings: &[Mapping], base: Option<u64>) -> Option<std::ops::Range<u64>> {
    let file = mappings.iter().find(|mapping| Some(mapping.addresses.start) == base)?.file?;
    mappings
        .iter()
        .find(|mapping| mapping.file == Some(file) && mapping.executable)
        .map(|mapping| mapping.addresses.clone())
}

/// `AT_BASE` of a process.
fn entry_of_loader(pid: Pid) -> Option<u64> {
    const AT_BASE: u64 = 7;
    let auxiliary = std::fs::read(pid.proc_file("auxv")).ok()?;
    let (words, _) = auxiliary.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    let base = pairs.iter().find(|pair| u64::from_ne_bytes(pair[0]) == AT_BASE)?;
    Some(u64::from_ne_bytes(base[1])).filter(|base| *base != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn libc_is_mapped_before_everything_is_loaded_and_the_status_is_the_commands_own() {
        let mut launch = Launch::start(&words(&["/bin/sh", "-c", "exit 3"])).unwrap();
        let has_libc = |pid| {
            let maps = Mapping::all(pid).unwrap();
            maps.iter().any(|mapping| mapping.path.to_string_lossy().contains("libc.so"))
        };
        assert!(!has_libc(launch.pid()));
        while launch.advance().unwrap() == Progress::Mapped {}
        assert!(has_libc(launch.pid()));
        assert_eq!(launch.release().unwrap().wait().unwrap().code(), Some(3));
    }

    #[test]
    fn a_command_that_is_not_there_is_named() {
        let error = Launch::start(&words(&["/nonexistent/program"])).err().unwrap();
        assert!(matches!(error, Error::Start { command, .. } if command == "/nonexistent/program"));
    }
}
