//! Copies of stacks that the kernel side could not finish.
//!
//! A thread takes them from the ring buffer at once: they come when a program has just mapped a file, and compiling that file's
//! rows takes longer than the buffer lasts. Copies hold the target's memory: they are never written to a file.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use jjleak_common::process::ImageId;
use jjleak_common::unfinished::{self, Unfinished};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;

use crate::attach::Error;
use crate::fast_map::{FastMap, fast_map};
use crate::unwind::{StackCopy, StackPage};

const PAGE_BYTES: usize = StackCopy::PAGE_BYTES;
/// Maximum number of pages of all copies: 64 MiB. More stacks stay unfinished.
const MAX_PAGES: usize = (64 << 20) / PAGE_BYTES;

/// Maximum number of pages that later copies may share: 4 MiB.
const MAX_SHARED: usize = (4 << 20) / PAGE_BYTES;
/// Maximum number of records in the ring buffer.
const MAX_WAITING: usize = unfinished::RING_BYTES as usize / (unfinished::COPY_PAGES[0] * PAGE_BYTES);

/// Time to wait for a record that is being written.
const REST: Duration = Duration::from_millis(1);

/// The copies that have been received.
pub(super) struct UnfinishedStacks {
    shared: Arc<Shared>,
    copies: Vec<StackCopy>,
    end: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// What both threads use. Each lock is held for one record only: the other thread may hold it without having a CPU.
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
    /// Number of copies for which there was no room.
    left_out: usize,
}

impl Ring {
    /// Receives a waiting record: a copy, or nothing if there is no room for it. `None` if there is no record.
    fn receive(&mut self) -> Option<Vec<StackCopy>> {
        let Self { records, last, count, left_out } = self;
        let record = records.next()?;
        if count.load(Ordering::Relaxed) >= MAX_PAGES {
            *left_out += 1;
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
        let waiting = records.as_raw_fd();
        let end = Arc::new(EventFd::new().map_err(|errno| Error::Map(errno.into()))?);
        let ring = Ring { records, last: fast_map(0), count: Arc::default(), left_out: 0 };
        let shared = Arc::new(Shared { ring: Mutex::new(ring), inbox: Mutex::default() });
        let run = {
            let (shared, end) = (Arc::clone(&shared), Arc::clone(&end));
            move || {
                hurry();
                wait_and_receive(&shared, waiting, &end);
            }
        };
        let thread = thread::Builder::new().name("stack copies".to_owned()).spawn(run).ok();
        Ok(Self { shared, copies: Vec::new(), end, thread })
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
        let wanted: Vec<_> = self.copies.extract_if(.., is_wanted).collect();
        if !wanted.is_empty() {
            let left_out = lock(&self.shared.ring).left_out;
            tracing::debug!(copies = wanted.len(), left_out, "copies of stacks");
        }
        wanted
    }

    /// Returns true if there is not much room for more copies.
    pub(super) fn are_many(&self) -> bool {
        lock(&self.shared.ring).count.load(Ordering::Relaxed) > MAX_PAGES / 2
    }

    /// Keeps copies for another time.
    pub(super) fn keep(&mut self, copies: Vec<StackCopy>) {
        self.copies.extend(copies);
    }

    /// Drops the copies of these rows.
    pub(super) fn forget(&mut self, rows: &BTreeSet<u32>) {
        self.drain();
        self.copies.retain(|copy| !rows.contains(&copy.walk.row));
        if self.copies.is_empty() {
            let last = std::mem::take(&mut lock(&self.shared.ring).last);
            drop(last);
        }
    }
}

impl Drop for UnfinishedStacks {
    fn drop(&mut self) {
        // The counter has room for this.
        let _ = self.end.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Lets the thread run ahead of the target, which fills the buffer within milliseconds. It has little to do. Without the privilege,
/// it stays as it is.
fn hurry() {
    const LOWEST_REAL_TIME: nix::libc::c_int = 1;
    const NICE: nix::libc::c_int = -10;
    let parameters = nix::libc::sched_param { sched_priority: LOWEST_REAL_TIME };
    // SAFETY: the parameters are valid; 0 is the calling thread.
    unsafe {
        if nix::libc::sched_setscheduler(0, nix::libc::SCHED_FIFO, &raw const parameters) != 0 {
            nix::libc::setpriority(nix::libc::PRIO_PROCESS, 0, NICE);
        }
    }
}

fn wait_and_receive(shared: &Shared, ring: RawFd, end: &EventFd) {
    // SAFETY: the ring buffer is in `shared`, and owns its descriptor until then.
    let ring = unsafe { BorrowedFd::borrow_raw(ring) };
    loop {
        let mut waiting = [PollFd::new(ring, PollFlags::POLLIN), PollFd::new(end.as_fd(), PollFlags::POLLIN)];
        let outcome = poll(&mut waiting, PollTimeout::NONE);
        let is_over = waiting[1].any().unwrap_or(true);
        if is_over || outcome.is_err_and(|errno| errno != nix::errno::Errno::EINTR) {
            return;
        }
        let mut is_ahead = false;
        while shared.receive() {
            is_ahead = true;
        }
        if !is_ahead {
            // The first record is being written, perhaps by a thread that waits for this CPU.
            thread::sleep(REST);
        }
    }
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
        reserved: [0; 5],
    };
    let count = u64::BITS - walk.copied_pages.leading_zeros();
    let page = |number: u32| {
        let begin = number as usize * PAGE_BYTES;
        let bytes = copied.get(begin..)?.first_chunk()?;
        let address = walk.copied_at.wrapping_add(u64::from(number) * unfinished::PAGE_BYTES);
        (walk.copied_pages >> number & 1 == 1).then(|| share(walk.image, address, bytes))
    };
    Some(StackCopy { walk, pages: (0..count).map(page).collect() })
}
