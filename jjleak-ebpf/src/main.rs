//! jjleak's BPF programs.
//!
//! Thin probes: each hands the registers and the decoded attach cookie to the accounting rules.
//!
//! - `accounting`: what an entry, a return and a free do to the books.
//! - `exits`: calls whose end is seen by another probe than one at their return.
//! - `live`: the table of live blocks.
//! - `mapping`: tells of system calls that map and unmap memory.
//! - `sampling`: which allocations are left out.
//! - `trace`: tells of single allocations and frees.
//! - `process`: what happens to a process as a whole.
//! - `replacement`: when a mapping takes another one's place.
//! - `stack`: takes the caller's stack and finds its row.
//! - `maps`, `memory`, `registers`, `syscall`: the kernel's side of things.
//!
//! On any other target than BPF this is an empty program, so that the workspace checks without a BPF toolchain.
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
