//! Copies of stacks that the kernel side could not finish.
//!
//! They come when a program has just mapped a file. Copies hold the target's memory: they are never written to a file.

use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::{MapData, RingBuf};
use jjleak_common::process::ImageId;
use jjleak_common::unfinished::{self, HashedWords, Unfinished};

use crate::attach::{Error, RingThread};
use crate::fast_map::{FastMap, fast_map};
use crate::unwind::{StackCopy, StackPage};

const PAGE_BYTES: usize = StackCopy::PAGE_BYTES;
/// Maximum number of pages of all copies: 64 MiB. More stacks stay unfinished.
const MAX_PAGES: usize = (64 << 20) / PAGE_BYTES;

/// Maximum number of pages that later copies may share: 4 MiB.
const MAX_SHARED: usize = (4 << 20) / PAGE_BYTES;
/// Maximum number of records in the ring buffer.
const MAX_WAITING: usize = unfinished::RING_BYTES as usize / (unfinished::COPY_PAGES[0] * PAGE_BYTES);

/// The copies that have been received.
pub(super) struct UnfinishedStacks {
    shared: Arc<Shared>,
    copies: Vec<StackCopy>,
    _thread: RingThread,
}

/// State shared by the two threads. Each lock is held for one record only: the thread that holds it may be waiting for a CPU.
struct Shared {
    ring: Mutex<Ring>,
    inbox: Mutex<Vec<StackCopy>>,
}

struct Ring {
    records: RingBuf<MapData>,
    /// The last version of each page, by image and address: copies of one stack share the pages that have not changed.
    last: FastMap<(u32, u64), Arc<StackPage>>,
    /// Number of all pages.
    count: Arc<AtomicUsize>,
    /// Number of copies of each image that were dropped for lack of room.
    lost: FastMap<u32, u64>,
}

impl Ring {
    /// Receives a waiting record: a copy, or nothing if there is no room for it. `None` if there is no record.
    fn receive(&mut self) -> Option<Vec<StackCopy>> {
        let Self { records, last, count, lost } = self;
        let record = records.next()?;
        if count.load(Ordering::Relaxed) >= MAX_PAGES {
            if let Some(image) = image_of(&record) {
                *lost.entry(image).or_default() += 1;
            }
            return Some(Vec::new());
        }
        if last.len() >= MAX_SHARED {
            last.clear();
        }
        let share = |image, address, bytes: &_| {
            let known = last.get(&(image, address)).filter(|page| page.is(bytes));
            let page = known.map_or_else(|| Arc::new(StackPage::new(bytes, count)), Arc::clone);
            last.insert((image, address), Arc::clone(&page));
            page
        };
        Some(parse(&record, share).into_iter().collect())
    }
}

