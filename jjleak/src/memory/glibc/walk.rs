//! Walk over the chunks of a heap.
//!
//! A chunk begins with the size of the free chunk in front of it, if there is one, and its own size with three flags; the next
//! chunk follows. Whether a chunk is in use is in the header of the next one.

use std::collections::VecDeque;
use std::ops::Range;

use super::Unknown;
use super::lists::may_be_cache;
use super::pages::{PAGE, Residency};
use super::usage::Usage;
use super::window::Window;
use crate::jvm::Memory;

/// Flag of a size: the chunk in front is in use (`PREV_INUSE`).
pub(super) const PREVIOUS_IN_USE: u64 = 1;
/// All flags of a size.
pub(super) const FLAGS: u64 = 7;
/// Size of the smallest chunk that can be allocated (`MINSIZE`); smaller ones are fenceposts.
const MIN_SIZE: u64 = 32;
/// Size of a fencepost, and of a header.
pub(super) const HEADER: u64 = 16;
/// Bytes at the start of a free chunk that a trim keeps (`sizeof (struct malloc_chunk)`).
const LINKS: u64 = 48;
/// Number of attempts to read a part of a heap before the part in front of it is read again, too.
const TRIES: u32 = 3;
/// Maximum number of attempts for all parts of a heap. Each costs some microseconds.
const MAX_RETRIES: u32 = 5000;
/// Maximum number of bytes in front of the place of the top chunk that are taken for chunks in use then.
const MAX_ACROSS: u64 = 128 << 10;
/// Maximum number of chunks that are looked at as caches of threads: twice the default limit of threads.
const MAX_CACHES: usize = 1 << 16;
/// Number of parts that can be read again: a chunk at the start of a part may have merged with those in front of it.
const MAX_CHECKPOINTS: usize = 64;

/// End of a range of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// With the main arena's top, of which a trim gives back pages if it ends at the program break.
    Break(Top),
    /// With the top of another arena.
    Top(Top),
    /// With a fencepost: the arena continued in another heap.
    Fence,
}

/// The top chunk when the arena's structure was read. The program allocates from it, and merges freed chunks with it, all the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Top {
    /// Its address.
    pub(super) chunk: u64,
    /// Address of the arena's pointer to it.
    pub(super) pointer: u64,
}

/// Meaning of the bytes from a chunk on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A chunk.
    Chunk,
    /// The end of the segment.
    End,
    /// A chunk that was allocated since the structure was read, from memory on both sides of the place of the top chunk then.
    AcrossTop(u64),
}

/// A range of chunks.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    /// Memory of the heap, with the allocator's structures in front of the first chunk.
    pub(super) range: Range<u64>,
    pub(super) chunks: Range<u64>,
    pub(super) end: End,
}

/// State of a walk between two chunks.
#[derive(Debug, Clone, Copy)]
struct State {
    chunk: u64,
    usage: Usage,
    /// Start of the free chunks in front of `chunk`.
    free_from: Option<u64>,
    /// Index of the next chunk in a fastbin.
    fast: usize,
    /// Number of chunks that may be a thread's cache.
    caches: usize,
}

/// The chunks of one segment.
pub(super) struct Walk<'a, M> {
    memory: &'a M,
    window: Window<'a, M>,
    residency: &'a Residency,
    segment: &'a Segment,
    /// Chunks in fastbins, in ascending order. They look as if in use.
    fast: &'a [u64],
}

impl<'a, M: Memory> Walk<'a, M> {
    pub(super) fn new(
        memory: &'a M,
        residency: &'a Residency,
        segment: &'a Segment,
        fast: &'a [u64],
    ) -> Self {
        let window = Window::new(memory, residency, segment.chunks.end);
        Self { memory, window, residency, segment, fast }
    }

    /// Counts all chunks, and adds those that may be a thread's cache to `caches`. A part that changed while it was read is
    /// read again.
    pub(super) fn run(mut self, caches: &mut Vec<u64>) -> Result<Usage, Unknown> {
        let start = self.segment.chunks.start;
        let fast = self.fast.partition_point(|chunk| *chunk < start);
        let mut state =
            State { chunk: start, usage: Usage::default(), free_from: None, fast, caches: caches.len() };
        self.window.load(start)?;
        if self.window.header(start).1 & PREVIOUS_IN_USE == 0 {
            return Err(Unknown::Torn);
        }
        let mut checkpoints = VecDeque::from([state]);
        let (mut tries, mut retries) = (0, 0);
        let mut failed_at = start;
        loop {
            match self.step(&mut state, &mut checkpoints, caches) {
                Ok(false) => {}
                Ok(true) => return Ok(state.usage),
                Err(Unknown::Torn) if retries < MAX_RETRIES => {
                    retries += 1;
                    tries = if state.chunk > failed_at { 0 } else { tries + 1 };
                    failed_at = failed_at.max(state.chunk);
                    if tries >= TRIES && checkpoints.len() > 1 {
                        checkpoints.pop_back();
                        tries = 0;
                    }
                    state = *checkpoints.back().ok_or(Unknown::Torn)?;
                    caches.truncate(state.caches);
                    self.window.forget();
                }
                Err(unknown) => return Err(unknown),
            }
        }
    }

