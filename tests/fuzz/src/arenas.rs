//! Arenas of glibc in a process that forges them.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use jjleak::jvm::Memory;
use jjleak::memory::glibc::{self, PageState, Pages};
use jjleak::processes::{FileId, Mapping};

const PAGE: u64 = 4096;
/// Start of libc's data, of the program break, and of a heap of another arena.
const RANGES: [Range<u64>; 3] =
    [0x7000_0000_0000..0x7000_0000_2000, 0x5000_0000..0x5001_0000, 0x7fff_0000_0000..0x7fff_0001_0000];
const ARENA: u64 = 0x7000_0000_0040;
/// Offsets in an arena: its bins, and the next arena.
const BINS: u64 = 0x70;
const NEXT: u64 = BINS + 127 * 16 + 16;
/// A change: an offset, a range, and a number.
const CHANGE_BYTES: usize = 12;

struct Forged {
    memory: [Vec<u8>; 3],
    /// Page that is not resident.
    absent: u64,
}

impl Forged {
    fn put(&mut self, address: u64, value: u64) {
        let place = RANGES.iter().position(|range| range.contains(&address));
        let Some(index) = place else { return };
        let offset = (address - RANGES[index].start) as usize;
        if let Some(bytes) = self.memory[index].get_mut(offset..offset + 8) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// An empty main arena, and one whose heap has nothing but a top.
    fn valid() -> Self {
        let memory = RANGES.map(|range| vec![0; (range.end - range.start) as usize]);
        let mut forged = Self { memory, absent: 0 };
        let other = RANGES[2].start + 0x30;
        let tops = [RANGES[1].start, RANGES[2].start + 0x8d0];
        for (arena, next, top, bytes) in [(ARENA, other, tops[0], 0x10000), (other, ARENA, tops[1], 0x10000)]
        {
            for bin in 0..127 {
                let itself = arena + BINS + 16 * bin - 16;
                forged.put(itself + 16, itself);
                forged.put(itself + 24, itself);
            }
            forged.put(arena + BINS - 16, top);
            for (offset, value) in [(0, next), (16, 1), (24, bytes), (32, bytes)] {
                forged.put(arena + NEXT + offset, value);
            }
        }
        forged.put(tops[0] + 8, 0x10001);
        forged.put(tops[1] + 8, (0x10000 - 0x8d0) | 1);
        forged.put(RANGES[2].start, other);
        forged.put(RANGES[2].start + 16, 0x10000);
        forged
    }
}

impl Memory for Forged {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let place = RANGES.iter().position(|range| range.contains(&address));
        let Some(index) = place else { return 0 };
        let bytes = &self.memory[index][(address - RANGES[index].start) as usize..];
        let length = bytes.len().min(into.len());
        into[..length].copy_from_slice(&bytes[..length]);
        let pages = address / PAGE..(address + length as u64).div_ceil(PAGE);
        assert!(!pages.contains(&self.absent), "a page that is not resident was read");
        length
    }
}

impl Pages for Forged {
    fn states(&self, range: Range<u64>, into: &mut Vec<PageState>) -> io::Result<()> {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        assert!(pages.end - pages.start < 1 << 22, "a range of {range:x?} was asked for");
        let state = |page: u64| {
            let is_there = page != self.absent && RANGES.iter().any(|range| range.contains(&(page * PAGE)));
            if is_there { PageState::Resident } else { PageState::Absent }
        };
        into.extend(pages.map(state));
        Ok(())
    }
}

/// Reads arenas with any words changed. What is known adds up.
pub(crate) fn arenas(data: &[u8]) {
    let mut forged = Forged::valid();
    let (changes, rest) = data.as_chunks::<CHANGE_BYTES>();
    for change in changes {
        let [range, first, second, _, value @ ..] = change;
        let range = &RANGES[usize::from(*range) % RANGES.len()];
        let offset = u64::from(u16::from_le_bytes([*first, *second])) & !7;
        forged.put(range.start + offset, u64::from_le_bytes(*value));
    }
    if let [page, ..] = rest {
        forged.absent = RANGES[usize::from(*page) % 3].start / PAGE + u64::from(*page) / 3 % 16;
    }
    let mapping = |addresses: &Range<u64>, file, path: &str| Mapping {
        addresses: addresses.clone(),
        executable: false,
        file_offset: 0,
        file,
        path: PathBuf::from(path),
        deleted: false,
    };
    let libc = Some(FileId { device: (1, 1), inode: 1 });
    let maps = [
        mapping(&RANGES[1], None, "[heap]"),
        mapping(&RANGES[0], libc, "/lib/libc.so.6"),
        mapping(&RANGES[2], None, ""),
    ];
    if let Ok(arenas) = glibc::read(&forged, &forged, &maps) {
        for arena in &arenas.arenas {
            if let Ok(usage) = arena.usage {
                assert_eq!(usage.bytes(), arena.system_bytes, "{arena:?}");
            }
        }
        assert!(!changes.is_empty() || arenas.total().is_ok() || forged.absent != 0, "{arenas:?}");
    }
}
