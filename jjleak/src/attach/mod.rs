//! From probe sites to armed BPF programs.
//!
//! In: a process and the [`Target`]s found in its modules. Out: an [`Attachment`], which counts until it is
//! dropped. This is the one place that knows how probes are attached.

mod calibration;
mod error;
mod events;
mod hints;
mod kernel_log;
mod kernel_offsets;
mod kernel_types;
mod mapped;
mod mapping_events;
mod object;
mod preflight;
mod probes;
mod process_table;
mod trial;
mod unwind_tables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::{Map, MapData, RingBuf};
use aya::programs::Program;
use jjleak_common::jvm::CodeCache;
use jjleak_common::names;
use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::stage::Step;
use jjleak_common::unwind::CodeSeen;
use nix::time::{ClockId, clock_gettime};

use crate::allocators::ProbeSite;
use crate::processes::{FileVersion, Pid};
use crate::unwind::VerifiedRows;
use probes::Probes;
use unwind_tables::UnwindTables;

pub use calibration::{Calibration, Traps};
pub use error::Error;
pub(crate) use error::is_missing_key;
pub use events::Events;
pub use hints::{BegunProgram, Hints, MappedCode, Told};
pub(crate) use mapped::Mapped;
pub use mapping_events::{Drained, MappingEvents};
pub use object::{Capacity, Following, Settings};
pub use preflight::{Check, Host, Missing};
pub(crate) use probes::thread_cpu_time;
pub use probes::{Exits, Measuring, Part, Runs, RunsByPart, Steppings};
pub use process_table::{Images, ProcessTable, Tracked};
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
    /// Programs that do nothing, at entries only: the kernel counts how often they run ([`Measuring`]).
    Counting,
    /// Programs that take the stack of an allocation, to measure what that costs.
    Stacks,
    /// Programs that have the kernel take it, by frame pointers.
    KernelStacks,
    /// Programs that do a single step of the accounting, many times, to measure what that costs.
    Steps(Step),
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

/// Whose calls the probes at a site report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of one process. The kernel finds it by one of its threads: while that lives, the probes fire for all
    /// threads.
    Process {
        /// Its slot.
        slot: ProcessSlot,
        /// One of its threads.
        thread: Pid,
    },
    /// Those of all processes that run the file's code; the accounting leaves out those that are not profiled. All of
    /// them pay for the probes.
    File,
}

