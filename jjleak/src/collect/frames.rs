//! Frames of stacks, which the kernel side sends when it first sees a stack.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::{MapData, RingBuf};
use jjleak_common::process::{COMM_BYTES, ImageId};
use jjleak_common::stack::{EVICTED, MAX_FRAMES, StackFrame, StackRecord, StackStatus, StackUsage};
use jjleak_common::unwind::MAX_FOUND;
use nix::sys::eventfd::EventFd;

use super::stack_table::StackTable;
use super::threads::Threads;
use super::{stacks, usage};
use crate::attach::{Error, Mapped, RingThread};
use crate::fast_map::FastMap;
use crate::snapshot::RawStack;

/// Received frames, by row of the stack table.
pub(super) struct Frames {
    shared: Arc<Shared>,
    thread: RingThread,
    /// With the hash that the kernel side has computed.
    received: FastMap<u32, (u64, RawStack)>,
    /// Rows of each image that have not been taken yet.
    new: HashMap<ImageId, Vec<u32>>,
    threads: Threads,
}

impl Frames {
    /// Begins to receive. If no thread can be started, frames are received by [`Self::receive`] only.
    pub(super) fn new(
        records: RingBuf<MapData>,
        usage: Mapped<StackUsage>,
        table: Arc<StackTable>,
    ) -> Result<Self, Error> {
        let waiting = records.as_fd().try_clone_to_owned().map_err(Error::Map)?;
        let ring = Mutex::new(Ring { records, usage, table, inbox: Vec::new() });
        let arrived = EventFd::new().map_err(|errno| Error::Map(errno.into()))?;
        let shared = Arc::new(Shared { ring, arrived });
        let thread = {
            let shared = Arc::clone(&shared);
            RingThread::start("stack frames", waiting, move || shared.receive())?
        };
        Ok(Self {
            shared,
            thread,
            received: FastMap::default(),
            new: HashMap::new(),
            threads: Threads::default(),
        })
    }

    /// Receives waiting records.
    pub(super) fn receive(&mut self, table: &StackTable) {
        let records = {
            let mut ring = self.shared.ring();
            ring.drain();
            mem::take(&mut ring.inbox)
        };
        for Record { hash, image, row, stack, thread } in records {
            if let (true, Some((number, name))) = (stack.thread != 0, thread) {
                self.threads.see(image, stack.thread, number, name);
            }
            // A record that has waited for long can be of a stack that has left the row since.
            if [hash, EVICTED].contains(&stacks::hash(table, row)) {
                self.received.insert(row, (hash, stack));
                self.new.entry(image).or_default().push(row);
            }
        }
    }

    pub(super) const fn threads(&self) -> &Threads {
        &self.threads
    }

    pub(super) const fn threads_mut(&mut self) -> &mut Threads {
        &mut self.threads
    }

    pub(super) fn take_new(&mut self, image: ImageId) -> Vec<u32> {
        self.new.remove(&image).unwrap_or_default()
    }

    /// Rows of all images that have not been taken yet.
    pub(super) fn all_new(&self) -> BTreeSet<u32> {
        self.new.values().flatten().copied().collect()
    }

    pub(super) fn of_row(&self, row: u32) -> Option<&RawStack> {
        self.received.get(&row).map(|(_, stack)| stack)
    }

    /// Returns true if the stack with this hash has been received for the row.
    pub(super) fn has(&self, row: u32, hash: u64) -> bool {
        self.received.get(&row).is_some_and(|(of, _)| *of == hash)
    }

    /// Drops what was received for a row, if it is of another stack.
    pub(super) fn keep_only(&mut self, row: u32, hash: u64) {
        if !self.has(row, hash) {
            self.received.remove(&row);
        }
    }

    /// Replaces an unfinished stack, which is new once more.
    pub(super) fn replace(&mut self, image: ImageId, row: u32, stack: RawStack) {
        if let Some((_, known)) = self.received.get_mut(&row) {
            *known = stack;
            self.new.entry(image).or_default().push(row);
        }
    }

    /// Takes the frames of a row's stack. Those of an unfinished stack stay, because they are needed to finish it.
    pub(super) fn take(&mut self, row: u32) -> Option<RawStack> {
        let (_, stack) = self.received.get_mut(&row)?;
        if matches!(stack.status, StackStatus::NoMapping | StackStatus::GeneratedCode) {
            return Some(stack.clone());
        }
        let frames = mem::take(&mut stack.frames);
        Some(RawStack { frames, ..stack.clone() })
    }

    pub(super) fn forget_all(&mut self) {
        self.received = FastMap::default();
        self.new = HashMap::new();
    }

    pub(super) fn forget(&mut self, rows: &BTreeSet<u32>) {
        for row in rows {
            self.received.remove(row);
        }
        self.new.retain(|_, new| {
            new.retain(|row| !rows.contains(row));
            !new.is_empty()
        });
    }
}

impl AsRawFd for Frames {
    /// A descriptor that becomes readable when frames have arrived for which the kernel side has woken the thread.
    fn as_raw_fd(&self) -> RawFd {
        if self.thread.is_running() {
            self.shared.arrived.as_raw_fd()
        } else {
            self.shared.ring().records.as_raw_fd()
        }
    }
}

