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
//! | [`memory`] | a process's memory and pages | what they are used for, read from outside |
//! | [`perf_map`] | a process's perf map | names of code that other compilers generate |
//! | [`jcmd`] | a JVM, if the user wants it | a perf map that is written anew |
//! | [`attach`] | probe sites | armed BPF programs, detached when dropped |
//! | (kernel) | allocations and frees | maps: live blocks, stacks, counters (`jjleak-ebpf`) |
//! | [`mappings`] | system calls that map and unmap memory | the ranges that are mapped |
//! | [`java_objects`] | objects that JVMs announce | what was allocated in a Java heap, by class and stack |
//! | [`residency`] | page faults, and the state of pages | the stack that made each page resident |
//! | [`sample_windows`] | windows of time in which allocations are counted | weights and standard errors |
//! | [`snapshot`] | - | the types of what is known at one instant |
//! | [`collect`] | maps | a snapshot of one instant |
//! | [`symbolize`] | addresses | frames |
//! | [`profile`] | snapshot and frames | a profile: pure data |
//! | [`cost`] | the cost of breakpoints, and a profile | the overhead of profiling |
//! | [`pprof`] | a profile, a file | a file, a profile |
//! | [`heap_files`] | a heap profile in text | stacks of addresses or of names |
//! | [`analyze`] | profiles, one after the other | a ranking, and verdicts on call sites |
//! | [`render`] | a ranked profile | text, JSON, SVG, pprof, collapsed stacks |
//! | [`diagnosis`] | two scans of a process's memory | why it grows: evidence and the next step |
//! | [`top`] | successive profiles, and key presses | the cells of a terminal |
//! | [`doctor`] | a process | what the stages will be able to do with it, and what would help |
//! | [`store`] | rendered bytes | files that are complete or absent |
//! | [`push`] | profile files | requests to a remote profile store |
//! | [`notices`] | messages | lines on stderr, which no profiled process can forge |
//! | [`session`] | a plan of a run | profiles, events and notices, for an observer |
//! | [`reports`] | what a run delivers | text and JSON at every interval, files at the end |
//! | [`live`] | what a run delivers, and keys | a live view on a terminal |
//! | [`daemon`] | the memory of processes, for weeks | suspects to profile, and a history served over HTTP |
//! | [`self_test`] | this host | what works on it: features, privileges, an exact profile |
//! | [`cli`] | arguments | plans of runs; exit codes and remedies |
//!
//! Stages cache files in a [`cache_folder`], read files of a target through [`file_content`], and name packages of the
//! [`distribution`].

pub mod allocators;
pub mod analyze;
pub mod attach;
pub mod cache_folder;
pub mod cli;
pub mod collect;
pub mod cost;
pub mod daemon;
pub mod diagnosis;
pub mod distribution;
pub mod doctor;
mod error_chain;
mod fast_map;
pub mod file_content;
pub mod heap_files;
mod http_client;
pub mod java_objects;
pub mod jcmd;
pub mod jvm;
pub mod live;
pub mod mappings;
pub mod memory;
pub mod notices;
mod own_memory;
pub mod perf_map;
pub mod pprof;
pub mod processes;
pub mod profile;
pub mod push;
pub mod render;
pub mod reports;
pub mod residency;
pub mod sample_windows;
pub mod self_test;
pub mod session;
pub mod snapshot;
pub mod store;
pub mod symbolize;
pub mod top;
pub mod unwind;
