//! Arenas in memory that the tests make.

use std::cell::Cell;
use std::io;

use proptest::prelude::*;

use super::*;
use crate::processes::FileId;

/// Address of libc's data, with the main arena at `ARENA`.
const DATA: u64 = 0x7000_0000_0000;
const ARENA: u64 = DATA + 0x40;
/// Start of the program break.
const BREAK: u64 = 0x5000_0000;
const BINS: u64 = 0x70;
const NEXT: u64 = BINS + 127 * 16 + 16;

/// Memory of two ranges, and the states of its pages.
struct Image {
    data: Vec<u8>,
    heap: Vec<u8>,
    /// State of the pages from an address on.
    states: Vec<(u64, PageState)>,
    /// True once a page was read that is not resident.
    has_faulted: Cell<bool>,
}

impl Image {
    fn state(&self, address: u64) -> PageState {
        self.states
            .iter()
            .rfind(|(page, _)| address / PAGE == *page / PAGE)
            .map_or(PageState::Resident, |found| found.1)
    }

    fn put(&mut self, address: u64, value: u64) {
        let (bytes, start) = if address >= DATA { (&mut self.data, DATA) } else { (&mut self.heap, BREAK) };
        let offset = usize::try_from(address - start).unwrap();
        bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// A main arena whose break is `pages` long, with chunks of these sizes, in use or free, and a top.
    fn with(chunks: &[(u64, bool)], pages: u64) -> Self {
        let mut image = Self {
            data: vec![0; 0x2000],
            heap: vec![0; usize::try_from(pages * PAGE).unwrap()],
            states: Vec::new(),
            has_faulted: Cell::new(false),
        };
        let mut at = BREAK;
        let mut before = 1;
        for (size, is_used) in chunks {
            image.put(at + 8, size | before);
            before = u64::from(*is_used);
            at += size;
            if !is_used {
                image.put(at, *size);
            }
        }
        let end = BREAK + pages * PAGE;
        image.put(at + 8, (end - at) | before);
        for bin in 0..127 {
            let itself = ARENA + BINS + 16 * bin - 16;
            image.put(itself + 16, itself);
            image.put(itself + 24, itself);
        }
        image.put(ARENA + BINS - 16, at);
        for (offset, value) in [(0, ARENA), (16, 1), (24, pages * PAGE), (32, pages * PAGE)] {
            image.put(ARENA + NEXT + offset, value);
        }
        image
    }

    fn maps(&self) -> Vec<Mapping> {
        let mapping = |addresses, file, path: &str| Mapping {
            addresses,
            executable: false,
            file_offset: 0,
            file,
            path: path.into(),
            deleted: false,
        };
        let file = Some(FileId { device: (1, 1), inode: 7 });
        vec![
            mapping(BREAK..BREAK + self.heap.len() as u64, None, "[heap]"),
            mapping(DATA..DATA + self.data.len() as u64, file, "/lib/libc.so.6"),
        ]
    }

    fn usage(&self) -> Result<Usage, Unknown> {
        read(self, self, &self.maps()).and_then(|arenas| arenas.total())
    }
}

impl Memory for Image {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let (bytes, start) = if address >= DATA { (&self.data, DATA) } else { (&self.heap, BREAK) };
        let offset = usize::try_from(address.wrapping_sub(start)).unwrap_or(usize::MAX);
        let bytes = bytes.get(offset..).unwrap_or_default();
        let length = bytes.len().min(into.len());
        into[..length].copy_from_slice(&bytes[..length]);
        let pages = (address & !(PAGE - 1)..address + length as u64).step_by(4096);
        if pages.into_iter().any(|page| self.state(page) != PageState::Resident) {
            self.has_faulted.set(true);
        }
        length
    }
}

impl Pages for Image {
    fn states(&self, range: Range<u64>, into: &mut Vec<PageState>) -> io::Result<()> {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        if pages.end - pages.start > 1 << 20 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        into.extend(pages.map(|page| self.state(page * PAGE)));
        Ok(())
    }
}

