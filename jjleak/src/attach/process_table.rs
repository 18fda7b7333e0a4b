//! The table of profiled processes, written by both sides: see `jjleak_common::process`.

use std::io;
use std::ops::Range;
use std::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, MapError, Queue};
use jjleak_common::names;
use jjleak_common::process::{
    COMM_BYTES, FreedCode, ImageId, MAX_ALLOCATORS, MAX_PROCESSES, ProcessRow, ProcessSlot, ProcessState,
    TextRange, Trampoline, flag,
};
use jjleak_common::unwind::NO_MAPPINGS;

use jjleak_common::unwind::CodeSeen;

use super::{Error, Mapped, is_missing_key, now_ns};
use crate::processes::Pid;

/// The memory-mapped rows, and the queue of free slots.
pub struct ProcessTable {
    rows: Rc<Mapped<ProcessRow>>,
    tracked: HashMap<MapData, u32, u32>,
    free: Queue<MapData, u32>,
    /// Slots that the kernel side does not get.
    reserved: Vec<ProcessSlot>,
}

/// View of the process table that distinguishes current program images from old ones.
#[derive(Clone)]
pub struct Images(Rc<Mapped<ProcessRow>>);

impl Images {
    /// Returns true if a program image runs, or was the last one of a process that is still in the table. Read table entries of
    /// the image before this call: an image that is not current by then never will be again.
    #[must_use]
    pub fn is_current(&self, image: ImageId) -> bool {
        let Some(row) = self.0.get(usize::from(image.slot().0)) else { return false };
        fence(Ordering::Acquire);
        // SAFETY: the row is mapped for reading.
        image.generation() != 0 && unsafe { read_volatile(addr_of!((*row).image)) } == u64::from(image.0)
    }

    /// Records that entries older than the current images are about to be deleted.
    pub fn mark_swept(&self) {
        for row in (0..self.0.len()).filter_map(|index| self.0.get(index)) {
            // SAFETY: the row is mapped for reading and writing.
            unsafe { write_volatile(addr_of_mut!((*row).swept), read_volatile(addr_of!((*row).image))) };
        }
    }

    /// Maximum number of images that any process has had since.
    #[must_use]
    pub fn unswept(&self) -> u32 {
        let of_row = |row: *mut ProcessRow| {
            // SAFETY: the row is mapped for reading.
            let (image, swept) =
                unsafe { (read_volatile(addr_of!((*row).image)), read_volatile(addr_of!((*row).swept))) };
            let generation = |image: u64| u32::try_from(image).map_or(0, |image| ImageId(image).generation());
            if image == 0 || swept == 0 { 0 } else { generation(image).abs_diff(generation(swept)) }
        };
        (0..self.0.len()).filter_map(|index| self.0.get(index)).map(of_row).max().unwrap_or_default()
    }
}

/// `include/uapi/linux/bpf.h`
const BPF_NOEXIST: u64 = 1;

/// Image field of a row.
const fn row_image<'row>(row: *mut ProcessRow) -> &'row AtomicU64 {
    // SAFETY: rows are mapped for writing for the lifetime of the table and aligned, and all other accesses to the field are
    // atomic.
    unsafe { AtomicU64::from_ptr(addr_of_mut!((*row).image)) }
}

/// State field of a row.
const fn row_state<'row>(row: *mut ProcessRow) -> &'row AtomicU32 {
    // SAFETY: as above.
    unsafe { AtomicU32::from_ptr(addr_of_mut!((*row).state)) }
}

fn is_there_already(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(error) if error.io_error.kind() == io::ErrorKind::AlreadyExists)
}

/// A row of the process table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracked {
    /// Its slot.
    pub slot: ProcessSlot,
    /// Its PID.
    pub pid: Pid,
    /// The program image that is accounted for; a new one after each `exec`.
    pub image: ImageId,
    /// True if the process has ended.
    pub ended: bool,
    /// Parent whose memory it has copied, until it runs another program.
    pub forked_from: Option<Pid>,
    /// Start of the image, in nanoseconds of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// Its name when the kernel side added it, or at its last `exec`.
    pub comm: [u8; COMM_BYTES],
}

