//! Finds a module's code and call frame information.

use std::{borrow::Cow, ops::Range};

use gimli::{BaseAddresses, EhFrameHdr};
use jjleak_common::unwind::PAGE_BYTES;
use object::{
    CompressionFormat, LittleEndian, Object, ObjectSection, ReadRef,
    elf::{self, FileHeader64, ProgramHeader64},
    read::elf::{ElfFile, FileHeader, ProgramHeader, SectionHeader, SectionTable},
};

use super::{
    Error, fibre,
    go::{self, GoCode, Image},
    start,
};
use crate::file_content::Content;

/// Maximum unpacked size of a compressed section. The size comes from the file; Go programs, which compress `.debug_frame`, have
/// a few MiB.
const MAX_UNPACKED_BYTES: u64 = 64 << 20;

/// Maximum number of candidates for Go's table if no section has its name; the eight bytes at its beginning are rare.
const MAX_GO_TABLES: usize = 4;

pub(super) const ADDRESS_BYTES: u8 = 8;

/// The call frame information of a module, and the code that it describes.
pub(super) struct CallFrames<'data> {
    /// The file.
    pub(super) elf: Content<'data>,
    pub(super) text: Text,
    pub(super) eh_frame: Option<Section<'data>>,
    pub(super) debug_frame: Option<Section<'data>>,
    /// Code described by Go's own tables.
    pub(super) go: Option<GoCode<'data>>,
    /// The code at the entry point, as much as [`start::startup`] reads.
    pub(super) start: Section<'data>,
    /// The code in which fibres begin.
    pub(super) fibres: Vec<Range<u64>>,
    /// True without symbols of all functions.
    is_stripped: bool,
}

/// A section, or the equivalent found through a program header.
pub(super) struct Section<'data> {
    /// Virtual address, before relocation of the module.
    pub(super) address: u64,
    pub(super) bytes: Cow<'data, [u8]>,
}

/// The executable addresses of a module.
pub(super) struct Text {
    start: u64,
    /// Sorted by start address.
    segments: Vec<Range<u64>>,
}

type Sections<'data> = SectionTable<'data, FileHeader64<LittleEndian>, Content<'data>>;

fn is_code(segment: &ProgramHeader64<LittleEndian>) -> bool {
    segment.p_type(LittleEndian) == elf::PT_LOAD && segment.p_flags(LittleEndian).contains(elf::PF_X)
}

/// The code from an address on, `most` bytes at most; empty if there is none.
fn code<'data>(
    address: u64,
    most: usize,
    segments: &[ProgramHeader64<LittleEndian>],
    elf: Content<'data>,
) -> &'data [u8] {
    let mut at = segments.iter().filter(|segment| is_code(segment)).filter_map(|segment| {
        let distance = address.checked_sub(segment.p_vaddr(LittleEndian))?;
        let left = segment.p_filesz(LittleEndian).checked_sub(distance)?.min(most as u64);
        elf.read_bytes_at(segment.p_offset(LittleEndian).checked_add(distance)?, left).ok()
    });
    at.next().unwrap_or_default()
}

/// The code in which fibres begin that the file's functions make.
fn fibre_roots<'data>(
    sections: &Sections<'data>,
    segments: &[ProgramHeader64<LittleEndian>],
    elf: Content<'data>,
) -> Vec<Range<u64>> {
    let read = |address| code(address, fibre::MAX_MAKER_BYTES, segments, elf);
    let of_maker = |maker| {
        let thread = fibre::thread_root(maker, read(maker));
        fibre::roots(maker, read).into_iter().chain(thread)
    };
    fibre::makers(sections, elf).into_iter().flat_map(of_maker).collect()
}

