//! Profiles of the text files that allocators write: names come from the files that the program had mapped.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use jjleak_common::counter::Counter;
use jjleak_common::stack::{StackFrame, StackStatus};

use super::heap_frames::{AllocatorFrames, PerfMapFile, UnopenedPaths};
use super::naming::Naming;
use super::saved_series::{Instance, SavedProfile};
use crate::fast_map::FastSet;
use crate::heap_files::{self, Addresses, Damage, Estimate, Part, Scaling, SmallStacks};
use crate::own_memory;
use crate::processes::{FileSources, Mapping, SavedMappings, Unopened, parse_maps};
use crate::profile::{
    Coverage, DistinctIds, Frame, Frames, ProcessInfo, ProcessKind, Profile, Sampling, SourceKind,
    StackProfile, Totals,
};
use crate::snapshot::{FoundMappings, Path as FramePath, PathsBuilder, RawStack};
use crate::symbolize::child::OWN_PROGRAM;
use crate::symbolize::{StackNames, Symbolizer};

/// Frame of all stacks that are summed up.
const SMALL_STACKS: &str = "[small stacks]";
/// Number of stacks from which on the process that reads symbols is ended before their profile is made, because both take much memory.
const MANY_STACKS: usize = 100_000;
/// Maximum number of files that are named in a remark.
const MAX_NAMED: usize = 3;

/// Reads a profile; also returns remarks on how it was read.
pub(super) fn read(
    file: impl BufRead,
    path: &Path,
    taken_at: Timestamp,
    naming: &Naming,
    sources: &FileSources,
    names: &mut StackNames,
) -> Result<(SavedProfile, Vec<String>), heap_files::Error> {
    let mut heap = heap_files::read(file)?;
    let mut remarks = Vec::new();
    remarks.extend(heap.damage.as_ref().map(damaged));
    let mappings = mappings(&heap.mapped, &mut remarks);
    let saved = SavedMappings::open(&mappings, sources);
    remarks.extend(remarks_on(&saved));
    let process = process(path, &mappings);
    let instance = instance(process.pid, &mappings);
    let mut perf_map = PerfMapFile::of(naming, path, process.pid, &mut remarks);
    let stacks = Stacks {
        parts: mem::take(&mut heap.parts),
        addresses: mem::take(&mut heap.addresses),
        scaling: heap.scaling,
    };
    let mut stacks = named(stacks, &saved, &mappings, &mut perf_map, names);
    let small = heap.small.unwrap_or_default();
    if small.stacks > 0 {
        stacks.push(of_small(&small, heap.scaling));
        remarks.push(summed_up(&small, &stacks));
    }
    let mut profile = of_file(taken_at, process, sampling(heap.scaling), stacks);
    profile.notes.insert(Counter::SmallStack.name().to_owned(), small.stacks);
    Ok((SavedProfile { profile, instance }, remarks))
}

/// The profile of a file that has stacks alone.
pub(super) fn of_file(
    taken_at: Timestamp,
    process: ProcessInfo,
    sampling: Sampling,
    stacks: Vec<StackProfile>,
) -> Profile {
    let source = SourceKind::File;
    Profile {
        started_at: taken_at,
        taken_at,
        process,
        ended: None,
        coverage: Coverage { source, sampling, combined: true, ..Coverage::default() },
        lost: BTreeMap::new(),
        notes: BTreeMap::new(),
        unknown_frees: 0,
        stacks,
        history: Vec::new(),
        instants_ns: Arc::default(),
        resident: None,
        memory: None,
        verdicts: Vec::new(),
        snapshots: 0,
        unjudged_sites: 0,
        cost: None,
        growth: Vec::new(),
        kept: Vec::new(),
    }
}

/// A remark on damage.
pub(super) fn damaged(Damage { lines, first, reason }: &Damage) -> String {
    format!("{lines} damaged lines are left out; the first is line {first}: {reason}")
}

/// A remark on stacks that are summed up, from those of the profile.
fn summed_up(small: &SmallStacks, stacks: &[StackProfile]) -> String {
    let bytes = stacks.iter().map(|stack| u128::from(stack.live.bytes)).sum::<u128>();
    let permille = u128::from(whole(small.live.bytes)) * 1000 / bytes.max(1);
    format!(
        "{} of {} stacks are summed up as {SMALL_STACKS}, because all would take too much memory: each has at most {} bytes, and \
         together they have {}.{} % of the live bytes. In comparisons, a stack can seem to have changed by up to as much; several such \
         files are not judged",
        small.stacks,
        small.stacks + stacks.len() as u64 - 1,
        whole(small.most_bytes),
        permille / 10,
        permille % 10
    )
}

