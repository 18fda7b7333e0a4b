//! Reads the spill: blocks that did not fit into their set of the live table.

use std::os::fd::{AsFd, AsRawFd};

use aya::maps::Map;
use jjleak_common::live::{Key, Record};
use jjleak_common::names;
use nix::errno::Errno;
use nix::libc;

use crate::attach::Error;

/// `BPF_MAP_LOOKUP_BATCH` of `enum bpf_cmd` (include/uapi/linux/bpf.h).
const LOOKUP_BATCH: libc::c_int = 24;

/// Entries per system call; one call per entry would take longer than the rest of a snapshot.
const BATCH: usize = 1 << 14;

/// The part of `union bpf_attr` used by batch operations.
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// All blocks in the spill. The kernel walks bucket by bucket under each bucket's lock: a block that stays is
/// found exactly once, whatever happens beside it.
pub(super) fn read(spill: &Map) -> Result<Vec<(Key, Record)>, Error> {
    let Map::HashMap(spill) = spill else {
        return Err(Error::ObjectLacks { what: "hash map", name: names::SPILL });
    };
    let fd = spill.fd().as_fd().as_raw_fd();
    let mut found = Vec::new();
    let mut size = BATCH;
    let mut position = None;
    loop {
        let mut keys = vec![0u64; size];
        let mut values = vec![Record { size: 0, time_ns: 0, stack: 0, reserved: 0 }; size];
        let mut next = 0u32;
        let mut attr = BatchAttr {
            in_batch: position.as_ref().map_or(0, |position: &u32| address(position)),
            out_batch: address(&raw mut next),
            keys: address(keys.as_mut_ptr()),
            values: address(values.as_mut_ptr()),
            count: u32::try_from(size).unwrap_or(u32::MAX),
            map_fd: fd.cast_unsigned(),
            elem_flags: 0,
            flags: 0,
        };
        let attr_bytes = size_of::<BatchAttr>();
        // SAFETY: the attributes point to as much memory as they say, alive until the call returns; a hash map's position
        // is a 32-bit number.
        let result = unsafe { libc::syscall(libc::SYS_bpf, LOOKUP_BATCH, &raw mut attr, attr_bytes) };
        let end = match Errno::result(result) {
            Ok(_) => false,
            Err(Errno::ENOENT) => true,
            // A bucket has more entries than the buffer.
            Err(Errno::ENOSPC) => {
                size *= 2;
                continue;
            }
            Err(error) => return Err(Error::Spill(error.into())),
        };
        let count = (attr.count as usize).min(size);
        found.extend(keys.into_iter().map(Key).zip(values).take(count));
        if end {
            return Ok(found);
        }
        position = Some(next);
    }
}

fn address<T>(pointer: *const T) -> u64 {
    pointer as u64
}