#[test]
fn live_and_free_chunks_add_up_to_the_arena() {
    let image = Image::with(&[(0x1000, true), (0x5000, false), (0x40, true)], 16);
    let usage = image.usage().unwrap();
    assert_eq!(usage.live, Chunks { count: 2, bytes: 0x1040 });
    assert_eq!(usage.binned, Chunks { count: 1, bytes: 0x5000 });
    assert_eq!((usage.top, usage.bytes()), (0x9fc0, 0x10000));
}

#[test]
fn a_trim_gives_back_whole_pages_behind_the_links_and_of_the_top() {
    // Free from 0x1000 to 0x6000: the first page keeps the links. The top, from 0x6040 on, keeps its first page.
    let image = Image::with(&[(0x1000, true), (0x5000, false), (0x40, true)], 16);
    assert_eq!(image.usage().unwrap().free.trimmable, 0x4000 + 0x9000);
    assert_eq!(image.usage().unwrap().free.pinned, 0x1000 + 0xfc0);
}

#[test]
fn pages_that_are_not_resident_are_not_read() {
    let mut image = Image::with(&[(0x1000, true), (0x5000, false), (0x40, true)], 16);
    image.states = vec![(BREAK + 0x3000, PageState::Absent), (BREAK + 0x4000, PageState::Swapped)];
    let free = image.usage().unwrap().free;
    assert_eq!((free.absent, free.swapped, free.trimmable), (0x1000, 0x1000, 0x2000 + 0x9000));
    assert!(!image.has_faulted.get());
}

#[test]
fn a_header_in_swap_makes_the_arena_unknown() {
    let mut image = Image::with(&[(0x1000, true), (0x5000, false), (0x40, true)], 16);
    image.states = vec![(BREAK + 0x6000, PageState::Swapped)];
    assert_eq!(image.usage(), Err(Unknown::Swapped));
    assert!(!image.has_faulted.get());
}

#[test]
fn chunks_in_fastbins_are_free_and_merge_with_their_neighbours_in_a_trim() {
    // Two chunks of 0x40 in front of a free one: together they start a page earlier.
    let mut image =
        Image::with(&[(0xf80, true), (0x40, true), (0x40, true), (0x3000, false), (0x40, true)], 16);
    let (first, second) = (BREAK + 0xf80, BREAK + 0xfc0);
    image.put(ARENA + 0x10 + 8 * 2, first);
    image.put(first + 16, ((first + 16) >> 12) ^ second);
    image.put(second + 16, (second + 16) >> 12);
    let usage = image.usage().unwrap();
    assert_eq!(usage.fast, Chunks { count: 2, bytes: 0x80 });
    assert_eq!(usage.live, Chunks { count: 2, bytes: 0xfc0 });
    assert_eq!(usage.free.trimmable, 0x3000 + 0xb000);
}

#[test]
fn chunks_in_a_threads_cache_are_not_live() {
    let mut image = Image::with(&[(0x290, true), (0x30, true), (0x30, true), (0x30, true)], 4);
    let cache = BREAK + 16;
    let (first, second) = (BREAK + 0x290 + 16, BREAK + 0x2c0 + 16);
    image.put(cache, 2 << 16);
    image.put(cache + 128 + 8, first);
    image.put(first, (first >> 12) ^ second);
    image.put(second, second >> 12);
    for entry in [first, second] {
        image.put(entry + 8, 0xfeed_beef);
    }
    let arenas = read(&image, &image, &image.maps()).unwrap();
    let usage = arenas.total().unwrap();
    assert_eq!(arenas.thread_caches, 1);
    assert_eq!(usage.cached, Chunks { count: 2, bytes: 0x60 });
    assert_eq!(usage.live, Chunks { count: 2, bytes: 0x2c0 });
}

#[test]
fn a_list_that_contradicts_its_counter_is_no_cache() {
    let mut image = Image::with(&[(0x290, true), (0x30, true)], 4);
    image.put(BREAK + 16, 3 << 16);
    let entry = BREAK + 0x290 + 16;
    image.put(BREAK + 16 + 128 + 8, entry);
    image.put(entry, entry >> 12);
    assert_eq!(read(&image, &image, &image.maps()).unwrap().thread_caches, 0);
}

