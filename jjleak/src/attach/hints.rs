//! Hints of the kernel side that there is something to look at: a process maps code that is not known, runs another
//! program, begins or ends.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::unwind::Hint;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use super::Error;
use super::unwind_tables::MINOR_BITS;
use crate::processes::{FileId, FileVersion};

/// Time to the next hint after one that led to nothing new, doubled each time up to the longest. Each costs a look at
/// all mappings, and garbage on stacks can miss at any rate. But the first useless one is often left from before the
/// last look, and a program that loads a library is likely to load the next one soon.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The hints.
pub struct Hints {
    ring: AsyncFd<RingBuf<MapData>>,
    not_before: Instant,
    pause: Duration,
}

/// What hints tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// The processes to look at.
    pub slots: BTreeSet<ProcessSlot>,
    /// What they map, as far as it was told.
    pub code: Vec<MappedCode>,
}

/// Code that an image maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedCode {
    /// The image.
    pub image: ImageId,
    /// Addresses.
    pub addresses: Range<u64>,
    /// The offset in the file that is mapped at the start.
    pub file_offset: u64,
    /// The file.
    pub file: FileVersion,
}

impl Hints {
    pub(super) fn new(ring: RingBuf<MapData>) -> Result<Self, Error> {
        // SAFETY: a ring buffer owns its descriptor and never exchanges it.
        let ring = unsafe { AsyncFd::register(ring) }.map_err(|error| Error::Map(error.into()))?;
        Ok(Self { ring, not_before: Instant::now(), pause: SHORTEST_PAUSE })
    }

    /// Waits until there is a reason to look. Can be dropped and called again.
    pub async fn wait(&mut self) -> Told {
        sleep_until(self.not_before).await;
        // An error means that the runtime is going down.
        let Ok(mut guard) = self.ring.readable_mut().await else { return Told::default() };
        let told = take(guard.get_inner_mut());
        guard.clear_ready();
        told
    }

    /// What is waiting.
    pub fn take(&mut self) -> Told {
        take(self.ring.get_mut())
    }

    /// The last hint led to something new: what is waiting may be from before that was known.
    pub fn was_right(&mut self) -> Told {
        self.pause = SHORTEST_PAUSE;
        self.take()
    }

    /// The last hint led to nothing new.
    pub fn was_wrong(&mut self) {
        self.not_before = Instant::now() + self.pause;
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
    }
}

fn take(ring: &mut RingBuf<MapData>) -> Told {
    let mut told = Told::default();
    while let Some(bytes) = ring.next() {
        // SAFETY: as long as a hint, which has integers only, so that any bytes are one.
        let hint = (bytes.len() == size_of::<Hint>())
            .then(|| unsafe { bytes.as_ptr().cast::<Hint>().read_unaligned() });
        if let Some(hint) = hint {
            told.slots.extend(u16::try_from(hint.slot).map(ProcessSlot));
            let code = mapped_code(&hint);
            // The same code is hinted at again and again until it is known.
            told.code.extend(code.filter(|code| !told.code.contains(code)));
        }
    }
    told
}

fn mapped_code(hint: &Hint) -> Option<MappedCode> {
    (hint.begin != 0).then(|| {
        let device = (hint.file.device >> MINOR_BITS, hint.file.device & ((1 << MINOR_BITS) - 1));
        let file = FileId { device, inode: hint.file.inode };
        let changed = (hint.file.changed_s, i64::from(hint.file.changed_ns));
        MappedCode {
            image: ImageId(hint.image),
            addresses: hint.begin..hint.end,
            file_offset: hint.file_offset,
            file: FileVersion { file, changed },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jjleak_common::unwind::CodeFile;

    #[test]
    fn a_hint_tells_of_code_if_it_knows_of_any() {
        let file = CodeFile { inode: 77, changed_s: 5, changed_ns: 6, device: 8 << 20 | 3 };
        let hint = Hint { slot: 1, image: 129, begin: 0x1000, end: 0x3000, file_offset: 0x2000, file };
        let code = mapped_code(&hint).unwrap();
        assert_eq!(code.file.file, FileId { device: (8, 3), inode: 77 });
        assert_eq!((code.image, code.file.changed, code.file_offset), (ImageId(129), (5, 6), 0x2000));
        assert_eq!(code.addresses, 0x1000..0x3000);
        assert_eq!(mapped_code(&Hint { begin: 0, ..hint }), None);
    }
}
