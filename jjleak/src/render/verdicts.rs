//! Verdicts as text.

use super::label::{NO_STACK, label, module, printable};
use super::units;
use crate::profile::{Frame, Profile, Rate, TOO_EARLY, Verdict, VerdictKind};

/// Number of call sites to name of those that are not listed.
const NAMED: usize = 3;

/// Name of the call site: its function, file and line.
#[must_use]
pub fn site(verdict: &Verdict) -> String {
    let Some(frame) = verdict.frames.get(verdict.caller) else { return NO_STACK.to_owned() };
    let mut name = function(verdict);
    if !frame.symbol.is_empty()
        && let Some(module) = module(frame)
    {
        name = format!("{name} [{module}]");
    }
    match (printable(&frame.file), frame.line) {
        (file, _) if file.is_empty() => name,
        (file, 0) => format!("{name} {file}"),
        (file, line) => format!("{name} {file}:{line}"),
    }
}

/// Longer names, in bytes, are shown without parameters of functions and templates.
const LONG_NAME: usize = 60;

/// A part of C++ names that is no parameter.
const ANONYMOUS: &str = "(anonymous namespace)";

/// Name of the call site's function.
fn function(verdict: &Verdict) -> String {
    verdict.frames.get(verdict.caller).map_or_else(|| NO_STACK.to_owned(), |frame| short_name(frame))
}

/// Name of the function, of moderate length.
pub(super) fn short_name(frame: &Frame) -> String {
    let name = label(frame);
    if name.len() <= LONG_NAME {
        return name.into_owned();
    }
    let (mut depth, mut before) = (0_u32, None);
    let mut short = String::new();
    for (index, c) in name.char_indices() {
        let is_arrow = c == '>' && before == Some('-');
        let closes = matches!(c, '>' | ')') && depth > 0 && !is_arrow;
        depth -= u32::from(closes);
        if depth == 0 {
            short.push(c);
        }
        // At the beginning of a Rust name, `<` is part of a path, as in `<app::Session as core::clone::Clone>::clone`.
        let opens = matches!(c, '<' | '(') && before.is_some();
        depth += u32::from(opens && !(depth == 0 && name[index..].starts_with(ANONYMOUS)));
        before = Some(c);
    }
    short
}

/// Evidence for the verdict, one sentence each.
#[must_use]
pub fn evidence(verdict: &Verdict) -> Vec<String> {
    let mut evidence = Vec::new();
    if let Some(rate) = verdict.rate {
        evidence.push(growth(rate));
    }
    if let Some(survival) = verdict.survival {
        let share = survival.share();
        let (live, allocated) = (approximate(survival.live.bytes), approximate(survival.allocated.bytes));
        let age = units::duration(survival.older_than);
        evidence.push(format!(
            "{} of what was allocated more than {age} ago lives ({live} of {allocated})",
            percent(share)
        ));
    }
    match verdict.freed_when_old {
        Some(freed) if freed < 0.0005 => {
            evidence.push("of what was old, nothing has been freed since".to_owned());
        }
        Some(freed) => evidence.push(format!("of what was old, {} has been freed since", percent(freed))),
        None => {}
    }
    if let Some(freed) = verdict.freed_from_before {
        evidence.push(replaced(freed));
    }
    if verdict.not_resident {
        evidence.push(
            "not proven: resident memory does not grow as fast, so it may replace blocks from before jjleak \
             attached"
                .to_owned(),
        );
    }
    if let Some(flat) = verdict.flat_for {
        evidence.push(format!("flat for {}", units::duration(flat)));
    }
    if verdict.hidden_stacks > 0 {
        let (shown, all) = (verdict.stacks.len(), verdict.stacks.len() as u64 + verdict.hidden_stacks);
        evidence.push(format!(
            "rates and ages are of all {all} stacks of the call site, of which {shown} are shown"
        ));
    }
    if verdict.free_rate > 0. {
        let (allocated, freed) = (per_second(verdict.allocation_rate), per_second(verdict.free_rate));
        evidence.push(format!("{allocated} allocated, {freed} freed"));
    }
    evidence
}

/// Evidence against a leak: the kept blocks may only replace blocks allocated before jjleak attached.
fn replaced(freed: f64) -> String {
    let many = if freed < 0.95 { "nearly as many" } else { "as many or more" };
    format!(
        "no leak yet: for what is kept, {many} blocks from before jjleak attached are freed, as a full cache does"
    )
}

/// `+4.1 MiB/min (95 % CI 3.9 to 4.3), 5.8 GiB a day`.
fn growth(rate: Rate) -> String {
    format!("{}, {} a day", growth_with_bounds(rate), humane(per_day(rate)))
}