#[test]
fn a_damaged_heap_is_unknown() {
    for (offset, value) in [(0x1008, 0x5008_u64), (0x1008, 0x7fff_0001), (0x6000, 0x4ff0), (0x6048, 0x9fb0)] {
        let mut image = Image::with(&[(0x1000, true), (0x5000, false), (0x40, true)], 16);
        image.put(BREAK + offset, value);
        assert_eq!(image.usage(), Err(Unknown::Torn), "{offset:x}");
    }
}

#[test]
fn fenceposts_within_the_break_are_those_of_another_user() {
    let mut image = Image::with(&[(0x1000, true), (0x40, true)], 4);
    image.put(BREAK + 0x1008, 0x11);
    assert_eq!(image.usage(), Err(Unknown::ForeignBreak));
}

#[test]
fn without_an_arena_nothing_is_known() {
    let mut image = Image::with(&[], 4);
    image.data.fill(0);
    assert_eq!(image.usage(), Err(Unknown::NoArena));
}

#[test]
fn an_arena_that_another_allocator_replaces_is_empty() {
    let mut image = Image::with(&[], 4);
    for offset in [24, 32] {
        image.put(ARENA + NEXT + offset, 0);
    }
    assert_eq!(image.usage(), Ok(Usage::default()));
}

#[test]
fn the_own_arenas_are_read_and_stay_as_they_are() {
    let pid = crate::processes::Pid::new(std::process::id()).unwrap();
    let memory = crate::jvm::ProcessMemory::open(pid).unwrap();
    let pages = ProcessPages::open(pid).unwrap();
    // Other tests allocate meanwhile: whatever the result, it adds up.
    if let Ok(arenas) = read(&memory, &pages, &Mapping::all(pid).unwrap()) {
        for arena in &arenas.arenas {
            if let Ok(usage) = arena.usage {
                assert_eq!(usage.bytes(), arena.system_bytes);
            }
        }
    }
}

proptest! {
    #[test]
    fn every_heap_adds_up(chunks in proptest::collection::vec((2_u64..600, any::<bool>()), 1..60)) {
        // Free chunks are never neighbours of each other, nor of the top.
        let mut last = false;
        let mut chunks: Vec<_> = chunks.into_iter().map(|(units, is_used)| {
            last = is_used || !last;
            (units * 16, last)
        }).collect();
        chunks.push((32, true));
        let all: u64 = chunks.iter().map(|(size, _)| size).sum();
        let pages = all / PAGE + 2;
        let usage = Image::with(&chunks, pages).usage().unwrap();
        let live: u64 = chunks.iter().filter(|(_, is_used)| *is_used).map(|(size, _)| size).sum();
        prop_assert_eq!(usage.live.bytes, live);
        prop_assert_eq!(usage.bytes(), pages * PAGE);
        prop_assert_eq!(usage.free.bytes(), usage.binned.bytes + usage.fast.bytes + usage.top);
    }

    #[test]
    fn no_damage_makes_the_reader_panic_or_read_what_is_not_resident(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>(), any::<bool>()), 1..8),
        absent in 0_u64..16,
    ) {
        let mut image = Image::with(&[(0x290, true), (0x5000, false), (0x40, true), (0x800, true)], 16);
        image.states = vec![(BREAK + absent * PAGE, PageState::Absent)];
        for (at, value, is_data) in damage {
            let (start, words) = if is_data { (ARENA, 0x120) } else { (BREAK, 16 * 512) };
            image.put(start + 8 * at.index(words) as u64, value);
        }
        if let Ok(usage) = image.usage() {
            prop_assert_eq!(usage.bytes(), 16 * PAGE);
        }
        prop_assert!(!image.has_faulted.get());
    }
}

/// Memory of a program that allocates or frees each time that the structure of its arena has been read.
struct Busy {
    before: Image,
    after: Image,
    has_moved: Cell<bool>,
}

impl Memory for Busy {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let is_structure = address >= DATA && into.len() > 8;
        if is_structure {
            self.has_moved.set(false);
        }
        let read = if self.has_moved.get() { &self.after } else { &self.before }.read(address, into);
        if address == ARENA + BINS - 16 {
            self.has_moved.set(true);
        }
        read
    }
}

