//! Tests return probes on a child of jjleak with a system call filter.
//!
//! Since Linux 6.11, a function with a return probe on x86-64 returns to a trampoline that calls `uretprobe(2)`. Until the fix of
//! February 2025 (cf6cb56ef244, "seccomp: passthrough uretprobe systemcall without filtering"), system call filters (seccomp)
//! that do not know this call killed the process. The behaviour is tested rather than derived from the version, because fixes are
//! backported.

use std::arch::naked_asm;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid as Child, fork};

use super::probes::close_links;
use crate::processes::{Mapping, Pid};

/// If set, the child makes a call that its filter forbids, as on a kernel without the fix; for tests.
const FORBIDDEN_CALL: &str = "JJLEAK_TEST_FORBIDDEN_CALL";

/// The probed function.
#[unsafe(naked)]
extern "C" fn probed() {
    naked_asm!("nop", "ret")
}

/// Returns true if a process with a system call filter survives return probes; `attach` places one at an offset of jjleak's own
/// program, for a process.
pub(super) fn survives(attach: &dyn Fn(u64, u32) -> io::Result<OwnedFd>) -> io::Result<bool> {
    let own = Pid::new(std::process::id()).ok_or(Errno::ESRCH)?;
    let mappings = Mapping::all(own).map_err(io::Error::other)?;
    let address = probed as *const () as u64;
    let mapping = mappings.iter().find(|mapping| mapping.executable && mapping.addresses.contains(&address));
    let mapping = mapping.ok_or_else(|| io::Error::other("jjleak's own code is not mapped"))?;
    let offset = address - mapping.addresses.start + mapping.file_offset;
    let makes_forbidden_call = std::env::var_os(FORBIDDEN_CALL).is_some();
    let (waits, go) = io::pipe()?;
    // SAFETY: the child only makes system calls and calls a function that does nothing.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(go);
            // SAFETY: this is the child of the fork, and it does nothing else.
            unsafe { child(&waits.into(), makes_forbidden_call) }
        }
        ForkResult::Parent { child } => {
            drop(waits);
            let link = attach(offset, child.as_raw().cast_unsigned());
            let is_probed = has_breakpoint(child, address);
            // The child resumes when the pipe is closed, even if the probe failed.
            drop(go);
            let status = wait(child);
            close_links(vec![link?]);
            if !is_probed? {
                return Err(io::Error::other("the kernel has put no probe into the child"));
            }
            match status? {
                WaitStatus::Exited(_, 0) => Ok(true),
                WaitStatus::Signaled(_, Signal::SIGSYS, _) => Ok(false),
                other => Err(io::Error::other(format!("the child ended otherwise: {other:?}"))),
            }
        }
    }
}

/// Returns true if there is a breakpoint at an address of the child.
fn has_breakpoint(child: Child, address: u64) -> io::Result<bool> {
    /// `int3`.
    const BREAKPOINT: u8 = 0xcc;
    let mut byte = [0];
    File::open(format!("/proc/{child}/mem"))?.read_exact_at(&mut byte, address)?;
    Ok(byte == [BREAKPOINT])
}

fn wait(child: Child) -> io::Result<WaitStatus> {
    loop {
        match waitpid(child, None) {
            Err(Errno::EINTR) => {}
            status => return Ok(status?),
        }
    }
}

/// Waits for the parent, forbids all system calls but exit, and calls the function.
///
/// # Safety
///
/// Only for the child of a fork: it does not return.
unsafe fn child(waits: &OwnedFd, makes_forbidden_call: bool) -> ! {
    use std::os::fd::AsRawFd;

    /// `linux/seccomp.h`.
    const KILL_PROCESS: u32 = 0x8000_0000;
    const ALLOW: u32 = 0x7fff_0000;
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let instruction = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let end = u32::try_from(libc::SYS_exit_group).unwrap_or_default();
    let mut filter = [
        instruction(LOAD_NUMBER, 0, 0),
        instruction(JUMP_IF_EQUAL, 1, end),
        instruction(RETURN, 0, ALLOW),
        instruction(RETURN, 0, KILL_PROCESS),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    let mut byte = 0_u8;
    // SAFETY: the arguments of the system calls outlive them, and the function has none.
    unsafe {
        while libc::read(waits.as_raw_fd(), (&raw mut byte).cast(), 1) < 0 {}
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0 {
            libc::_exit(1);
        }
        probed();
        if makes_forbidden_call {
            libc::syscall(libc::SYS_getppid);
        }
        libc::syscall(libc::SYS_exit_group, 0);
        libc::_exit(1)
    }
}
