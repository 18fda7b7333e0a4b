//! The report on Java objects for a terminal: classes, then the call paths that allocate most, within a screen.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use jjleak_common::stack::StackStatus;

use super::counters::{Counted, losses};
use super::fold::{folded, line_of};
use super::label::printable;
use super::short::rows;
use super::units::{self, grouped};
use super::verdicts::{approximate, percent};
use super::{Options, estimated_from};
use crate::profile::{Frame, FrameKind, KeptClass, Profile, SharedFrame, StackProfile, Totals};

/// Number of lines of a report.
const LINES: usize = 25;
/// Maximum number of classes.
const CLASSES: usize = 8;
/// The same beside those that are kept.
const CLASSES_BESIDE_KEPT: usize = 4;
/// The number of classes that is shown even if no call path fits then.
const CLASSES_AT_LEAST: usize = 3;
/// Lines of the table of classes that are not classes: its head, and how many are not shown.
const CLASSES_AROUND: usize = 2;
/// Maximum number of classes that have grown.
const GROWN: usize = 5;
/// Maximum number of frames of a stack.
const FRAMES: usize = 5;
/// One frame of several would be a gap alone.
const FEWEST_FRAMES: usize = 2;
/// Lines of a call path: its title and its frames.
const PATH: usize = 1 + FRAMES;
/// Standard errors in half of a 95 % interval.
const HALF_OF_95_PERCENT: f64 = 1.96;

/// Objects of a class.
#[derive(Default)]
struct Class<'a> {
    name: &'a str,
    allocated: Totals,
    /// At most the variance of the bytes: the sum of those of its stacks, which vary against each other.
    variance: f64,
}

/// Writes the report.
pub(super) fn write(profile: &Profile, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let time = profile.taken_at.to_zoned(options.time_zone.clone()).strftime("%H:%M:%S");
    let mut head = vec![format!(
        "[{time}] {}{}: {}",
        printable(&profile.process.to_string()),
        units::over(profile.elapsed()),
        headline(profile),
    )];
    // A histogram says more than the cause in the lines after the first.
    let growth = if profile.kept.is_empty() { profile.growth.len() } else { 1 };
    head.extend(profile.growth.iter().take(growth).map(|line| printable(line).into_owned()));
    head.extend((!options.view.is_empty()).then(|| format!("shown: {}", printable(&options.view))));
    head.extend(profile.ended.iter().map(|ended| format!("the process has ended: {}", printable(ended))));
    head.extend(kept(profile));
    let tail = tail(profile);
    let most = if profile.kept.is_empty() { CLASSES } else { CLASSES_BESIDE_KEPT };
    let beside_a_path = LINES.saturating_sub(rows(&head) + rows(&tail) + PATH + CLASSES_AROUND);
    head.extend(class_lines(profile, beside_a_path.clamp(CLASSES_AT_LEAST, most)));
    let left = LINES.saturating_sub(rows(&head) + rows(&tail));
    let paths = paths(profile, options.selection.top, left);
    head.iter().chain(&paths).chain(&tail).try_for_each(|line| writeln!(out, "{line}"))
}

/// `21.9 MiB allocated in the Java heap (27.3 MiB/s), 408,722 objects`.
pub(super) fn headline(profile: &Profile) -> String {
    let allocated = profile.allocated();
    let rate = per_second(allocated.bytes, profile.elapsed());
    format!(
        "{} allocated in the Java heap{}, {} objects",
        approximate(allocated.bytes),
        rate.map_or_else(String::new, |rate| format!(" ({rate})")),
        grouped(allocated.objects),
    )
}

/// The classes with the most bytes, and a line on the others.
pub(super) struct ClassTable {
    /// Names of the columns, then the classes: name, bytes, half of the 95 % interval, share, and rate.
    pub(super) rows: Vec<[String; 5]>,
    pub(super) rest: Option<String>,
}

