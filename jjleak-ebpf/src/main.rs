//! jjleak's BPF programs.
//!
//! Thin probes: each passes the registers and the decoded attach cookie to the accounting rules.
//!
//! - `accounting`: accounting of entries and frees.
//! - `exits`: calls that end at a probe other than a return probe.
//! - `live`: the table of live blocks.
//! - `mapping`: reports of system calls that map and unmap memory.
//! - `sampling`: the choice of sampled allocations.
//! - `trace`: reports of individual allocations and frees.
//! - `process`: start, `exec` and end of processes.
//! - `replacement`: mappings that replace others.
//! - `stack`: captures the caller's stack and finds its row.
//! - `maps`, `memory`, `registers`, `syscall`: interface to the kernel.
//!
//! For targets other than BPF this is an empty program, so that the workspace can be checked without a BPF toolchain.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch, core_intrinsics))]
#![cfg_attr(
    target_arch = "bpf",
    expect(internal_features, reason = "AtomicU64's methods do not compile for BPF; the intrinsics do")
)]

#[cfg(target_arch = "bpf")]
mod accounting;
#[cfg(target_arch = "bpf")]
mod books;
#[cfg(target_arch = "bpf")]
mod exits;
#[cfg(target_arch = "bpf")]
mod live;
#[cfg(target_arch = "bpf")]
mod mapping;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod memory;
#[cfg(target_arch = "bpf")]
mod outcome;
#[cfg(target_arch = "bpf")]
mod process;
#[cfg(target_arch = "bpf")]
mod programs;
#[cfg(target_arch = "bpf")]
mod registers;
#[cfg(target_arch = "bpf")]
mod replacement;
#[cfg(target_arch = "bpf")]
mod sampling;
#[cfg(target_arch = "bpf")]
mod stack;
#[cfg(target_arch = "bpf")]
mod stages;
#[cfg(target_arch = "bpf")]
mod steps;
#[cfg(target_arch = "bpf")]
mod syscall;
#[cfg(target_arch = "bpf")]
mod threads;
#[cfg(target_arch = "bpf")]
mod trace;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
