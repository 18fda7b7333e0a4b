//! The difference between two profiles.
//!
//! Addresses differ between processes, so stacks are matched by function names and, unless excluded, lines.

use std::collections::HashMap;
use std::time::Duration;

use crate::profile::{Frame, FrameKind, Frames, Profile, Totals};

/// Rules for matching stacks of two profiles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Matching {
    /// Ignore lines, as between versions of a program.
    pub ignore_lines: bool,
}

/// Identity of a stack across processes, leaf first.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct StackKey(Vec<(String, u32)>);

impl Matching {
    pub(super) fn key(self, frames: &Frames) -> StackKey {
        StackKey(
            frames
                .iter()
                .filter(|frame| frame.kind != FrameKind::Thread)
                .map(|frame| (name(frame), if self.ignore_lines { 0 } else { frame.line }))
                .collect(),
        )
    }
}

/// The function's name. A frame without one is named by its file and its offset in the page, which mapping
/// preserves.
fn name(frame: &Frame) -> String {
    const IN_PAGE: u64 = 0xfff;
    if frame.symbol.is_empty() {
        let file = frame.module.rsplit('/').next().unwrap_or_default();
        return format!("{file}+{:#x}", frame.address & IN_PAGE);
    }
    // The placeholder frame of one process among several.
    let is_process = frame.kind == FrameKind::Unknown && frame.address == 0;
    match frame.symbol.rsplit_once(" (pid ") {
        Some((comm, _)) if is_process => comm.to_owned(),
        _ => frame.symbol.clone(),
    }
}

/// Two profiles side by side.
#[derive(Debug, Clone)]
pub struct Difference<'a> {
    /// The first profile.
    pub before: &'a Profile,
    /// The second profile.
    pub after: &'a Profile,
    /// Factor that scales the first profile's figures to the second's running time; `None` for unscaled
    /// figures.
    pub scale: Option<f64>,
    /// Every stack with live bytes in either profile, largest change first.
    pub stacks: Vec<StackDifference>,
}

/// Live totals of one stack in both profiles.
#[derive(Debug, Clone, PartialEq)]
pub struct StackDifference {
    /// Frames, leaf first, taken from the second profile if it has the stack.
    pub frames: Frames,
    /// Totals in the first profile, scaled.
    pub before: Totals,
    /// Totals in the second profile.
    pub after: Totals,
}

/// Direction of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Only in the second profile.
    New,
    /// Larger in the second profile.
    Grew,
    /// Smaller in the second profile.
    Shrank,
    /// Only in the first profile.
    Gone,
    /// Unchanged.
    Same,
}

impl Change {
    /// All changes, in the order of legends.
    pub const ALL: [Self; 5] = [Self::New, Self::Grew, Self::Shrank, Self::Gone, Self::Same];

    /// Name in reports and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Grew => "grew",
            Self::Shrank => "shrank",
            Self::Gone => "gone",
            Self::Same => "same",
        }
    }

    /// Compares totals by bytes, then by objects.
    #[must_use]
    pub fn of(before: Totals, after: Totals) -> Self {
        if before.is_nothing() && !after.is_nothing() {
            return Self::New;
        }
        if after.is_nothing() && !before.is_nothing() {
            return Self::Gone;
        }
        match (after.bytes, after.objects).cmp(&(before.bytes, before.objects)) {
            std::cmp::Ordering::Greater => Self::Grew,
            std::cmp::Ordering::Less => Self::Shrank,
            std::cmp::Ordering::Equal => Self::Same,
        }
    }
}

impl StackDifference {
    /// Direction of the stack's change.
    #[must_use]
    pub fn change(&self) -> Change {
        Change::of(self.before, self.after)
    }
}

/// Signed difference, saturating.
#[must_use]
pub fn delta(before: u64, after: u64) -> i64 {
    let delta = i128::from(after) - i128::from(before);
    i64::try_from(delta).unwrap_or(if delta < 0 { i64::MIN } else { i64::MAX })
}