impl Tracked {
    /// Its name as text.
    #[must_use]
    pub fn name(&self) -> String {
        let end = self.comm.iter().position(|byte| *byte == 0).unwrap_or(COMM_BYTES);
        String::from_utf8_lossy(&self.comm[..end]).into_owned()
    }
}

impl ProcessTable {
    /// Takes the table from a loaded object, with slots for `max_processes`. The kernel side, which may add processes at once, does not get
    /// the first `reserved`.
    pub(super) fn new(ebpf: &mut Ebpf, max_processes: u32, reserved: u32) -> Result<Self, Error> {
        let mut take = |name| ebpf.take_map(name).ok_or(Error::ObjectLacks { what: "map", name });
        let tracked = HashMap::try_from(take(names::TRACKED)?).map_err(Error::table)?;
        let mut free = Queue::try_from(take(names::FREE_SLOTS)?).map_err(Error::table)?;
        // The map stays in the object: programs that are loaded later need it.
        let rows = ebpf.map(names::PROCESSES);
        let rows = rows.ok_or(Error::ObjectLacks { what: "map", name: names::PROCESSES })?;
        let rows = Rc::new(Mapped::writable(rows)?);
        let max_processes = max_processes.min(MAX_PROCESSES);
        let reserved = reserved.min(max_processes);
        for slot in reserved..max_processes {
            free.push(slot, 0).map_err(Error::table)?;
        }
        let reserved =
            (0..reserved).map(|slot| ProcessSlot(u16::try_from(slot).unwrap_or_default())).collect();
        Ok(Self { rows, tracked, free, reserved })
    }

    /// Takes a slot for a running process; `None` if none is free.
    pub fn reserve(&mut self) -> Result<Option<ProcessSlot>, Error> {
        if let Some(slot) = self.reserved.pop() {
            return Ok(Some(slot));
        }
        match self.free.pop(0) {
            Ok(slot) => Ok(Some(ProcessSlot(u16::try_from(slot).unwrap_or_default()))),
            Err(MapError::ElementNotFound) => Ok(None),
            Err(error) => Err(Error::table(error)),
        }
    }

    /// Gives the kernel side the slots that are still held back.
    pub fn share_reserved(&mut self) -> Result<(), Error> {
        self.reserved
            .drain(..)
            .try_for_each(|slot| self.free.push(u32::from(slot.0), 0))
            .map_err(Error::table)
    }

    /// Assigns a reserved slot to a process. Nothing is counted before [`Self::arm`]. `None` if the kernel side has already added
    /// the process.
    pub fn assign(&mut self, slot: ProcessSlot, pid: Pid) -> Result<Option<ImageId>, Error> {
        let row = self.row(slot)?;
        match self.tracked.insert(pid.number().get(), u32::from(slot.0), BPF_NOEXIST) {
            Ok(()) => {}
            Err(error) if is_there_already(&error) => return Ok(None),
            Err(error) => return Err(Error::table(error)),
        }
        // SAFETY: the row is mapped for writing, and the kernel side does not read it before it is armed.
        let image = unsafe {
            let last = u32::try_from(read_volatile(addr_of!((*row).last_image))).unwrap_or_default();
            let image = if last == 0 { ImageId::first(slot) } else { ImageId(last).next() };
            write_volatile(addr_of_mut!((*row).last_image), u64::from(image.0));
            write_volatile(addr_of_mut!((*row).since_ns), now_ns());
            write_volatile(addr_of_mut!((*row).swept), u64::from(image.0));
            write_volatile(addr_of_mut!((*row).pid), pid.number().get());
            write_volatile(addr_of_mut!((*row).flags), 0);
            write_volatile(addr_of_mut!((*row).parent), 0);
            write_volatile(addr_of_mut!((*row).trampoline), 0);
            write_volatile(addr_of_mut!((*row).mappings_image), 0);
            write_volatile(addr_of_mut!((*row).text_image), 0);
            write_volatile(addr_of_mut!((*row).state), ProcessState::Attaching as u32);
            image
        };
        Ok(Some(image))
    }

