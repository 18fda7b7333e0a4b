//! Wrappers of bpf(2) for features missing from aya 0.14: programs of the attach type `BPF_TRACE_UPROBE_MULTI`, and their links.

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::from_mut;

use aya_obj::generated::bpf_attach_type::{BPF_PERF_EVENT, BPF_TRACE_UPROBE_MULTI};
use aya_obj::generated::{
    BPF_F_UPROBE_MULTI_RETURN, bpf_attr, bpf_cmd, bpf_link_info, bpf_prog_info, bpf_prog_type, bpf_stats_type,
};
use aya_obj::{Function, Program};
use nix::libc;

use super::undisturbed::undisturbed;

/// Size of the buffer for a rejected program's verifier log, which ends with the reason.
const LOG_BYTES: u32 = 1 << 16;
/// Log level: the processed instructions (`BPF_LOG_LEVEL1` in `include/linux/bpf_verifier.h`).
const LOG_INSTRUCTIONS: u32 = 1;

/// A rejected program.
pub(super) struct Refused {
    pub(super) error: io::Error,
    /// The verifier's log.
    pub(super) log: String,
}

/// Parameters of a uprobe-multi link.
#[derive(Clone, Copy)]
pub(super) struct MultiLink<'a> {
    /// The probed file.
    pub(super) file: &'a CStr,
    /// File offset of each probed instruction.
    pub(super) offsets: &'a [u64],
    /// Cookie of each probe.
    pub(super) cookies: &'a [u64],
    /// File offset of each probe's semaphore, 0 for none; empty if no probe has one.
    pub(super) semaphores: &'a [u64],
    /// The process whose hits count; 0 for all processes.
    pub(super) process: u32,
    /// True if the program runs at the return of the probed functions.
    pub(super) at_return: bool,
}

/// Loads the BTF of an object into the kernel.
pub(super) fn load_types(types: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = empty();
    // SAFETY: all of the union is zero, and this variant consists of integers.
    let load = unsafe { &mut attr.__bindgen_anon_7 };
    load.btf = types.as_ptr() as u64;
    load.btf_size = small(types.len())?;
    descriptor(bpf_cmd::BPF_BTF_LOAD, &mut attr)
}