impl<'a> Difference<'a> {
    /// Compares two profiles, merged across threads, which no two runs share. `normalize` scales the first to
    /// the second's running time. Returns `None` if a profile does not record the running time that this
    /// needs.
    #[must_use]
    pub fn new(before: &'a Profile, after: &'a Profile, matching: Matching, normalize: bool) -> Option<Self> {
        let seconds = [before, after].map(|profile| profile.elapsed().as_secs_f64());
        if normalize && seconds.contains(&0.0) {
            return None;
        }
        let scale = normalize.then(|| seconds[1] / seconds[0]);
        let mut stacks: HashMap<StackKey, StackDifference> = HashMap::new();
        let sides = [(before, false), (after, true)];
        for (profile, is_after) in sides {
            for stack in profile.stacks.iter().filter(|stack| !stack.live.is_nothing()) {
                let nothing = || StackDifference {
                    frames: stack.frames.clone(),
                    before: Totals::default(),
                    after: Totals::default(),
                };
                let difference = stacks.entry(matching.key(&stack.frames)).or_insert_with(nothing);
                let side = if is_after { &mut difference.after } else { &mut difference.before };
                *side = [*side, stack.live].into_iter().sum();
                if is_after {
                    difference.frames = stack.frames.clone();
                }
            }
        }
        let mut stacks: Vec<_> = stacks.into_iter().collect();
        for (_, stack) in &mut stacks {
            stack.before = scaled(stack.before, scale);
        }
        stacks.sort_by_cached_key(|(key, stack)| {
            let bytes = stack.before.bytes.abs_diff(stack.after.bytes);
            let objects = stack.before.objects.abs_diff(stack.after.objects);
            (std::cmp::Reverse((bytes, objects)), key.clone())
        });
        let stacks = stacks.into_iter().map(|(_, stack)| stack).collect();
        Some(Self { before, after, scale, stacks })
    }

    /// Time between the profiles; `None` if they are of different processes, scaled, or count allocations from different times on.
    /// Dumps of allocators have no time of their beginning, and count from the process's start.
    #[must_use]
    pub fn between(&self) -> Option<Duration> {
        let (before, after) = (&self.before.process, &self.after.process);
        let same = before.pid == after.pid
            && before.start_time == after.start_time
            && (before.pid != 0 || !before.exe.is_empty() && before.exe == after.exe);
        let same_beginning = self.before.started_at == self.after.started_at
            || self.before.elapsed().is_zero() && self.after.elapsed().is_zero();
        let between = Duration::try_from(self.after.taken_at.duration_since(self.before.taken_at)).ok()?;
        (same && same_beginning && self.scale.is_none() && !between.is_zero()).then_some(between)
    }

