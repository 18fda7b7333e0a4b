//! Frames of stacks, which the kernel side sends when it first sees a stack.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsRawFd, RawFd};

use aya::maps::{MapData, RingBuf};
use jjleak_common::process::{COMM_BYTES, ImageId};
use jjleak_common::stack::{MAX_FRAMES, StackFrame, StackRecord, StackStatus};
use jjleak_common::unwind::MAX_FOUND;

use super::threads::Threads;
use crate::snapshot::RawStack;

/// Received frames, by row of the stack table.
pub(super) struct Frames {
    ring: RingBuf<MapData>,
    received: HashMap<u32, RawStack>,
    /// Rows of each image that have not been taken yet.
    new: HashMap<ImageId, Vec<u32>>,
    threads: Threads,
}

impl Frames {
    pub(super) fn new(ring: RingBuf<MapData>) -> Self {
        Self { ring, received: HashMap::new(), new: HashMap::new(), threads: Threads::default() }
    }

    /// Receives waiting records.
    pub(super) fn receive(&mut self) {
        while let Some(record) = self.ring.next() {
            if let Some((image, row, stack)) = parse(&record) {
                if let (true, Some((number, name))) = (stack.thread != 0, thread(&record)) {
                    self.threads.see(image, stack.thread, number, name);
                }
                self.received.insert(row, stack);
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

    pub(super) fn of_row(&self, row: u32) -> Option<&RawStack> {
        self.received.get(&row)
    }

    /// Replaces an unfinished stack, which is new once more.
    pub(super) fn replace(&mut self, image: ImageId, row: u32, stack: RawStack) {
        self.received.insert(row, stack);
        self.new.entry(image).or_default().push(row);
    }

    pub(super) fn forget(&mut self, rows: &BTreeSet<u32>) {
        self.received.retain(|row, _| !rows.contains(row));
        self.new.retain(|_, new| new.iter().any(|row| !rows.contains(row)));
    }
}

impl AsRawFd for Frames {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

/// Decodes a [`StackRecord`] that is truncated after its last frame.
fn parse(record: &[u8]) -> Option<(ImageId, u32, RawStack)> {
    let (header, frames) = record.split_at_checked(StackRecord::HEADER_BYTES)?;
    let word = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
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
    let thread = header.get(std::mem::offset_of!(StackRecord, thread)..)?.first_chunk()?;
    let thread = u64::from_ne_bytes(*thread);
    let frames = words[..count].iter().map(|word| StackFrame(u64::from_ne_bytes(*word))).collect();
    Some((image, row, RawStack { status, found, thread, frames }))
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
        let expected = RawStack {
            status: complete,
            found: found(),
            thread: 99,
            frames: vec![StackFrame(0x10), StackFrame(0x20)],
        };
        assert_eq!(parse(&record(2, complete as u32, &[0x10, 0x20])), Some((ImageId(1), 77, expected)));
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
