//! Loads the BPF object.

use std::fs;
use std::os::unix::fs::MetadataExt;

use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use jjleak_common::mapping::{MappingKinds, RING_BYTES as MAPPING_RING_BYTES, UNUSED_RING_BYTES};
use jjleak_common::sampling::{self, Sampling};
use jjleak_common::stack::FIRST_ROW;
use jjleak_common::stage::{Stage, Step};
use jjleak_common::trace::RING_BYTES;
use jjleak_common::unwind::TABLES_PER_PROCESS;
use jjleak_common::{live, names, stack};

use super::kernel_offsets::KernelOffsets;
use super::preflight::{INITIAL_PID_NAMESPACE, OWN_PID_NAMESPACE};
use super::probes::Probes;
use super::{Error, Programs, SizeFilter, mapping_events};

/// The object compiled by `cargo xtask build`; empty in a build without it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/jjleak.bpf.o"));

/// Minimum size of a ring buffer.
const PAGE: u32 = 4096;

/// Capacity of the kernel side. Tables are rounded up to sizes that it can search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Live blocks, up to [`live::MAX_BLOCKS`].
    pub blocks: u32,
    /// Distinct stacks, up to [`stack::MAX_STACKS`].
    pub stacks: u32,
    /// Bytes of frames of new stacks that wait for the user side, up to [`stack::MAX_FRAME_BYTES`].
    pub frame_bytes: u32,
    /// Concurrent processes, up to [`jjleak_common::process::MAX_PROCESSES`].
    pub processes: u32,
}

/// Settings of the kernel side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "switches that go with each other in any combination")]
pub struct Settings {
    /// Sizes of its tables.
    pub capacity: Capacity,
    /// Programs at the sites.
    pub programs: Programs,
    /// Sizes to account for.
    pub sizes: SizeFilter,
    /// Processes to account for besides the requested ones.
    pub following: Following,
    /// Mappings to trace, for [`super::Attachment::mapping_events`]; none by default.
    pub mappings: Option<MappingKinds>,
    /// Sampling of allocations.
    pub sampling: Sampling,
    /// True to sum up the live bytes of each stack on every allocation and free, so that the blocks need not be read.
    pub combined: bool,
    /// True to make the allocating thread part of a stack's identity.
    pub threads: bool,
    /// True to report each allocation and free.
    pub trace: bool,
    /// True to forward messages to the log.
    pub kernel_log: bool,
    /// Stage after which programs end, to measure the cost of each stage.
    pub last_stage: Stage,
    /// True to use perf events as on kernels without uprobe-multi links, for tests.
    pub one_by_one: bool,
}

impl Settings {
    /// Default settings.
    #[must_use]
    pub fn new(programs: Programs) -> Self {
        Self {
            capacity: Capacity::default(),
            programs,
            sizes: SizeFilter::default(),
            following: Following::Nobody,
            mappings: None,
            sampling: Sampling::Off,
            combined: false,
            threads: false,
            trace: false,
            kernel_log: false,
            last_stage: Stage::All,
            one_by_one: false,
        }
    }
}

/// Processes to account for besides the requested ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Following {
    /// None.
    Nobody,
    /// Children of accounted processes.
    Children,
    /// Children, and every process that executes a program: the user side inspects it and releases it if it is not wanted.
    Everyone,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            blocks: live::DEFAULT_BLOCKS,
            stacks: stack::DEFAULT_STACKS,
            frame_bytes: stack::DEFAULT_FRAME_BYTES,
            processes: 1,
        }
    }
}

/// Loads maps and programs.
pub(super) fn load(settings: Settings) -> Result<(Ebpf, Probes), Error> {
    if OBJECT.is_empty() {
        return Err(Error::NoObject);
    }
    let Settings { capacity, programs, sizes, following, mappings, kernel_log, one_by_one, .. } = settings;
    let tables = Tables::of(&settings);
    let log_level = if kernel_log { u8::MAX } else { 0 };
    let follow_forks = u8::from(following != Following::Nobody);
    let adopt_execs = u8::from(following == Following::Everyone);
    let mut loader = EbpfLoader::new();
    loader
        .verifier_log_level(verifier_log_level())
        // Aya has no user-side type for task storage, and jjleak needs none.
        .allow_unsupported_maps()
        .override_global("MIN_SIZE", &sizes.min, true)
        .override_global("MAX_SIZE", &sizes.max, true)
        .override_global("FOLLOW_FORKS", &follow_forks, true)
        .override_global("ADOPT_EXECS", &adopt_execs, true)
        .override_global(aya_log::LEVEL, &log_level, true)
        .map_max_entries(names::MAPPING_EVENTS, mappings.map_or(UNUSED_RING_BYTES, |_| MAPPING_RING_BYTES))
        .map_max_entries(names::MAPPINGS, 1 + TABLES_PER_PROCESS * capacity.processes);
    tables.apply(&mut loader);
    let namespace = fs::metadata(OWN_PID_NAMESPACE).map_err(Error::Namespace)?;
    let (device, inode) = (namespace.dev(), namespace.ino());
    let is_initial = u8::from(inode == INITIAL_PID_NAMESPACE);
    loader
        .override_global("IN_INITIAL_PID_NAMESPACE", &is_initial, true)
        .override_global("PID_NAMESPACE_DEVICE", &device, true)
        .override_global("PID_NAMESPACE_INODE", &inode, true);
    let offsets = KernelOffsets::find(following, mappings.is_some())?;
    offsets.apply(&mut loader);
    if let Some(MappingKinds(kinds)) = &mappings {
        loader.override_global("MAPPING_KINDS", kinds, true);
    }
    let mut ebpf = loader.load(OBJECT).map_err(|source| Error::Load(Box::new(source)))?;
    let probes = Probes::load(OBJECT, &mut ebpf, programs, one_by_one)?;
    // Attach now: loading needs every map, and some are taken out soon.
    if mappings.is_some() {
        mapping_events::follow(&mut ebpf)?;
    }
    if let Err(error) = follow(&mut ebpf, "area_placed", "vm_unmapped_area") {
        tracing::warn!(
            "this kernel does not tell when a process maps code: where one library takes the place of another, stacks \
             and names can be wrong for up to a second"
        );
        tracing::info!(%error, source = std::error::Error::source(&error), "the reason");
    }
    follow(&mut ebpf, "process_exec", "sched_process_exec")?;
    follow(&mut ebpf, "thread_exit", "sched_process_exit")?;
    if offsets.knows_tasks() {
        follow(&mut ebpf, "process_fork", "sched_process_fork")?;
    }
    if following != Following::Nobody {
        follow(&mut ebpf, "process_exit", "sched_process_exit")?;
    }
    Ok((ebpf, probes))
}

