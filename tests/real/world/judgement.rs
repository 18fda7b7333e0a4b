//! Judges the runs of a program: finds deviations from the targets.

use std::collections::{BTreeMap, BTreeSet};

use super::oracle::{self, Counted};
use super::profile::{Amount, Profile, Stacks};
use super::runs::{Measured, Profiled, tail};
use super::table::{Oracle, Program, Target};

/// Minimum share of complete stacks, in millionths.
const COMPLETE: u64 = 999_000;

/// Allowed difference between the allocations of a run with the counter and one without, as a share: threads and times differ.
const DIFFERENT_RUNS: f64 = 0.1;
/// Difference in allocations that is always allowed.
const FEW: u64 = 50;

/// Losses for lack of room, which options can increase.
const ROOM: [&str; 6] = [
    "live_table_full",
    "live_table_full_bytes",
    "stack_table_full",
    "frame_storage_full",
    "pending_full",
    "process_table_full",
];

/// Maximum number of deviating processes to name.
const SHOWN: usize = 3;

/// A program's figures and deviations.
pub(super) struct Judgement {
    pub(super) program: &'static Program,
    /// `None` if the program could not be run.
    pub(super) figures: Option<Figures>,
    /// Deviations, each with the observed values.
    pub(super) deviations: Vec<(Target, String)>,
}

/// A row of the table.
pub(super) struct Figures {
    /// jjleak's count of the allocations visible to the oracle, in the run with the oracle.
    pub(super) counted: Amount,
    pub(super) counted_live: Amount,
    /// jjleak's count of other allocations.
    pub(super) beside: Amount,
    pub(super) oracle: Option<OracleFigures>,
    pub(super) first: Stacks,
    pub(super) second: Stacks,
    /// Sum of all runs under jjleak.
    pub(super) lost: BTreeMap<String, u64>,
    pub(super) processes: usize,
    pub(super) peak_mib: u64,
    pub(super) alone_s: f64,
    pub(super) profiled_s: f64,
}

/// Figures of an oracle.
#[derive(Debug, Clone, Copy)]
pub(super) enum OracleFigures {
    Whole(Counted),
    Calls(u64),
}

impl Judgement {
    pub(super) fn of(program: &'static Program, measured: Result<Measured, String>) -> Self {
        match measured {
            Ok(measured) => Self::of_figures(program, &measured),
            Err(why) => Self { program, figures: None, deviations: vec![(Target::Output, why)] },
        }
    }

    fn of_figures(program: &'static Program, measured: &Measured) -> Self {
        let runs = [
            ("first run", &measured.first),
            ("second run", &measured.second),
            ("run with the counter", &measured.observed),
        ];
        let mut deviations = Vec::new();
        for (name, run) in runs {
            deviations.extend(output(measured, run).map(|what| (Target::Output, format!("{name}: {what}"))));
        }
        deviations.extend(accounted(program, measured));
        deviations.extend(unobserved(program, measured));
        let figures = Figures::of(program, measured);
        if figures.second.complete_millionths() < COMPLETE {
            deviations.push((Target::Complete, format!("second run: {:?}", figures.second.others)));
        }
        let lost: Vec<_> = figures.lost.iter().filter(|(name, _)| !ROOM.contains(&name.as_str())).collect();
        if !lost.is_empty() {
            deviations.push((Target::Losses, format!("{lost:?}")));
        }
        let is_nothing_counted = match program.oracle {
            Oracle::CounterBeside(_) => figures.beside.objects == 0,
            _ => allocated(&measured.second.profiles).objects == 0,
        };
        if figures.lost.is_empty() && is_nothing_counted {
            deviations.push((Target::Losses, "an allocator is not counted, and no loss is named".to_owned()));
        }
        Self { program, figures: Some(figures), deviations }
    }

    /// Reason of a known deviation.
    pub(super) fn excused(&self, target: Target) -> Option<&'static str> {
        self.program.exceptions.iter().find(|exception| exception.of == target).map(|exception| exception.why)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.deviations.iter().any(|(target, _)| self.excused(*target).is_none())
    }

    /// Summary in a line, for the terminal.
    pub(super) fn line(&self) -> String {
        let name = self.program.name;
        let verdict = if self.has_failed() { "FAILED" } else { "ok" };
        let figures = self.figures.as_ref().map(Figures::line).unwrap_or_default();
        let deviations: Vec<_> = self
            .deviations
            .iter()
            .map(|(target, seen)| {
                let known = if self.excused(*target).is_some() { " (known)" } else { "" };
                format!("\n    {target:?}{known}: {seen}")
            })
            .collect();
        format!("world: {name}: {verdict}: {figures}{}", deviations.concat())
    }
}

impl Figures {
    fn of(program: &Program, measured: &Measured) -> Self {
        let (mut counted, mut counted_live) = (Amount::default(), Amount::default());
        let mut beside = Amount::default();
        for profile in measured.observed.profiles.values() {
            let (seen, seen_live) = visible(program, profile);
            counted += seen;
            counted_live += seen_live;
            beside += minus(profile.allocated, seen);
        }
        let oracle = match program.oracle {
            Oracle::Counter | Oracle::CounterOfAll | Oracle::CounterBeside(_) => {
                let mut all = Counted::default();
                for process in measured.oracle.values() {
                    all.allocated += process.allocated;
                    all.live += process.live;
                }
                Some(OracleFigures::Whole(all))
            }
            Oracle::AddressSanitizer => {
                oracle::address_sanitizer_calls(&measured.alone.stderr).map(OracleFigures::Calls)
            }
            Oracle::Nobody(_) => None,
        };
        let mut lost = BTreeMap::new();
        for run in [&measured.first, &measured.second, &measured.observed] {
            for (name, count) in run.profiles.values().flat_map(|profile| &profile.lost) {
                *lost.entry(name.clone()).or_default() += count;
            }
        }
        Self {
            counted,
            counted_live,
            beside,
            oracle,
            first: stacks(&measured.first),
            second: stacks(&measured.second),
            lost,
            processes: measured.second.profiles.len(),
            peak_mib: measured.first.peak_kib.max(measured.second.peak_kib) >> 10,
            alone_s: measured.alone.time.as_secs_f64(),
            profiled_s: measured.second.time.as_secs_f64(),
        }
    }

