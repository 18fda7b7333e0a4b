//! Threads that have allocated.

/// A thread of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Thread ID.
    pub number: u32,
    /// Last known name (`/proc/PID/task/TID/comm`).
    pub name: String,
    /// Ordinal, from 1, among the process's threads with this ID, in the order of first sight: the kernel
    /// reuses IDs of threads that have ended.
    pub nth: u32,
}
