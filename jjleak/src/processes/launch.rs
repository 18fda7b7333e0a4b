//! Starts a command such that its first allocation is counted.
//!
//! The command is traced (ptrace(2)) while the dynamic loader maps its libraries, and stops after each one, so that probes are in
//! place before any code of the library runs. The first system call from outside the loader ends the loading phase, or the program's first
//! instruction: musl's loader is its C library, too. The command is then released and never stopped again.

use std::ffi::OsString;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::{fs, io};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid as RawPid;
use object::{Object, ObjectSymbol, ReadCache};

use super::descriptors::restore_descriptor_limit;
use super::{Error, Mapping, Pid};

/// Keys of the auxiliary vector (linux/auxvec.h): base address of the loader, and entry point of the executable.
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
/// System call number of mmap on x86-64.
const SYS_MMAP: u64 = 9;
/// Above the number of system calls that any loader makes. Limits the delay of a program whose loader never finishes.
const MAX_LOADER_CALLS: u32 = 100_000;
/// Debug register with the address of a breakpoint, and the one that switches breakpoints on; and its bit for the first one.
const ADDRESS: usize = 0;
const CONTROL: usize = 7;
const FIRST: i64 = 1;

/// A started command, stopped while it loads.
pub struct Launch {
    child: Child,
    name: String,
    arguments: Vec<OsString>,
    pid: Pid,
    raw: RawPid,
    loader: Option<Range<u64>>,
    /// The program's first instruction, if the command stops there.
    entry: Option<u64>,
    calls: u32,
    /// Signal that stopped the command, to be delivered when it resumes.
    signal: Option<Signal>,
}

/// Standard streams of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// Inherited from jjleak.
    Inherited,
    /// Connected to `/dev/null`.
    Silent,
}

/// Reason why the command stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    SystemCall,
    Entry,
    Other,
}

/// Progress of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A file was mapped.
    Mapped,
    /// Everything is loaded.
    Loaded,
}

impl Launch {
    /// Starts a command, stopped before its first instruction.
    pub fn start(
        words: &[OsString],
        streams: Streams,
        variables: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> Result<Self, Error> {
        let Some((program, arguments)) = words.split_first() else {
            return Err(Error::Start {
                command: String::new(),
                source: io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"),
            });
        };
        let name = program.to_string_lossy().into_owned();
        let failed = |source| Error::Start { command: name.clone(), source };
        let mut command = Command::new(program);
        command.args(arguments).envs(variables);
        if streams == Streams::Silent {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        }
        // SAFETY: these are async-signal-safe system calls.
        unsafe {
            command.pre_exec(|| {
                SigSet::empty().thread_set_mask()?;
                restore_descriptor_limit()?;
                ptrace::traceme().map_err(Into::into)
            });
        }
        let child = command.spawn().map_err(failed)?;
        let raw =
            i32::try_from(child.id()).map(RawPid::from_raw).map_err(io::Error::other).map_err(failed)?;
        let pid = Pid::new(child.id()).ok_or_else(|| failed(io::Error::other("PID 0")))?;
        let arguments = arguments.to_vec();
        let mut launch =
            Self { child, name, arguments, pid, raw, loader: None, entry: None, calls: 0, signal: None };
        launch.wait()?;
        let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
        ptrace::setoptions(raw, options).map_err(|errno| launch.failed(errno))?;
        launch.loader = loader(pid)?;
        launch.stop_at_entry();
        Ok(launch)
    }

    /// Makes the command stop at the program's first instruction. Where the processor has no breakpoint to spare, or a virtual machine
    /// none at all, the first system call from outside the loader has to do.
    fn stop_at_entry(&mut self) {
        let auxiliary = fs::read(self.pid.proc_file("auxv")).unwrap_or_default();
        // Without a base address, the loader is the command, and the entry its own.
        let is_loaded = auxiliary_value(&auxiliary, AT_BASE).is_some_and(|base| base != 0);
        let Some(entry) = auxiliary_value(&auxiliary, AT_ENTRY).filter(|_| is_loaded) else { return };
        let is_set =
            self.set_debug_register(ADDRESS, entry.cast_signed()) && self.set_debug_register(CONTROL, FIRST);
        self.entry = is_set.then_some(entry);
    }

    fn set_debug_register(&self, register: usize, value: i64) -> bool {
        let offset = offset_of!(nix::libc::user, u_debugreg) + register * size_of::<u64>();
        ptrace::write_user(self.raw, offset as *mut _, value).is_ok()
    }

    /// The command's PID.
    #[must_use]
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// Arguments of the command, without its name.
    #[must_use]
    pub fn arguments(&self) -> &[OsString] {
        &self.arguments
    }

    /// Resumes the command until it has mapped another file or has loaded everything.
    pub fn advance(&mut self) -> Result<Progress, Error> {
        let Some(loader) = self.loader.clone() else { return Ok(Progress::Loaded) };
        while self.calls < MAX_LOADER_CALLS {
            self.calls += 1;
            ptrace::syscall(self.raw, self.signal.take()).map_err(|errno| self.failed(errno))?;
            match self.wait()? {
                Stop::SystemCall => {}
                Stop::Entry => return Ok(Progress::Loaded),
                Stop::Other => continue,
            }
            let registers = ptrace::getregs(self.raw).map_err(|errno| self.failed(errno))?;
            if !loader.contains(&registers.rip) {
                return Ok(Progress::Loaded);
            }
            // At system call entry, rax is -ENOSYS: the call has not happened yet.
            let returned = registers.rax.cast_signed() != -i64::from(nix::libc::ENOSYS);
            if registers.orig_rax == SYS_MMAP && returned {
                return Ok(Progress::Mapped);
            }
        }
        Ok(Progress::Loaded)
    }

    /// Detaches from the command and lets it run.
    pub fn release(self) -> Result<Running, Error> {
        // A breakpoint would outlast its debugger.
        self.set_debug_register(CONTROL, 0);
        ptrace::detach(self.raw, self.signal).map_err(|errno| self.failed(errno))?;
        Ok(Running { child: self.child })
    }

    /// Waits for the next stop.
    fn wait(&mut self) -> Result<Stop, Error> {
        match waitpid(self.raw, Some(WaitPidFlag::__WALL)).map_err(|errno| self.failed(errno))? {
            WaitStatus::PtraceSyscall(_) => Ok(Stop::SystemCall),
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                let at = ptrace::getregs(self.raw).map_err(|errno| self.failed(errno))?.rip;
                Ok(if self.entry == Some(at) { Stop::Entry } else { Stop::Other })
            }
            WaitStatus::Stopped(_, signal) => {
                self.signal = Some(signal);
                Ok(Stop::Other)
            }
            WaitStatus::Exited(_, code) => Err(self.ended(format!("exit status {code}"))),
            WaitStatus::Signaled(_, signal, _) => Err(self.ended(format!("killed by {signal}"))),
            _ => Ok(Stop::Other),
        }
    }

