//! jjleak names the call paths that leak memory in a running Linux process.
//!
//! Data flows one way, a module a stage; a stage uses only the types of the stages above it:
//!
//! | stage | turns | into |
//! |---|---|---|
//! | [`processes`] | a PID or a command | who the process is and which files it maps |
//! | [`allocators`] | mapped files | the allocator functions in them, and the instructions to probe |
//! | [`unwind`] | mapped files | rows: how the kernel side gets from each frame to its caller |
//! | [`jvm`] | a JVM's memory | its generated code: where it is, and the methods in it |
//! | [`perf_map`] | a process's perf map | names of code that other compilers generate |
//! | [`jcmd`] | a JVM, if the user wants it | a perf map that is written anew |
//! | [`attach`] | probe sites | armed BPF programs, detached when dropped |
//! | (kernel) | allocations and frees | maps: live blocks, stacks, counters (`jjleak-ebpf`) |
//! | [`mappings`] | system calls that map and unmap memory | the ranges that are mapped |
//! | [`sample_windows`] | windows of time | weights and errors of what is counted in them |
//! | [`collect`] | maps | a snapshot of one instant |
//! | [`symbolize`] | addresses | frames |
//! | [`profile`] | snapshot and frames | a profile: pure data |
//! | [`cost`] | what breakpoints take, and a profile | what being profiled costs |
//! | [`pprof`] | a profile, a file | a file, a profile |
//! | [`analyze`] | profiles, one after the other | a ranking, and verdicts on call sites |
//! | [`render`] | a ranked profile | text, JSON, SVG, pprof, collapsed stacks |
//! | [`top`] | profiles, one after the other, and keys | the cells of a terminal |
//! | [`doctor`] | a process | what the stages will be able to do with it, and what would help |
//! | [`store`] | rendered bytes | files that are whole or not there |
//! | [`push`] | files of profiles | what a store of profiles elsewhere takes |
//! | [`daemon`] | processes, for weeks | suspects, which are profiled, and a history that is served |
//! | [`cli`] | arguments | runs, which it wires together; exit codes |
//!
//! [`kept`] is the folder in which stages keep what saves them work. [`cli`] alone wires the stages together; [`daemon`] has
//! it profile what it suspects.

pub mod allocators;
pub mod analyze;
pub mod attach;
pub mod cli;
pub mod collect;
pub mod cost;
pub mod daemon;
pub mod doctor;
mod draws;
pub mod jcmd;
pub mod jvm;
pub mod kept;
pub mod mappings;
pub mod perf_map;
pub mod pprof;
pub mod processes;
pub mod profile;
pub mod push;
mod quick_map;
pub mod render;
pub mod sample_windows;
pub mod store;
pub mod symbolize;
pub mod top;
pub mod unwind;
