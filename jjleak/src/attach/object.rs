//! Loads the BPF object.

use std::fs;
use std::os::unix::fs::MetadataExt;

use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use jjleak_common::fault::RING_BYTES as FAULT_RING_BYTES;
use jjleak_common::java_heap::RING_BYTES as JAVA_RING_BYTES;
use jjleak_common::mapping::{MappingKinds, RING_BYTES as MAPPING_RING_BYTES, UNUSED_RING_BYTES};
use jjleak_common::samples::MAX_SITES;
use jjleak_common::sampling::{self, Sampling};
use jjleak_common::settings::Settings as Constants;
use jjleak_common::stack::FIRST_ROW;
#[cfg(feature = "measuring")]
use jjleak_common::stage::{Measurement, Stage, Step};
use jjleak_common::trace::RING_BYTES;
use jjleak_common::unwind::{CHUNK_WORDS, CHUNKS, Row, TABLES_PER_PROCESS};
use jjleak_common::{live, names, stack};

use super::kernel_offsets::KernelOffsets;
use super::preflight::{INITIAL_PID_NAMESPACE, OWN_PID_NAMESPACE};
use super::probes::Probes;
use super::{Error, Programs, SizeFilter, hooks, mapping_calls};
use crate::processes::{MemoryLimit, Pid};

/// The object compiled by `cargo xtask build`; empty in a build without it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/jjleak.bpf.o"));

/// The object compiled by `cargo xtask bench`, with the programs that only the benchmark needs.
#[cfg(feature = "measuring")]
static MEASURING_OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/jjleak-measuring.bpf.o"));

/// Minimum size of a ring buffer.
const PAGE: u32 = 4096;

/// Capacity of the kernel side. Tables are rounded up to sizes that it can search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Live blocks, up to [`live::MAX_BLOCKS`].
    pub blocks: u32,
    /// Stacks with live blocks, up to [`stack::MAX_STACKS`].
    pub stacks: u32,
    /// Bytes of frames of new stacks that wait for the user side, up to [`stack::MAX_FRAME_BYTES`].
    pub frame_bytes: u32,
    /// Unwind rows, up to [`MAX_ROWS`].
    pub rows: u32,
    /// Concurrent processes, up to [`jjleak_common::process::MAX_PROCESSES`].
    pub processes: u32,
}

/// Maximum of [`Capacity::rows`]: 512 MiB.
#[expect(clippy::cast_possible_truncation, reason = "2^26")]
pub const MAX_ROWS: u32 = ((CHUNKS - 1) * CHUNK_WORDS) as u32;

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
    /// Slots of the process table that the kernel side does not give to new processes.
    pub reserved: u32,
    /// Mappings to trace, for [`super::Attachment::mapping_events`]; none by default.
    pub mappings: Option<MappingKinds>,
    /// True to report page faults, for [`super::Attachment::page_faults`].
    pub faults: bool,
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
    #[cfg(feature = "measuring")]
    pub last_stage: Stage,
    /// True to walk each stack, also one that an earlier walk has found, for tests.
    pub walk_each: bool,
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
            reserved: 0,
            mappings: None,
            faults: false,
            sampling: Sampling::Off,
            combined: false,
            threads: false,
            trace: false,
            kernel_log: false,
            #[cfg(feature = "measuring")]
            last_stage: Stage::All,
            walk_each: false,
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
            rows: default_rows(Pid::new(std::process::id()).and_then(MemoryLimit::lowest).unwrap_or(0)),
            processes: 1,
        }
    }
}

/// Default capacity for unwind rows: at most 1/64 of the `memory` in bytes that jjleak may use. 4 million rows hold a JVM with all its
/// libraries ten times over, 32 million several browsers and compilers.
fn default_rows(memory: u64) -> u32 {
    const MIN: u32 = 4 << 20;
    const MAX: u32 = 32 << 20;
    let rows = memory / 64 / size_of::<Row>() as u64;
    u32::try_from(rows).unwrap_or(MAX).clamp(MIN, MAX)
}

/// Loads maps and programs.
pub(super) fn load(settings: Settings) -> Result<(Ebpf, Probes), Error> {
    let object = object(&settings);
    if object.is_empty() {
        return Err(Error::NoObject);
    }
    let Settings { programs, following, mappings, kernel_log, one_by_one, .. } = settings;
    let constants = constants(&settings)?;
    let offsets = KernelOffsets::find(following, mappings.is_some())?.fields();
    let log_level = if kernel_log { u8::MAX } else { 0 };
    let mut loader = EbpfLoader::new();
    loader
        .verifier_log_level(verifier_log_level())
        // Aya has no user-side type for task storage, and jjleak needs none.
        .allow_unsupported_maps()
        .override_global(names::SETTINGS, &constants, true)
        .override_global(names::KERNEL_OFFSETS, &offsets, true)
        .override_global(aya_log::LEVEL, &log_level, true);
    #[cfg(feature = "measuring")]
    let measurement = measurement(&settings);
    #[cfg(feature = "measuring")]
    loader.override_global(names::MEASUREMENT, &measurement, measurement != Measurement::NONE);
    for (map, entries) in map_entries(&settings, &constants) {
        loader.map_max_entries(map, entries);
    }
    let mut ebpf = loader.load(object).map_err(|source| Error::Load(Box::new(source)))?;
    let probes = Probes::load(object, &mut ebpf, programs, one_by_one)?;
    // Attach now: loading needs every map, and some are taken out soon.
    if mappings.is_some() {
        mapping_calls::follow(&mut ebpf)?;
    }
    hooks::attach(&mut ebpf, &settings, &offsets)?;
    Ok((ebpf, probes))
}

