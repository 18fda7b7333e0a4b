//! Gives up all privileges, and every system call but those that reading open files takes.
//!
//! blazesym opens files by their paths. No path reaches the kernel: system calls that are not permitted raise SIGSYS, whose handler
//! duplicates the descriptor that the path names.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::fs;
use std::io;

use nix::errno::Errno;
use nix::libc::{self, siginfo_t, ucontext_t};
use nix::sys::prctl::set_dumpable;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction, signal};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use super::mapped_pages::MappedPages;

/// Maximum number of bytes of memory that is not a mapped file. The debug information of a browser takes some 128 MiB.
const MAX_MEMORY_BYTES: u64 = 224 << 20;
/// Maximum number of descriptors. It suffices for [`super::client::MAX_FILES`] files, each with two more, opened twice.
const MAX_DESCRIPTORS: u64 = 1024;
/// The folder in which a path names a descriptor.
pub(super) const FOLDER: &str = "/descriptors";

/// Numbers of system calls that the C library has no names for yet.
const URETPROBE: libc::c_long = 335;
const UPROBE: libc::c_long = 336;

/// System calls that are permitted with any arguments.
const PERMITTED: [libc::c_long; 28] = [
    // Requests and replies.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    // Files that are open.
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_pread64,
    // Memory; mapping has conditions.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Time limits; musl's alarm(3) is a timer.
    libc::SYS_alarm,
    libc::SYS_setitimer,
    libc::SYS_clock_gettime,
    // The C library and the standard library.
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    // To end on a fault, the standard library resets the handler that detects stack overflows.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Linux 6.11 lets probes that others have placed in the C library make these.
    URETPROBE,
    UPROBE,
];

/// Confines this process for good.
pub(super) fn enter() -> io::Result<()> {
    // It ends when jjleak closes the socket. Signals for all processes of a terminal or a service would end it before.
    for ignored in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGPIPE] {
        // SAFETY: no handler is installed.
        unsafe { signal(ignored, SigHandler::SigIgn) }?;
    }
    close_others()?;
    // If memory runs out, this process is the first to end. Not being so is no danger.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    MappedPages::open()?.watch()?;
    let limits = [
        (Resource::RLIMIT_DATA, MAX_MEMORY_BYTES),
        (Resource::RLIMIT_NOFILE, MAX_DESCRIPTORS),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_FSIZE, 0),
    ];
    for (resource, most) in limits {
        setrlimit(resource, most, most)?;
    }
    set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    // What it reads may belong to any user.
    set_dumpable(false)?;
    let action = SigAction::new(SigHandler::SigAction(answer), SaFlags::SA_NODEFER, SigSet::empty());
    // SAFETY: the handler only makes system calls and reads a string; all of that is async-signal-safe.
    unsafe { sigaction(Signal::SIGSYS, &action) }?;
    let filter = filter().map_err(io::Error::other)?;
    apply_filter(&filter).map_err(io::Error::other)?;
    // A C library that opens files by other system calls than are answered here would lose all names without a word.
    let standard_output = format!("{FOLDER}/{}", libc::STDOUT_FILENO);
    fs::metadata(&standard_output).and_then(|_| fs::File::open(&standard_output))?;
    Ok(())
}

/// Closes all descriptors but the standard ones.
fn close_others() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: nothing in this process has other descriptors; it has just begun.
    let outcome = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn filter() -> Result<BpfProgram, BackendError> {
    let only_if = |argument: u8, operator: SeccompCmpOp, value: c_int| {
        let value = u64::from(value.unsigned_abs());
        SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?])
    };
    let executable = u64::from(libc::PROT_EXEC.unsigned_abs());
    let is_data = only_if(2, SeccompCmpOp::MaskedEq(executable), 0)?;
    let duplicates = only_if(1, SeccompCmpOp::Eq, libc::F_DUPFD_CLOEXEC)?;
    // musl's open(3) marks the descriptor once more.
    let marks = only_if(1, SeccompCmpOp::Eq, libc::F_SETFD)?;
    let mut rules: BTreeMap<_, _> = PERMITTED.into_iter().map(|call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_mmap, vec![is_data.clone()]);
    rules.insert(libc::SYS_mprotect, vec![is_data]);
    rules.insert(libc::SYS_fcntl, vec![duplicates, marks]);
    // abort(3) sends a signal to the caller; musl's names the thread, which is the process's only one.
    let own = c_int::try_from(std::process::id()).unwrap_or_default();
    for call in [libc::SYS_tgkill, libc::SYS_tkill] {
        rules.insert(call, vec![only_if(0, SeccompCmpOp::Eq, own)?]);
    }
    SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, TargetArch::x86_64)?.try_into()
}