impl Shared {
    /// Receives a waiting record. Returns false if there is none.
    fn receive(&self) -> bool {
        let Some(received) = lock(&self.ring).receive() else { return false };
        lock(&self.inbox).extend(received);
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UnfinishedStacks {
    /// Begins to receive. If no thread can be started, copies are received with the frames only.
    pub(super) fn receive(records: RingBuf<MapData>) -> Result<Self, Error> {
        let waiting = records.as_fd().try_clone_to_owned().map_err(Error::Map)?;
        let ring = Ring { records, last: fast_map(0), count: Arc::default(), lost: fast_map(0) };
        let shared = Arc::new(Shared { ring: Mutex::new(ring), inbox: Mutex::default() });
        let thread = {
            let shared = Arc::clone(&shared);
            // The first record may be one that is being written.
            RingThread::start("stack copies", waiting, move || {
                (0..MAX_WAITING).take_while(|_| shared.receive()).count() > 0
            })?
        };
        Ok(Self { shared, copies: Vec::new(), _thread: thread })
    }

    /// Receives the records that are waiting.
    fn drain(&mut self) {
        for _ in 0..MAX_WAITING {
            if !self.shared.receive() {
                break;
            }
        }
        self.copies.append(&mut lock(&self.shared.inbox));
    }

    /// Takes the waiting copies of an image's stacks that were made before `until_ns`.
    pub(super) fn take(&mut self, image: ImageId, until_ns: u64) -> Vec<StackCopy> {
        self.drain();
        let is_wanted = |copy: &mut StackCopy| copy.walk.image == image.0 && copy.walk.taken_ns <= until_ns;
        self.copies.extract_if(.., is_wanted).collect()
    }

    /// Number of an image's copies that were dropped since the last call.
    pub(super) fn take_lost(&self, image: ImageId) -> u64 {
        lock(&self.shared.ring).lost.remove(&image.0).unwrap_or_default()
    }

    /// Returns true if there is not much room for more copies.
    pub(super) fn are_many(&self) -> bool {
        lock(&self.shared.ring).count.load(Ordering::Relaxed) > MAX_PAGES / 2
    }

    /// Keeps copies for another time.
    pub(super) fn keep(&mut self, copies: Vec<StackCopy>) {
        self.copies.extend(copies);
    }

    /// Drops the copies of all other images. Rows do not tell: another stack may have taken a copy's row.
    pub(super) fn retain(&mut self, is_current: impl Fn(ImageId) -> bool) {
        self.drain();
        self.copies.retain(|copy| is_current(ImageId(copy.walk.image)));
        lock(&self.shared.ring).lost.retain(|image, _| is_current(ImageId(*image)));
        if self.copies.is_empty() {
            let last = std::mem::take(&mut lock(&self.shared.ring).last);
            drop(last);
        }
    }
}

/// Image of a record.
fn image_of(record: &[u8]) -> Option<u32> {
    let image = record.get(offset_of!(Unfinished, image)..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*image))
}

/// Decodes a record; `None` if it cannot be one.
fn parse(
    record: &[u8],
    mut share: impl FnMut(u32, u64, &[u8; PAGE_BYTES]) -> Arc<StackPage>,
) -> Option<StackCopy> {
    let (header, copied) = record.split_at_checked(size_of::<Unfinished>())?;
    let long = |at: usize| Some(u64::from_ne_bytes(header.get(at..at + 8)?.try_into().ok()?));
    let short = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let byte = |at: usize| header.get(at).copied();
    let walk = Unfinished {
        hash: long(offset_of!(Unfinished, hash))?,
        row: short(offset_of!(Unfinished, row))?,
        image: short(offset_of!(Unfinished, image))?,
        taken_ns: long(offset_of!(Unfinished, taken_ns))?,
        instruction_pointer: long(offset_of!(Unfinished, instruction_pointer))?,
        stack_pointer: long(offset_of!(Unfinished, stack_pointer))?,
        frame_pointer: long(offset_of!(Unfinished, frame_pointer))?,
        base_saved: long(offset_of!(Unfinished, base_saved))?,
        stack_begin: long(offset_of!(Unfinished, stack_begin))?,
        stack_end: long(offset_of!(Unfinished, stack_end))?,
        copied_at: long(offset_of!(Unfinished, copied_at))?,
        copied_pages: long(offset_of!(Unfinished, copied_pages))?,
        after_call: byte(offset_of!(Unfinished, after_call))?,
        unproven: byte(offset_of!(Unfinished, unproven))?,
        by_frame_pointer: byte(offset_of!(Unfinished, by_frame_pointer))?,
        frame_pointer_hashed: byte(offset_of!(Unfinished, frame_pointer_hashed))?,
        reserved: [0; 4],
    };
    let count = u64::BITS - walk.copied_pages.leading_zeros();
    // The places of hashed words in all pages are in front of the pages.
    let room = copied.len() / (size_of::<HashedWords>() + PAGE_BYTES);
    let (hashed, pages) = copied.split_at_checked(room * size_of::<HashedWords>())?;
    let hashed = hashed.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let page = |number: u32| {
        let begin = number as usize * PAGE_BYTES;
        let bytes = pages.get(begin..)?.first_chunk()?;
        let address = walk.copied_at.wrapping_add(u64::from(number) * unfinished::PAGE_BYTES);
        (walk.copied_pages >> number & 1 == 1).then(|| share(walk.image, address, bytes))
    };
    Some(StackCopy { walk, pages: (0..count).map(page).collect(), hashed })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with room for two pages, of which the second was copied.
    fn record() -> Vec<u8> {
        let mut record = vec![0; size_of::<Unfinished>()];
        let mut set = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
        set(offset_of!(Unfinished, row), &9u32.to_ne_bytes());
        set(offset_of!(Unfinished, image), &7u32.to_ne_bytes());
        set(offset_of!(Unfinished, copied_at), &0x7000u64.to_ne_bytes());
        set(offset_of!(Unfinished, copied_pages), &2u64.to_ne_bytes());
        record.extend([0x11; size_of::<HashedWords>()]);
        record.extend([0x22; size_of::<HashedWords>()]);
        record.extend([0x33; PAGE_BYTES]);
        record.extend([0x44; PAGE_BYTES]);
        record
    }

    #[test]
    fn a_record_gives_its_pages_and_hashed_words() {
        let mut shared = Vec::new();
        let copy = parse(&record(), |image, address, bytes| {
            shared.push((image, address));
            Arc::new(StackPage::new(bytes, &Arc::default()))
        });
        let copy = copy.unwrap();
        assert_eq!((copy.walk.row, image_of(&record())), (9, Some(7)));
        assert_eq!(shared, [(7, 0x8000)]);
        assert!(copy.pages[0].is_none() && copy.pages[1].as_ref().unwrap().is(&[0x44; PAGE_BYTES]));
        assert_eq!((copy.hashed[7], copy.hashed[8]), (0x1111_1111_1111_1111, 0x2222_2222_2222_2222));
        assert_eq!(copy.hashed.len(), 16);
    }

    #[test]
    fn a_record_that_is_too_short_is_none() {
        let short = record();
        let share = |_, _, bytes: &_| Arc::new(StackPage::new(bytes, &Arc::default()));
        assert!(parse(&short[..20], share).is_none() && image_of(&short[..9]).is_none());
    }
}