    fn ended(&self, status: String) -> Error {
        Error::EndedEarly { command: self.name.clone(), status }
    }

    fn failed(&self, errno: nix::Error) -> Error {
        Error::Trace { command: self.name.clone(), source: errno.into() }
    }
}

/// A command that runs untraced.
pub struct Running {
    child: Child,
}

impl Running {
    /// Exit status of the command; `None` while it runs.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until the command has ended.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        self.child.wait().ok()
    }
}

/// Address range of the dynamic loader's code; `None` for a static executable, which is loaded from the start.
fn loader(pid: Pid) -> Result<Option<Range<u64>>, Error> {
    let auxiliary = fs::read(pid.proc_file("auxv")).unwrap_or_default();
    let base = auxiliary_value(&auxiliary, AT_BASE).filter(|base| *base != 0);
    // There is no base address if the loader itself is the command: `ld.so PROGRAM`.
    let inside = base.or_else(|| auxiliary_value(&auxiliary, AT_ENTRY).filter(|_| is_loader(pid)));
    let mappings = Mapping::all(pid)?;
    let file = mappings
        .iter()
        .find(|mapping| inside.is_some_and(|address| mapping.addresses.contains(&address)))
        .and_then(|mapping| mapping.file);
    let code = mappings.iter().find(|mapping| mapping.file == file && mapping.executable);
    Ok(file.and(code).map(|mapping| mapping.addresses.clone()))
}

/// A value of the auxiliary vector (getauxval(3)).
fn auxiliary_value(auxiliary: &[u8], key: u64) -> Option<u64> {
    let (words, _) = auxiliary.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    let pair = pairs.iter().find(|pair| u64::from_ne_bytes(pair[0]) == key)?;
    Some(u64::from_ne_bytes(pair[1]))
}

/// Returns true if the executable is a dynamic loader. Loaders export `_r_debug`, the list of loaded objects for debuggers
/// (link.h).
fn is_loader(pid: Pid) -> bool {
    let Ok(file) = fs::File::open(pid.proc_file("exe")) else { return false };
    let content = ReadCache::new(file);
    let Ok(elf) = object::File::parse(&content) else { return false };
    elf.dynamic_symbols().any(|symbol| symbol.is_definition() && symbol.name_bytes() == Ok(b"_r_debug"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn libc_is_mapped_before_everything_is_loaded_and_the_status_is_the_commands_own() {
        let shell = ["/bin/sh", "-c", "exit 3"];
        let through_the_loader = ["/lib64/ld-linux-x86-64.so.2", "/bin/sh", "-c", "exit 3"];
        for command in [&shell[..], &through_the_loader] {
            let mut launch = Launch::start(&words(command), Streams::Inherited, []).unwrap();
            let has_libc = |pid| {
                let maps = Mapping::all(pid).unwrap();
                maps.iter().any(|mapping| mapping.path.to_string_lossy().contains("libc.so"))
            };
            assert!(!has_libc(launch.pid()));
            while launch.advance().unwrap() == Progress::Mapped {}
            assert!(has_libc(launch.pid()));
            assert_eq!(launch.release().unwrap().wait().unwrap().code(), Some(3));
        }
    }

    #[test]
    fn a_command_that_is_not_there_is_named() {
        let error = Launch::start(&words(&["/nonexistent/program"]), Streams::Silent, []).err().unwrap();
        assert!(matches!(error, Error::Start { command, .. } if command == "/nonexistent/program"));
    }
}