/// Loads a program for uprobe-multi links.
pub(super) fn load_program(
    name: &str,
    program: &Program,
    code: &Function,
    types: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, Refused> {
    let error = match try_load(name, program, code, types, &mut []) {
        Ok(loaded) => return Ok(loaded),
        Err(error) => error,
    };
    let mut log = vec![0; LOG_BYTES as usize];
    // Load again to get the log.
    let _ = try_load(name, program, code, types, &mut log);
    let log = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default().into_owned();
    Err(Refused { error, log })
}

fn try_load(
    name: &str,
    program: &Program,
    code: &Function,
    types: Option<BorrowedFd<'_>>,
    log: &mut [u8],
) -> io::Result<OwnedFd> {
    let functions = code.func_info.func_info_bytes();
    let lines = code.line_info.line_info_bytes();
    let mut attr = empty();
    // SAFETY: all of the union is zero, and this variant consists of integers.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
    load.expected_attach_type = BPF_TRACE_UPROBE_MULTI as u32;
    load.insns = code.instructions.as_ptr() as u64;
    load.insn_cnt = small(code.instructions.len())?;
    load.license = program.license.as_ptr() as u64;
    // The kernel requires a final zero byte.
    let room = load.prog_name.len() - 1;
    for (to, from) in load.prog_name[..room].iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    if let Some(types) = types {
        load.prog_btf_fd = types.as_raw_fd().cast_unsigned();
        load.func_info = functions.as_ptr() as u64;
        load.func_info_cnt = small(code.func_info.func_info.len())?;
        load.func_info_rec_size = small(code.func_info_rec_size)?;
        load.line_info = lines.as_ptr() as u64;
        load.line_info_cnt = small(code.line_info.line_info.len())?;
        load.line_info_rec_size = small(code.line_info_rec_size)?;
    }
    if !log.is_empty() {
        load.log_level = LOG_INSTRUCTIONS;
        load.log_buf = log.as_mut_ptr() as u64;
        load.log_size = small(log.len())?;
    }
    descriptor(bpf_cmd::BPF_PROG_LOAD, &mut attr)
}

/// Attaches a program to several offsets of a file. Closing the descriptor detaches it.
pub(super) fn link(program: BorrowedFd<'_>, link: MultiLink<'_>) -> io::Result<OwnedFd> {
    let mut attr = empty();
    // SAFETY: all of the union is zero, and this variant consists of integers.
    let create = unsafe { &mut attr.link_create };
    create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    create.attach_type = BPF_TRACE_UPROBE_MULTI as u32;
    // SAFETY: as above.
    let multi = unsafe { &mut create.__bindgen_anon_3.uprobe_multi };
    multi.path = link.file.as_ptr() as u64;
    multi.offsets = link.offsets.as_ptr() as u64;
    multi.cookies = link.cookies.as_ptr() as u64;
    if !link.semaphores.is_empty() {
        multi.ref_ctr_offsets = link.semaphores.as_ptr() as u64;
    }
    multi.cnt = small(link.offsets.len().min(link.cookies.len()))?;
    multi.flags = if link.at_return { BPF_F_UPROBE_MULTI_RETURN } else { 0 };
    multi.pid = link.process;
    let number = undisturbed(|| call(bpf_cmd::BPF_LINK_CREATE, &mut { attr }))?;
    // SAFETY: the kernel has just created this descriptor for jjleak.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Attaches a program to a perf event. Closing the descriptor detaches it and closes the event.
pub(super) fn link_event(program: BorrowedFd<'_>, event: &impl AsRawFd, cookie: u64) -> io::Result<OwnedFd> {
    let mut attr = empty();
    // SAFETY: all of the union is zero, and this variant consists of integers.
    let create = unsafe { &mut attr.link_create };
    create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    create.__bindgen_anon_2.target_fd = event.as_raw_fd().cast_unsigned();
    create.attach_type = BPF_PERF_EVENT as u32;
    create.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
    descriptor(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

/// The kernel's number of a link; `None` if it does not report it.
pub(super) fn link_number(link: BorrowedFd<'_>) -> Option<u32> {
    // SAFETY: all fields are integers, or arrays of them.
    let mut about: bpf_link_info = unsafe { zeroed() };
    read_info(link, &mut about)?;
    Some(about.id)
}

/// A descriptor of the link with this number; `None` if there is none, or if jjleak may not get it (`CAP_SYS_ADMIN`).
pub(super) fn link_of_number(number: u32) -> Option<OwnedFd> {
    let mut attr = empty();
    // SAFETY: all of the union is zero, and this variant consists of integers.
    let query = unsafe { &mut attr.__bindgen_anon_6 };
    query.__bindgen_anon_1.link_id = number;
    descriptor(bpf_cmd::BPF_LINK_GET_FD_BY_ID, &mut attr).ok()
}

/// Number of instructions that the verifier processed for a program; `None` if the kernel does not report it.
pub(super) fn verified_instructions(program: BorrowedFd<'_>) -> Option<u32> {
    let verified = info(program)?.verified_insns;
    (verified != 0).then_some(verified)
}

/// Number of runs of a program, and their duration in nanoseconds, while measured ([`measure_runs`]).
pub(super) fn runs(program: BorrowedFd<'_>) -> Option<(u64, u64)> {
    info(program).map(|info| (info.run_cnt, info.run_time_ns))
}

/// Number of runs skipped because the program was already running on that CPU; 0 if the kernel does not report it.
pub(super) fn missed_runs(program: BorrowedFd<'_>) -> u64 {
    info(program).map_or(0, |info| info.recursion_misses)
}

/// Makes the kernel measure all BPF programs until the descriptor is closed.
pub(super) fn measure_runs() -> io::Result<OwnedFd> {
    let mut attr = empty();
    // SAFETY: all of the union is zero, and this variant consists of integers.
    let enable = unsafe { &mut attr.enable_stats };
    enable.type_ = bpf_stats_type::BPF_STATS_RUN_TIME as u32;
    descriptor(bpf_cmd::BPF_ENABLE_STATS, &mut attr)
}

fn info(program: BorrowedFd<'_>) -> Option<bpf_prog_info> {
    // SAFETY: all fields are integers, or arrays of them.
    let mut info: bpf_prog_info = unsafe { zeroed() };
    read_info(program, &mut info)?;
    Some(info)
}

/// Fills a structure with what the kernel says about an object of its kind.
fn read_info<T>(object: BorrowedFd<'_>, info: &mut T) -> Option<()> {
    let mut attr = empty();
    // SAFETY: all of the union is zero, and this variant consists of integers.
    let query = unsafe { &mut attr.info };
    query.bpf_fd = object.as_raw_fd().cast_unsigned();
    query.info_len = small(size_of::<T>()).ok()?;
    query.info = from_mut(info) as u64;
    call(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr).ok()?;
    Some(())
}

fn empty() -> bpf_attr {
    // SAFETY: a union of structures of integers; the kernel requires unused fields to be zero.
    unsafe { zeroed() }
}

/// A length as the kernel's u32.
fn small(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(io::Error::other)
}

/// Runs a command that returns a new descriptor.
fn descriptor(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    let number = call(command, attr)?;
    // SAFETY: the kernel has just created this descriptor for jjleak.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn call(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<RawFd> {
    // SAFETY: the size matches the attributes, and the memory that they point to outlives the call.
    let status = unsafe {
        libc::syscall(libc::SYS_bpf, command as libc::c_long, from_mut(attr), size_of::<bpf_attr>())
    };
    if status < 0 {
        Err(io::Error::last_os_error())
    } else {
        RawFd::try_from(status).map_err(io::Error::other)
    }
}
