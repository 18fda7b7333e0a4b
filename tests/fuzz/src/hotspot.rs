//! The memory of a JVM that describes all structures that are asked for, and has the input everywhere else.

use std::collections::HashMap;
use std::path::PathBuf;

use jjleak::jvm::{Memory, Variable};
use jjleak::memory::hotspot::JvmMemory;
use jjleak::processes::Mapping;

/// The code that names the structures and their fields.
const SOURCES: [&str; 9] = [
    include_str!("../../../jjleak/src/memory/hotspot/classes.rs"),
    include_str!("../../../jjleak/src/memory/hotspot/direct.rs"),
    include_str!("../../../jjleak/src/memory/hotspot/heap.rs"),
    include_str!("../../../jjleak/src/memory/hotspot/metaspace.rs"),
    include_str!("../../../jjleak/src/memory/hotspot/nmt.rs"),
    include_str!("../../../jjleak/src/memory/hotspot/structures.rs"),
    include_str!("../../../jjleak/src/memory/hotspot/tables.rs"),
    include_str!("../../../jjleak/src/memory/hotspot/mod.rs"),
    include_str!("../../../jjleak/src/jvm/counters.rs"),
];

/// Address of the description. Everything below the limit of user space is mapped.
const DESCRIPTION: u64 = 0x7000_0000_0000;
const LIMIT: u64 = 1 << 47;
/// Bytes that are copied at a time, at least.
const PIECE: usize = 4096;
/// Sizes of the entries of its tables.
const TYPE_BYTES: u64 = 16;
const FIELD_BYTES: u64 = 48;
/// Sizes of variables by a part of their names.
const SIZES: [(&str, u64); 3] =
    [("MallocMemorySummary", 688), ("VirtualMemorySummary", 336), ("NMTUtil", 168)];
/// Types with a width of less than a word.
const WIDTHS: [(&str, u64); 3] = [("jint", 4), ("u1", 1), ("u2", 2)];

/// Description of structures, at [`DESCRIPTION`].
#[derive(Default)]
struct Description {
    bytes: Vec<u8>,
    symbols: HashMap<String, u64>,
}

impl Description {
    /// Adds words, and returns their address.
    fn add(&mut self, words: &[u64]) -> u64 {
        let address = DESCRIPTION + self.bytes.len() as u64;
        self.bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        address
    }

    fn add_text(&mut self, text: &str) -> u64 {
        let address = DESCRIPTION + self.bytes.len() as u64;
        self.bytes.extend(text.bytes().chain([0]));
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        address
    }

    fn add_symbol(&mut self, name: &str, word: u64) {
        let address = self.add(&[word]);
        self.symbols.insert(name.to_owned(), address);
    }

    /// A described variable, or one in the input, with the size that it has in JDK 11.
    fn variable(&self, name: &str) -> Variable {
        let size = SIZES.iter().find(|(part, _)| name.contains(part)).map_or(8, |(_, size)| *size);
        let in_input = name.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let address = self.symbols.get(name).copied().unwrap_or(in_input % DESCRIPTION);
        Variable { address, size }
    }

    /// All fields that the code names, each as a static one and as one of its structure.
    fn of_all() -> Self {
        let mut made = Self::default();
        let pairs = pairs();
        let mut types = Vec::new();
        for (name, size) in WIDTHS.into_iter().chain(pairs.iter().map(|(structure, _)| (*structure, 64))) {
            types.extend([made.add_text(name), size]);
        }
        types.extend([0, 0]);
        let mut fields = Vec::new();
        for (index, (structure, field)) in pairs.iter().enumerate() {
            let kind = WIDTHS.get(index % 6).map_or("void*", |(name, _)| name);
            let (structure, field, kind) =
                (made.add_text(structure), made.add_text(field), made.add_text(kind));
            let place = index as u64 * 8;
            fields.extend([structure, field, kind, 0, place % 128, 0]);
            fields.extend([structure, field, kind, 1, 0, place]);
        }
        fields.extend([0; 6]);
        let (types, fields) = (made.add(&types), made.add(&fields));
        for (name, word) in [
            ("gHotSpotVMTypes", types),
            ("gHotSpotVMTypeEntryArrayStride", TYPE_BYTES),
            ("gHotSpotVMTypeEntryTypeNameOffset", 0),
            ("gHotSpotVMTypeEntrySizeOffset", 8),
            ("gHotSpotVMStructs", fields),
            ("gHotSpotVMStructEntryArrayStride", FIELD_BYTES),
            ("gHotSpotVMStructEntryTypeNameOffset", 0),
            ("gHotSpotVMStructEntryFieldNameOffset", 8),
            ("gHotSpotVMStructEntryTypeStringOffset", 16),
            ("gHotSpotVMStructEntryIsStaticOffset", 24),
            ("gHotSpotVMStructEntryOffsetOffset", 32),
            ("gHotSpotVMStructEntryAddressOffset", 40),
        ] {
            made.add_symbol(name, word);
        }
        made
    }
}

/// Pairs of names next to each other in the code, and the structures of counters, whose names stand alone there.
fn pairs() -> Vec<(&'static str, &'static str)> {
    let mut pairs = Vec::new();
    for source in SOURCES {
        let names: Vec<_> = source.split('"').collect();
        // Every second part is between quotation marks.
        for parts in names.windows(3).skip(1).step_by(2) {
            if parts[1] == ", " {
                pairs.push((parts[0], parts[2]));
            }
        }
    }
    for name in ["entry_offset", "num_entries"] {
        pairs.push(("PerfDataPrologue", name));
    }
    for name in ["entry_length", "name_offset", "data_offset", "vector_length", "data_type"] {
        pairs.push(("PerfDataEntry", name));
    }
    pairs.extend(["_start", "_top"].map(|name| ("PerfMemory", name)));
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

struct Forged<'a> {
    description: &'a Description,
    /// Content of all other memory, repeated; if empty, that memory is not resident.
    input: &'a [u8],
}

impl Memory for Forged<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let described = usize::try_from(address.wrapping_sub(DESCRIPTION)).ok();
        if let Some(bytes) = described.and_then(|at| self.description.bytes.get(at..)) {
            let length = bytes.len().min(into.len());
            into[..length].copy_from_slice(&bytes[..length]);
            return length;
        }
        if self.input.is_empty() || address >= LIMIT {
            return 0;
        }
        let begin = (address % self.input.len() as u64) as usize;
        let (first, rest) = into.split_at_mut((self.input.len() - begin).min(into.len()));
        first.copy_from_slice(&self.input[begin..begin + first.len()]);
        rest.chunks_mut(self.input.len()).for_each(|chunk| chunk.copy_from_slice(&self.input[..chunk.len()]));
        first.len() + rest.len()
    }
}

/// Reads all that is to know about a JVM's memory.
pub(crate) fn memory(data: &[u8]) {
    thread_local!(static ALL: Description = Description::of_all());
    let mapping = Mapping {
        addresses: 0..LIMIT,
        executable: false,
        file_offset: 0,
        file: None,
        path: PathBuf::new(),
        deleted: false,
    };
    ALL.with(|description| {
        // Long pieces are copied faster.
        let input = if data.is_empty() { Vec::new() } else { data.repeat(PIECE / data.len() + 1) };
        let forged = Forged { description, input: &input };
        let read = JvmMemory::read(&forged, &forged, |name| Some(description.variable(name)), &[mapping]);
        let read = read.expect("it is described");
        for (range, _, _) in read.ranges() {
            assert!(range.start < range.end, "{range:x?}");
        }
    });
}