#[cfg(not(feature = "measuring"))]
const fn object(_settings: &Settings) -> &'static [u8] {
    OBJECT
}

/// The benchmark's object for programs that only it contains. Everything else is measured with the other one.
#[cfg(feature = "measuring")]
fn object(settings: &Settings) -> &'static [u8] {
    let is_measuring =
        matches!(settings.programs, Programs::Stacks | Programs::KernelStacks | Programs::Steps(_))
            || settings.last_stage != Stage::All;
    if is_measuring { MEASURING_OBJECT } else { OBJECT }
}

#[cfg(feature = "measuring")]
const fn measurement(settings: &Settings) -> Measurement {
    let step = match settings.programs {
        Programs::Steps(step) => step,
        _ => Step::Nothing,
    };
    Measurement { last_stage: settings.last_stage as u32, step: step as u32 }
}

/// Constants of the programs.
fn constants(settings: &Settings) -> Result<Constants, Error> {
    let Settings { capacity, sizes, following, mappings, sampling, .. } = *settings;
    let namespace = fs::metadata(OWN_PID_NAMESPACE).map_err(Error::Namespace)?;
    let (sample_draws, sample_scale, sample_certain_from) = match sampling {
        Sampling::Off | Sampling::Rate(0 | 1) | Sampling::Announced => (0, 0, 0),
        Sampling::Rate(rate) => (sampling::draws_of_rate(rate), 0, 0),
        Sampling::Bytes(bytes) => (0, sampling::scale_of(bytes), sampling::certain_from(bytes)),
    };
    Ok(Constants {
        min_size: sizes.min,
        max_size: sizes.max,
        pid_namespace_device: namespace.dev(),
        pid_namespace_inode: namespace.ino(),
        sample_draws,
        sample_scale,
        sample_certain_from,
        live_sets_log2: live::sets_log2(capacity.blocks),
        stack_rows_log2: stack::first_rows_log2(capacity.stacks),
        // The kernel requires a power of two of pages.
        frame_bytes: capacity.frame_bytes.clamp(PAGE, stack::MAX_FRAME_BYTES).next_power_of_two(),
        in_initial_pid_namespace: (namespace.ino() == INITIAL_PID_NAMESPACE).into(),
        follow_forks: (following != Following::Nobody).into(),
        adopt_execs: (following == Following::Everyone).into(),
        combined: settings.combined.into(),
        threads: settings.threads.into(),
        trace: settings.trace.into(),
        mapping_kinds: mappings.unwrap_or(MappingKinds::ANONYMOUS).0,
        announced: (settings.programs == Programs::Samples).into(),
        walk_each: settings.walk_each.into(),
        padding: [0; 3],
    })
}

/// Sizes of the maps that depend on the settings: entries, or bytes of ring buffers.
fn map_entries(settings: &Settings, constants: &Constants) -> [(&'static str, u32); 11] {
    let stacks = FIRST_ROW + (1 << stack::rows_log2(settings.capacity.stacks));
    let java = if settings.programs == Programs::JavaHeap { JAVA_RING_BYTES } else { UNUSED_RING_BYTES };
    [
        (names::LIVE, 1 << constants.live_sets_log2),
        (names::SPILL, live::spill_entries(settings.capacity.blocks)),
        (names::STACKS, stacks),
        (names::TOTALS, if settings.combined { stacks } else { 1 }),
        (names::FRAMES, constants.frame_bytes),
        (names::EVENTS, if settings.trace { RING_BYTES } else { PAGE }),
        (names::MAPPING_EVENTS, settings.mappings.map_or(UNUSED_RING_BYTES, |_| MAPPING_RING_BYTES)),
        (names::PAGE_FAULTS, if settings.faults { FAULT_RING_BYTES } else { UNUSED_RING_BYTES }),
        (names::JAVA_OBJECTS, java),
        (names::SAMPLE_SITES, if settings.programs == Programs::Samples { MAX_SITES } else { 1 }),
        (names::MAPPINGS, 1 + TABLES_PER_PROCESS * settings.capacity.processes),
    ]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_take_a_64th_of_the_memory_between_32_and_256_mib() {
        let gib = |number: u64| number << 30;
        assert_eq!([0, gib(1), gib(2)].map(default_rows), [4 << 20; 3]);
        assert_eq!([gib(4), gib(8)].map(default_rows), [8 << 20, 16 << 20]);
        assert_eq!([gib(16), gib(1000)].map(default_rows), [32 << 20; 2]);
    }
}