    fn line(&self) -> String {
        format!(
            "{} allocations, {} bytes; oracle {:?}; beside {:?}; complete {} and {} millionths; {} processes; {} MiB; {:.1} s, {:.1} s",
            self.counted.objects,
            self.counted.bytes,
            self.oracle,
            self.beside,
            self.first.complete_millionths(),
            self.second.complete_millionths(),
            self.processes,
            self.peak_mib,
            self.alone_s,
            self.profiled_s,
        )
    }
}

fn stacks(run: &Profiled) -> Stacks {
    let mut all = Stacks::default();
    run.profiles.values().for_each(|profile| all.add(&profile.stacks));
    all
}

fn allocated(profiles: &BTreeMap<u32, Profile>) -> Amount {
    let mut all = Amount::default();
    for profile in profiles.values() {
        all += profile.allocated;
    }
    all
}

fn minus(all: Amount, some: Amount) -> Amount {
    Amount { objects: all.objects - some.objects, bytes: all.bytes - some.bytes }
}

/// jjleak's count for the allocators that the counter wraps: allocated and live.
fn visible(program: &Program, profile: &Profile) -> (Amount, Amount) {
    let Oracle::CounterBeside(hidden) = program.oracle else {
        return (profile.allocated, profile.live);
    };
    let (mut allocated, mut live) = (profile.allocated, profile.live);
    for (module, (hidden_allocated, hidden_live)) in &profile.by_allocator {
        if hidden.iter().any(|name| module.starts_with(name)) {
            allocated = minus(allocated, *hidden_allocated);
            live = minus(live, *hidden_live);
        }
    }
    (allocated, live)
}

/// Differences to the oracle.
fn accounted(program: &Program, measured: &Measured) -> Vec<(Target, String)> {
    match program.oracle {
        Oracle::Nobody(_) => Vec::new(),
        Oracle::Counter | Oracle::CounterOfAll | Oracle::CounterBeside(_) => as_counted(program, measured),
        Oracle::AddressSanitizer => {
            let counted = allocated(&measured.second.profiles).objects;
            let calls = oracle::address_sanitizer_calls(&measured.alone.stderr);
            let differs = calls != Some(counted);
            differs
                .then(|| (Target::Allocated, format!("{counted} allocations; the allocator says {calls:?}")))
                .into_iter()
                .collect()
        }
    }
}

/// Compares each process separately: sums may be equal by chance.
fn as_counted(program: &Program, measured: &Measured) -> Vec<(Target, String)> {
    let profiles = &measured.observed.profiles;
    let pids: BTreeSet<_> = profiles.keys().chain(measured.oracle.keys()).collect();
    let (mut allocated, mut live) = (Vec::new(), Vec::new());
    for pid in pids {
        let profile = profiles.get(pid).cloned().unwrap_or_default();
        let counted = measured.oracle.get(pid).copied().unwrap_or_default();
        let (seen, seen_live) = visible(program, &profile);
        let who = |seen, counted| format!("{} ({pid}): {seen:?}, oracle {counted:?}", profile.comm);
        if seen != counted.allocated {
            allocated.push(who(seen, counted.allocated));
        }
        if seen_live != counted.live {
            live.push(who(seen_live, counted.live));
        }
    }
    let said = |target, all: Vec<String>| {
        let more = all.len().saturating_sub(SHOWN);
        let text = format!("{}; {more} more processes", all[..all.len().min(SHOWN)].join("; "));
        (!all.is_empty()).then_some((target, text))
    };
    [said(Target::Allocated, allocated), said(Target::Live, live)].into_iter().flatten().collect()
}

/// Checks that the counter does not affect the figures: its own functions could be taken for the outermost allocation functions.
fn unobserved(program: &Program, measured: &Measured) -> Option<(Target, String)> {
    if matches!(program.oracle, Oracle::Nobody(_) | Oracle::AddressSanitizer) {
        return None;
    }
    let without = allocated(&measured.second.profiles).objects;
    let with = allocated(&measured.observed.profiles).objects;
    let apart = without.abs_diff(with);
    #[expect(clippy::cast_precision_loss, reason = "a bound on a share")]
    let is_much = apart > FEW && apart as f64 > with as f64 * DIFFERENT_RUNS;
    is_much
        .then(|| (Target::Unobserved, format!("{without} allocations without the counter, {with} with it")))
}

/// Differences to the program's behaviour without jjleak.
fn output(measured: &Measured, run: &Profiled) -> Option<String> {
    if run.jjleak_code != Some(0) {
        return Some(format!("jjleak ended with {:?}: {}", run.jjleak_code, tail(&run.stderr)));
    }
    let code = measured.alone.code.map_or("signal".to_owned(), |code| format!("exit status: {code}"));
    if !run.profiles.values().any(|profile| profile.ended.contains(&code)) {
        return Some(format!("it did not end with {code}: {}", tail(&run.stderr)));
    }
    (run.stdout != measured.alone.stdout).then(|| {
        let show = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
        format!("it printed {:?}, and alone {:?}", show(&run.stdout), show(&measured.alone.stdout))
    })
}
