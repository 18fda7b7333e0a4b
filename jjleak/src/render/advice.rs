//! The recommended next step, in a sentence.

use std::time::Duration;

use jjleak_common::counter::Counter;

use super::findings::{Causes, place, sum};
use super::units;
use super::verdicts::{approximate, is_judged, pace, percent};
use crate::profile::{
    JUDGED_SNAPSHOTS, JUDGED_SPANS, Memory, MemoryKind, Profile, Rate, Sampling, SourceKind, resident_growth,
};

/// The recommended next step.
pub(super) fn advice(profile: &Profile, causes: &Causes<'_>) -> String {
    if let Some(words) = nothing_seen(profile) {
        return words.to_owned();
    }
    if !is_judged(profile) {
        let missing = verdict_in(profile, causes);
        return match causes.fastest.first() {
            _ if profile.coverage.source == SourceKind::File => needs_dumps(profile),
            _ if profile.ended.is_none() && !missing.is_zero() => {
                format!("Verdict in {}.", whole_seconds(missing))
            }
            Some(most) => too_short(&place(most)),
            None => "It has freed all that it allocated.".to_owned(),
        };
    }
    let all = sum(causes.leaking()).per_second;
    if let Some(worst) = causes.leaking().next() {
        let share = worst.rate.map_or(0., |rate| rate.per_second) / all.max(f64::MIN_POSITIVE);
        let share = if share > 0.995 { "all".to_owned() } else { percent(share) };
        return format!(
            "Look at {} first: it makes {share} of the leak{}.",
            place(worst),
            until_full(profile, all)
        );
    }
    if let Some(growing) = causes.growing().next()
        && profile.cause_of_growth().is_none()
    {
        return format!(
            "No leak is proven. {} may be growing: watch it for as long again to see whether that ends.",
            place(growing)
        );
    }
    if let Some(to_do) = profile.step_for_growth() {
        return format!("Nothing leaks of what it allocates. What grows is something else; to do: {to_do}");
    }
    "Nothing leaks that matters: what was allocated is freed, or it has stopped growing.".to_owned()
}

/// Time until there is a verdict on what grows fastest, which may have begun later than the others.
fn verdict_in(profile: &Profile, causes: &Causes<'_>) -> Duration {
    let fastest = causes.fastest.first();
    let first_seen =
        fastest.and_then(|finding| finding.verdicts.iter().map(|verdict| verdict.first_seen).min());
    first_seen.map_or(Duration::ZERO, |seen| profile.site_judged_in(seen)).max(profile.judged_in())
}

/// Possible reasons if nothing was counted: silence is no sign of health.
fn nothing_seen(profile: &Profile) -> Option<&'static str> {
    let is_counted = |counter: Counter| {
        let counted = profile.lost.get(counter.name()).or_else(|| profile.notes.get(counter.name()));
        counted.is_some_and(|&times| times > 0)
    };
    if profile.allocated().objects > 0 || [Counter::Filtered, Counter::Unsampled].into_iter().any(is_counted)
    {
        return None;
    }
    Some(if profile.coverage.sampling == Sampling::Announced {
        "No sample was drawn: the program has loaded nothing that draws samples (what it has loaded: jjleak doctor -p PID), or has \
         allocated little."
    } else if is_counted(Counter::UnfollowedAllocator) {
        "Nothing was counted: jjleak cannot follow its allocator (why: jjleak doctor -p PID)."
    } else {
        "Nothing was counted: it has allocated nothing meanwhile, or by functions that jjleak does not find \
         (which it finds: jjleak doctor -p PID)."
    })
}

/// Dumps of an allocator that a verdict needs.
fn needs_dumps(profile: &Profile) -> String {
    format!(
        "For a verdict, it takes {JUDGED_SNAPSHOTS} dumps over {} at least: these are {} over {}.",
        whole_seconds(profile.coverage.settle * JUDGED_SPANS),
        profile.snapshots,
        whole_seconds(profile.elapsed()),
    )
}

fn too_short(most: &str) -> String {
    format!(
        "It did not run for long enough to tell leaks from the rest; of what was never freed, most is from {most}."
    )
}

