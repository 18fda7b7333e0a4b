//! Pages of the files that this process reads symbols from: resident memory until they are given back.
//!
//! blazesym maps files whole, keeps them mapped, and looks at most of a large file in one call. So the signal of a timer gives
//! pages back meanwhile. They stay in the page cache, and the next access maps them again.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::libc::{self, MADV_DONTNEED, itimerval, madvise, timeval};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Resident bytes of files from which on their pages are given back. The program itself has some 8 MiB.
const MOST_BYTES: u64 = 24 << 20;
/// CPU time between two looks at them; a kernel with longer ticks looks once a tick.
const INTERVAL: timeval = timeval { tv_sec: 0, tv_usec: 4000 };
const PAGE_BYTES: u64 = 4096;

/// For the signal handler.
static WATCHED: OnceLock<MappedPages> = OnceLock::new();

/// The list of this process's mappings, and its memory. They are opened before the process gives up its files.
#[derive(Debug)]
pub(super) struct MappedPages {
    mappings: File,
    memory: File,
    /// First addresses of the program's own mappings, which relocation has written to.
    own: BTreeSet<u64>,
}

impl MappedPages {
    /// Call this before any file is mapped to be read.
    pub(super) fn open() -> io::Result<Self> {
        let mut this = Self {
            mappings: File::open("/proc/self/maps")?,
            memory: File::open("/proc/self/statm")?,
            own: BTreeSet::new(),
        };
        let mut own = BTreeSet::new();
        this.each_file(|range| {
            own.insert(range.start);
        })?;
        this.own = own;
        Ok(this)
    }

    /// Gives pages back as long as this process lives, whenever they are many.
    pub(super) fn watch(self) -> io::Result<()> {
        WATCHED.set(self).map_err(|_| io::Error::other("pages are watched already"))?;
        let action = SigAction::new(SigHandler::Handler(look), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler makes system calls, and neither allocates memory nor takes a lock.
        unsafe { sigaction(Signal::SIGPROF, &action) }?;
        let timer = itimerval { it_interval: INTERVAL, it_value: INTERVAL };
        // SAFETY: the timer outlives the call, and the earlier one is not asked for.
        Errno::result(unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut()) })?;
        Ok(())
    }

    /// Gives pages back if they are many. A signal handler calls this: it must not allocate memory.
    fn limit(&self) {
        if self.resident_bytes().is_some_and(|bytes| bytes > MOST_BYTES) {
            // Without the list, they stay resident.
            let _ = self.each_file(|range| {
                if !self.own.contains(&range.start) {
                    give_back(&range);
                }
            });
        }
    }

    /// Resident memory of files (`shared` of `proc_pid_statm(5)`).
    fn resident_bytes(&self) -> Option<u64> {
        let mut text = [0; 128];
        let length = self.memory.read_at(&mut text, 0).ok()?;
        let pages = str::from_utf8(&text[..length]).ok()?.split(' ').nth(2)?;
        pages.parse::<u64>().ok()?.checked_mul(PAGE_BYTES)
    }

    /// Calls this for each file that is mapped to be read.
    fn each_file(&self, mut visit: impl FnMut(Range<u64>)) -> io::Result<()> {
        let mut chunk = [0; 4096];
        let mut offset = 0;
        loop {
            let length = self.mappings.read_at(&mut chunk, offset)?;
            let Some(end) = chunk[..length].iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
            let lines = chunk[..end].split(|byte| *byte == b'\n');
            lines.filter_map(|line| of_file(str::from_utf8(line).ok()?)).for_each(&mut visit);
            offset += end as u64 + 1;
        }
    }
}

/// The handler of the timer's signal.
extern "C" fn look(_: c_int) {
    let error = Errno::last_raw();
    if let Some(pages) = WATCHED.get() {
        pages.limit();
    }
    Errno::set_raw(error);
}

/// Addresses of a file that is mapped to be read, by a line of `/proc/self/maps`.
fn of_file(line: &str) -> Option<Range<u64>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_read_only = words.next()?.starts_with("r--");
    let inode = words.nth(2)?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    (is_read_only && inode != "0").then_some(address(start)?..address(end)?)
}

fn give_back(Range { start, end }: &Range<u64>) {
    let (Ok(address), Ok(length)) = (usize::try_from(*start), usize::try_from(end - start)) else { return };
    let address = ptr::with_exposed_provenance_mut(address);
    // SAFETY: nothing has written to these pages, so that the next access finds what is there now. If it fails, they stay resident.
    unsafe { madvise(address, length, MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use memmap2::Mmap;

    use super::*;

    #[test]
    fn pages_of_files_that_are_read_are_given_back_and_read_again() {
        const LENGTH: usize = 1 << 20;
        // The list is longer than what is read of it at once.
        const MAPPINGS: usize = 100;
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..=250).cycle().take(LENGTH).collect();
        file.write_all(&content).unwrap();
        let pages = MappedPages::open().unwrap();
        // SAFETY: nothing changes the file.
        let mapped: Vec<_> = (0..MAPPINGS).map(|_| unsafe { Mmap::map(&file) }.unwrap()).collect();
        let is_read = || mapped.iter().all(|mapped| mapped[..] == content[..]);
        assert!(is_read());
        let before = pages.resident_bytes().unwrap();
        pages.limit();
        let given_back = before - pages.resident_bytes().unwrap();
        assert!(given_back > (LENGTH * (MAPPINGS - 5)) as u64, "{given_back} of {before}");
        assert!(is_read());
    }

    #[test]
    fn lines_of_other_mappings_are_left_out() {
        assert_eq!(of_file("1000-3000 r--p 00000000 fd:01 7   /descriptors/5"), Some(0x1000..0x3000));
        for line in [
            "1000-2000 r-xp 0 fd:01 7 /a",
            "1000-2000 rw-p 0 fd:01 7 /a",
            "1000-2000 r--p 0 00:00 0",
            "1000",
            "",
        ] {
            assert_eq!(of_file(line), None, "{line}");
        }
    }
}