/// At most so many classes; `None` if no object was announced.
pub(super) fn classes(profile: &Profile, most: usize) -> Option<ClassTable> {
    let mut classes: HashMap<&str, Class<'_>> = HashMap::new();
    for stack in &profile.stacks {
        let name = class_of(stack).map_or("", |frame| frame.symbol.as_str());
        let class = classes.entry(name).or_insert_with(|| Class { name, ..Class::default() });
        class.allocated = [class.allocated, stack.allocated].into_iter().sum();
        class.variance += stack.live_error.totals().map_or(0., |error| float(error.bytes).powi(2));
    }
    let mut classes: Vec<_> = classes.into_values().collect();
    classes.sort_by_key(|class| (std::cmp::Reverse(class.allocated.bytes), class.name));
    let rest = classes.get(most..).filter(|rest| !rest.is_empty()).map(|rest| {
        let bytes = rest.iter().map(|class| class.allocated.bytes).sum();
        format!("and {} more classes: {}", rest.len(), approximate(bytes))
    });
    let shown = classes.iter().take(most).map(|class| row(class, profile));
    let columns = ["class", "allocated", "95 %", "share", "rate"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(columns).chain(shown).collect();
    (rows.len() > 1).then_some(ClassTable { rows, rest })
}

/// Reason why there are no classes.
pub(super) const NOTHING_ANNOUNCED: &str =
    "no object was announced: HotSpot announces one when a thread takes a new buffer (TLAB)";

fn class_lines(profile: &Profile, most: usize) -> Vec<String> {
    match classes(profile, most) {
        Some(ClassTable { rows, rest }) => table(&rows).into_iter().chain(rest).collect(),
        None => vec![NOTHING_ANNOUNCED.to_owned()],
    }
}

/// Classes of which the JVM keeps more than at the beginning.
pub(super) fn kept(profile: &Profile) -> Vec<String> {
    if profile.kept.is_empty() {
        return Vec::new();
    }
    let grown: Vec<_> = profile.kept.iter().filter(|class| class.grown_bytes > 0).collect();
    let all: i64 = profile.kept.iter().map(|class| class.grown_bytes).sum();
    let sign = if all < 0 { '-' } else { '+' };
    let mut lines = vec![format!(
        "kept after collections: {sign}{}; classes that grow:",
        approximate(all.unsigned_abs())
    )];
    if grown.is_empty() {
        lines.push("  none".to_owned());
    }
    lines.extend(grown.iter().take(GROWN).map(|class| {
        let KeptClass { class, now, grown_bytes, grown_objects } = class;
        format!(
            "  +{} to {}, {grown_objects:+} to {} objects: {}",
            approximate(grown_bytes.unsigned_abs()),
            approximate(now.bytes),
            grouped(now.objects),
            printable(class)
        )
    }));
    lines
}

fn row(class: &Class<'_>, profile: &Profile) -> [String; 5] {
    let (bytes, all) = (class.allocated.bytes, profile.allocated().bytes);
    let share = float(bytes) / float(all.max(1));
    let error = 100. * HALF_OF_95_PERCENT * class.variance.sqrt() / float(bytes.max(1));
    [
        printable(class.name).into_owned(),
        approximate(bytes),
        if error >= 0.5 { format!("±{error:.0} %") } else { String::new() },
        percent(share),
        per_second(bytes, profile.elapsed()).unwrap_or_default(),
    ]
}

/// Columns of equal width; all but the last are aligned to the right.
fn table(all: &[[String; 5]]) -> Vec<String> {
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3, 4].map(width);
    let line = |[class, bytes, error, share, rate]: &[String; 5]| {
        let [class_width, bytes_width, error_width, share_width, rate_width] = widths;
        format!(
            "{bytes:>bytes_width$} {error:>error_width$}  {share:>share_width$}  {rate:>rate_width$}  {class:<class_width$}"
        )
        .trim_end()
        .to_owned()
    };
    all.iter().map(line).collect()
}

/// Call paths that allocate objects of a class.
struct Path<'a> {
    class: &'a Frame,
    bytes: u64,
    /// The stack with the most bytes, without the class.
    frames: Vec<SharedFrame>,
}