/// The code described by a file's Go tables; `None` if it has none.
pub(super) fn go_code(elf: Content<'_>) -> Option<GoCode<'_>> {
    let header = FileHeader64::<LittleEndian>::parse(elf).ok()?;
    let segments = header.program_headers(LittleEndian, elf).ok()?;
    let sections = header.sections(LittleEndian, elf).ok()?;
    let tables = Section::go_tables(&sections, elf);
    if tables.is_empty() {
        return None;
    }
    GoCode::locate(Image::new(segments, elf)?, &tables)
}

impl<'data> CallFrames<'data> {
    /// Finds the sections by name. Without section headers, `PT_GNU_EH_FRAME` gives the position of `.eh_frame`, as for the C++
    /// runtime (Linux Standard Base, "Exception Frames"). Reads nothing else of the file.
    pub(super) fn locate(elf: Content<'data>) -> Result<Self, Error> {
        let header = FileHeader64::<LittleEndian>::parse(elf).map_err(Error::Parse)?;
        let machine = header.e_machine.get(LittleEndian);
        if machine != elf::EM_X86_64 {
            return Err(Error::Machine(machine.0));
        }
        let segments = header.program_headers(LittleEndian, elf).map_err(Error::Parse)?;
        // A damaged section table counts as none.
        let sections = header.sections(LittleEndian, elf).unwrap_or_default();
        Ok(Self {
            elf,
            is_stripped: sections.symbols(LittleEndian, elf, elf::SHT_SYMTAB).is_ok_and(|it| it.is_empty()),
            text: Text::new(segments, elf)?,
            eh_frame: Section::eh_frame(&sections, elf).or_else(|| Section::behind_header(segments, elf)),
            debug_frame: Section::debug_frame(&sections, elf),
            go: go_code(elf),
            start: Section::code_at(header.e_entry.get(LittleEndian), start::MAX_BYTES, segments, elf),
            fibres: fibre_roots(&sections, segments, elf),
        })
    }

    /// Checksum that distinguishes this call frame information from others in a cache, for example of modules that share a build
    /// ID.
    pub(super) fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for Range { start, end } in &self.text.segments {
            hasher.update(&start.to_le_bytes());
            hasher.update(&end.to_le_bytes());
        }
        for section in [self.eh_frame.as_ref(), self.debug_frame.as_ref(), Some(&self.start)] {
            let Section { address, bytes } = section.unwrap_or(&Section::EMPTY);
            hasher.update(&address.to_le_bytes());
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        }
        for Range { start, end } in &self.fibres {
            hasher.update(&start.to_le_bytes());
            hasher.update(&end.to_le_bytes());
        }
        // Functions without call frame information are found by symbols.
        hasher.update(&[u8::from(self.is_stripped)]);
        if let Some(go) = &self.go {
            go.update(&mut hasher);
        }
        hasher.finalize()
    }
}

impl<'data> Section<'data> {
    const EMPTY: Section<'static> = Section { address: 0, bytes: Cow::Borrowed(&[]) };

    /// The code from an address on, `most` bytes at most; empty if there is none.
    fn code_at(
        address: u64,
        most: usize,
        segments: &[ProgramHeader64<LittleEndian>],
        elf: Content<'data>,
    ) -> Self {
        Self { address, bytes: Cow::Borrowed(code(address, most, segments, elf)) }
    }

    fn eh_frame(sections: &Sections<'data>, elf: Content<'data>) -> Option<Self> {
        let (_, section) = sections.section_by_name(LittleEndian, b".eh_frame")?;
        let bytes = section.data(LittleEndian, elf).ok().filter(|bytes| !bytes.is_empty())?;
        Some(Self { address: section.sh_addr(LittleEndian), bytes: Cow::Borrowed(bytes) })
    }

    /// Possible positions of Go's table of functions: in a section of its own or, in position-independent code linked by a C
    /// linker, in relocated data.
    fn go_tables(sections: &Sections<'data>, elf: Content<'data>) -> Vec<(u64, &'data [u8])> {
        let named = |name: &[u8]| {
            let (_, section) = sections.section_by_name(LittleEndian, name)?;
            Some((section.sh_addr(LittleEndian), section.data(LittleEndian, elf).ok()?))
        };
        if let Some(table) = named(b".gopclntab") {
            return vec![table];
        }
        let Some((address, data)) = named(b".go.buildinfo").and_then(|_| named(b".data.rel.ro")) else {
            return Vec::new();
        };
        let tables = (0..data.len()).step_by(usize::from(ADDRESS_BYTES));
        let tables = tables.map(|at| (address + at as u64, &data[at..]));
        tables.filter(|(_, bytes)| go::is_table(bytes)).take(MAX_GO_TABLES).collect()
    }