/// What both threads use.
struct Shared {
    ring: Mutex<Ring>,
    arrived: EventFd,
}

struct Ring {
    records: RingBuf<MapData>,
    usage: Mapped<StackUsage>,
    table: Arc<StackTable>,
    /// Received records: at most one for each row of the stack table, and those of rows that were emptied since.
    inbox: Vec<Record>,
}

impl Ring {
    /// Receives waiting records, and makes room for more stacks.
    fn drain(&mut self) {
        self.table.widen(usage::used(&self.usage));
        while let Some(bytes) = self.records.next() {
            if let Some(record) = parse(&bytes) {
                usage::add_received(&self.usage, record.image.slot(), bytes.len());
                self.inbox.push(record);
            }
        }
    }
}

impl Shared {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives waiting records. Returns false: they come one by one, and a rest leaves time for more.
    fn receive(&self) -> bool {
        self.ring().drain();
        let _ = self.arrived.write(1);
        false
    }
}

/// A decoded [`StackRecord`].
#[derive(Debug, PartialEq, Eq)]
struct Record {
    hash: u64,
    image: ImageId,
    row: u32,
    stack: RawStack,
    /// Number and name of the thread.
    thread: Option<(u32, String)>,
}

/// Decodes a [`StackRecord`] that is truncated after its last frame.
fn parse(record: &[u8]) -> Option<Record> {
    let (header, frames) = record.split_at_checked(StackRecord::HEADER_BYTES)?;
    let word = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let hash = header.get(std::mem::offset_of!(StackRecord, hash)..)?.first_chunk()?;
    let hash = u64::from_ne_bytes(*hash);
    let row = word(std::mem::offset_of!(StackRecord, row))?;
    let image = ImageId(word(std::mem::offset_of!(StackRecord, image))?);
    let count = word(std::mem::offset_of!(StackRecord, frame_count))? as usize;
    let status = word(std::mem::offset_of!(StackRecord, status))?;
    let status = StackStatus::from_number(u8::try_from(status).ok()?)?;
    let (words, _) = frames.as_chunks::<8>();
    if count > MAX_FRAMES || words.len() < count {
        return None;
    }
    let mut found = [0; MAX_FOUND];
    let (identities, _) = header.get(std::mem::offset_of!(StackRecord, found)..)?.as_chunks::<8>();
    for (found, identity) in found.iter_mut().zip(identities) {
        *found = u64::from_ne_bytes(*identity);
    }
    let identity = header.get(std::mem::offset_of!(StackRecord, thread)..)?.first_chunk()?;
    let identity = u64::from_ne_bytes(*identity);
    let thread = if identity == 0 { None } else { thread(record) };
    let frames = words[..count].iter().map(|word| StackFrame(u64::from_ne_bytes(*word))).collect();
    Some(Record {
        hash,
        image,
        row,
        stack: RawStack { status, found: found.into(), thread: identity, frames },
        thread,
    })
}

/// Number and name of a [`StackRecord`]'s thread.
fn thread(record: &[u8]) -> Option<(u32, String)> {
    let number = record.get(std::mem::offset_of!(StackRecord, thread_number)..)?.first_chunk()?;
    let name = record.get(std::mem::offset_of!(StackRecord, thread_name)..)?.first_chunk::<COMM_BYTES>()?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Some((u32::from_ne_bytes(*number), String::from_utf8_lossy(name).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(frame_count: u32, status: u32, frames: &[u64]) -> Vec<u8> {
        let words = [77, 1, frame_count, status].map(|word| word.to_ne_bytes().to_vec());
        let header = [9u64.to_ne_bytes().to_vec()]
            .into_iter()
            .chain(words)
            .chain(found().into_iter().chain([99]).map(|word| word.to_ne_bytes().to_vec()))
            .chain([42u64.to_ne_bytes().to_vec(), b"worker\0\0noise\0\0\0".to_vec()]);
        header.chain(frames.iter().map(|frame| frame.to_ne_bytes().to_vec())).flatten().collect()
    }

    fn found() -> [u64; MAX_FOUND] {
        let mut found = [0; MAX_FOUND];
        found[..2].copy_from_slice(&[5, 6]);
        found
    }

    #[test]
    fn a_record_gives_its_row_status_and_frames() {
        let complete = StackStatus::Complete;
        let stack = RawStack {
            status: complete,
            found: found().into(),
            thread: 99,
            frames: vec![StackFrame(0x10), StackFrame(0x20)],
        };
        let thread = Some((42, "worker".to_owned()));
        let expected = Record { hash: 9, image: ImageId(1), row: 77, stack, thread };
        assert_eq!(parse(&record(2, complete as u32, &[0x10, 0x20])), Some(expected));
    }

    #[test]
    fn a_record_gives_its_thread_with_its_name() {
        assert_eq!(thread(&record(1, 1, &[0x10])), Some((42, "worker".to_owned())));
        assert_eq!(thread(&[0; 40]), None);
    }

    #[test]
    fn a_record_that_cannot_be_is_left_out() {
        assert_eq!(parse(&record(3, 1, &[0x10, 0x20])), None);
        assert_eq!(parse(&record(1, 99, &[0x10])), None);
        assert_eq!(parse(&record(0, 1, &[])[..20]), None);
    }
}