fn of_small(small: &SmallStacks, scaling: Scaling) -> StackProfile {
    let ((live, live_error), (allocated, _)) = (totals(small.live), totals(small.allocated));
    let frame = Frame { symbol: SMALL_STACKS.to_owned(), ..Frame::default() };
    let stack = StackProfile::foreign(
        DistinctIds::hash(SMALL_STACKS),
        live,
        allocated,
        Frames::from_iter([frame.into()]),
    );
    StackProfile { live_error: sampling(scaling).is_estimate().then_some(live_error).into(), ..stack }
}

fn mappings(text: &str, remarks: &mut Vec<String>) -> Vec<Mapping> {
    let lines = text.lines();
    let read: Vec<_> = lines.clone().filter_map(|line| parse_maps(line).ok()).flatten().collect();
    let unread = lines.count() - read.len();
    if unread > 0 {
        remarks.push(format!("{unread} lines of the list of mapped files cannot be read"));
    }
    read
}

fn remarks_on(saved: &SavedMappings) -> Vec<String> {
    let mut remarks: Vec<_> = unopened(&saved.unopened).into_iter().collect();
    if !saved.others.is_empty() {
        let paths: Vec<_> = saved.others.iter().collect();
        remarks.push(format!(
            "names in {} may be wrong: they are not the files that the program had mapped",
            listed(&paths)
        ));
    }
    remarks
}

/// A remark on files that could not be opened.
pub(super) fn unopened(files: &[Unopened]) -> Option<String> {
    let first = files.first()?;
    let paths: Vec<_> = files.iter().map(|unopened| &unopened.path).collect();
    Some(format!("no names for code in {}: {}", listed(&paths), first.error))
}

fn listed(paths: &[&PathBuf]) -> String {
    let named: Vec<_> = paths.iter().take(MAX_NAMED).map(|path| path.display().to_string()).collect();
    let named = named.join(", ");
    if paths.len() > MAX_NAMED {
        format!("{named} and {} more files", paths.len() - MAX_NAMED)
    } else {
        named
    }
}

/// jemalloc puts the PID into its files' names: `jeprof.4242.7.i7.heap`.
fn process(path: &Path, mappings: &[Mapping]) -> ProcessInfo {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Those of gperftools have one number less.
    let has_pid = name.ends_with(".heap") && name.split('.').count() > 4;
    let pid = name.split('.').nth(1).filter(|_| has_pid).and_then(|pid| pid.parse().ok());
    let program = program(mappings);
    let exe = program.map(|program| program.path.display().to_string()).unwrap_or_default();
    let comm = exe.rsplit('/').next().unwrap_or_default().to_owned();
    let comm = if comm.is_empty() { name.into_owned() } else { comm };
    let pid = pid.unwrap_or(0);
    ProcessInfo {
        pid,
        start_time: 0,
        comm,
        exe,
        kind: ProcessKind::Native,
        forked_from: None,
        container_pid: None,
    }
}

/// The program: Linux puts it below its libraries. JVMs map archives of classes below it.
fn program(mappings: &[Mapping]) -> Option<&Mapping> {
    let is_archive = |mapping: &Mapping| mapping.path.extension().is_some_and(|extension| extension == "jsa");
    mappings.iter().find(|mapping| mapping.executable && mapping.file.is_some() && !is_archive(mapping))
}

/// The execution: with address space randomization, the vDSO has another address in each.
fn instance(pid: u32, mappings: &[Mapping]) -> Option<Instance> {
    let program = program(mappings)?;
    let vdso = mappings.iter().find(|mapping| mapping.path.as_os_str() == "[vdso]");
    let address = vdso.unwrap_or(program).addresses.start;
    Some(Instance::Dumped { pid, exe: program.path.clone(), address })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "intervals are whole numbers")]
const fn sampling(scaling: Scaling) -> Sampling {
    match scaling {
        Scaling::Exact => Sampling::Off,
        Scaling::Exponential { bytes } | Scaling::Linear { bytes } => Sampling::Bytes(bytes as u64),
    }
}

/// Stacks of a file.
struct Stacks {
    parts: Vec<Part>,
    addresses: Addresses,
    scaling: Scaling,
}