/// Now, on the clock of the kernel side.
#[must_use]
pub fn now_ns() -> u64 {
    // CLOCK_MONOTONIC exists on every Linux; its time is never negative.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(std::time::Duration::ZERO, Into::into);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Checks what the kernel and the privileges allow.
pub fn preflight() -> Result<(), Missing> {
    Host::this().check()
}

/// Checks what following processes needs besides.
pub fn preflight_following() -> Result<(), Missing> {
    Host::this().check_following()
}

/// Checks whether the kernel side can know a process.
pub fn preflight_process(pid: Pid) -> Result<(), Error> {
    if Host::this().can_know(pid) { Ok(()) } else { Err(Error::NestedNamespace(pid)) }
}

/// The loaded BPF object and its probes. Dropping it detaches them.
pub struct Attachment {
    /// Before the maps that its programs use.
    probes: Probes,
    ebpf: Ebpf,
    processes: ProcessTable,
    tables: UnwindTables,
    settings: Settings,
    /// Whether filtered processes survive return probes, once that has been tried.
    survives: Option<bool>,
}

impl Attachment {
    /// Loads the BPF object. Nothing is attached yet. Kernel messages need a running tokio runtime.
    pub fn load(settings: Settings) -> Result<Self, Error> {
        let (mut ebpf, probes) = object::load(settings)?;
        if settings.kernel_log {
            kernel_log::forward(&mut ebpf);
        }
        let processes = ProcessTable::new(&mut ebpf, settings.capacity.processes)?;
        let tables = UnwindTables::new(&mut ebpf)?;
        Ok(Self { probes, ebpf, processes, tables, settings, survives: None })
    }

    /// How many instructions the kernel's verifier has followed in each loaded program, by name: the kernel refuses more
    /// than a million. Programs of which a kernel does not say it (before Linux 5.16) are left out. Fails where the kernel
    /// refuses one that nobody has needed yet.
    pub fn verified_instructions(&self) -> Result<BTreeMap<&str, u32>, Error> {
        let count = |program: &Program| program.info().ok()?.verified_instruction_count();
        let mut counts: BTreeMap<&str, u32> = self.probes.verified_instructions()?.into_iter().collect();
        counts.extend(self.ebpf.programs().filter_map(|(name, program)| Some((name, count(program)?))));
        Ok(counts)
    }

    /// Begins to measure what a breakpoint costs on this machine, on functions of our own; `None` where probes are perf events,
    /// which take long to go.
    #[must_use]
    pub fn calibrate(&self) -> Option<Calibration> {
        self.probes.calibrate()
    }

    /// How often the programs have run and how long that took, while that was measured ([`Measuring`]).
    #[must_use]
    pub fn runs(&self) -> RunsByPart {
        self.probes.runs()
    }

    /// How often the kernel has not run one of the programs that should have, for whichever process, as far as it counts that:
    /// uprobes that 5.17 to 5.19 leave out are not in it.
    #[must_use]
    pub fn missed_runs(&self) -> u64 {
        self.probes.missed_runs(&self.ebpf)
    }

    /// How the kernel gets past the probed instructions.
    #[must_use]
    pub fn steppings(&self) -> Steppings {
        self.probes.steppings()
    }

    /// Fails where the kernel ends filtered processes for return probes. That is tried once, on a child of our own. Kernels to
    /// which probes are attached one by one are older than `uretprobe(2)`.
    pub fn try_returns(&mut self) -> Result<(), Error> {
        if self.survives.is_none() {
            let begun = std::time::Instant::now();
            let survives = self.probes.try_return(trial::survives).transpose().map_err(Error::Trial)?;
            tracing::info!("return probes tried on a filtered child in {:?}: {survives:?}", begun.elapsed());
            self.survives = Some(survives.unwrap_or(true));
        }
        if self.survives == Some(true) { Ok(()) } else { Err(Missing::HarmlessReturns.into()) }
    }

    /// The profiled processes.
    #[must_use]
    pub const fn processes(&self) -> &ProcessTable {
        &self.processes
    }

    /// The profiled processes, to add to them.
    pub const fn processes_mut(&mut self) -> &mut ProcessTable {
        &mut self.processes
    }

    /// Attaches probes. They count nothing for processes that are not armed.
    pub fn attach(&mut self, scope: Scope, targets: &[Target]) -> Result<(), Error> {
        self.probes.attach(&mut self.ebpf, scope, targets)
    }

    /// Binds the probes of a process to another of its threads, after the one they were bound to has ended.
    pub fn rebind(&mut self, slot: ProcessSlot, thread: Pid) -> Result<(), Error> {
        self.probes.rebind(&mut self.ebpf, slot, Scope::Process { slot, thread })
    }

    /// Takes a part of the probes out for a while.
    pub fn rest(&mut self, part: Part) {
        self.probes.rest(part);
    }

    /// Takes all probes out for good.
    pub fn take_out(&mut self) -> Result<(), Error> {
        self.probes.take_out(&mut self.ebpf)
    }

    /// Puts a part of the probes back in. Fails where the main thread has ended.
    pub fn wake(&mut self, part: Part) -> Result<(), Error> {
        self.probes.wake(part)
    }

    /// Whether probes can be taken out and put back in in a moment: where they are no perf events.
    #[must_use]
    pub fn can_rest(&self) -> bool {
        self.probes.are_quick()
    }

    /// Takes the probes out of forked children of the processes that they are bound to: a child has them in its copy of
    /// the code, where they count nothing and cost as much.
    pub fn spare_children(&self) {
        self.probes.spare_children();
    }

    /// Detaches the probes that were attached to a file by this path.
    pub fn detach(&mut self, file: &Path) -> Result<(), Error> {
        self.probes.detach(&mut self.ebpf, file)
    }

    /// Stops counting. The probes are still there, but do nothing.
    pub fn disarm(&mut self) -> Result<(), Error> {
        let slots: Vec<_> = self.processes.iter().map(|tracked| tracked.slot).collect();
        slots.into_iter().try_for_each(|slot| self.processes.disarm(slot))
    }

    /// Whether the unwind rows of a file are in the kernel's tables.
    #[must_use]
    pub fn has_rows(&self, file: FileVersion) -> bool {
        self.tables.has(file)
    }

    /// Adds the unwind rows of a file.
    pub fn add_rows(&mut self, file: FileVersion, rows: &VerifiedRows) -> Result<(), TablesFull> {
        self.tables.add(file, rows)
    }

    /// Adds the unwind rows of a file that is likely to be mapped, if that leaves room for those that are.
    pub fn expect_rows(&mut self, file: FileVersion, rows: &VerifiedRows) -> Result<(), TablesFull> {
        self.tables.expect(file, rows)
    }

    /// Says where a process generates code; [`Self::set_code`] must follow.
    pub fn set_generated(&mut self, slot: ProcessSlot, code: &CodeCache) {
        self.tables.set_generated(slot, code);
    }

    /// A process's generated code is gone, with the process or its image.
    pub fn forget_generated(&mut self, slot: ProcessSlot) {
        self.tables.forget_generated(slot);
    }

    /// Tells the unwinder where an image maps code, all of it, as it was `seen` ([`Self::begin_look`]); returns how many
    /// mappings it has no room for.
    pub fn set_code(&mut self, image: ImageId, code: &[CodeMapping], seen: CodeSeen) -> Result<usize, Error> {
        let slot = image.slot();
        let in_use = self.processes.mappings(slot)?;
        let (table, left_out) = self.tables.write(slot, in_use, code, seen)?;
        self.processes.set_mappings(image, table)?;
        Ok(left_out)
    }

    /// A look at what a process maps begins; what [`Self::set_code`] has to be told with what it finds. What the unwinder was
    /// told before and does not hold any more is void from now on: a look that was disturbed is known as such only up to the
    /// next.
    pub fn begin_look(&self, slot: ProcessSlot) -> Result<CodeSeen, Error> {
        if !self.holds_code(slot)? {
            self.processes.void_mappings(slot)?;
        }
        self.processes.begin_look(slot)
    }

    /// Whether what the unwinder was told of a process's code still holds: nothing of it has been replaced since.
    pub fn holds_code(&self, slot: ProcessSlot) -> Result<bool, Error> {
        let seen = self.processes.mappings(slot)?.and_then(|table| self.tables.seen(table));
        seen.map_or(Ok(false), |seen| self.processes.holds(slot, &seen))
    }

    /// The kernel side's hints that there is something to look at; once. Needs a running tokio runtime.
    pub fn hints(&mut self) -> Result<Hints, Error> {
        Hints::new(self.ring(names::HINTS)?, self.ring(names::PROGRAMS)?)
    }

    /// What the kernel side tells of mappings, if the settings ask for it; once.
    pub fn mapping_events(&mut self) -> Result<MappingEvents, Error> {
        Ok(MappingEvents::new(self.ring(names::MAPPING_EVENTS)?))
    }

    /// The single allocations and frees, once; there are some if the [`Settings`] ask for them. Needs a running tokio
    /// runtime.
    pub fn events(&mut self) -> Result<Events, Error> {
        Events::new(self.ring(names::EVENTS)?)
    }

    /// What it was loaded for.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A map of the object, for [`crate::collect`].
    pub(crate) fn map(&self, name: &'static str) -> Result<&Map, Error> {
        self.ebpf.map(name).ok_or(Error::ObjectLacks { what: "map", name })
    }

    /// A map of the object to change, for [`crate::collect`].
    pub(crate) fn map_mut(&mut self, name: &'static str) -> Result<&mut Map, Error> {
        self.ebpf.map_mut(name).ok_or(Error::ObjectLacks { what: "map", name })
    }

    /// A ring buffer of the object; once.
    pub(crate) fn ring(&mut self, name: &'static str) -> Result<RingBuf<MapData>, Error> {
        let map = self.ebpf.take_map(name).ok_or(Error::ObjectLacks { what: "map", name })?;
        RingBuf::try_from(map).map_err(Error::table)
    }
}