#[test]
fn an_arena_is_read_as_it_was_if_its_top_moves_all_the_time() {
    let usage = |before: &[(u64, bool)], after: &[(u64, bool)]| {
        let [before, after] = [before, after].map(|chunks| Image::with(chunks, 16));
        let maps = before.maps();
        let pages = Image::with(&[], 16);
        let busy = Busy { before, after, has_moved: Cell::new(false) };
        read(&busy, &pages, &maps).and_then(|arenas| arenas.total())
    };
    let few = [(0x1000, true), (0x40, true)];
    let more = [(0x1000, true), (0x40, true), (0x60, true), (0x60, true)];
    // What was allocated since was free.
    let allocates = usage(&few, &more).unwrap();
    assert_eq!((allocates.live, allocates.bytes()), (Chunks { count: 2, bytes: 0x1040 }, 0x10000));
    // What was freed since is a part of the top.
    let frees = usage(&more, &few).unwrap();
    assert_eq!((frees.live, frees.bytes()), (Chunks { count: 2, bytes: 0x1040 }, 0x10000));
    // A chunk in front of the top was freed, and a larger one allocated across the place of the top.
    let enlarges = usage(&more[..3], &[(0x1000, true), (0x40, true), (0x200, true)]).unwrap();
    assert_eq!((enlarges.live, enlarges.bytes()), (Chunks { count: 3, bytes: 0x10a0 }, 0x10000));
    // Its size is wrong if it ends behind the present top.
    let mut damaged = Image::with(&[(0x1000, true), (0x40, true), (0x200, true)], 16);
    damaged.put(BREAK + 0x1040 + 8, 0x2001);
    let busy = Busy { before: Image::with(&more[..3], 16), after: damaged, has_moved: Cell::new(false) };
    let read = read(&busy, &Image::with(&[], 16), &busy.before.maps()).and_then(|arenas| arenas.total());
    assert_eq!(read, Err(Unknown::Torn));
}

#[test]
fn lists_of_free_chunks_say_the_same_as_a_walk_over_all() {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use crate::jvm::ProcessMemory;
    use crate::processes::Pid;

    // Hundreds of free chunks between others, of all sizes, in a process that does nothing any more.
    let script = "my @k = map { 'x' x (($_ * 37) % 9000) } 1..20000; \
                  for (0..$#k) { undef $k[$_] if $_ % 3 == 0 || ($_ > 5000 && $_ < 5400) } $| = 1; print 'r'; <STDIN>";
    let mut child = Command::new("perl")
        .args(["-e", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let pid = Pid::new(child.id()).unwrap();
    let (memory, pages) = (ProcessMemory::open(pid).unwrap(), ProcessPages::open(pid).unwrap());
    let maps = Mapping::all(pid).unwrap();
    let scan = Scan { reader: Reader { memory: &memory, pages: &pages }, maps: &maps };
    let (layout, ring) = scan.reader.arenas(&data(&maps)).unwrap();
    let header = scan.reader.header(ring[0], layout).unwrap();
    let segments = scan.segments(&header, true).unwrap();
    let ranges: Vec<_> = segments.iter().map(|segment| segment.range.clone()).collect();

    let walked = scan.walk(&header, &segments, &ranges, &mut Vec::new()).unwrap();
    let listed = scan.listed(&header, &segments, &ranges).unwrap().unwrap();

    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(walked.binned.count > 100 && listed.is_by_lists, "{walked:?}");
    assert_eq!(listed.live.bytes, walked.live.bytes, "neither knows what thread caches have");
    assert_eq!((listed.binned, listed.fast, listed.top), (walked.binned, walked.fast, walked.top));
    assert_eq!((listed.bytes(), listed.overhead), (walked.bytes(), walked.overhead));
    // A walk merges chunks of fastbins with their neighbours, as a trim does.
    assert!(listed.free.trimmable <= walked.free.trimmable, "{listed:?} {walked:?}");
    assert_eq!(listed.free.resident(), walked.free.resident());
}