    /// Makes all probes of a process count from the same moment. If the process has executed another program since
    /// [`Self::assign`], that program is already counted, and stays so.
    pub fn arm(&self, image: ImageId) -> Result<(), Error> {
        let row = self.row(image.slot())?;
        let (new, running) = (u64::from(image.0), ProcessState::Running as u32);
        let (relaxed, attaching) = (Ordering::Relaxed, ProcessState::Attaching as u32);
        // A failed exchange means that the value is already newer.
        let _ = row_image(row).compare_exchange(0, new, Ordering::Release, relaxed);
        let _ = row_state(row).compare_exchange(attaching, running, relaxed, relaxed);
        Ok(())
    }

    /// Stops counting a process. Its probes stay attached but do nothing.
    pub fn disarm(&mut self, slot: ProcessSlot) -> Result<(), Error> {
        let row = self.row(slot)?;
        row_image(row).store(0, Ordering::SeqCst);
        self.untrack(slot)
    }

    /// Stops counting a process that runs this image. Returns `false` if it has executed another program, which is still counted
    /// without a gap.
    pub fn disarm_image(&mut self, image: ImageId) -> Result<bool, Error> {
        let (slot, relaxed) = (image.slot(), Ordering::Relaxed);
        let row = self.row(slot)?;
        if row_image(row).compare_exchange(u64::from(image.0), 0, Ordering::SeqCst, relaxed).is_err() {
            return Ok(false);
        }
        self.untrack(slot)?;
        // The kernel side may have been about to start another image.
        if row_image(row).load(Ordering::SeqCst) == 0 {
            return Ok(true);
        }
        // SAFETY: the row is mapped for reading.
        let pid = unsafe { read_volatile(addr_of!((*row).pid)) };
        match self.tracked.insert(pid, u32::from(slot.0), BPF_NOEXIST) {
            Ok(()) => Ok(false),
            // The process has another slot.
            Err(error) if is_there_already(&error) => {
                row_image(row).store(0, Ordering::SeqCst);
                Ok(true)
            }
            Err(error) => Err(Error::table(error)),
        }
    }

