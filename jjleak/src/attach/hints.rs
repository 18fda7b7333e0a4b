//! Hints of the kernel side that there is something to look at: a process maps code that is not known, runs another
//! program, begins or ends.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::unwind::{CodeFile, Hint, ProgramBegun};
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
    programs: RingBuf<MapData>,
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
    /// Programs that they have begun to run, in that order.
    pub programs: Vec<BegunProgram>,
}

/// A program that a process has begun to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BegunProgram {
    /// The image.
    pub image: ImageId,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Its file, if the kernel has told.
    pub file: Option<FileVersion>,
    /// Its path as it was given to `exec`.
    pub path: PathBuf,
    /// The number of the mount namespace that its files are in, if the kernel has told.
    pub mount_namespace: Option<u64>,
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
    pub(super) fn new(ring: RingBuf<MapData>, programs: RingBuf<MapData>) -> Result<Self, Error> {
        // SAFETY: a ring buffer owns its descriptor and never exchanges it.
        let ring = unsafe { AsyncFd::register(ring) }.map_err(|error| Error::Map(error.into()))?;
        Ok(Self { ring, programs, not_before: Instant::now(), pause: SHORTEST_PAUSE })
    }

    /// Waits until there is a reason to look. Can be dropped and called again.
    pub async fn wait(&mut self) -> Told {
        sleep_until(self.not_before).await;
        // An error means that the runtime is going down.
        let Ok(mut guard) = self.ring.readable_mut().await else { return Told::default() };
        let told = take(guard.get_inner_mut(), &mut self.programs);
        guard.clear_ready();
        told
    }

    /// What is waiting.
    pub fn take(&mut self) -> Told {
        take(self.ring.get_mut(), &mut self.programs)
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

fn take(ring: &mut RingBuf<MapData>, programs: &mut RingBuf<MapData>) -> Told {
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
    // After the hints: each of these was told before the hint that belongs to it.
    while let Some(bytes) = programs.next() {
        // SAFETY: as long as what tells of a program, which has integers only.
        let begun = (bytes.len() == size_of::<ProgramBegun>())
            .then(|| unsafe { bytes.as_ptr().cast::<ProgramBegun>().read_unaligned() });
        if let Some(begun) = begun {
            let program = begun_program(&begun);
            told.slots.insert(program.image.slot());
            told.programs.push(program);
        }
    }
    told
}

fn mapped_code(hint: &Hint) -> Option<MappedCode> {
    (hint.begin != 0).then(|| MappedCode {
        image: ImageId(hint.image),
        addresses: hint.begin..hint.end,
        file_offset: hint.file_offset,
        file: version(&hint.file),
    })
}

fn begun_program(begun: &ProgramBegun) -> BegunProgram {
    let length = begun.path.iter().position(|byte| *byte == 0).unwrap_or_default();
    BegunProgram {
        image: ImageId(begun.image),
        at_ns: begun.time_ns,
        file: (begun.file.inode != 0).then(|| version(&begun.file)),
        path: PathBuf::from(OsStr::from_bytes(&begun.path[..length])),
        mount_namespace: (begun.mount_namespace != 0).then(|| begun.mount_namespace.into()),
    }
}

fn version(file: &CodeFile) -> FileVersion {
    let device = (file.device >> MINOR_BITS, file.device & ((1 << MINOR_BITS) - 1));
    FileVersion {
        file: FileId { device, inode: file.inode },
        changed: (file.changed_s, i64::from(file.changed_ns)),
    }
}

#[cfg(test)]
mod tests {
    use jjleak_common::unwind::PATH_BYTES;

    use super::*;

    #[test]
    fn a_program_is_told_with_its_file_and_its_path() {
        let file = CodeFile { inode: 77, changed_s: 5, changed_ns: 6, device: 8 << 20 | 3 };
        let mut path = [0; PATH_BYTES];
        path[..6].copy_from_slice(b"./prog");
        let begun = ProgramBegun { time_ns: 9, image: 129, mount_namespace: 4711, file, path };
        let program = begun_program(&begun);
        assert_eq!((program.image, program.at_ns, &*program.path), (ImageId(129), 9, "./prog".as_ref()));
        assert_eq!(program.file.map(|version| version.file.inode), Some(77));
        assert_eq!(program.mount_namespace, Some(4711));
        let untold = CodeFile { inode: 0, ..file };
        assert_eq!(begun_program(&ProgramBegun { file: untold, ..begun }).file, None);
    }

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
