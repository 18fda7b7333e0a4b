//! From probe sites to armed BPF programs.
//!
//! In: a process and the [`Target`]s found in its modules. Out: an [`Attachment`], which counts until it is
//! dropped. This is the one place that knows how probes are attached.

mod error;
mod kernel_log;
mod kernel_types;
mod mapped;
mod misses;
mod object;
mod preflight;
mod unwind_tables;

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::path::PathBuf;
use std::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};
use std::sync::atomic::{Ordering, fence};

use aya::Ebpf;
use aya::maps::{HashMap, Map};
use aya::programs::Program;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLinkId, UProbeScope};
use jjleak_common::cookie::Cookie;
use jjleak_common::names;
use jjleak_common::process::{ImageId, MAX_ALLOCATORS, ProcessRow, ProcessSlot, TextRange, Trampoline};

use crate::allocators::{ProbeSite, Role};
use crate::processes::{FileId, Pid};
use crate::unwind::ModuleRows;
use unwind_tables::UnwindTables;

pub use error::Error;
pub(crate) use mapped::Mapped;
pub use misses::Misses;
pub use object::Capacity;
pub use preflight::{Host, Missing};
pub use unwind_tables::{CodeMapping, TablesFull};

/// A probe site in a file.
#[derive(Debug, Clone)]
pub struct Target {
    /// A path that leads to the file.
    pub file: PathBuf,
    /// The site.
    pub site: ProbeSite,
}

/// Which programs run at the sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    /// The accounting.
    Accounting,
    /// Programs that do nothing, to measure what the probes alone cost.
    Bare,
}

/// Sizes that are accounted, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeFilter {
    /// Smallest.
    pub min: u64,
    /// Largest.
    pub max: u64,
}

impl Default for SizeFilter {
    fn default() -> Self {
        Self { min: 0, max: u64::MAX }
    }
}

/// The slot of the process in the process table: an attachment profiles one process.
const SLOT: ProcessSlot = ProcessSlot(0);

/// The program image that [`Attachment::arm`] begins with.
pub const FIRST_IMAGE: ImageId = ImageId(0).next();

/// Checks what the kernel and the privileges allow.
pub fn preflight() -> Result<(), Missing> {
    Host::this().check()
}

/// The loaded BPF object and its probes. Dropping it detaches them, which takes the kernel about 0.1 s for each
/// probe: it closes perf events one after the other and waits each time until no CPU runs the probe any more.
pub struct Attachment {
    ebpf: Ebpf,
    processes: Mapped<ProcessRow>,
    tables: UnwindTables,
    programs: Programs,
    targets: Vec<Target>,
    links: Vec<(&'static str, UProbeLinkId)>,
}

impl Attachment {
    /// Loads the BPF object. Nothing is attached yet. With `kernel_log`, messages of the kernel side go to the log;
    /// that needs a running tokio runtime.
    pub fn load(capacity: Capacity, programs: Programs, kernel_log: bool) -> Result<Self, Error> {
        let mut ebpf = object::load(capacity, programs, kernel_log)?;
        if kernel_log {
            kernel_log::forward(&mut ebpf);
        }
        let name = names::PROCESSES;
        let processes = Mapped::writable(ebpf.map(name).ok_or(Error::ObjectLacks { what: "map", name })?)?;
        let tables = UnwindTables::new(&ebpf)?;
        Ok(Self { ebpf, processes, tables, programs, targets: Vec::new(), links: Vec::new() })
    }

    /// How many instructions the kernel's verifier has followed in each loaded program, by name: the kernel refuses more
    /// than a million. Programs of which a kernel does not say it (before Linux 5.16) are left out.
    #[must_use]
    pub fn verified_instructions(&self) -> BTreeMap<&str, u32> {
        let count = |program: &Program| program.info().ok()?.verified_instruction_count();
        self.ebpf.programs().filter_map(|(name, program)| Some((name, count(program)?))).collect()
    }

