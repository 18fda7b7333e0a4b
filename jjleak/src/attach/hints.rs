//! Hints from the kernel side that a process needs a scan: it maps unknown code, runs another program, starts or ends.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::unwind::{CodeFile, Hint, ProgramBegun};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use super::Error;
use super::ring::Ring;
use super::unwind_tables::MINOR_BITS;
use crate::processes::{FileId, FileVersion};

/// Pause after a hint that led to nothing new, doubled each time up to the maximum. Each hint costs a scan of all mappings, and
/// garbage on stacks can cause misses at any rate. But the first useless hint often predates the last scan, and a program that
/// loads one library is likely to load another soon.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Stream of hints.
pub struct Hints {
    ring: AsyncFd<Ring<Hint>>,
    programs: Ring<ProgramBegun>,
    not_before: Instant,
    pause: Duration,
}

/// Content of the pending hints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingHints {
    /// Processes to scan.
    pub slots: BTreeSet<ProcessSlot>,
    /// Code that they map, as far as reported.
    pub code: Vec<MappedCode>,
    /// Programs that they have started to run, in order.
    pub programs: Vec<BegunProgram>,
}

/// Start of a program in a process (`exec`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BegunProgram {
    /// The program image.
    pub image: ImageId,
    /// Time in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// File of the program, if the kernel side has reported it.
    pub file: Option<FileVersion>,
    /// Path as passed to `exec`.
    pub path: PathBuf,
    /// Number of the process's mount namespace, if the kernel side has reported it.
    pub mount_namespace: Option<u64>,
}

/// Code that a program image maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedCode {
    /// The program image.
    pub image: ImageId,
    /// Address range.
    pub addresses: Range<u64>,
    /// File offset of the first address.
    pub file_offset: u64,
    /// The file.
    pub file: FileVersion,
}

impl Hints {
    pub(super) fn new(ring: Ring<Hint>, programs: Ring<ProgramBegun>) -> Result<Self, Error> {
        // SAFETY: a ring buffer owns its descriptor and never replaces it.
        let ring = unsafe { AsyncFd::register(ring) }.map_err(|error| Error::Map(error.into()))?;
        Ok(Self { ring, programs, not_before: Instant::now(), pause: SHORTEST_PAUSE })
    }

    /// Waits for hints. Cancel-safe.
    pub async fn wait(&mut self) -> PendingHints {
        sleep_until(self.not_before).await;
        // An error means that the runtime is shutting down.
        let Ok(mut guard) = self.ring.readable_mut().await else { return PendingHints::default() };
        let hints = take(guard.get_inner_mut(), &mut self.programs);
        guard.clear_ready();
        hints
    }

    /// Takes the pending hints.
    pub fn take(&mut self) -> PendingHints {
        take(self.ring.get_mut(), &mut self.programs)
    }

    /// Reports that the last hint led to something new. Returns the pending hints, which may predate it.
    pub fn was_right(&mut self) -> PendingHints {
        self.pause = SHORTEST_PAUSE;
        self.take()
    }

    /// Reports that the last hint led to nothing new.
    pub fn was_wrong(&mut self) {
        self.not_before = Instant::now() + self.pause;
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
    }
}

fn take(ring: &mut Ring<Hint>, programs: &mut Ring<ProgramBegun>) -> PendingHints {
    let mut hints = PendingHints::default();
    while let Some(hint) = ring.next() {
        hints.slots.extend(u16::try_from(hint.slot).map(ProcessSlot));
        let code = mapped_code(&hint);
        // Hints for the same code repeat until it is known.
        hints.code.extend(code.filter(|code| !hints.code.contains(code)));
    }
    // Read after the hints: each program start is reported before its hint.
    while let Some(begun) = programs.next() {
        let program = begun_program(&begun);
        hints.slots.insert(program.image.slot());
        hints.programs.push(program);
    }
    hints
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
    fn a_program_is_reported_with_its_file_and_its_path() {
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
    fn a_hint_reports_code_if_it_knows_of_any() {
        let file = CodeFile { inode: 77, changed_s: 5, changed_ns: 6, device: 8 << 20 | 3 };
        let hint = Hint { slot: 1, image: 129, begin: 0x1000, end: 0x3000, file_offset: 0x2000, file };
        let code = mapped_code(&hint).unwrap();
        assert_eq!(code.file.file, FileId { device: (8, 3), inode: 77 });
        assert_eq!((code.image, code.file.changed, code.file_offset), (ImageId(129), (5, 6), 0x2000));
        assert_eq!(code.addresses, 0x1000..0x3000);
        assert_eq!(mapped_code(&Hint { begin: 0, ..hint }), None);
    }
}
