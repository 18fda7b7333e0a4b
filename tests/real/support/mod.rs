//! Building blocks of the tests on the real kernel: fixtures, a running jjleak, and bounded waits. Every process and folder is
//! removed with its guard.

pub(crate) mod accounts;
pub(crate) mod attached;
pub(crate) mod bounded;
pub(crate) mod bpf_objects;
pub(crate) mod browser;
pub(crate) mod compile;
pub(crate) mod daemon;
pub(crate) mod java;
pub(crate) mod jit;
pub(crate) mod jjleak;
pub(crate) mod ledger;
pub(crate) mod lines;
pub(crate) mod oracle;
pub(crate) mod privilege;
pub(crate) mod probes;
pub(crate) mod process;
pub(crate) mod return_probes;
pub(crate) mod shares;
pub(crate) mod tables;
pub(crate) mod terminal;
