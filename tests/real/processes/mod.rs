//! Processes that start, end, fork, run other programs, or live in containers.

mod containers;
mod endings;
mod following;
mod fork_and_exec;
mod launches;
mod many_threads;
mod states;
mod turnover;
mod unseen;