/// Bytes per day.
pub(super) fn per_day(rate: Rate) -> f64 {
    rate.per_day()
}

/// `+4.1 MiB/min (95 % CI 3.9 to 4.3)`.
pub(super) fn growth_with_bounds(rate: Rate) -> String {
    let (per, seconds) = period(rate.per_second);
    let [low, high] = [rate.low, rate.high].map(|bound| bound * seconds);
    let estimate = rate.per_second * seconds;
    let (unit, name) = unit(estimate);
    let decimals = usize::from(unit > 1. || estimate.abs() < 10.);
    let bounds = if high - low < 0.1 * unit && unit > 1. {
        String::new()
    } else {
        format!(" (95 % CI {:.decimals$} to {:.decimals$})", low / unit, high / unit)
    };
    format!("{:+.decimals$} {name}/{per}{bounds}", estimate / unit)
}

/// `+4.1 MiB/min`.
#[must_use]
pub fn pace(rate: Rate) -> String {
    pace_of(rate.per_second)
}

/// `+4.1 MiB/min`, of bytes per second.
pub(super) fn pace_of(per_second: f64) -> String {
    let (per, seconds) = period(per_second);
    let estimate = per_second * seconds;
    let (unit, name) = unit(estimate);
    let decimals = usize::from(unit > 1. || estimate.abs() < 10.);
    format!("{:+.decimals$} {name}/{per}", estimate / unit)
}

/// Time unit for a rate of growth, and its seconds: minutes, unless growth is slow.
fn period(per_second: f64) -> (&'static str, f64) {
    match per_second.abs() * 60. {
        per_minute if per_minute >= 1. => ("min", 60.),
        per_minute if per_minute * 60. >= 1. => ("h", 3600.),
        _ => ("day", 86_400.),
    }
}

fn unit(bytes: f64) -> (f64, &'static str) {
    const UNITS: [(f64, &str); 4] =
        [(1_099_511_627_776., "TiB"), (1_073_741_824., "GiB"), (1_048_576., "MiB"), (1_024., "KiB")];
    UNITS.into_iter().find(|(unit, _)| bytes.abs() >= *unit).unwrap_or((1., "bytes"))
}

pub(super) fn humane(bytes: f64) -> String {
    let (unit, name) = unit(bytes);
    let decimals = usize::from(unit > 1.);
    format!("{:.decimals$} {name}", bytes / unit)
}

fn per_second(bytes: f64) -> String {
    format!("{}/s", humane(bytes))
}

/// `1.5 MiB`, `300 bytes`.
pub(crate) fn approximate(bytes: u64) -> String {
    units::humane_bytes(bytes).unwrap_or_else(|| format!("{bytes} bytes"))
}