    /// Counts one chunk. Returns true at the end of the segment.
    fn step(
        &mut self,
        state: &mut State,
        checkpoints: &mut VecDeque<State>,
        caches: &mut Vec<u64>,
    ) -> Result<bool, Unknown> {
        let chunk = state.chunk;
        if !self.window.has(chunk) {
            if checkpoints.back().is_none_or(|last| last.chunk < chunk) {
                if checkpoints.len() == MAX_CHECKPOINTS {
                    checkpoints.pop_front();
                }
                checkpoints.push_back(*state);
            }
            self.window.load(chunk)?;
        }
        let size = self.window.header(chunk).1 & !FLAGS;
        match self.part(chunk, size)? {
            Part::Chunk => {}
            Part::End => {
                self.finish(state);
                return Ok(true);
            }
            Part::AcrossTop(top) => {
                self.count(state, top - chunk, true, caches);
                state.chunk = top;
                self.finish(state);
                return Ok(true);
            }
        }
        let end = self.segment.chunks.end;
        if size < MIN_SIZE {
            let is_last_fence = self.segment.end == End::Fence && chunk + 2 * HEADER == end;
            if size != HEADER || !is_last_fence {
                return Err(if size == HEADER { Unknown::ForeignBreak } else { Unknown::Torn });
            }
        }
        let next = chunk.checked_add(size).filter(|next| *next <= end - HEADER).ok_or(Unknown::Torn)?;
        if !size.is_multiple_of(16) {
            return Err(Unknown::Torn);
        }
        let (before, flags) = self.header_behind(next)?;
        let is_used = flags & PREVIOUS_IN_USE != 0;
        if !is_used && before != size {
            return Err(Unknown::Torn);
        }
        self.count(state, size, is_used, caches);
        state.chunk = next;
        Ok(false)
    }

    /// The header of the next chunk. It is not in the window if the chunk is large, or the last one in it.
    fn header_behind(&mut self, next: u64) -> Result<(u64, u64), Unknown> {
        if !self.window.has(next) {
            self.window.load(next)?;
        }
        Ok(self.window.header(next))
    }

    fn part(&self, chunk: u64, size: u64) -> Result<Part, Unknown> {
        match self.segment.end {
            // What has been allocated from it since was free when the structure was read.
            End::Break(top) | End::Top(top) if chunk == top.chunk => Ok(Part::End),
            End::Break(top) | End::Top(top) if chunk.saturating_add(size) > top.chunk => {
                let mut pointer = [0; 8];
                let read = self.memory.read(top.pointer, &mut pointer);
                let now = u64::from_le_bytes(pointer);
                let is_in_front = read == pointer.len() && chunk < top.chunk;
                let end = chunk.saturating_add(size);
                if is_in_front && now == chunk {
                    // Chunks in front of it have been freed since, and are a part of it now.
                    Ok(Part::End)
                } else if is_in_front && end <= now && top.chunk - chunk <= MAX_ACROSS {
                    // They were, and this chunk has been allocated from it.
                    Ok(Part::AcrossTop(top.chunk))
                } else {
                    Err(Unknown::Torn)
                }
            }
            End::Fence if size == 0 && chunk + HEADER == self.segment.chunks.end => Ok(Part::End),
            End::Break(_) | End::Top(_) | End::Fence => Ok(Part::Chunk),
        }
    }

    fn count(&self, state: &mut State, size: u64, is_used: bool, caches: &mut Vec<u64>) {
        let chunk = state.chunk;
        while self.fast.get(state.fast).is_some_and(|fast| *fast < chunk) {
            state.fast += 1;
        }
        if !is_used {
            state.usage.binned.add(size);
        } else if self.fast.get(state.fast) == Some(&chunk) {
            state.usage.fast.add(size);
        } else {
            if let Some(start) = state.free_from.take() {
                self.count_free(&mut state.usage, start..chunk);
            }
            if size < MIN_SIZE {
                state.usage.overhead += size;
            } else {
                state.usage.live.add(size);
            }
            if may_be_cache(size, self.window.chunk(chunk, size)) && caches.len() < MAX_CACHES {
                caches.push(chunk);
                state.caches = caches.len();
            }
            return;
        }
        state.free_from.get_or_insert(chunk);
    }

    fn count_free(&self, usage: &mut Usage, free: Range<u64>) {
        let pages = returned(&free);
        usage.free.add(self.residency, free, pages);
    }

    fn finish(&self, state: &mut State) {
        let chunk = state.chunk;
        let start = state.free_from.take().unwrap_or(chunk);
        let end = self.segment.chunks.end;
        let size = end - chunk;
        match self.segment.end {
            End::Fence => {
                self.count_free(&mut state.usage, start..chunk);
                state.usage.overhead += HEADER;
            }
            End::Top(_) => {
                state.usage.top += size;
                state.usage.free.add_kept(self.residency, start..end);
            }
            End::Break(_) => {
                state.usage.top += size;
                state.usage.free.add(self.residency, start..end, returned_at_top(&(start..end)));
            }
        }
    }
}

/// Pages of free chunks between two in use that a trim gives back: it first merges those in fastbins with their neighbours, then gives
/// back what is behind the links.
pub(super) const fn returned(free: &Range<u64>) -> Range<u64> {
    (free.start + LINKS).next_multiple_of(PAGE)..free.end & !(PAGE - 1)
}

/// Pages at the program break that a trim gives back: `systrim` keeps one byte more than the smallest chunk.
pub(super) const fn returned_at_top(free: &Range<u64>) -> Range<u64> {
    let spare = (free.end - free.start).saturating_sub(MIN_SIZE + 1) & !(PAGE - 1);
    free.end - spare..free.end
}
