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

mod accounting;
mod cost;
mod daemon;
mod hosts;
mod jvm;
mod output;
mod processes;
mod stacks;
mod world;
