//! Heap profiles that allocators and other tools write: jemalloc's, gperftools' and tcmalloc's; heaptrack's, collapsed stacks, and
//! recordings of Java Flight Recorder.
//!
//! In: the lines of a file. Out: a [`NamedFile`] of what has names, or a [`HeapFile`]: stacks of addresses with estimates of their memory, and the mapped files that
//! these addresses belong to. The formats have no documents but the code that writes and reads them: jemalloc's `prof_data.c`,
//! gperftools' `heap-profile-table.cc`, and `jeprof`, which scales the figures of both.

mod addresses;
mod collapsed;
mod counts;
mod heaptrack;
mod jfr;
mod legacy;
mod lines;
mod named;
mod small;
mod threaded;

use std::io::{self, BufRead};

pub use addresses::Addresses;
use counts::{Counts, CountsOfStacks};
pub use counts::{Estimate, Scaling};
pub use jfr::JfrEvents;
use lines::Lines;
pub use named::{
    Amount, NamedFile, NamedFormat, NamedFrame, NamedKind, NamedStack, is_named_file, read_named,
};
pub use small::SmallStacks;

/// Maximum number of frames in all stacks of a file that has names: 512 MiB.
const MAX_ADDRESSES: u32 = 128 << 20;
/// Maximum memory that the stacks of a file take as a profile, estimated: that of a million stacks of 6 addresses. What is more is summed up.
const MAX_MEMORY: usize = 224 << 20;
/// Maximum number of stacks in a [`Part`].
pub const STACKS_PER_PART: usize = 1 << 14;
/// First line of the list of mapped files, in the format of `/proc/PID/maps`.
const MAPPED_FILES: [&str; 2] = ["MAPPED_LIBRARIES:", "--- Memory map:"];
/// Maximum length of the list of mapped files: as for `/proc/PID/maps`.
const MAX_MAPPED_BYTES: usize = 32 << 20;

/// A heap profile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeapFile {
    /// Relation of the file's figures to those of the program.
    pub scaling: Scaling,
    /// All stacks, in the order of the file. Files have a million: the memory of a part can be freed when its stacks have been used.
    pub parts: Vec<Part>,
    /// Addresses of all stacks.
    pub addresses: Addresses,
    /// Stacks that are summed up, because all of them would take too much memory.
    pub small: Option<SmallStacks>,
    /// Estimated memory that `parts` take as a profile, without that of addresses.
    memory: usize,
    /// Mapped files, in the format of `/proc/PID/maps`.
    pub mapped: String,
    /// Lines that could not be read and are left out.
    pub damage: Option<Damage>,
}

/// Some stacks of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    counts: CountsOfStacks,
    /// Numbers of the addresses, one stack after the other.
    addresses: Vec<u32>,
    /// For each stack, the index after its last address.
    ends: Vec<u32>,
}

/// Lines that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Number of these lines.
    pub lines: u64,
    /// Number of the first one, from 1.
    pub first: u64,
    /// Reason for the first one.
    pub reason: &'static str,
}

/// Reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading has failed.
    #[error("reading failed")]
    Read(#[from] io::Error),
    /// The first line is none of a known format.
    #[error("line 1 is not the beginning of a heap profile: {0:?}")]
    Header(String),
    /// The file's format has a version that is not known.
    #[error("version {0} of heaptrack's files is not known")]
    Version(u64),
    /// A chunk of a recording cannot be read, and what follows cannot be found without it.
    #[error("a chunk of the recording cannot be read: {0}")]
    Chunk(&'static str),
    /// The calls take too much memory.
    #[error("it has more than {0} calls of malloc and free")]
    Calls(usize),
    /// The frames take too much memory.
    #[error("its frames take more than {0} MiB of memory")]
    FrameBytes(usize),
    /// The stacks take too much memory.
    #[error("its stacks have more than {MAX_ADDRESSES} frames")]
    TooLarge,
}

impl Part {
    /// Number of stacks.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.counts.len()
    }

    /// Returns true if there are no stacks.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Numbers of the addresses of each stack in the order of the file, leaf first: one in the innermost function, then return addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &[u32]> {
        let mut begin = 0;
        self.ends.iter().map(move |end| {
            let end = *end as usize;
            let addresses = &self.addresses[begin..end];
            begin = end;
            addresses
        })
    }

    /// Frees the memory of the addresses.
    pub fn drop_addresses(&mut self) {
        (self.addresses, self.ends) = (Vec::new(), Vec::new());
    }

    /// Memory in use of each stack, and what it has allocated since the program's start; `None` if the program did not record that.
    /// `scaling` is that of the file.
    pub fn estimates(&self, scaling: Scaling) -> impl Iterator<Item = (Estimate, Option<Estimate>)> {
        self.counts.iter().map(move |counts| counts.estimates(scaling))
    }

    fn push(&mut self, addresses: impl Iterator<Item = u32>, counts: Counts) {
        self.addresses.extend(addresses);
        // A line has a limited length, and a part a limited number of stacks.
        self.ends.push(u32::try_from(self.addresses.len()).unwrap_or(u32::MAX));
        self.counts.push(counts);
    }

    fn shrink_to_fit(&mut self) {
        self.counts.shrink_to_fit();
        self.addresses.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

impl HeapFile {
    /// Estimated memory of all stacks.
    const fn memory(&self) -> usize {
        self.memory + self.addresses.all().len() * Addresses::BYTES
    }

    /// Adds a stack. `most` limits the estimated memory.
    fn add(&mut self, addresses: &[u64], counts: Counts, most: usize) {
        if self.parts.last().is_none_or(|part| part.len() >= STACKS_PER_PART) {
            self.parts.push(Part::default());
        }
        let Some(part) = self.parts.last_mut() else { return };
        part.push(addresses.iter().map(|address| self.addresses.number(*address)), counts);
        self.memory += small::memory(addresses.len());
        if self.memory() > most {
            self.sum_up_quarter();
        }
    }
}

/// Returns true if a file that begins with these bytes is a heap profile in text.
#[must_use]
pub fn is_heap_file(begin: &[u8]) -> bool {
    begin.starts_with(threaded::HEADER.as_bytes()) || begin.starts_with(legacy::HEADER.as_bytes())
}

/// Reads a heap profile. Damaged lines are left out and counted.
pub fn read(file: impl BufRead) -> Result<HeapFile, Error> {
    read_within(file, MAX_MEMORY)
}

/// Reads a heap profile whose stacks may take so much memory as a profile.
fn read_within(file: impl BufRead, memory: usize) -> Result<HeapFile, Error> {
    let mut lines = Lines::new(file);
    let header = lines.next()?.and_then(Result::ok).unwrap_or_default().to_owned();
    let mut heap = HeapFile::default();
    let format = if let Some(scaling) = threaded::scaling(&header) {
        heap.scaling = scaling;
        Format::Threaded(threaded::Reader::default())
    } else if let Some(scaling) = legacy::scaling(&header) {
        heap.scaling = scaling;
        Format::Legacy
    } else {
        return Err(Error::Header(header.chars().take(80).collect()));
    };
    read_stacks(&mut lines, format, &mut heap, memory)?;
    heap.sum_up_late();
    heap.addresses.finish();
    Ok(heap)
}

enum Format {
    Threaded(threaded::Reader),
    Legacy,
}

fn read_stacks(
    lines: &mut Lines<impl BufRead>,
    mut format: Format,
    heap: &mut HeapFile,
    memory: usize,
) -> Result<(), Error> {
    while let Some(line) = lines.next()? {
        if line.is_ok_and(|line| MAPPED_FILES.contains(&line)) {
            return read_mapped(lines, heap);
        }
        let read = match &mut format {
            Format::Threaded(reader) => reader.line(line),
            Format::Legacy => legacy::stack(line),
        };
        match read {
            Ok(None) => {}
            Ok(Some((addresses, counts))) => heap.add(&addresses, counts, memory),
            Err(reason) => heap.damaged(lines.number(), reason),
        }
    }
    if let Format::Threaded(reader) = format
        && reader.is_within_stack()
    {
        heap.damaged(lines.number(), "the file ends within a stack");
    }
    heap.damaged(lines.number(), "the file ends without the list of mapped files");
    Ok(())
}

fn read_mapped(lines: &mut Lines<impl BufRead>, heap: &mut HeapFile) -> Result<(), Error> {
    while let Some(line) = lines.next()? {
        let line = line.and_then(|line| {
            let has_room = heap.mapped.len() + line.len() < MAX_MAPPED_BYTES;
            if has_room { Ok(line) } else { Err("the list of mapped files is too long") }
        });
        match line {
            Ok("") => {}
            Ok(line) => {
                heap.mapped.push_str(line);
                heap.mapped.push('\n');
            }
            Err(reason) => heap.damaged(lines.number(), reason),
        }
    }
    Ok(())
}

impl HeapFile {
    fn damaged(&mut self, line: u64, reason: &'static str) {
        self.damage.get_or_insert(Damage { lines: 0, first: line, reason }).lines += 1;
    }
}

/// The addresses in a text like `0x55d0 0x7f00`.
fn addresses(text: &str) -> Result<Vec<u64>, &'static str> {
    const REASON: &str = "an address is not a hexadecimal number";
    let address = |word: &str| {
        let digits = word.strip_prefix("0x").ok_or(REASON)?;
        u64::from_str_radix(digits, 16).map_err(|_| REASON)
    };
    text.split_ascii_whitespace().map(address).collect()
}

#[cfg(test)]
mod tests;
