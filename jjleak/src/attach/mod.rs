//! Turns probe sites into armed BPF programs.
//!
//! In: a process and the [`Target`]s found in its modules. Out: an [`Attachment`], which counts until it is dropped. No other
//! stage knows how probes are attached.

mod calibration;
mod error;
mod events;
mod file_records;
mod freed_code;
mod hints;
mod hooks;
pub mod kernel_btf;
mod kernel_log;
mod kernel_offsets;
mod kernel_types;
mod mapped;
mod mapping_calls;
mod missing;
mod object;
mod preflight;
mod probes;
mod process_table;
mod records;
mod ring;
mod ring_thread;
mod sample_sites;
mod trial;
mod unwind_tables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::{Array, Map, MapData, RingBuf};
use aya::programs::Program;
use jjleak_common::jvm::CodeCache;
use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::samples::Site;
#[cfg(feature = "measuring")]
use jjleak_common::stage::Step;
use jjleak_common::unwind::CodeSeen;
use jjleak_common::{fault, java_heap, mapping, names};
use nix::time::{ClockId, clock_gettime};

use crate::allocators::ProbeSite;
use crate::processes::{FileVersion, Pid};
use crate::unwind::VerifiedRows;
use freed_code::FreedCodeProbes;
use probes::Probes;
use ring::Ring;
use sample_sites::SampleSites;
use unwind_tables::UnwindTables;

pub use calibration::{Calibration, Traps};
pub use error::Error;
pub(crate) use error::is_missing_key;
pub use events::Events;
pub use file_records::{FileRecord, FileRecords, Recorded, RecordedFile};
pub use hints::{BegunProgram, Hints, MappedCode, PendingHints};
pub use jjleak_common::settings::SizeFilter;
pub(crate) use mapped::Mapped;
pub use missing::Missing;
pub use object::{Capacity, Following, MAX_ROWS, Settings};
pub use preflight::{Check, Host};
pub(crate) use probes::thread_cpu_time;
pub use probes::{ExitCounts, Measuring, Part, Runs, RunsByPart, Steppings};
pub use process_table::{Images, ProcessTable, Tracked};
pub use records::{Drained, Records};
pub use ring_thread::RingThread;
pub use unwind_tables::{CodeMapping, RowsRefused};

/// A probe site in a file.
#[derive(Debug, Clone)]
pub struct Target {
    /// A path to the file.
    pub file: PathBuf,
    /// The site.
    pub site: ProbeSite,
}

/// Kind of programs that run at the sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    /// The accounting of allocations.
    Accounting,
    /// Objects in Java heaps.
    JavaHeap,
    /// Allocations that programs sample themselves.
    Samples,
    /// Programs that do nothing, to measure the cost of the probes alone.
    Bare,
    /// Programs that do nothing, at entries only: the kernel counts their runs ([`Measuring`]).
    Counting,
    /// Programs that capture the stack of an allocation, to measure the cost of that.
    #[cfg(feature = "measuring")]
    Stacks,
    /// Programs that have the kernel capture the stack, by frame pointers.
    #[cfg(feature = "measuring")]
    KernelStacks,
    /// Programs that repeat a single step of the accounting, to measure its cost.
    #[cfg(feature = "measuring")]
    Steps(Step),
}

/// Processes whose calls are reported by the probes at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One process. The kernel finds it by one of its threads; while that thread lives, the probes fire for all threads.
    Process {
        /// Its slot.
        slot: ProcessSlot,
        /// One of its threads.
        thread: Pid,
    },
    /// All processes that run the file's code; the accounting ignores those that are not profiled. All of them bear the cost of
    /// the probes.
    File,
}

