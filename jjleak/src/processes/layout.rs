//! Maps memory mappings to segments of an ELF file, to convert file offsets to addresses.
//!
//! The kernel and dynamic loaders map a segment from the page that contains its first byte to the page that contains its last
//! (`elf_load` in `fs/binfmt_elf.c`, `_dl_map_segments` in glibc). Segments need not be page-aligned: with LLD and mold, the last
//! page of one segment is the first page of the next, and is mapped twice, at two addresses. An offset in such a page is
//! ambiguous, so no function here takes a bare offset.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::Range;

use super::Mapping;

/// Size of a memory page.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Maximum number of loaded segments of a file; linkers create up to ten. Each mapping is compared with each segment.
const MAX_SEGMENTS: usize = 64;
/// Maximum number of mapped parts of a file that are compared to resolve ambiguity. A file has a part per segment, and some more
/// where a process has changed the protection of pages.
const MAX_VOTERS: usize = 1024;

/// A loaded segment of a file (`PT_LOAD`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) file_offset: u64,
    pub(super) file_size: u64,
    pub(super) executable: bool,
}

/// The loaded segments of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Layout {
    segments: Vec<Segment>,
    /// True if the file is loaded at the addresses that it states (`ET_EXEC`).
    is_fixed: bool,
}

/// The mapped parts of one file.
#[derive(Debug, Default)]
pub(super) struct FileParts {
    parts: Vec<Part>,
    /// Number of parts that agree with a load bias, by load bias. Few files need it; it is the same for all parts of a file.
    votes: OnceCell<HashMap<u64, usize>>,
}

impl FileParts {
    pub(super) fn push(&mut self, part: Part) {
        self.parts.push(part);
    }
}

impl FromIterator<Part> for FileParts {
    fn from_iter<T: IntoIterator<Item = Part>>(parts: T) -> Self {
        Self { parts: parts.into_iter().collect(), votes: OnceCell::new() }
    }
}

/// A mapped part of a file.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) begin: u64,
    pub(super) offsets: Range<u64>,
    pub(super) executable: bool,
}

impl Part {
    /// A part with code.
    pub(super) fn of_code(addresses: &Range<u64>, file_offset: u64) -> Self {
        let bytes = addresses.end.saturating_sub(addresses.start);
        let offsets = file_offset..file_offset.saturating_add(bytes);
        Self { begin: addresses.start, offsets, executable: true }
    }

    pub(super) fn of(mapping: &Mapping) -> Self {
        let part = Self::of_code(&mapping.addresses, mapping.file_offset);
        Self { executable: mapping.executable, ..part }
    }
}

impl Segment {
    /// Addresses of what is in the file.
    pub(super) fn addresses(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.file_size)
    }

    /// Difference between address and file offset, wrapping.
    pub(super) fn addend(&self) -> u64 {
        self.address.wrapping_sub(self.file_offset)
    }

    /// File offsets of the mapped pages.
    fn pages(&self) -> Range<u64> {
        let end = self.file_offset.saturating_add(self.file_size);
        let end = end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        self.file_offset & !(PAGE_BYTES - 1)..end
    }

    /// Number of bytes of a part that can belong to this segment.
    fn shares(&self, part: &Part) -> u64 {
        let pages = self.pages();
        let end = pages.end.min(part.offsets.end);
        end.saturating_sub(pages.start.max(part.offsets.start))
    }

    /// Returns true if a part can belong to this segment. Loaders make parts of writable segments read-only after relocation, but
    /// code stays executable.
    fn can_be(&self, part: &Part) -> bool {
        self.shares(part) > 0 && (self.executable || !part.executable)
    }

    /// Load bias, if the part belongs to this segment.
    fn bias(&self, part: &Part) -> u64 {
        part.begin.wrapping_sub(part.offsets.start.wrapping_add(self.addend()))
    }
}