/// The stacks, with names.
fn named(
    Stacks { parts, addresses, scaling }: Stacks,
    saved: &SavedMappings,
    mappings: &[Mapping],
    perf_map: &mut PerfMapFile,
    names: &mut StackNames,
) -> Vec<StackProfile> {
    let count = parts.iter().map(Part::len).sum();
    let (mut parts, paths) = placed(parts, &addresses, saved, mappings, perf_map, names);
    if count >= MANY_STACKS {
        names.end_child();
    }
    names.forget_unused();
    let ids = parts.iter().flat_map(|part| &part.ids).copied().collect();
    DistinctIds::make_distinct(ids, parts.iter_mut().flat_map(|part| &mut part.ids));
    let paths = paths.finish();
    own_memory::release();
    let is_estimate = sampling(scaling).is_estimate();
    let mut profiled = Vec::with_capacity(count);
    // The memory of each part is freed before the next.
    for PlacedPart { part, ids, places } in parts {
        for ((live, allocated), (id, path)) in part.estimates(scaling).zip(ids.into_iter().zip(places)) {
            let (live, live_error) = totals(live);
            let allocated = allocated.map_or(live, |allocated| totals(allocated).0);
            let of_file = StackProfile::foreign(id, live, allocated, Frames::of_path(&paths, path));
            profiled.push(StackProfile { live_error: is_estimate.then_some(live_error).into(), ..of_file });
        }
        own_memory::release();
    }
    profiled
}

/// Some stacks of a file, with names in place of addresses.
struct PlacedPart {
    part: Part,
    ids: Vec<u64>,
    places: Vec<FramePath>,
}

/// The stacks, with their places in a tree of frames.
fn placed(
    parts: Vec<Part>,
    addresses: &Addresses,
    saved: &SavedMappings,
    mappings: &[Mapping],
    perf_map: &mut PerfMapFile,
    names: &mut StackNames,
) -> (Vec<PlacedPart>, PathsBuilder) {
    let mut unopened = UnopenedPaths::new(mappings);
    let is_jvm = mappings.iter().any(|mapping| mapping.path.ends_with("libjvm.so"));
    let mut of_process = names.of_process(&saved.modules);
    let mut allocator = AllocatorFrames::default();
    of_process.look_up_all(words(&parts, addresses).iter());
    let mut paths = PathsBuilder::default();
    let mut place = |addresses: &[u64]| {
        let mut frames = of_process.frames(&raw_stack(addresses));
        unopened.add(&mut frames);
        frames.drain(..allocator.count(&frames));
        paths.add(&perf_map.add(frames, is_jvm))
    };
    let mut of_stack = Vec::new();
    let placed = |mut part: Part| {
        let (mut ids, mut places) = (Vec::with_capacity(part.len()), Vec::with_capacity(part.len()));
        for numbers in part.addresses() {
            of_stack.clear();
            of_stack.extend(numbers.iter().map(|number| addresses.get(*number)));
            ids.push(DistinctIds::hash(&*of_stack));
            places.push(place(&of_stack));
        }
        part.drop_addresses();
        own_memory::release();
        PlacedPart { part, ids, places }
    };
    let parts = parts.into_iter().map(placed).collect();
    (parts, paths)
}

/// Few stacks that have all addresses: each that is the innermost of a stack, and all others in one.
fn words(parts: &[Part], addresses: &Addresses) -> Vec<RawStack> {
    let innermost = parts.iter().flat_map(Part::addresses).filter_map(|stack| stack.first());
    let innermost: FastSet<_> = innermost.map(|number| addresses.get(*number)).collect();
    // The first address of a stack is not that of a call.
    let all: Vec<_> = innermost.iter().take(1).chain(addresses.all()).copied().collect();
    innermost.iter().map(|address| raw_stack(&[*address])).chain([raw_stack(&all)]).collect()
}

/// Names of the stacks of heap profiles. Those of a file are read once for all profiles.
pub(super) fn names() -> StackNames {
    StackNames::new(Symbolizer::in_child(Path::new(OWN_PROGRAM)))
}