    /// Finds `.debug_frame`, which can be compressed in either of two ways.
    fn debug_frame(sections: &Sections<'data>, elf: Content<'data>) -> Option<Self> {
        let has = |name: &[u8]| sections.section_by_name(LittleEndian, name).is_some();
        if !has(b".debug_frame") && !has(b".zdebug_frame") {
            return None;
        }
        let file = ElfFile::<FileHeader64<LittleEndian>, Content<'data>>::parse(elf).ok()?;
        let section = file.section_by_name(".debug_frame")?;
        let packed = section.compressed_data().ok()?;
        let is_packed = packed.format != CompressionFormat::None;
        if is_packed && packed.uncompressed_size > MAX_UNPACKED_BYTES {
            return None;
        }
        let bytes = packed.decompress().ok().filter(|bytes| !bytes.is_empty())?;
        Some(Self { address: section.address(), bytes })
    }

    /// The call frame information that `.eh_frame_hdr` points to. Its length is unknown: it ends with an entry of length zero, at
    /// the latest with its segment.
    fn behind_header(segments: &[ProgramHeader64<LittleEndian>], elf: Content<'data>) -> Option<Self> {
        let header = segments.iter().find(|header| header.p_type(LittleEndian) == elf::PT_GNU_EH_FRAME)?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(header.p_vaddr(LittleEndian));
        let bytes = header.data(LittleEndian, elf).ok()?;
        let parsed = EhFrameHdr::new(bytes, gimli::LittleEndian).parse(&bases, ADDRESS_BYTES).ok()?;
        let address = parsed.eh_frame_ptr().direct().ok()?;
        // Reads one segment only: any number of them can overlap.
        let mut loaded = segments.iter().filter(|segment| segment.p_type(LittleEndian) == elf::PT_LOAD);
        loaded.find_map(|segment| {
            let distance = address.checked_sub(segment.p_vaddr(LittleEndian))?;
            let left = segment.p_filesz(LittleEndian).checked_sub(distance).filter(|left| *left > 0)?;
            let bytes =
                elf.read_bytes_at(segment.p_offset(LittleEndian).checked_add(distance)?, left).ok()?;
            Some(Self { address, bytes: Cow::Borrowed(bytes) })
        })
    }
}

impl Text {
    fn new(segments: &[ProgramHeader64<LittleEndian>], elf: Content<'_>) -> Result<Self, Error> {
        let length = elf.len().unwrap_or_default();
        let mut segments: Vec<_> = segments
            .iter()
            .filter(|segment| is_code(segment))
            .filter_map(|segment| {
                // A segment beyond the end of the file contains no code; the others remain usable.
                let bytes = segment.p_filesz(LittleEndian);
                let end = segment.p_offset(LittleEndian).checked_add(bytes)?;
                let begin = segment.p_vaddr(LittleEndian);
                (bytes > 0 && end <= length).then_some(begin..begin.checked_add(bytes)?)
            })
            .collect();
        segments.sort_unstable_by_key(|segment| segment.start);
        let start = segments.first().ok_or(Error::NoCode)?.start;
        Ok(Self { start: start - start % PAGE_BYTES, segments })
    }

    /// First address, rounded down to a page of the index.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// The addresses from `begin` on, relative to the start; `None` unless all are code of one segment.
    pub(super) fn relative(&self, begin: u64, bytes: u64) -> Option<Range<u32>> {
        let end = begin.checked_add(bytes)?;
        let following = self.segments.partition_point(|segment| segment.start <= begin);
        let segment = self.segments.get(following.checked_sub(1)?)?;
        let relative = |address: u64| u32::try_from(address - self.start).ok();
        if end > segment.end { None } else { Some(relative(begin)?..relative(end)?) }
    }
}