    /// Change of bytes per second; `None` if the time between the profiles is not known.
    #[must_use]
    pub fn per_second(&self, before: Totals, after: Totals) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "rates are rounded")]
        self.between().map(|between| delta(before.bytes, after.bytes) as f64 / between.as_secs_f64())
    }

    /// Live totals of both profiles.
    #[must_use]
    pub fn live(&self) -> (Totals, Totals) {
        let before = self.stacks.iter().map(|stack| stack.before).sum();
        (before, self.stacks.iter().map(|stack| stack.after).sum())
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "scaled figures are estimates, and are not negative"
)]
fn scaled(totals: Totals, scale: Option<f64>) -> Totals {
    let Some(scale) = scale else { return totals };
    let scaled = |number: u64| (number as f64 * scale).round() as u64;
    Totals { bytes: scaled(totals.bytes), objects: scaled(totals.objects) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_one_process_that_is_counted_from_one_time_on() {
        let before = sample::profile();
        let mut after = before.clone();
        after.taken_at += Duration::from_secs(10);
        let per_second = |before: &Profile, after: &Profile| {
            let difference = Difference::new(before, after, Matching::default(), false).unwrap();
            let totals = |bytes| Totals { bytes, objects: 1 };
            difference.per_second(totals(100), totals(50))
        };
        assert_eq!(per_second(&before, &after), Some(-5.));
        let later = Profile { started_at: before.taken_at, ..after.clone() };
        assert_eq!(per_second(&before, &later), None);
        let dump = |of: &Profile| Profile { started_at: of.taken_at, ..of.clone() };
        assert_eq!(per_second(&dump(&before), &dump(&after)), Some(-5.));
        let mut other = after.clone();
        other.process.pid += 1;
        assert_eq!(per_second(&before, &other), None);
        assert_eq!(per_second(&after, &before), None);
        assert_eq!(per_second(&before, &before), None);
    }
    use crate::profile::StackProfile;
    use crate::render::sample;
    use std::time::Duration;

    fn frame(symbol: &str, line: u32, address: u64) -> Frame {
        Frame { symbol: symbol.into(), line, address, module: "/lib/a.so".into(), ..Frame::default() }
    }

    fn profile(stacks: &[(&[Frame], u64)]) -> Profile {
        let stacks = stacks.iter().map(|(frames, bytes)| StackProfile {
            frames: sample::shared(frames.to_vec()),
            live: Totals { bytes: *bytes, objects: 1 },
            ..sample::empty_stack()
        });
        Profile { stacks: stacks.collect(), ..sample::empty_profile() }
    }

    fn changes(before: &Profile, after: &Profile, matching: Matching) -> Vec<(Change, u64, u64)> {
        let difference = Difference::new(before, after, matching, false).unwrap();
        let stacks = difference.stacks.iter();
        stacks.map(|stack| (stack.change(), stack.before.bytes, stack.after.bytes)).collect()
    }

    #[test]
    fn stacks_are_the_same_by_name_wherever_they_are() {
        let before = profile(&[(&[frame("f", 1, 0x1000)], 10), (&[frame("gone", 1, 0)], 3)]);
        let after = profile(&[(&[frame("f", 1, 0x9000)], 30), (&[frame("new", 1, 0)], 5)]);
        let expected = [(Change::Grew, 10, 30), (Change::New, 0, 5), (Change::Gone, 3, 0)];
        assert_eq!(changes(&before, &after, Matching::default()), expected);
    }

    #[test]
    fn lines_distinguish_stacks_unless_ignored() {
        let (before, after) = (profile(&[(&[frame("f", 1, 0)], 10)]), profile(&[(&[frame("f", 2, 0)], 10)]));
        assert_eq!(
            changes(&before, &after, Matching::default()),
            [(Change::Gone, 10, 0), (Change::New, 0, 10)]
        );
        assert_eq!(changes(&before, &after, Matching { ignore_lines: true }), [(Change::Same, 10, 10)]);
    }

    #[test]
    fn code_without_a_name_is_known_by_its_place_in_the_page() {
        let (before, after) =
            (profile(&[(&[frame("", 0, 0x7f00_0123)], 1)]), profile(&[(&[frame("", 0, 0x5500_0123)], 2)]));
        assert_eq!(changes(&before, &after, Matching::default()), [(Change::Grew, 1, 2)]);
    }

    #[test]
    fn processes_among_several_are_known_by_name() {
        let process = |pid: u32| Frame { symbol: format!("app (pid {pid})"), ..Frame::default() };
        let (before, after) = (profile(&[(&[process(1)], 1)]), profile(&[(&[process(2)], 1)]));
        assert_eq!(changes(&before, &after, Matching::default()), [(Change::Same, 1, 1)]);
    }

    #[test]
    fn normalized_figures_are_as_of_a_run_as_long_as_the_second() {
        let mut before = profile(&[(&[frame("f", 1, 0)], 10)]);
        let mut after = profile(&[(&[frame("f", 1, 0)], 30)]);
        before.taken_at = before.started_at + Duration::from_secs(10);
        after.taken_at = after.started_at + Duration::from_secs(30);
        let difference = Difference::new(&before, &after, Matching::default(), true).unwrap();
        assert_eq!(difference.live().0, Totals { bytes: 30, objects: 3 });
        assert_eq!(Change::of(difference.stacks[0].before, difference.stacks[0].after), Change::Shrank);
        before.taken_at = before.started_at;
        assert!(Difference::new(&before, &after, Matching::default(), true).is_none());
    }

    #[test]
    fn differences_do_not_overflow() {
        assert_eq!((delta(0, u64::MAX), delta(u64::MAX, 0), delta(5, 3)), (i64::MAX, i64::MIN, -2));
    }
}
