//! Follows system calls that map and unmap memory.
//!
//! The BPF programs run at entry and exit of the kernel's functions for these system calls. If a kernel does not support that,
//! they run at the tracepoints of all system calls, which slows down every system call of the host.

use std::error::Error as _;

use aya::programs::{FEntry, FExit, Program, RawTracePoint};
use aya::{Btf, Ebpf};

use super::Error;

/// The kernel's functions for the system calls on x86-64 (`__SYSCALL_DEFINEx` in `arch/x86/include/asm/syscall_wrapper.h`), with
/// the programs at their entry and exit.
const X86_64_FUNCTIONS: &[(&str, &str, &str)] = &[
    ("__x64_sys_mmap", "mmap_enter", "mmap_leave"),
    ("__x64_sys_munmap", "munmap_enter", "munmap_leave"),
    ("__x64_sys_mremap", "mremap_enter", "mremap_leave"),
    ("__x64_sys_brk", "brk_enter", "brk_leave"),
];

/// Attaches the programs. They report nothing about processes that are not armed.
pub(super) fn follow(ebpf: &mut Ebpf) -> Result<(), Error> {
    let Err(error) = follow_functions(ebpf) else { return Ok(()) };
    tracing::warn!(
        "fentry is unavailable for --mmap; using system call tracepoints (about 80 ns per call, host-wide, while jjleak runs)"
    );
    tracing::info!(%error, source = error.source(), "the reason");
    for &(_, enter, leave) in X86_64_FUNCTIONS {
        // Unloading fails if the program was not loaded.
        let _ = find::<FEntry>(ebpf, enter)?.unload();
        let _ = find::<FExit>(ebpf, leave)?.unload();
    }
    follow_all_calls(ebpf)
}

/// Attaches to the kernel's functions for the relevant calls only, so other calls keep their speed.
fn follow_functions(ebpf: &mut Ebpf) -> Result<(), Error> {
    let btf = Btf::from_sys_fs().map_err(|source| Error::KernelTypes(Box::new(source)))?;
    // Attach entries first: without its entry, an exit reports an unmapping too late.
    for &(function, enter, leave) in X86_64_FUNCTIONS {
        let program: &mut FEntry = find(ebpf, enter)?;
        program.load(function, &btf).map_err(|error| Error::follow(function, error))?;
        let program: &mut FExit = find(ebpf, leave)?;
        program.load(function, &btf).map_err(|error| Error::follow(function, error))?;
    }
    for &(function, enter, _) in X86_64_FUNCTIONS {
        let program: &mut FEntry = find(ebpf, enter)?;
        program.attach().map_err(|error| Error::follow(function, error))?;
    }
    for &(function, _, leave) in X86_64_FUNCTIONS {
        let program: &mut FExit = find(ebpf, leave)?;
        program.attach().map_err(|error| Error::follow(function, error))?;
    }
    Ok(())
}

/// Attaches to entry and exit of all system calls.
fn follow_all_calls(ebpf: &mut Ebpf) -> Result<(), Error> {
    for (tracepoint, name) in [("sys_enter", "syscall_enter"), ("sys_exit", "syscall_leave")] {
        let program: &mut RawTracePoint = find(ebpf, name)?;
        program.load().map_err(|error| Error::verify(name, error))?;
        program.attach(tracepoint).map_err(|error| Error::follow(tracepoint, error))?;
    }
    Ok(())
}

/// Finds a program of the object.
fn find<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut T, Error>
where
    &'a mut T: TryFrom<&'a mut Program>,
{
    let program = ebpf.program_mut(name).and_then(|program| program.try_into().ok());
    program.ok_or(Error::ObjectLacks { what: "program of the right type", name })
}
