//! Waits for the programs of the kernel side that run.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use aya_obj::generated::bpf_map_type::{BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_ARRAY_OF_MAPS};

use super::bpf;

/// A map in a map, which are there to be waited for.
///
/// Whoever puts another map into a map is to know that no program uses the one that was there before. So the kernel comes back
/// from that when all have ended that had begun before it, on every processor and whatever interrupts them
/// (`maybe_wait_bpf_programs` in `kernel/bpf/syscall.c`, since Linux 5.0; programs that may sleep excepted, of which there are none).
#[derive(Debug)]
pub(in crate::attach) struct Grace {
    outer: OwnedFd,
    inner: OwnedFd,
}

impl Grace {
    pub(in crate::attach) fn new() -> io::Result<Self> {
        let inner = bpf::create_map(BPF_MAP_TYPE_ARRAY, None)?;
        let outer = bpf::create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, Some(inner.as_fd()))?;
        Ok(Self { outer, inner })
    }

    /// Waits until no program runs that ran when this began.
    pub(in crate::attach) fn wait(&self) -> io::Result<()> {
        bpf::put_map(self.outer.as_fd(), self.inner.as_fd())
    }
}