impl Layout {
    pub(super) fn new(segments: impl Iterator<Item = Segment>, is_fixed: bool) -> Self {
        // Loaders map no other segments: an address and its file offset must be congruent modulo the page size.
        let is_possible =
            |segment: &Segment| segment.file_size > 0 && segment.addend().is_multiple_of(PAGE_BYTES);
        let segments: Vec<_> = segments.filter(is_possible).take(MAX_SEGMENTS + 1).collect();
        if segments.len() > MAX_SEGMENTS {
            return Self::default();
        }
        Self { segments, is_fixed }
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Difference between addresses and file offsets of mapped code, wrapping. `mapped` are all parts of the same file: all
    /// segments share one load bias, so that the other parts resolve ambiguity. `None` if the part is not code of the file, or
    /// the result is not certain.
    pub(super) fn addend(&self, code: &Part, mapped: &FileParts) -> Option<u64> {
        // A mapping belongs to the segment that it shares most bytes with; with others, it shares only the common page.
        let most = self.segments.iter().map(|segment| segment.shares(code)).max()?;
        let possible = |segment: &&Segment| segment.executable && most > 0 && segment.shares(code) == most;
        let mut candidates: Vec<_> = self.segments.iter().filter(possible).collect();
        // Unless it is a copy that the program has made elsewhere, as V8 does of its builtins.
        if self.is_fixed && candidates.iter().any(|segment| segment.bias(code) == 0) {
            candidates.retain(|segment| segment.bias(code) == 0);
        }
        candidates.sort_by_key(|segment| segment.addend());
        candidates.dedup_by_key(|segment| segment.addend());
        if let [only] = candidates[..] {
            return Some(only.addend());
        }
        let agreeing = mapped.votes.get_or_init(|| self.votes(&mapped.parts));
        let votes = candidates.iter().map(|segment| agreeing.get(&segment.bias(code)).copied());
        let votes: Vec<_> = votes.map(Option::unwrap_or_default).collect();
        let best = votes.iter().max()?;
        let mut elected = candidates.iter().zip(&votes).filter(|(_, votes)| *votes == best);
        elected.next().filter(|_| elected.next().is_none()).map(|(segment, _)| segment.addend())
    }

    /// Number of mapped parts that agree with a load bias, by load bias; empty if there are too many parts.
    fn votes(&self, mapped: &[Part]) -> HashMap<u64, usize> {
        let mut votes = HashMap::new();
        if mapped.len() > MAX_VOTERS {
            return votes;
        }
        for part in mapped {
            let possible = self.segments.iter().filter(|segment| segment.can_be(part));
            let mut biases: Vec<_> = possible.map(|segment| segment.bias(part)).collect();
            biases.sort_unstable();
            biases.dedup();
            for bias in biases {
                *votes.entry(bias).or_default() += 1;
            }
        }
        votes
    }

    /// File offset of the code at an address.
    pub(super) fn offset_of_code(&self, address: u64) -> Option<u64> {
        let holds = |segment: &&Segment| {
            segment.executable && address.wrapping_sub(segment.address) < segment.file_size
        };
        let segment = self.segments.iter().find(holds)?;
        Some(address.wrapping_sub(segment.addend()))
    }

    /// Difference between addresses and file offsets, common to all of the file's code; `None` if it differs between segments.
    #[cfg(test)]
    pub(super) fn common_addend(&self) -> Option<u64> {
        let mut addends = self.segments.iter().filter(|segment| segment.executable).map(Segment::addend);
        let first = addends.next()?;
        addends.all(|addend| addend == first).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(file_offset: u64, address: u64, file_size: u64, executable: bool) -> Segment {
        Segment { address, file_offset, file_size, executable }
    }

    fn layout(segments: &[Segment]) -> Layout {
        Layout::new(segments.iter().copied(), false)
    }

    /// The mapping that loaders create for a segment.
    fn part(segment: &Segment, bias: u64) -> Part {
        let offsets = segment.pages();
        Part {
            begin: bias + segment.addend().wrapping_add(offsets.start),
            offsets,
            executable: segment.executable,
        }
    }

    /// LLD's layout of a Rust program: the text starts in the page in which the read-only segment ends.
    fn by_lld() -> [Segment; 3] {
        [
            segment(0, 0, 0x15e54, false),
            segment(0x15e60, 0x16e60, 0x3b3a1, true),
            segment(0x51208, 0x53208, 0x2df8, false),
        ]
    }

    #[test]
    fn code_in_a_page_that_two_segments_share_is_of_the_executable_one() {
        let segments = by_lld();
        let code = part(&segments[1], 0x5555_5555_4000);
        assert_eq!(code.offsets.start, 0x15000);
        let addend = layout(&segments).addend(&code, &FileParts::default());
        assert_eq!(addend, Some(0x1000));
        assert_eq!(layout(&segments).common_addend(), Some(0x1000));
    }

    #[test]
    fn a_part_that_the_text_was_split_into_is_of_the_same_segment() {
        let segments = by_lld();
        let rest = Part { begin: 0x9000, offsets: 0x20000..0x21000, executable: true };
        assert_eq!(layout(&segments).addend(&rest, &FileParts::default()), Some(0x1000));
    }

    #[test]
    fn what_is_no_code_of_the_file_has_no_addresses() {
        let segments = by_lld();
        for offsets in [0x1000..0x2000, 0x51000..0x54000, 0x100_0000..0x100_1000] {
            let code = Part { begin: 0x7000, offsets, executable: true };
            assert_eq!(layout(&segments).addend(&code, &FileParts::default()), None);
        }
    }

    /// Two code segments in one page, with different differences between address and offset: one-page mappings of both look the
    /// same.
    #[test]
    fn of_several_segments_in_one_page_the_other_mappings_decide() {
        let segments = [
            segment(0, 0, 0x1100, false),
            segment(0x1100, 0x2100, 0x80, true),
            segment(0x1180, 0x3180, 0x100, true),
            segment(0x1280, 0x4280, 0x9000, true),
        ];
        let layout = layout(&segments);
        let mapped: Vec<_> = segments.iter().map(|segment| part(segment, 0x7f00_0000_0000)).collect();
        let parts: FileParts = mapped.iter().cloned().collect();
        for (segment, code) in segments.iter().zip(&mapped).skip(1) {
            assert_eq!(layout.addend(code, &parts), Some(segment.addend()), "{segment:x?}");
        }
        let repeated: FileParts = mapped.iter().cycle().take(MAX_VOTERS + 1).cloned().collect();
        assert_eq!(layout.addend(&mapped[1], &repeated), None, "too many to compare");
        // By itself, a large mapping belongs to the large segment, and a small one is ambiguous.
        assert_eq!(layout.addend(&mapped[3], &FileParts::default()), Some(0x3000));
        assert_eq!(layout.addend(&mapped[1], &FileParts::default()), None);
        assert_eq!(layout.common_addend(), None);
        let fixed = Layout { is_fixed: true, ..layout };
        let at_its_address = part(&segments[1], 0);
        assert_eq!(fixed.addend(&at_its_address, &FileParts::default()), Some(0x1000));
    }

    /// V8 maps its builtins, which are a part of the executable, once more near the code that it generates.
    #[test]
    fn a_copy_of_code_has_the_addresses_of_its_origin() {
        let segments = [segment(0, 0x40_0000, 0x5000, false), segment(0x5000, 0x40_6000, 0x9000, true)];
        let fixed = Layout { is_fixed: true, ..layout(&segments) };
        let copy = Part { begin: 0x7f00_0000_0000, offsets: 0x7000..0x9000, executable: true };
        assert_eq!(fixed.addend(&copy, &FileParts::default()), Some(0x40_1000));
    }

    /// With an executable stack, old kernels make all mappings executable (`READ_IMPLIES_EXEC`) and merge adjacent ones.
    #[test]
    fn code_within_a_mapping_that_begins_before_it_is_found() {
        let segments = [segment(0, 0, 0x600, false), segment(0x1000, 0x1000, 0x5000, true)];
        let joined = Part { begin: 0x40_0000, offsets: 0..0x6000, executable: true };
        assert_eq!(layout(&segments).addend(&joined, &FileParts::default()), Some(0));
    }

    #[test]
    fn a_file_with_more_segments_than_any_linker_creates_has_no_layout() {
        let segments: Vec<_> =
            (0..=MAX_SEGMENTS as u64).map(|index| segment(index << 12, index << 12, 0x1000, true)).collect();
        assert_eq!(layout(&segments[1..]).segments().len(), MAX_SEGMENTS);
        assert_eq!(layout(&segments).segments(), []);
        assert_eq!(layout(&segments).addend(&part(&segments[0], 0), &FileParts::default()), None);
    }

    #[test]
    fn segments_that_no_loader_maps_count_for_nothing() {
        let odd = segment(0x1000, 0x1010, 0x5000, true);
        assert_eq!(layout(&[odd, segment(0x6000, 0x6000, 0, true)]).segments(), []);
    }
}
