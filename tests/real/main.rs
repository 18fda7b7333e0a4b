//! Tests of jjleak on the real kernel: it attaches to real processes, and its reports are compared with their own accounting.
//!
//! Fixtures are driven by a handshake, and all waits are bounded. Tests that need root and the BPF programs say so with
//! `require_bpf!()`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on should panic, and say where"
)]
#![expect(clippy::print_stdout, reason = "tests say what they have measured")]

mod support;

mod absent;
mod asking;
mod bcc;
mod calls;
mod capabilities;
mod clients;
mod completeness;
mod containers;
mod costs;
mod crashes;
mod daemon;
mod depths;
mod differential;
mod doctor;
mod edges;
mod endings;
mod escapes;
mod families;
mod faults;
mod fibres;
mod filters;
mod fleet;
mod following;
mod formats;
mod generated;
mod go;
mod java_turns;
mod java_ways;
mod javac;
mod jdks;
mod jvm;
mod jvm_memory;
mod launches;
mod layouts;
mod mappings;
mod modes;
mod multitude;
mod named;
mod names;
mod operators;
mod overflow;
mod overhead;
mod pages;
mod perf_maps;
mod places;
mod processes;
mod programs;
mod progress;
mod refusals;
mod replacements;
mod sampling;
mod saved;
mod servers;
mod service;
mod snapshots;
mod soak;
mod stacks;
mod states;
mod surroundings;
mod threads;
mod top;
mod turnover;
mod units;
mod unknown_allocators;
mod unseen;
mod verdicts;
mod verifier;
mod views;
mod world;