/// Handler of system calls that are not permitted: sets their results.
extern "C" fn answer(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the context of the thread to handlers with SA_SIGINFO, which nix sets, and this one alone has it.
    let registers = unsafe { &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs };
    let at = |name: c_int| usize::try_from(name).unwrap_or_default();
    let arguments = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX].map(|name| registers[at(name)]);
    // Before the handler, the kernel has restored the number of the call (`syscall_rollback`).
    let call = registers[at(libc::REG_RAX)];
    registers[at(libc::REG_RAX)] = match answered(call, arguments) {
        Ok(result) => result,
        Err(errno) => -i64::from(errno as i32),
    };
}

/// Result of a system call that is not permitted: that of the same call for the descriptor that its path names.
fn answered(call: i64, [first, second, third]: [i64; 3]) -> Result<i64, Errno> {
    // SAFETY: the code of this process passes strings to these calls.
    let named = |address: i64| unsafe { string(address) }.and_then(descriptor).ok_or(Errno::ENOENT);
    match call {
        libc::SYS_openat => duplicate(named(second)?),
        // musl's open(3).
        libc::SYS_open => duplicate(named(first)?),
        // Without a path, it is the C library's fstat.
        libc::SYS_newfstatat => {
            // SAFETY: as above.
            let is_unnamed = unsafe { string(second) }.is_none_or(CStr::is_empty);
            state(if is_unnamed { first } else { named(second)?.into() }, third)
        }
        libc::SYS_stat => state(named(first)?.into(), second),
        _ => Err(Errno::ENOSYS),
    }
}

fn duplicate(file: c_int) -> Result<i64, Errno> {
    // SAFETY: duplicating a descriptor has no preconditions.
    Errno::result(unsafe { libc::syscall(libc::SYS_fcntl, file, libc::F_DUPFD_CLOEXEC, 0) })
}

fn state(file: i64, into: i64) -> Result<i64, Errno> {
    // SAFETY: the caller passes a buffer for a `struct stat`, which is the same for all of these calls.
    Errno::result(unsafe { libc::syscall(libc::SYS_fstat, file, into) })
}

/// The string at an address; `None` for NULL.
///
/// # Safety
///
/// A string must be there.
unsafe fn string<'any>(address: i64) -> Option<&'any CStr> {
    let address = usize::try_from(address).ok().filter(|address| *address != 0)?;
    // SAFETY: there is a string, as the caller guarantees.
    Some(unsafe { CStr::from_ptr(std::ptr::with_exposed_provenance(address)) })
}

/// The descriptor that a path in [`FOLDER`] names. What follows after a slash does not count: it is searched for in a folder that
/// is a descriptor, which has no more than one file.
fn descriptor(path: &CStr) -> Option<c_int> {
    let name = path.to_bytes().strip_prefix(FOLDER.as_bytes())?.strip_prefix(b"/")?;
    let number = name.split(|byte| *byte == b'/').next()?;
    str::from_utf8(number).ok()?.parse().ok().filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_descriptor_or_nothing() {
        assert_eq!(descriptor(c"/descriptors/12"), Some(12));
        assert_eq!(descriptor(c"/descriptors/7/.build-id/ab/cd.debug"), Some(7));
        for path in
            [c"/descriptors/12.dwp", c"/descriptors/0", c"/descriptors/-1", c"/descriptors", c"12", c""]
        {
            assert_eq!(descriptor(path), None, "{path:?}");
        }
    }
}