/// Current time on the clock of the kernel side.
#[must_use]
pub fn now_ns() -> u64 {
    // `CLOCK_MONOTONIC` exists on every Linux, and its time is never negative.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(std::time::Duration::ZERO, Into::into);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Checks required kernel features and privileges.
pub fn preflight() -> Result<(), Missing> {
    Host::this().check()
}

/// Checks the additional requirements of following processes.
pub fn preflight_following() -> Result<(), Missing> {
    Host::this().check_following()
}

/// Checks that the kernel side can recognize a process.
pub fn preflight_process(pid: Pid) -> Result<(), Error> {
    if Host::this().can_know(pid) { Ok(()) } else { Err(Error::NestedNamespace(pid)) }
}

/// The loaded BPF object and its probes. Dropping it detaches them.
pub struct Attachment {
    /// Dropped before the maps that its programs use.
    probes: Probes,
    ebpf: Ebpf,
    processes: ProcessTable,
    tables: UnwindTables,
    settings: Settings,
    sample_sites: SampleSites,
    freed_code: FreedCodeProbes,
    /// True if processes with a system call filter survive return probes; `None` before the test.
    survives: Option<bool>,
}

impl Attachment {
    /// Loads the BPF object without attaching anything. Kernel messages require a running tokio runtime.
    pub fn load(settings: Settings) -> Result<Self, Error> {
        let (mut ebpf, probes) = object::load(settings)?;
        if settings.kernel_log {
            kernel_log::forward(&mut ebpf);
        }
        let processes = ProcessTable::new(&mut ebpf, settings.capacity.processes, settings.reserved)?;
        let tables = UnwindTables::new(&mut ebpf, settings.capacity.rows)?;
        Ok(Self {
            probes,
            ebpf,
            processes,
            tables,
            settings,
            sample_sites: SampleSites::default(),
            freed_code: FreedCodeProbes::default(),
            survives: None,
        })
    }

    /// Number of instructions that the kernel's verifier processed for each loaded program, by name; the kernel's limit is a
    /// million. Programs without this figure (before Linux 5.16) are left out. Fails if the kernel rejects a program that was not
    /// needed before.
    pub fn verified_instructions(&self) -> Result<BTreeMap<&str, u32>, Error> {
        let count = |program: &Program| program.info().ok()?.verified_instruction_count();
        let mut counts: BTreeMap<&str, u32> = self.probes.verified_instructions()?.into_iter().collect();
        counts.extend(self.ebpf.programs().filter_map(|(name, program)| Some((name, count(program)?))));
        Ok(counts)
    }

    /// Begins to measure the cost of a breakpoint on this machine, on jjleak's own functions. `None` if probes are perf events,
    /// which are slow to detach.
    #[must_use]
    pub fn calibrate(&self) -> Option<Calibration> {
        self.probes.calibrate()
    }

    /// Number and duration of program runs during the measurement ([`Measuring`]).
    #[must_use]
    pub fn runs(&self) -> RunsByPart {
        self.probes.runs()
    }

    /// Number of program runs that the kernel skipped, for any process, as far as the kernel counts them: uprobes skipped by
    /// Linux 5.17 to 5.19 are missing.
    #[must_use]
    pub fn missed_runs(&self) -> u64 {
        self.probes.missed_runs(&self.ebpf)
    }

    /// Execution of the probed instructions by the kernel: emulated, or single-stepped.
    #[must_use]
    pub fn steppings(&self) -> Steppings {
        self.probes.steppings()
    }

    /// Fails if the kernel kills processes with a system call filter because of return probes. The test runs once, on a child of
    /// jjleak. Kernels without uprobe-multi links are older than `uretprobe(2)` and need no test.
    pub fn try_returns(&mut self) -> Result<(), Error> {
        if self.survives.is_none() {
            let begun = std::time::Instant::now();
            let survives = self.probes.try_return(trial::survives).transpose().map_err(Error::Trial)?;
            tracing::info!(
                "tested return probes on a child with a seccomp filter in {:?}: {survives:?}",
                begun.elapsed()
            );
            self.survives = Some(survives.unwrap_or(true));
        }
        if self.survives == Some(true) { Ok(()) } else { Err(Missing::HarmlessReturns.into()) }
    }

    /// The table of profiled processes.
    #[must_use]
    pub const fn processes(&self) -> &ProcessTable {
        &self.processes
    }

    /// The table of profiled processes, for changes.
    pub const fn processes_mut(&mut self) -> &mut ProcessTable {
        &mut self.processes
    }

    /// Attaches probes. They count nothing for processes that are not armed.
    pub fn attach(&mut self, scope: Scope, targets: &[Target]) -> Result<(), Error> {
        if !targets.iter().any(|target| target.site.sample.is_some()) {
            return self.probes.attach(&mut self.ebpf, scope, targets);
        }
        let targets = self.sample_sites.number(targets)?;
        let map = self.map_mut(names::SAMPLE_SITES)?;
        let mut table = Array::<_, Site>::try_from(map).map_err(Error::table)?;
        for sample in targets.iter().filter_map(|target| target.site.sample) {
            table.set(sample.number.into(), sample.site, 0).map_err(Error::table)?;
        }
        self.probes.attach(&mut self.ebpf, scope, &targets)
    }

    /// Binds the probes of a process to another thread, after the thread that they were bound to has ended.
    pub fn rebind(&mut self, slot: ProcessSlot, thread: Pid) -> Result<(), Error> {
        self.probes.rebind(&mut self.ebpf, slot, Scope::Process { slot, thread })
    }

    /// Detaches a part of the probes temporarily.
    pub fn rest(&mut self, part: Part) {
        self.probes.rest(part);
    }

    /// Detaches all probes permanently.
    pub fn take_out(&mut self) -> Result<(), Error> {
        self.probes.take_out(&mut self.ebpf)
    }

    /// Attaches a part of the probes again. Fails if the main thread has ended.
    pub fn wake(&mut self, part: Part) -> Result<(), Error> {
        self.probes.wake(part)
    }

    /// Returns true if probes can be detached and attached quickly, that is, if they are not perf events.
    #[must_use]
    pub fn can_rest(&self) -> bool {
        self.probes.are_quick()
    }

    /// Removes the probes from forked children of the processes that they are bound to. A child inherits the breakpoints with its
    /// copy of the code, where they count nothing but cost as much.
    pub fn spare_children(&self) {
        self.probes.spare_children();
    }

    /// Detaches the probes of a file that were attached by this path.
    pub fn detach(&mut self, file: &Path) -> Result<(), Error> {
        self.probes.detach(&mut self.ebpf, file)
    }

    /// Stops counting. The probes stay attached but do nothing.
    pub fn disarm(&mut self) -> Result<(), Error> {
        let slots: Vec<_> = self.processes.iter().map(|tracked| tracked.slot).collect();
        slots.into_iter().try_for_each(|slot| self.processes.disarm(slot))
    }

    /// Returns true if the unwind rows of a file are in the kernel's tables.
    #[must_use]
    pub fn has_rows(&self, file: FileVersion) -> bool {
        self.tables.has(file)
    }

    /// Adds the unwind rows of a file, which take effect with [`Self::set_code`]. If there is no space, rows of files that no process
    /// maps are removed.
    pub fn add_rows(&mut self, file: FileVersion, rows: &VerifiedRows) -> Result<(), RowsRefused> {
        self.tables.add(file, rows)
    }

    /// Returns true if a file that was refused would fit now.
    #[must_use]
    pub fn has_room(&self, refused: &RowsRefused) -> bool {
        match refused {
            RowsRefused::Full { words, groups, .. } => self.tables.has_room(*words, *groups),
            RowsRefused::TooLong { .. } => false,
            RowsRefused::Write(_) => true,
        }
    }

    /// Keeps the unwind rows of files that a process maps, until [`Self::set_code`].
    pub fn announce_code(&mut self, slot: ProcessSlot, files: impl IntoIterator<Item = FileVersion>) {
        self.tables.announce(slot, files);
    }

    /// Number of files whose unwind rows were removed to make room for others.
    #[must_use]
    pub const fn removed_rows(&self) -> u64 {
        self.tables.removed()
    }

    /// Adds the unwind rows of a file that is likely to be mapped, if enough space remains for mapped files.
    pub fn expect_rows(&mut self, file: FileVersion, rows: &VerifiedRows) -> Result<(), RowsRefused> {
        self.tables.add_expected(file, rows)
    }

    /// Sets the location of a process's generated code; [`Self::set_code`] must follow.
    pub fn set_generated(&mut self, slot: ProcessSlot, code: &CodeCache) {
        self.tables.set_generated(slot, code);
    }

    /// Removes a process's generated code, which ended with the process or its program image.
    pub fn forget_generated(&mut self, slot: ProcessSlot) {
        self.tables.forget_generated(slot);
    }

    /// Counts from now on the code that the JVM of a process frees, so that walks through its code can be kept. `path` leads to its library,
    /// and `offset` is that of the function that frees code, in the file.
    pub fn count_freed_code(
        &mut self,
        image: ImageId,
        library: FileVersion,
        path: &Path,
        offset: u64,
    ) -> Result<(), Error> {
        self.freed_code.attach(&mut self.ebpf, library, path, offset)?;
        self.processes.count_freed_code(image)
    }

    /// Notes that a process has ended, or is no longer profiled: its code mappings do not count any more.
    pub fn release_code(&mut self, slot: ProcessSlot) {
        self.tables.release(slot);
    }

    /// Sets all code mappings of a program image for the unwinder, as of the scan `seen` ([`Self::begin_scan`]); returns the
    /// number of mappings that did not fit.
    pub fn set_code(&mut self, image: ImageId, code: &[CodeMapping], seen: CodeSeen) -> Result<usize, Error> {
        let slot = image.slot();
        let in_use = self.processes.mappings(slot)?;
        let (table, excess) = self.tables.write(slot, in_use, code, seen)?;
        self.processes.set_mappings(image, table)?;
        Ok(excess)
    }

    /// Begins a scan of a process's mappings; the result is passed to [`Self::set_code`] together with the mappings. Invalidates
    /// outdated mappings in the unwinder now, because a disturbed scan is detectable only until the next one.
    pub fn begin_scan(&self, slot: ProcessSlot) -> Result<CodeSeen, Error> {
        if !self.holds_code(slot)? {
            self.processes.void_mappings(slot)?;
        }
        self.processes.begin_scan(slot)
    }

    /// Returns true if the unwinder's mappings of a process are up to date: none of the code has been replaced since.
    pub fn holds_code(&self, slot: ProcessSlot) -> Result<bool, Error> {
        let Some(table) = self.processes.valid_mappings(slot)? else { return Ok(false) };
        self.tables.seen(table).map_or(Ok(false), |seen| self.processes.holds(slot, &seen))
    }

    /// Hints from the kernel side about processes to scan. Can be called once. Requires a running tokio runtime.
    pub fn hints(&mut self) -> Result<Hints, Error> {
        Hints::new(Ring::new(self.ring(names::HINTS)?), Ring::new(self.ring(names::PROGRAMS)?))
    }

    /// Mapping events of the kernel side, if the settings request them. Can be called once.
    pub fn mapping_events(&mut self) -> Result<Records<mapping::Event>, Error> {
        Ok(Records::new(Ring::new(self.ring(names::MAPPING_EVENTS)?), mapping::RING_BYTES))
    }

    /// Page faults, if the settings request them. Can be called once.
    pub fn page_faults(&mut self) -> Result<Records<fault::Record>, Error> {
        Ok(Records::new(Ring::new(self.ring(names::PAGE_FAULTS)?), fault::RING_BYTES))
    }

    /// Objects in Java heaps, with [`Programs::JavaHeap`]. Can be called once.
    pub fn java_objects(&mut self) -> Result<Records<java_heap::Record>, Error> {
        Ok(Records::new(Ring::new(self.ring(names::JAVA_OBJECTS)?), java_heap::RING_BYTES))
    }

    /// Gives the kernel side a process's Java heap; the default value if it is not followed any more.
    pub fn set_java_heap(&mut self, slot: ProcessSlot, heap: &java_heap::FollowedHeap) -> Result<(), Error> {
        let map = self.map_mut(names::JAVA_HEAPS)?;
        let mut heaps = Array::<_, java_heap::FollowedHeap>::try_from(map).map_err(Error::table)?;
        heaps.set(slot.0.into(), *heap, 0).map_err(Error::table)
    }

    /// Individual allocations and frees, if the [`Settings`] request them. Can be called once. Requires a running tokio runtime.
    pub fn events(&mut self) -> Result<Events, Error> {
        Events::new(Ring::new(self.ring(names::EVENTS)?))
    }

    /// Waits until the BPF programs that run now have ended, some 10 ms. Returns false if that is impossible, because no process has
    /// any unwind rows.
    pub(crate) fn await_programs(&self) -> Result<bool, Error> {
        self.tables.await_programs()
    }

    /// Settings of the loaded object.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A map of the object, for [`crate::collect`].
    pub(crate) fn map(&self, name: &'static str) -> Result<&Map, Error> {
        self.ebpf.map(name).ok_or(Error::ObjectLacks { what: "map", name })
    }

    /// A map of the object for changes, for [`crate::collect`].
    pub(crate) fn map_mut(&mut self, name: &'static str) -> Result<&mut Map, Error> {
        self.ebpf.map_mut(name).ok_or(Error::ObjectLacks { what: "map", name })
    }

    /// A ring buffer of the object. Can be called once for each.
    pub(crate) fn ring(&mut self, name: &'static str) -> Result<RingBuf<MapData>, Error> {
        let map = self.ebpf.take_map(name).ok_or(Error::ObjectLacks { what: "map", name })?;
        RingBuf::try_from(map).map_err(Error::table)
    }
}
