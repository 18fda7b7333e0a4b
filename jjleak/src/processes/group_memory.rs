//! Memory of a process's control group.

use std::fs;
use std::path::Path;

use super::Pid;
use super::memory::groups;

/// Memory of a control group, in bytes (`memory.current` and `memory.stat` of cgroup v2, or their counterparts of v1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupMemory {
    /// All that is charged to it.
    pub current: u64,
    /// Anonymous memory.
    pub anonymous: u64,
    /// Page cache, shared memory included.
    pub file: u64,
    /// Shared memory and tmpfs; a part of `file`.
    pub shared: u64,
    /// Buffers of sockets.
    pub sockets: u64,
    /// The kernel's slabs.
    pub slab: u64,
    /// Kernel stacks of threads.
    pub kernel_stacks: u64,
    /// Page tables.
    pub page_tables: u64,
}

impl GroupMemory {
    /// The innermost group of a process that accounts for memory; `None` if there is none or it cannot be read.
    #[must_use]
    pub fn of(pid: Pid) -> Option<Self> {
        groups(pid)?.iter().find_map(|folder| Self::read(folder))
    }

    fn read(folder: &Path) -> Option<Self> {
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let current =
            text("memory.current").or_else(|| text("memory.usage_in_bytes"))?.trim().parse().ok()?;
        Some(Self { current, ..Self::parse(&text("memory.stat").unwrap_or_default()) })
    }

    fn parse(stat: &str) -> Self {
        let field = |name: &str| {
            let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok();
            stat.lines().find_map(value).unwrap_or_default()
        };
        // The second name is that of v1.
        let either = |name: &str, old: &str| field(name).max(field(old));
        Self {
            current: 0,
            anonymous: either("anon", "total_rss"),
            file: either("file", "total_cache"),
            shared: either("shmem", "total_shmem"),
            sockets: field("sock"),
            slab: field("slab"),
            kernel_stacks: field("kernel_stack"),
            page_tables: field("pagetables"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let new =
            GroupMemory::parse("anon 10\nfile 20\nshmem 5\nsock 1\nslab 2\nkernel_stack 3\npagetables 4\n");
        assert_eq!((new.anonymous, new.file, new.shared, new.slab, new.page_tables), (10, 20, 5, 2, 4));
        let old = GroupMemory::parse("cache 1\ntotal_cache 20\ntotal_rss 10\ntotal_shmem 5\n");
        assert_eq!((old.anonymous, old.file, old.shared), (10, 20, 5));
    }
}
