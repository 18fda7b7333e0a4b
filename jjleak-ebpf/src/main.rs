//! jjleak's BPF programs.
//!
//! Thin probes: each passes the registers and the decoded attach cookie to the accounting rules.
//!
//! Modules in order: each uses only those above it. `cargo xtask check` makes sure of it.
//!
//! - `memory`: reads of memory, and atomic operations.
//! - `constants`: what the loader sets.
//! - `registers`, `syscall`: arguments of probes and system calls.
//! - `maps`: the maps that the user side knows, and counters.
//! - `current`: the current process and thread.
//! - `threads`: names of threads.
//! - `sampling`: the choice of sampled allocations.
//! - `stages`: the end of a program after a stage, in the benchmark's object only.
//! - `trace`: reports of individual allocations and frees.
//! - `stack`: captures the caller's stack and finds its row.
//! - `live`: the table of live blocks.
//! - `armed`: the process of a probe hit, and nesting of its calls.
//! - `accounting`: accounting of entries and frees.
//! - `outcome`: accounting of returns.
//! - `exits`: calls that end at a probe other than a return probe.
//! - `replacement`: mappings that replace others.
//! - `mapping`: reports of system calls that map and unmap memory.
//! - `fault`: reports of page faults.
//! - `java_heap`: reports of objects in Java heaps.
//! - `samples`: allocations that programs sample themselves.
//! - `process`: start, `exec` and end of processes.
//! - `steps`: single steps of the accounting, in the benchmark's object only.
//! - `programs`: the programs.
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
mod armed;
#[cfg(target_arch = "bpf")]
mod constants;
#[cfg(target_arch = "bpf")]
mod current;
#[cfg(target_arch = "bpf")]
mod exits;
#[cfg(target_arch = "bpf")]
mod fault;
#[cfg(target_arch = "bpf")]
mod java_heap;
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
mod ring;
#[cfg(target_arch = "bpf")]
mod samples;
#[cfg(target_arch = "bpf")]
mod sampling;
#[cfg(target_arch = "bpf")]
mod stack;
#[cfg(target_arch = "bpf")]
mod stages;
#[cfg(all(target_arch = "bpf", feature = "measuring"))]
mod steps;
#[cfg(target_arch = "bpf")]
mod syscall;
#[cfg(target_arch = "bpf")]
mod threads;
#[cfg(target_arch = "bpf")]
mod trace;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