/// `25 s`, `2 min 6 s`: a second at least.
pub(super) fn whole_seconds(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let seconds = seconds.max(1);
    if seconds < 60 { format!("{seconds} s") } else { units::duration(Duration::from_secs(seconds)) }
}

/// `; resident memory grows by 5.0 MiB/min: the 400 MiB that its control group has left are used up in 80 min`. By what leaks if
/// the growth of resident memory is unknown; nothing if resident memory does not grow.
fn until_full(profile: &Profile, leak_per_second: f64) -> String {
    let Some(Memory { kind, available, .. }) = profile.memory else { return String::new() };
    let resident = resident_growth(&profile.history);
    let per_second = resident.unwrap_or(leak_per_second);
    let rate = Rate { per_second, low: per_second, high: per_second };
    let Some(time) = rate.time_to_fill(available).filter(|_| per_second > 0.) else { return String::new() };
    let by = match resident {
        Some(_) => format!("resident memory grows by {}:", pace(rate).trim_start_matches('+')),
        None => "at this pace,".to_owned(),
    };
    let whose = match kind {
        MemoryKind::Cgroup => "its control group",
        MemoryKind::Ram => "the machine",
    };
    let (available, time) = (approximate(available), units::duration(time));
    format!("; {by} the {available} that {whose} has left are used up in {time}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::Rules;
    use crate::profile::{JUDGED_SNAPSHOTS, Moment, Totals};
    use crate::render::sample;

    fn said(profile: &Profile) -> String {
        advice(profile, &Causes::of(profile, &Rules::default()))
    }

    #[test]
    fn nothing_counted_is_not_taken_for_nothing_leaked() {
        let mut profile = sample::judged();
        profile.stacks.clear();
        profile.notes.clear();
        assert!(said(&profile).starts_with("Nothing was counted: it has allocated nothing meanwhile, or"));
        profile.lost.insert(Counter::UnfollowedAllocator.name().to_owned(), 1);
        assert!(said(&profile).starts_with("Nothing was counted: jjleak cannot follow its allocator"));
        profile.coverage.sampling = Sampling::Announced;
        assert!(said(&profile).starts_with("No sample was drawn"));
        profile.notes.insert(Counter::Filtered.name().to_owned(), 1);
        assert!(!said(&profile).contains("Nothing was counted"), "the user has left it out");
    }

    #[test]
    fn few_snapshots_are_too_early_however_long_it_was_watched() {
        let mut profile = sample::judged();
        profile.taken_at = profile.started_at + Duration::from_secs(600);
        profile.snapshots = JUDGED_SNAPSHOTS - 1;
        assert!(said(&profile).starts_with("Verdict in 2 min"), "{}", said(&profile));
    }

    #[test]
    fn the_verdict_on_what_began_late_comes_late() {
        let mut profile = sample::judged();
        profile.coverage.settle = Duration::from_secs(15);
        profile.snapshots = 10;
        profile.taken_at = profile.started_at + Duration::from_secs(50);
        for verdict in &mut profile.verdicts {
            verdict.first_seen = Duration::ZERO;
        }
        assert_eq!(said(&profile), "Verdict in 10 s.");
        for verdict in &mut profile.verdicts {
            verdict.first_seen = Duration::from_secs(20);
        }
        assert_eq!(said(&profile), "Verdict in 30 s.");
    }

    #[test]
    fn forecasts_are_by_resident_memory() {
        let mut profile = sample::judged();
        assert!(said(&profile).contains("; at this pace, the 400.0 MiB that its control group has left"));
        // Twice the pace of what leaks.
        let moment = |second: u64| Moment {
            at: profile.started_at + Duration::from_secs(10 * second),
            live: Totals::default(),
            resident: Some((10 * second) << 20),
        };
        profile.history = (0..12).map(moment).collect();
        let words = said(&profile);
        let forecast = "; resident memory grows by 60.0 MiB/min: the 400.0 MiB that its control group has left are used up in 6 min";
        assert!(words.contains(forecast), "{words}");
        for moment in &mut profile.history {
            moment.resident = Some(1 << 20);
        }
        assert!(!said(&profile).contains("used up"));
    }
}