/// Values of the object's globals and map sizes, derived from the [`Settings`].
struct Tables {
    sets_log2: u32,
    spill_entries: u32,
    rows_log2: u32,
    totals: u32,
    frame_bytes: u32,
    event_bytes: u32,
    combined: u32,
    threads: u32,
    trace: u32,
    sample_draws: u64,
    sample_scale: u64,
    sample_certain_from: u64,
    last_stage: u32,
    step: u32,
}

impl Tables {
    fn of(settings: &Settings) -> Self {
        let Settings { capacity, sampling, combined, threads, trace, .. } = *settings;
        let rows_log2 = stack::rows_log2(capacity.stacks);
        let (sample_draws, sample_scale, sample_certain_from) = match sampling {
            Sampling::Off | Sampling::Rate(0 | 1) => (0, 0, 0),
            Sampling::Rate(rate) => (sampling::draws_of_rate(rate), 0, 0),
            Sampling::Bytes(bytes) => (0, sampling::scale_of(bytes), sampling::certain_from(bytes)),
        };
        Self {
            sets_log2: live::sets_log2(capacity.blocks),
            spill_entries: live::spill_entries(capacity.blocks),
            rows_log2,
            totals: if combined { FIRST_ROW + (1 << rows_log2) } else { 1 },
            // The kernel requires a power of two of pages.
            frame_bytes: capacity.frame_bytes.clamp(PAGE, stack::MAX_FRAME_BYTES).next_power_of_two(),
            event_bytes: if trace { RING_BYTES } else { PAGE },
            combined: combined.into(),
            threads: threads.into(),
            trace: trace.into(),
            sample_draws,
            sample_scale,
            sample_certain_from,
            last_stage: settings.last_stage as u32,
            step: match settings.programs {
                Programs::Steps(step) => step,
                _ => Step::Nothing,
            } as u32,
        }
    }

    fn apply<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        loader
            .override_global(names::LIVE_SETS_LOG2, &self.sets_log2, true)
            .override_global(names::STACK_ROWS_LOG2, &self.rows_log2, true)
            .override_global("FRAME_BYTES", &self.frame_bytes, true)
            .override_global("LAST_STAGE", &self.last_stage, true)
            .override_global("STEP", &self.step, true)
            .override_global(names::COMBINED, &self.combined, true)
            .override_global(names::THREADS, &self.threads, true)
            .override_global(names::TRACE, &self.trace, true)
            .override_global(names::SAMPLE_DRAWS, &self.sample_draws, true)
            .override_global(names::SAMPLE_SCALE, &self.sample_scale, true)
            .override_global(names::SAMPLE_CERTAIN_FROM, &self.sample_certain_from, true)
            .map_max_entries(names::LIVE, 1 << self.sets_log2)
            .map_max_entries(names::SPILL, self.spill_entries)
            .map_max_entries(names::STACKS, FIRST_ROW + (1 << self.rows_log2))
            .map_max_entries(names::TOTALS, self.totals)
            .map_max_entries(names::FRAMES, self.frame_bytes)
            .map_max_entries(names::EVENTS, self.event_bytes);
    }
}

/// Detail of the verifier's log for a rejected program: only the reason. Before Linux 6.4, a log that does not fit loses its end,
/// and the log of all processed instructions may not fit.
fn verifier_log_level() -> VerifierLogLevel {
    if tracing::enabled!(tracing::Level::DEBUG) {
        VerifierLogLevel::default()
    } else {
        VerifierLogLevel::STATS
    }
}

/// Attaches a program to a tracepoint.
fn follow(ebpf: &mut Ebpf, name: &'static str, tracepoint: &'static str) -> Result<(), Error> {
    let program: &mut RawTracePoint = ebpf
        .program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(Error::ObjectLacks { what: "raw tracepoint program", name })?;
    program.load().map_err(|error| Error::verify(name, error))?;
    let attached = program.attach(tracepoint);
    attached.map_err(|error| Error::Tracepoint { name: tracepoint, source: Box::new(error) })?;
    Ok(())
}