    /// Removes a process from the map of PIDs to slots.
    fn untrack(&mut self, slot: ProcessSlot) -> Result<(), Error> {
        let row = self.row(slot)?;
        // SAFETY: the row is mapped for reading.
        let pid = unsafe { read_volatile(addr_of!((*row).pid)) };
        match self.tracked.get(&pid, 0) {
            // The process may have ended, and another one may have its PID.
            Ok(tracked) if tracked == u32::from(slot.0) => match self.tracked.remove(&pid) {
                Err(error) if !is_missing_key(&error) => Err(Error::table(error)),
                Ok(()) | Err(_) => Ok(()),
            },
            Err(error) if !is_missing_key(&error) => Err(Error::table(error)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Frees a slot, once no table has entries of its last process.
    pub fn release(&mut self, slot: ProcessSlot) -> Result<(), Error> {
        let row = self.row(slot)?;
        // A process released at the moment of an `exec` has been armed again.
        row_image(row).store(0, Ordering::Relaxed);
        row_state(row).store(ProcessState::Free as u32, Ordering::Relaxed);
        fence(Ordering::Release);
        // SAFETY: the row is mapped for reading.
        if unsafe { read_volatile(addr_of!((*row).flags)) } & flag::SHARED != 0 {
            self.untrack_sharers(slot)?;
        }
        self.free.push(u32::from(slot.0), 0).map_err(Error::table)
    }

    /// Removes processes that share the memory of the slot's last process and have outlived it: they would count in the slot's next
    /// one. Repeats until there is none, because one may be starting another.
    fn untrack_sharers(&mut self, slot: ProcessSlot) -> Result<(), Error> {
        const ATTEMPTS: u32 = 16;
        for _ in 0..ATTEMPTS {
            let entries = self.tracked.iter().collect::<Result<Vec<_>, _>>().map_err(Error::table)?;
            let sharers = entries.iter().filter(|(_, of)| *of == u32::from(slot.0)).map(|(pid, _)| *pid);
            let sharers: Vec<_> = sharers.collect();
            for pid in &sharers {
                tracing::warn!(
                    "process {pid} is not counted: it shares the memory of a process that has ended"
                );
                match self.tracked.remove(pid) {
                    Err(error) if !is_missing_key(&error) => return Err(Error::table(error)),
                    Ok(()) | Err(_) => {}
                }
            }
            if sharers.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// All processes in the table.
    pub fn iter(&self) -> impl Iterator<Item = Tracked> {
        (0..self.rows.len()).filter_map(|index| self.tracked(ProcessSlot(u16::try_from(index).ok()?)))
    }

    /// View that distinguishes current program images from old ones.
    #[must_use]
    pub fn images(&self) -> Images {
        Images(Rc::clone(&self.rows))
    }

    /// The process in a slot; `None` if there is none.
    #[must_use]
    pub fn tracked(&self, slot: ProcessSlot) -> Option<Tracked> {
        let row = self.row(slot).ok()?;
        // SAFETY: the row is mapped for reading.
        let (state, pid, image, flags, parent, since_ns, comm) = unsafe {
            let state = read_volatile(addr_of!((*row).state));
            fence(Ordering::Acquire);
            (
                ProcessState::from_number(state)?,
                read_volatile(addr_of!((*row).pid)),
                read_volatile(addr_of!((*row).image)),
                read_volatile(addr_of!((*row).flags)),
                read_volatile(addr_of!((*row).parent)),
                read_volatile(addr_of!((*row).since_ns)),
                read_volatile(addr_of!((*row).comm)),
            )
        };
        (state != ProcessState::Free).then_some(())?;
        Some(Tracked {
            slot,
            pid: Pid::new(pid)?,
            image: ImageId(u32::try_from(image).ok()?),
            ended: state == ProcessState::Ended,
            forked_from: (flags & flag::FORKED != 0).then(|| Pid::new(parent)).flatten(),
            since_ns,
            comm,
        })
    }

    /// The program image of a slot that is accounted for; number 0 if there is none.
    pub fn image(&self, slot: ProcessSlot) -> Result<ImageId, Error> {
        let row = self.row(slot)?;
        // SAFETY: the row is mapped for reading.
        let image = unsafe { read_volatile(addr_of!((*row).image)) };
        // Only 17-bit values are ever written.
        Ok(ImageId(u32::try_from(image).unwrap_or_default()))
    }

    /// Sets the address of the kernel's return-probe trampoline in an image: the start of the mapping `[uprobes]`, which is
    /// created at the first hit.
    pub fn set_trampoline(&self, image: ImageId, address: u64) -> Result<(), Error> {
        let row = self.row(image.slot())?;
        // SAFETY: the row is mapped for writing.
        unsafe { write_volatile(addr_of_mut!((*row).trampoline), Trampoline::new(image, address).0) };
        Ok(())
    }

    /// Begins to count the code that a JVM frees. The program that counts must be attached.
    pub(super) fn count_freed_code(&self, image: ImageId) -> Result<(), Error> {
        let row = self.row(image.slot())?;
        // SAFETY: the row is mapped for writing. The kernel side counts as soon as it is set, and this side sets it once for an image.
        unsafe {
            let freed = addr_of_mut!((*row).freed_code);
            if !FreedCode(read_volatile(freed)).of(image).is_counted() {
                write_volatile(freed, FreedCode::begun(image).0);
            }
        }
        Ok(())
    }

    /// Sets the address ranges of the allocators' code in an image. With more allocators than [`MAX_ALLOCATORS`], none are set.
    pub fn set_allocator_text(&self, image: ImageId, text: &[Range<u64>]) -> Result<(), Error> {
        let row = self.row(image.slot())?;
        let mut ranges = [TextRange::default(); MAX_ALLOCATORS];
        for (range, text) in ranges.iter_mut().zip(text) {
            *range = TextRange { start: text.start, end: text.end };
        }
        let known_for = if text.len() <= MAX_ALLOCATORS { u64::from(image.0) } else { 0 };
        // SAFETY: the row is mapped for reading, and only this side writes the text of a running image.
        let known = unsafe {
            (read_volatile(addr_of!((*row).text_image)), read_volatile(addr_of!((*row).allocator_text)))
        };
        if known == (known_for, ranges) {
            return Ok(());
        }
        // SAFETY: the row is mapped for writing. While the ranges are written, they are valid for no image.
        unsafe {
            write_volatile(addr_of_mut!((*row).text_image), 0);
            fence(Ordering::Release);
            write_volatile(addr_of_mut!((*row).allocator_text), ranges);
            fence(Ordering::Release);
            write_volatile(addr_of_mut!((*row).text_image), known_for);
        }
        Ok(())
    }

    /// Begins a scan of a process's mappings; returns the state that a table made from the scan reflects.
    pub(super) fn begin_scan(&self, slot: ProcessSlot) -> Result<CodeSeen, Error> {
        let row = self.row(slot)?;
        // SAFETY: the row is mapped for writing, and only this side writes the number of scans.
        unsafe {
            let scans = addr_of_mut!((*row).code.scan);
            let number = read_volatile(scans) + 1;
            write_volatile(scans, number);
            fence(Ordering::SeqCst);
            Ok(CodeSeen { made: read_volatile(addr_of!((*row).code.made)), scan: number })
        }
    }

    /// Invalidates the current table of mappings for all images.
    pub(super) fn void_mappings(&self, slot: ProcessSlot) -> Result<(), Error> {
        let row = self.row(slot)?;
        // SAFETY: the row is mapped for writing.
        unsafe { write_volatile(addr_of_mut!((*row).mappings_image), 0) };
        Ok(())
    }

    /// Returns true if a table of mappings made at this state is up to date.
    pub(super) fn holds(&self, slot: ProcessSlot, seen: &CodeSeen) -> Result<bool, Error> {
        let row = self.row(slot)?;
        fence(Ordering::SeqCst);
        // SAFETY: the row is mapped for reading. A word that changes meanwhile only changes the answer.
        Ok(unsafe { read_volatile(addr_of!((*row).code)) }.hold(seen))
    }

    /// The table of mappings that an image uses; `None` if there is none, or since [`Self::void_mappings`].
    pub(super) fn valid_mappings(&self, slot: ProcessSlot) -> Result<Option<u32>, Error> {
        let row = self.row(slot)?;
        // SAFETY: the row is mapped for reading.
        let is_valid = unsafe { read_volatile(addr_of!((*row).mappings_image)) } != 0;
        Ok(self.mappings(slot)?.filter(|_| is_valid))
    }

    /// The table of mappings that walks may still read, valid or not; `None` if there is none.
    pub(super) fn mappings(&self, slot: ProcessSlot) -> Result<Option<u32>, Error> {
        let row = self.row(slot)?;
        // SAFETY: the row is mapped for reading.
        let mappings = unsafe { read_volatile(addr_of!((*row).mappings)) };
        Ok(u32::try_from(mappings).ok().filter(|table| *table != NO_MAPPINGS))
    }

    /// Makes an image use a completed table of mappings.
    pub(super) fn set_mappings(&self, image: ImageId, table: u32) -> Result<(), Error> {
        let row = self.row(image.slot())?;
        // SAFETY: the row is mapped for writing. While the table changes, no image uses any.
        unsafe {
            write_volatile(addr_of_mut!((*row).mappings_image), 0);
            fence(Ordering::Release);
            write_volatile(addr_of_mut!((*row).mappings), u64::from(table));
            fence(Ordering::Release);
            write_volatile(addr_of_mut!((*row).mappings_image), u64::from(image.0));
        }
        Ok(())
    }

    fn row(&self, slot: ProcessSlot) -> Result<*mut ProcessRow, Error> {
        let lacks = Error::ObjectLacks { what: "row in map", name: names::PROCESSES };
        self.rows.get(usize::from(slot.0)).ok_or(lacks)
    }
}
