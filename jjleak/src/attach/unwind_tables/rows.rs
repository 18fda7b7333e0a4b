//! The rows of all modules in the kernel side's memory.

use aya::Ebpf;
use jjleak_common::unwind::{CHUNK_SHIFT, CHUNK_WORDS, CHUNKS, GROUP_SHIFT, GROUPS};

use super::chunks::Chunks;
use super::groups::Groups;
use super::room::Extent;
use super::space::{Placed, Ranges, Space};
use crate::attach::Error;
use crate::unwind::ModuleRows;

/// Place of a module's rows.
#[derive(Debug)]
pub(super) struct Stored {
    /// Its first entry in the directory.
    first_group: u32,
    /// Number of pages of its text.
    pub(super) pages: u32,
    at: Vec<u32>,
    sizes: Vec<u32>,
}

impl Stored {
    /// See [`jjleak_common::unwind::Mapping::first_page`].
    pub(super) const fn first_page(&self) -> u32 {
        self.first_group << GROUP_SHIFT
    }

    pub(super) fn extent(&self) -> Extent {
        Extent {
            words: self.sizes.iter().map(|size| u64::from(*size)).sum(),
            groups: self.sizes.len() as u64,
        }
    }
}

/// The tables of rows, which grow and shrink with what they hold.
pub(super) struct RowTables {
    chunks: Chunks,
    space: Space,
    directory: Ranges,
    capacity: Extent,
}

impl RowTables {
    /// Empty tables with a capacity in rows.
    pub(super) fn new(ebpf: &mut Ebpf, rows: u32) -> Result<Self, Error> {
        let max_chunks = chunks_for(rows);
        let mut directory = Ranges::default();
        directory.give(0, number(GROUPS));
        let capacity = Extent { words: u64::from(max_chunks) << CHUNK_SHIFT, groups: GROUPS as u64 };
        Ok(Self { chunks: Chunks::new(ebpf)?, space: Space::new(max_chunks), directory, capacity })
    }

    /// Capacity: a word for each row and a few for each group.
    pub(super) const fn capacity(&self) -> Extent {
        self.capacity
    }

    /// Free space, which may be in pieces.
    pub(super) fn room(&self) -> Extent {
        Extent { words: self.space.room(), groups: self.directory.total() }
    }

    /// Adds rows; `None` if there is no space. Nothing may lead to them before [`Self::publish`].
    pub(super) fn add(&mut self, module: &ModuleRows) -> Result<Option<Stored>, Error> {
        let groups = Groups::of(module);
        let sizes = groups.sizes();
        let Some(first_group) = self.directory.take(0, number(sizes.len())) else { return Ok(None) };
        let Some(placed) = self.space.place(&sizes) else {
            self.directory.give(first_group, number(sizes.len()));
            return Ok(None);
        };
        if let Err(error) = self.write(&groups, &placed) {
            self.space.undo(&placed, &sizes);
            self.chunks.discard(&placed.new);
            self.directory.give(first_group, number(sizes.len()));
            return Err(error);
        }
        self.chunks.list(first_group, &placed.at);
        Ok(Some(Stored { first_group, pages: number(groups.pages()), at: placed.at, sizes }))
    }

    /// Writes groups to their places, those that follow each other at once.
    fn write(&mut self, groups: &Groups<'_>, placed: &Placed) -> Result<(), Error> {
        if !placed.new.is_empty() {
            self.chunks.create(&placed.new)?;
        }
        let (mut begin, mut words) = (0, Vec::new());
        for (group, at) in placed.at.iter().enumerate() {
            let end = begin + number(words.len());
            if *at != end || at.trailing_zeros() >= CHUNK_SHIFT {
                self.flush(begin, &mut words)?;
                begin = *at;
            }
            groups.write(group, &mut words);
        }
        self.flush(begin, &mut words)
    }

    fn flush(&self, begin: u32, words: &mut Vec<u64>) -> Result<(), Error> {
        if !words.is_empty() {
            self.chunks.write(begin, words)?;
            words.clear();
        }
        Ok(())
    }

    /// Lets the kernel side see added rows.
    pub(super) fn publish(&mut self) -> Result<(), Error> {
        self.chunks.publish()
    }

    /// Waits until all programs that run now have ended. No walk uses rows then to which nothing leads any more: they can be
    /// removed. Returns false if there are no rows.
    pub(super) fn await_programs(&self) -> Result<bool, Error> {
        self.chunks.await_programs()
    }

    /// Removes rows to which nothing leads, and that no walk uses.
    pub(super) fn remove(&mut self, stored: &Stored) {
        // A walk that reached them regardless would find a place in the directory that leads nowhere.
        self.chunks.list(stored.first_group, &vec![0; stored.sizes.len()]);
        self.directory.give(stored.first_group, number(stored.sizes.len()));
        for (at, size) in stored.at.iter().zip(&stored.sizes) {
            self.space.give(*at, *size);
        }
    }

    /// Frees chunks that hold nothing.
    pub(super) fn shrink(&mut self) {
        for chunk in self.space.take_empty() {
            if let Err(error) = self.chunks.remove(chunk) {
                tracing::debug!(?error, chunk, "cannot free a chunk of unwind rows");
            }
        }
    }
}

/// Number of chunks for this many rows.
fn chunks_for(rows: u32) -> u32 {
    rows.div_ceil(number(CHUNK_WORDS)).clamp(1, number(CHUNKS) - 1)
}

/// All numbers here are below 2^32.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