/// The call paths with the most bytes, in at most this many rows of a terminal; those of classes that have grown first.
fn paths(profile: &Profile, top: usize, mut left: usize) -> Vec<String> {
    let grown: Vec<_> = profile.kept.iter().take(GROWN).filter(|kept| kept.grown_bytes > 0).collect();
    let mut paths = distinct(profile);
    paths.sort_by_key(|path| {
        let place = grown.iter().position(|kept| Some(kept.class.as_str()) == path.class.class());
        (place.unwrap_or(usize::MAX), std::cmp::Reverse(path.bytes))
    });
    let mut lines = Vec::new();
    for path in paths.into_iter().take(top) {
        let fitting = (FEWEST_FRAMES..=FRAMES)
            .rev()
            .map(|most| path.lines(profile, most))
            .find(|all| rows(all) <= left);
        let Some(fitting) = fitting else { break };
        left -= rows(&fitting);
        lines.extend(fitting);
    }
    lines
}

impl Path<'_> {
    /// A title and at most this many frames.
    fn lines(&self, profile: &Profile, most: usize) -> Vec<String> {
        let Self { class, bytes, frames } = self;
        let share = float(*bytes) / float(profile.allocated().bytes.max(1));
        let title =
            format!("{} of {} ({}) by", approximate(*bytes), printable(&class.symbol), percent(share));
        let frame = |frame: Option<usize>| match frame {
            Some(frame) => format!("\t{}", line_of(&frames[frame])),
            None => "\t...".to_owned(),
        };
        [title].into_iter().chain(folded(frames, 0, most).into_iter().map(frame)).collect()
    }
}

/// Call paths that look different, the largest first. Stacks that differ only within a line, or below `main`, are one.
fn distinct(profile: &Profile) -> Vec<Path<'_>> {
    let mut stacks: Vec<_> = profile.stacks.iter().filter(|stack| stack.frames.len() > 1).collect();
    stacks.sort_by_key(|stack| (std::cmp::Reverse(stack.allocated.bytes), stack.id));
    let mut places: HashMap<(&str, Vec<String>), usize> = HashMap::new();
    let mut paths: Vec<Path<'_>> = Vec::new();
    for stack in stacks {
        let Some(class) = class_of(stack) else { continue };
        let frames: Vec<_> = stack.frames.iter().skip(1).cloned().collect();
        let lines = folded(&frames, 0, usize::MAX).into_iter().flatten().map(|at| line_of(&frames[at]));
        let place = *places.entry((&class.symbol, lines.collect())).or_insert(paths.len());
        match paths.get_mut(place) {
            Some(path) => path.bytes = path.bytes.saturating_add(stack.allocated.bytes),
            None => paths.push(Path { class, bytes: stack.allocated.bytes, frames }),
        }
    }
    paths
}

fn tail(profile: &Profile) -> Vec<String> {
    let mut lines: Vec<_> = losses(profile)
        .map(|Counted { count, name, meaning }| format!("lost: {count} {}: {meaning}", printable(name)))
        .collect();
    let incomplete = profile.stacks.iter().filter(|stack| stack.status != StackStatus::Complete).count();
    if incomplete > 0 {
        let all = profile.stacks.len();
        lines.push(format!("stacks: {incomplete} of {all} are incomplete (--full says why)"));
    }
    lines.extend(estimated_from(&profile.coverage).map(|from| format!("estimates from {from}")));
    if profile.kept.is_empty() && profile.ended.is_none() {
        let pid = profile.process.pid;
        lines.push(format!(
            "garbage counts, too; to do: which classes grow: jjleak heap -p {pid} --histogram (stops the JVM for a full collection, twice)"
        ));
    }
    lines
}

fn class_of(stack: &StackProfile) -> Option<&Frame> {
    stack.frames.first().filter(|frame| frame.kind == FrameKind::Class).map(|frame| &**frame)
}

fn per_second(bytes: u64, elapsed: Duration) -> Option<String> {
    let seconds = elapsed.as_secs_f64();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate for people")]
    let rate = || (float(bytes) / seconds) as u64;
    (seconds > 0.).then(|| format!("{}/s", approximate(rate())))
}