pub(super) fn raw_stack(addresses: &[u64]) -> RawStack {
    let frames = addresses.iter().map(|address| StackFrame::new(*address, 0)).collect();
    RawStack { status: StackStatus::Foreign, found: FoundMappings::default(), thread: 0, frames }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "estimates are finite and not negative, and profiles have whole numbers"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

fn totals(estimate: Estimate) -> (Totals, Totals) {
    let Estimate { objects, bytes, objects_variance, bytes_variance } = estimate;
    (
        Totals { bytes: whole(bytes), objects: whole(objects) },
        Totals { bytes: whole(bytes_variance.sqrt()), objects: whole(objects_variance.sqrt()) },
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::profile::StandardErrors;

    fn read_heap(text: &[u8], path: &Path) -> Result<(SavedProfile, Vec<String>), heap_files::Error> {
        let sources = FileSources::default();
        read(text, path, Timestamp::UNIX_EPOCH, &Naming::default(), &sources, &mut names())
    }

    #[test]
    fn more_stacks_than_are_named_together_are_all_there() {
        let count = heap_files::STACKS_PER_PART + 2;
        let stacks = (1..=count).map(|number| format!("@ {number:#x}\n  t*: 1: {number} [0: 0]\n"));
        let text = format!("heap_v2/1\n{}MAPPED_LIBRARIES:\n", stacks.collect::<String>());
        let path = Path::new("a.heap");
        let (saved, _) = read_heap(text.as_bytes(), path).unwrap();
        let stacks = &saved.profile.stacks;
        let ids: BTreeSet<_> = stacks.iter().map(|stack| stack.id).collect();
        assert_eq!((stacks.len(), ids.len()), (count, count));
        let is_own = |(number, stack): (u64, &StackProfile)| {
            stack.live.bytes == number && stack.frames[0].address == number
        };
        assert!((1..).zip(stacks).all(is_own));
    }

    #[test]
    fn stacks_that_are_summed_up_are_one_stack_and_a_remark_tells_their_share() {
        let amount = |bytes| Estimate { objects: 1., bytes, ..Estimate::default() };
        let small = SmallStacks { stacks: 3, most_bytes: 9.6, live: amount(20.), allocated: amount(30.) };
        let one = of_small(&small, Scaling::Exact);
        assert_eq!(
            (one.live.bytes, one.allocated.bytes, one.live_error),
            (20, 30, StandardErrors::default())
        );
        let large = StackProfile { live: Totals { bytes: 300, objects: 1 }, ..one.clone() };
        assert_eq!(
            summed_up(&small, &[large, one]),
            "3 of 4 stacks are summed up as [small stacks], because all would take too much memory: each has at most 10 bytes, and \
             together they have 6.2 % of the live bytes. In comparisons, a stack can seem to have changed by up to as much; several such \
             files are not judged"
        );
    }

    #[test]
    fn frames_in_files_that_are_gone_have_their_paths_and_those_inside_of_the_allocator_are_left_out() {
        let text = "heap_v2/1\n@ 0x1010 0x1020 0x5010\n  t*: 1: 8 [0: 0]\nMAPPED_LIBRARIES:\n\
                    1000-2000 r-xp 00000000 00:01 7 /gone/libjemalloc.so.2\n5000-6000 r-xp 00000000 00:01 9 /gone/app\n";
        let (saved, _) = read_heap(text.as_bytes(), Path::new("a.heap")).unwrap();
        let frames = saved.profile.stacks[0].frames.iter();
        let frames: Vec<_> = frames.map(|frame| (frame.address, frame.module.as_str())).collect();
        assert_eq!(frames, [(0x1020, "/gone/libjemalloc.so.2"), (0x5010, "/gone/app")]);
    }

    #[test]
    fn a_stack_has_the_same_id_wherever_it_stands() {
        let ids = |addresses: [u64; 2]| {
            let stacks = addresses.map(|address| format!("@ {address:#x}\n  t*: 1: 8 [0: 0]\n")).concat();
            let text = format!("heap_v2/1\n{stacks}MAPPED_LIBRARIES:\n");
            let path = Path::new("a.heap");
            let (saved, _) = read_heap(text.as_bytes(), path).unwrap();
            saved.profile.stacks.iter().map(|stack| stack.id).collect::<Vec<_>>()
        };
        let (one, other) = (ids([0x10, 0x20]), ids([0x30, 0x10]));
        assert!(one[0] == other[1] && one[0] != one[1] && one[1] != other[0]);
        let repeated = ids([0x10, 0x10]);
        assert!(repeated[0] == one[0] && repeated[1] != one[0]);
    }

    #[test]
    fn the_process_is_in_the_name_of_the_file_and_in_its_list() {
        let maps = parse_maps("1000-2000 r-xp 00000000 fd:01 7 /opt/server\n").unwrap();
        let process = process(Path::new("/tmp/jeprof.4242.7.i7.heap"), &maps);
        assert_eq!(
            (process.pid, process.comm.as_str(), process.exe.as_str()),
            (4242, "server", "/opt/server")
        );
        let of_jvm = parse_maps(
            "1000-2000 r-xp 00000000 fd:01 7 /opt/jdk/lib/server/classes.jsa\n3000-4000 r--p 00000000 fd:01 8 /opt/data\n\
             5000-6000 r-xp 00000000 fd:01 9 /opt/jdk/bin/java\n",
        );
        assert_eq!(super::process(Path::new("a"), &of_jvm.unwrap()).comm, "java");
        let unknown = super::process(Path::new("profile.0001.heap"), &[]);
        assert_eq!((unknown.pid, unknown.comm.as_str()), (0, "profile.0001.heap"));
    }
}