    /// Attaches the probes of a process. They count nothing before [`Self::arm`]. The kernel finds the process by one of
    /// its threads: while `thread` lives, the probes fire for all threads.
    pub fn attach(&mut self, thread: Pid, targets: &[Target]) -> Result<(), Error> {
        for target in targets {
            self.attach_site(thread, target)?;
            self.targets.push(target.clone());
        }
        Ok(())
    }

    /// Binds the probes to another thread of the process, after the one they were bound to has ended. Nothing is counted
    /// twice: the kernel has no process for the old ones any more.
    pub fn rebind(&mut self, thread: Pid) -> Result<(), Error> {
        let old = mem::take(&mut self.links);
        for target in self.targets.clone() {
            self.attach_site(thread, &target)?;
        }
        for (program, link) in old {
            // A probe that cannot be detached now is detached with the object.
            let _ = object::uprobe(&mut self.ebpf, program)?.detach(link);
        }
        Ok(())
    }

    /// Lets all probes of the process count from one instant on.
    pub fn arm(&mut self, pid: Pid, filter: SizeFilter) -> Result<(), Error> {
        let name = names::TRACKED;
        let map = self.ebpf.map_mut(name).ok_or(Error::ObjectLacks { what: "map", name })?;
        let mut tracked: HashMap<_, u32, u32> = HashMap::try_from(map).map_err(Error::table)?;
        tracked.insert(pid.number().get(), u32::from(SLOT.0), 0).map_err(Error::table)?;
        let row = self.row()?;
        // SAFETY: the row is mapped for writing. The image, which arms, is written last, when the filter is whole.
        unsafe {
            write_volatile(addr_of_mut!((*row).min_size), filter.min);
            write_volatile(addr_of_mut!((*row).max_size), filter.max);
            fence(Ordering::Release);
            write_volatile(addr_of_mut!((*row).image), u64::from(FIRST_IMAGE.0));
        }
        Ok(())
    }

    /// Stops counting. The probes are still there, but do nothing.
    pub fn disarm(&self) -> Result<(), Error> {
        let row = self.row()?;
        // SAFETY: the row is mapped for writing.
        unsafe { write_volatile(addr_of_mut!((*row).image), 0) };
        Ok(())
    }

    /// The program image that is being accounted; a new one after each `exec`.
    pub fn image(&self) -> Result<ImageId, Error> {
        let row = self.row()?;
        // SAFETY: the row is mapped for reading.
        let image = unsafe { read_volatile(addr_of!((*row).image)) };
        // Only 16-bit values are ever written.
        Ok(ImageId(u16::try_from(image).unwrap_or_default()))
    }

    /// Tells the accounting where the kernel put its return-probe trampoline in an image: the start of the mapping
    /// named `[uprobes]`, which appears with the first hit.
    pub fn set_trampoline(&self, image: ImageId, address: u64) -> Result<(), Error> {
        let row = self.row()?;
        // SAFETY: the row is mapped for writing.
        unsafe { write_volatile(addr_of_mut!((*row).trampoline), Trampoline::new(image, address).0) };
        Ok(())
    }

    /// Whether the unwind rows of a file are in the kernel's tables.
    #[must_use]
    pub fn has_rows(&self, file: FileId) -> bool {
        self.tables.has(file)
    }

    /// Adds the unwind rows of a file.
    pub fn add_rows(&mut self, file: FileId, rows: &ModuleRows) -> Result<(), TablesFull> {
        self.tables.add(file, rows)
    }

    /// Tells the unwinder where an image maps code, all of it; returns how many mappings it has no room for.
    pub fn set_code(&mut self, image: ImageId, code: &[CodeMapping]) -> Result<usize, Error> {
        let row = self.row()?;
        // SAFETY: the row is mapped for reading; tables are counted from 1.
        let in_use = unsafe { read_volatile(addr_of!((*row).mappings)) }.saturating_sub(1);
        let (table, left_out) = self.tables.write(u32::try_from(in_use).unwrap_or_default(), image, code)?;
        // SAFETY: the row is mapped for writing; the table is whole.
        unsafe { write_volatile(addr_of_mut!((*row).mappings), u64::from(table) + 1) };
        Ok(left_out)
    }