#[expect(clippy::cast_precision_loss, reason = "shares and errors")]
const fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{FrameKind, SourceKind};
    use crate::render::sample;

    fn java(symbol: &str, line: u32) -> Frame {
        let file = "Shop.java".to_owned();
        Frame { symbol: symbol.to_owned(), file, line, kind: FrameKind::Java, ..Frame::default() }
    }

    fn stack(class: &str, bytes: u64, error: u64, callers: &[Frame]) -> StackProfile {
        let class = Frame::of_class(class.to_owned());
        let allocated = Totals { bytes, objects: bytes / 40 };
        StackProfile {
            id: bytes,
            live: allocated,
            allocated,
            live_error: Totals { bytes: error, objects: 0 }.into(),
            frames: [&class].into_iter().chain(callers).cloned().map(Into::into).collect(),
            ..sample::empty_stack()
        }
    }

    #[test]
    fn classes_come_first_and_then_who_allocates_them() {
        let mut profile = sample::empty_profile();
        profile.coverage.source = SourceKind::JavaHeap;
        profile.growth = vec!["RSS +465.0 MiB in 4 min 12 s: Java heap +460.0 MiB".to_owned()];
        let main = [java("Shop.take", 12), java("Shop.main", 3), java("java.lang.Thread.run", 840)];
        profile.stacks = vec![
            stack("byte[]", 800 << 20, 40 << 20, &main),
            stack("byte[]", 200 << 20, 20 << 20, &[java("Shop.pay", 40)]),
            stack("java.lang.String", 24 << 20, 0, &main),
            stack("java.lang.String", 23 << 20, 0, &main),
            stack("not sampled yet", 1 << 20, 0, &[]),
        ];
        let mut text = Vec::new();
        write(&profile, &sample::options(), &mut text).unwrap();
        insta::assert_snapshot!(String::from_utf8(text).unwrap());
    }

    #[test]
    fn classes_that_are_kept_come_first_with_who_allocates_them() {
        let mut profile = sample::empty_profile();
        profile.coverage.source = SourceKind::JavaHeap;
        profile.stacks = vec![
            stack("byte[]", 800 << 20, 0, &[java("Shop.read", 12)]),
            stack("Order", 20 << 20, 0, &[java("Shop.order", 40)]),
        ];
        let kept = |class: &str, grown_bytes, grown_objects| KeptClass {
            class: class.to_owned(),
            now: Totals { bytes: 30 << 20, objects: 700_000 },
            grown_bytes,
            grown_objects,
        };
        profile.kept = vec![kept("Order", 20 << 20, 500_000), kept("byte[]", -4096, -3)];
        let mut text = Vec::new();
        write(&profile, &sample::options(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("kept after collections: +20.0 MiB; classes that grow:"), "{text}");
        assert!(text.contains("  +20.0 MiB to 30.0 MiB, +500000 to 700,000 objects: Order"), "{text}");
        let [order, read] = ["Shop.order", "Shop.read"].map(|name| text.find(name));
        assert!(order.is_some() && order < read, "{text}");
    }

    #[test]
    fn a_call_path_has_its_frames_however_many_classes_there_are() {
        let mut profile = sample::empty_profile();
        profile.coverage.source = SourceKind::JavaHeap;
        let callers =
            ["read", "parse", "serve", "accept", "run"].map(|name| java(&format!("Shop.{name}"), 12));
        profile.stacks =
            (1..=20).map(|class| stack(&format!("Class{class}"), class << 20, 0, &callers)).collect();
        profile.growth = vec!["a line that two rows of a terminal show, ".repeat(3); 4];
        let mut text = Vec::new();
        write(&profile, &sample::options(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("\tShop.run Shop.java:12\n"), "{text}");
        assert!(rows(&text.lines().map(str::to_owned).collect::<Vec<_>>()) <= LINES, "{text}");
    }

    #[test]
    fn nothing_announced_is_said_with_the_reason() {
        let mut profile = sample::empty_profile();
        profile.coverage.source = SourceKind::JavaHeap;
        let mut text = Vec::new();
        write(&profile, &sample::options(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("no object was announced: HotSpot announces one"), "{text}");
    }
}