/// `97 %`; neither a nonzero part nor a nonzero rest is shown as zero.
pub(super) fn percent(share: f64) -> String {
    match share * 100. {
        percent if share > 0. && percent < 0.1 => "< 0.1 %".to_owned(),
        percent if share < 1. && percent > 99.9 => "> 99.9 %".to_owned(),
        percent if percent < 10. => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// Returns true if the profile is one of a series that can be judged; one from a file is not.
pub(super) fn is_watched(profile: &Profile) -> bool {
    !profile.coverage.settle.is_zero()
}

/// Returns true if the process has been watched long enough, with enough snapshots, to judge its call sites.
pub(super) fn is_judged(profile: &Profile) -> bool {
    profile.is_judged()
}

fn of_kind(profile: &Profile, kind: VerdictKind) -> impl Iterator<Item = &Verdict> + Clone {
    profile.verdicts.iter().filter(move |verdict| verdict.kind == kind)
}

/// The text, with a note if only a part of the profile is shown.
pub(super) fn of_what_is_shown(said: &str, view: &str) -> String {
    if view.is_empty() { said.to_owned() } else { format!("of what is shown: {said}") }
}

/// Note on call sites that are not judged.
pub(super) fn unjudged(profile: &Profile) -> String {
    match profile.unjudged_sites {
        0 => String::new(),
        1 => "; 1 call site is not judged: there are too many".to_owned(),
        count => format!("; {count} call sites are not judged: there are too many"),
    }
}

/// `1 call site leaks`, `2 call sites leak`.
fn do_so(count: usize, verb: &str) -> String {
    if count == 1 { format!("1 call site {verb}s") } else { format!("{count} call sites {verb}") }
}

/// A line with the unlisted call sites of a kind; `None` if there are none.
pub(super) fn others(profile: &Profile, kind: VerdictKind, shown: usize) -> Option<String> {
    let of_kind = of_kind(profile, kind).filter(|verdict| verdict.words() == kind.words());
    in_a_line(of_kind.skip(shown), kind.words(), shown > 0)
}

/// The same for call sites that cannot be judged yet.
pub(super) fn too_early(profile: &Profile) -> Option<String> {
    in_a_line(profile.verdicts.iter().filter(|verdict| verdict.words() == TOO_EARLY), TOO_EARLY, false)
}

fn in_a_line<'a>(
    verdicts: impl Iterator<Item = &'a Verdict> + Clone,
    words: &str,
    is_rest: bool,
) -> Option<String> {
    let holding = verdicts.filter(|verdict| verdict.live.objects > 0);
    let count = holding.clone().count();
    let bytes = holding.clone().map(|verdict| verdict.live.bytes).sum();
    let name = |verdict: &Verdict| format!("{} ({})", function(verdict), approximate(verdict.live.bytes));
    let mut names: Vec<_> = holding.take(NAMED).map(name).collect();
    if count > NAMED {
        names.push("...".to_owned());
    }
    let more = if is_rest { " more" } else { "" };
    let (places, all, names) = (do_so(count, "hold"), approximate(bytes), names.join(", "));
    (count > 0).then(|| format!("{words}{more}: {places} {all}: {names}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: f64, low: f64, high: f64) -> Rate {
        Rate { per_second, low, high }
    }

    #[test]
    fn long_names_lose_their_parameters_but_not_the_type_that_a_rust_function_is_of() {
        let short = |symbol: &str| short_name(&Frame { symbol: symbol.to_owned(), ..Frame::default() });
        for (long, expected) in [
            (
                "std::map<int, std::string, std::less<int> >::operator[](int const&, char const*)",
                "std::map<>::operator[]()",
            ),
            (
                "<app::Cache<alloc::string::String, app::Session>>::insert::<app::Session, app::Key>",
                "<app::Cache<>>::insert::<>",
            ),
            (
                "<app::Cache<alloc::string::String, fn(u8) -> u8> as core::clone::Clone>::clone",
                "<app::Cache<> as core::clone::Clone>::clone",
            ),
            (
                "google::protobuf::(anonymous namespace)::Factory::add<google::protobuf::(anonymous namespace)::Pair>(int)",
                "google::protobuf::(anonymous namespace)::Factory::add<>()",
            ),
        ] {
            assert_eq!(short(long), expected);
        }
        assert_eq!(short("<app::Cache<u8>>::insert"), "<app::Cache<u8>>::insert");
    }

    #[test]
    fn growth_is_reported_by_the_minute_with_its_interval_and_by_the_day() {
        let mib = 1_048_576. / 60.;
        assert_eq!(
            growth(rate(4.1 * mib, 3.9 * mib, 4.3 * mib)),
            "+4.1 MiB/min (95 % CI 3.9 to 4.3), 5.8 GiB a day"
        );
        assert_eq!(growth(rate(4.1 * mib, 4.1 * mib, 4.1 * mib)), "+4.1 MiB/min, 5.8 GiB a day");
        assert_eq!(
            growth(rate(10. / 60., 9. / 60., 11. / 60.)),
            "+10 bytes/min (95 % CI 9 to 11), 14.1 KiB a day"
        );
        assert_eq!(pace(rate(1. / 600., 0., 0.)), "+6.0 bytes/h");
    }

    #[test]
    fn blocks_from_before_the_attach_are_reported_as_evidence_against_a_leak() {
        let profile = crate::render::sample::judged();
        let mut verdict = profile.verdicts[0].clone();
        assert!(!evidence(&verdict).iter().any(|sentence| sentence.contains("attached")));
        verdict.freed_from_before = Some(1.2);
        let text =
            "no leak yet: for what is kept, as many or more blocks from before jjleak attached are freed";
        assert!(evidence(&verdict).iter().any(|sentence| sentence.starts_with(text)));
        assert!(replaced(0.7).contains("nearly as many"));
        (verdict.freed_from_before, verdict.not_resident) = (None, true);
        assert!(
            evidence(&verdict).iter().any(|sentence| sentence.starts_with("not proven: resident memory"))
        );
    }

    #[test]
    fn shares_are_never_rounded_to_all_or_nothing() {
        assert_eq!(percent(1.), "100 %");
        assert_eq!(percent(0.99999), "> 99.9 %");
        assert_eq!(percent(0.00001), "< 0.1 %");
        assert_eq!(percent(0.), "0.0 %");
        assert_eq!(percent(0.054), "5.4 %");
    }
}