    /// The unwinder's hints that the process maps code it does not know of; once. Needs a running tokio runtime.
    pub fn misses(&mut self) -> Result<Misses, Error> {
        Misses::new(&mut self.ebpf)
    }

    /// Tells the accounting where an image maps the allocators' code. With more allocators than it can tell apart
    /// it goes without.
    pub fn set_allocator_text(&self, image: ImageId, text: &[Range<u64>]) -> Result<(), Error> {
        let row = self.row()?;
        let mut ranges = [TextRange::default(); MAX_ALLOCATORS];
        for (range, text) in ranges.iter_mut().zip(text) {
            *range = TextRange { start: text.start, end: text.end };
        }
        let known_for = if text.len() <= MAX_ALLOCATORS { u64::from(image.0) } else { 0 };
        // SAFETY: the row is mapped for writing. The ranges count for no image while they are written.
        unsafe {
            write_volatile(addr_of_mut!((*row).text_image), 0);
            fence(Ordering::Release);
            write_volatile(addr_of_mut!((*row).allocator_text), ranges);
            fence(Ordering::Release);
            write_volatile(addr_of_mut!((*row).text_image), known_for);
        }
        Ok(())
    }

    /// A map of the object, for [`crate::collect`].
    pub(crate) fn map(&self, name: &'static str) -> Result<&Map, Error> {
        self.ebpf.map(name).ok_or(Error::ObjectLacks { what: "map", name })
    }

    fn row(&self) -> Result<*mut ProcessRow, Error> {
        let lacks = Error::ObjectLacks { what: "row in map", name: names::PROCESSES };
        self.processes.get(usize::from(SLOT.0)).ok_or(lacks)
    }

    /// Attaches one site: its return first, so that no entry goes without one.
    fn attach_site(&mut self, pid: Pid, target: &Target) -> Result<(), Error> {
        let (enter, leave) = self.programs.of(target.site.role);
        if let Some(leave) = leave {
            self.attach_program(leave, pid, target)?;
        }
        self.attach_program(enter, pid, target)
    }

    fn attach_program(&mut self, name: &'static str, pid: Pid, target: &Target) -> Result<(), Error> {
        let cookie = Cookie {
            process: SLOT,
            signature: target.site.signature,
            cfa_words: target.site.placement.cfa_words,
        };
        let point = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(target.site.offset()),
            cookie: Some(cookie.encode()),
        };
        let scope = UProbeScope::OneProcess(pid.number());
        let link = object::uprobe(&mut self.ebpf, name)?
            .attach(point, &target.file, scope)
            .map_err(|source| Error::attach(pid, &target.site, source))?;
        self.links.push((name, link));
        Ok(())
    }
}

impl Programs {
    /// Entry and return program of a role.
    const fn of(self, role: Role) -> (&'static str, Option<&'static str>) {
        match (self, role) {
            (Self::Accounting, Role::Allocate) => ("allocate_enter", Some("allocate_return")),
            (Self::Accounting, Role::Resize) => ("resize_enter", Some("allocate_return")),
            (Self::Accounting, Role::Free) => ("free_enter", None),
            (Self::Accounting, Role::UnseenAllocation) => ("unseen_allocate_enter", None),
            (Self::Accounting, Role::UnseenResize) => ("unseen_resize_enter", None),
            (Self::Bare, Role::Allocate | Role::Resize) => ("bare_enter", Some("bare_return")),
            (Self::Bare, Role::Free | Role::UnseenAllocation | Role::UnseenResize) => ("bare_enter", None),
        }
    }

    /// The programs this mode runs.
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Accounting => &[
                "allocate_enter",
                "resize_enter",
                "allocate_return",
                "free_enter",
                "unseen_allocate_enter",
                "unseen_resize_enter",
            ],
            Self::Bare => &["bare_enter", "bare_return"],
        }
    }
}
