//! A line for a log on a profile without verdicts: who allocates in a Java heap, or makes memory resident.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::fold::line_of;
use super::label::printable;
use super::units::duration;
use super::verdicts::{approximate, percent};
use crate::analyze::{Rules, application_frame};
use crate::profile::{Profile, SourceKind, StackProfile};

/// Ending of the name of a constructor.
const CONSTRUCTOR: &str = ".<init>";
/// Maximum number of functions.
const FUNCTIONS: usize = 3;
/// Maximum number of classes of each.
const CLASSES: usize = 2;

/// The application's functions with most bytes, and the classes of their objects, or the memory that they touch: `62 % by Shop.order
/// Shop.java:40 (Order, byte[])`.
#[must_use]
pub fn in_short(profile: &Profile) -> String {
    let is_growth = profile.coverage.source == SourceKind::Growth;
    let of = |stack: &StackProfile| if is_growth { stack.live.bytes } else { stack.allocated.bytes };
    let all = if is_growth { profile.live().bytes } else { profile.allocated().bytes };
    let mut functions: HashMap<String, Function<'_>> = HashMap::new();
    for stack in profile.stacks.iter().filter(|stack| of(stack) > 0) {
        let Some(place) = place(stack) else { continue };
        let function = functions.entry(place).or_default();
        function.bytes += of(stack);
        let class = stack.frames.first().map_or("", |frame| frame.symbol.as_str());
        *function.classes.entry(class).or_default() += of(stack);
    }
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by_key(|(place, function)| (Reverse(function.bytes), place.clone()));
    let shown: Vec<_> =
        functions.iter().take(FUNCTIONS).map(|(place, function)| function.words(place, all)).collect();
    let elapsed = duration(profile.elapsed());
    let (nothing, happened) = if is_growth {
        ("no page became resident that still is", "became resident")
    } else {
        ("no object was announced", "allocated in the Java heap")
    };
    if shown.is_empty() {
        return format!("{nothing} in {elapsed}");
    }
    format!("{} {happened} in {elapsed}: {}", approximate(all), shown.join(", "))
}

/// Bytes of a function, by class or memory.
#[derive(Default)]
struct Function<'a> {
    bytes: u64,
    classes: HashMap<&'a str, u64>,
}

impl Function<'_> {
    fn words(&self, place: &str, all: u64) -> String {
        let mut classes: Vec<_> = self.classes.iter().collect();
        classes.sort_by_key(|(class, bytes)| (Reverse(**bytes), **class));
        let classes: Vec<_> = classes.iter().take(CLASSES).map(|(class, _)| printable(class)).collect();
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = percent(self.bytes as f64 / all.max(1) as f64);
        format!("{share} by {place} ({})", classes.join(", "))
    }
}

/// The application's frame, or else the one that allocates. A constructor is named by its caller.
fn place(stack: &StackProfile) -> Option<String> {
    let frames = stack.frames.list();
    let first = application_frame(&frames, &Rules::default()).unwrap_or(1);
    let frames = frames.get(first..)?;
    let caller = frames.iter().find(|frame| !frame.symbol.ends_with(CONSTRUCTOR));
    caller.or(frames.first()).map(|frame| line_of(frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Frame, FrameKind, Totals};
    use crate::render::sample;

    #[test]
    fn the_functions_of_the_application_are_named_with_what_they_allocate() {
        let java = |symbol: &str, line| {
            let file = "Shop.java".to_owned();
            Frame { symbol: symbol.to_owned(), file, line, kind: FrameKind::Java, ..Frame::default() }
        };
        let stack = |class: &str, mebibytes: u64, callers: &[Frame]| StackProfile {
            allocated: Totals { bytes: mebibytes << 20, objects: 1 },
            frames: [&Frame::of_class(class.to_owned())]
                .into_iter()
                .chain(callers)
                .cloned()
                .map(Into::into)
                .collect(),
            ..sample::empty_stack()
        };
        let mut profile = sample::empty_profile();
        profile.coverage.source = SourceKind::JavaHeap;
        assert!(in_short(&profile).starts_with("no object was announced"));
        let [grow, new, order] =
            [java("java.util.Arrays.copyOf", 3), java("Shop$Cart.<init>", 4), java("Shop.order", 40)];
        profile.stacks = vec![
            stack("Order", 30, std::slice::from_ref(&order)),
            stack("byte[]", 60, &[grow, new, order]),
            stack("char[]", 10, &[java("Shop.pay", 12)]),
        ];
        let line = in_short(&profile);
        let said =
            ": 90 % by Shop.order Shop.java:40 (byte[], Order), 10 % by Shop.pay Shop.java:12 (char[])";
        assert!(
            line.starts_with("100.0 MiB allocated in the Java heap in ") && line.ends_with(said),
            "{line}"
        );
        profile.coverage.source = SourceKind::Growth;
        assert!(in_short(&profile).starts_with("no page became resident that still is in "));
        for stack in &mut profile.stacks {
            stack.live = stack.allocated;
        }
        let line = in_short(&profile);
        assert!(line.starts_with("100.0 MiB became resident in ") && line.ends_with(said), "{line}");
    }
}
