//! Objects that a JVM keeps: its class histograms at the beginning and with later reports. On request only: the JVM stops for a full
//! collection each time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::jcmd::{self, ClassHistogram, Held, Question};
use crate::jvm;
use crate::notices::print;
use crate::processes::{Mapping, ModuleFiles, ModuleTable, Pid, Process};
use crate::profile::{KeptClass, Totals};

/// Minimum time between two histograms, as a multiple of what one takes. The first and the last are taken in any case.
const REST: u32 = 100;

/// Histograms of a JVM.
#[derive(Debug)]
pub(super) struct Kept {
    pid: Pid,
    first: ClassHistogram,
    last: Vec<KeptClass>,
    rests_until: Instant,
}

impl Kept {
    /// Takes the first histogram. Blocks. `None`, with a warning, if the JVM gives none.
    pub(super) fn begin(pid: Pid) -> Option<Self> {
        print(
            "asking the JVM for a class histogram (--histogram): it stops for a full collection, now and for later reports",
        );
        let (first, took) = take(pid)?;
        Some(Self { pid, first, last: Vec::new(), rests_until: Instant::now() + REST * took })
    }

    /// Kept classes, with their growth since the first histogram. Takes another one if it is due, or `is_last`.
    pub(super) fn classes(&mut self, is_last: bool) -> &[KeptClass] {
        if (is_last || Instant::now() >= self.rests_until)
            && let Some((now, took)) = take(self.pid)
        {
            self.rests_until = Instant::now() + REST * took;
            self.last = grown(&self.first, &now);
        }
        &self.last
    }
}

/// A histogram, and the time that it took.
fn take(pid: Pid) -> Option<(ClassHistogram, Duration)> {
    let begin = Instant::now();
    match ask(pid) {
        Ok(histogram) => Some((histogram, begin.elapsed())),
        Err(why) => {
            tracing::warn!("process {pid} has given no class histogram: {why}");
            None
        }
    }
}

fn ask(pid: Pid) -> Result<ClassHistogram, String> {
    let process = Process::open(pid).map_err(|error| error.to_string())?;
    let mappings = Mapping::all(pid).map_err(|error| error.to_string())?;
    let mut modules = ModuleTable::default();
    modules.refresh(&mut ModuleFiles::default(), pid, &mappings);
    let (library, bias) = jvm::library(&mappings, &modules).ok_or("it maps no libjvm.so")?;
    let access =
        jcmd::access_of(pid, library, bias, Question::ClassHistogram).map_err(|unfit| unfit.to_string())?;
    jcmd::class_histogram(&process, access)
}

/// Classes by growth, the largest first.
fn grown(first: &ClassHistogram, now: &ClassHistogram) -> Vec<KeptClass> {
    let names: BTreeSet<&String> = first.keys().chain(now.keys()).collect();
    let held = |histogram: &ClassHistogram, class: &str| histogram.get(class).copied().unwrap_or_default();
    let kept = |class: &String| {
        let (Held { objects, bytes }, before) = (held(now, class), held(first, class));
        KeptClass {
            class: class.clone(),
            now: Totals { bytes, objects },
            grown_bytes: bytes.cast_signed().wrapping_sub(before.bytes.cast_signed()),
            grown_objects: objects.cast_signed().wrapping_sub(before.objects.cast_signed()),
        }
    };
    let mut classes: Vec<_> = names.into_iter().map(kept).collect();
    classes.sort_by_key(|class| std::cmp::Reverse((class.grown_bytes, class.now.bytes)));
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_that_have_grown_most_come_first_and_those_that_are_gone_are_negative() {
        let histogram = |classes: &[(&str, u64, u64)]| {
            let held = |(name, objects, bytes): &(&str, u64, u64)| {
                ((*name).to_owned(), Held { objects: *objects, bytes: *bytes })
            };
            classes.iter().map(held).collect::<ClassHistogram>()
        };
        let first = histogram(&[("Order", 10, 400), ("Gone", 1, 16)]);
        let now = histogram(&[("Order", 30, 1200), ("New", 1, 24)]);
        let classes = grown(&first, &now);
        let growth: Vec<_> =
            classes.iter().map(|of| (of.class.as_str(), of.grown_bytes, of.grown_objects)).collect();
        assert_eq!(growth, [("Order", 800, 20), ("New", 24, 1), ("Gone", -16, -1)]);
    }
}
