//! Findings as text.

use super::fold::{line_of, place_of};
use super::label::{NO_STACK, module, printable};
use super::short::joined;
use super::units;
use super::verdicts::{
    approximate, evidence, growth_with_bounds, humane, is_judged, pace, per_day, short_name, unjudged,
};
use crate::analyze::{Finding, Rules, fastest, findings};
use crate::profile::{Profile, Rate, Survival, Verdict, VerdictKind};

/// Before the verdicts.
const TOO_EARLY: &str = "too early to say what leaks";
/// Number of causes to name of those that are not listed.
const NAMED: usize = 3;
/// Columns of a wide terminal, without a tab.
const COLUMNS: usize = 110;

/// First line of the report: the verdict on the process.
#[must_use]
pub fn headline(profile: &Profile) -> String {
    Causes::of(profile, &Rules::default()).headline(profile)
}

/// Leaks that matter, worst first: the application's function and what it calls, with the growth in bytes per second.
#[must_use]
pub fn leaks(profile: &Profile) -> Vec<(String, f64)> {
    let causes = Causes::of(profile, &Rules::default());
    causes.leaking().map(|leak| (call(leak), leak.rate.map_or(0., |rate| rate.per_second))).collect()
}

/// All findings of a report.
pub(super) struct Causes<'a> {
    /// Findings that leak or grow, worst first.
    all: Vec<Finding<'a>>,
    /// Before there are verdicts: what grows fastest.
    pub(super) fastest: Vec<Finding<'a>>,
}

impl<'a> Causes<'a> {
    pub(super) fn of(profile: &'a Profile, rules: &Rules) -> Self {
        if is_judged(profile) {
            return Self { all: findings(profile, rules), fastest: Vec::new() };
        }
        let mut fastest = fastest(profile, rules);
        if profile.ended.is_some() {
            fastest.sort_by_key(|finding| std::cmp::Reverse(finding.live.bytes));
        }
        Self { all: Vec::new(), fastest }
    }

    /// Those that matter, worst first.
    pub(super) fn material(&self) -> impl Iterator<Item = &Finding<'a>> + Clone {
        self.all.iter().filter(|finding| !finding.is_small)
    }

    fn of_kind(&self, kind: VerdictKind) -> impl Iterator<Item = &Finding<'a>> + Clone {
        self.material().filter(move |finding| finding.kind == kind)
    }

    /// Material leaks, worst first.
    pub(super) fn leaking(&self) -> impl Iterator<Item = &Finding<'a>> + Clone {
        self.of_kind(VerdictKind::Leaking)
    }

    /// Material growth that is not known to leak.
    pub(super) fn growing(&self) -> impl Iterator<Item = &Finding<'a>> + Clone {
        self.of_kind(VerdictKind::Growing)
    }

    /// The verdict on the process.
    pub(super) fn headline(&self, profile: &Profile) -> String {
        self.headline_after("", profile)
    }

    /// The same, after the cause of growth if that is something else than what it allocates.
    pub(super) fn headline_with_cause(&self, profile: &Profile) -> String {
        let cause = profile.cause_of_growth().map(|cause| format!("{}; ", printable(cause)));
        self.headline_after(&cause.unwrap_or_default(), profile)
    }

    fn headline_after(&self, cause: &str, profile: &Profile) -> String {
        let watched = units::duration(profile.elapsed());
        let said = if is_judged(profile) { self.leaks_and_grows() } else { self.early(profile) };
        format!("watched for {watched}: {cause}{said}{}", unjudged(profile))
    }

    /// Before the verdicts. Growth requires two snapshots.
    fn early(&self, profile: &Profile) -> String {
        let grows = |finding: &&Finding<'_>| finding.kind <= VerdictKind::Growing && !finding.is_small;
        match self.fastest.iter().filter(grows).count() {
            0 => TOO_EARLY.to_owned(),
            _ if profile.snapshots < 2 => TOO_EARLY.to_owned(),
            count => format!("{}, {TOO_EARLY}", may_be_growing(count)),
        }
    }

    fn leaks_and_grows(&self) -> String {
        let (leaking, growing) = (self.leaking().count(), self.growing().count());
        if leaking == 0 {
            let is_small_leak =
                |finding: &Finding<'_>| finding.is_small && finding.kind == VerdictKind::Leaking;
            let proven = if growing > 0 {
                "no leak proven"
            } else if self.all.iter().any(is_small_leak) {
                "nothing leaks that matters"
            } else {
                "nothing leaks"
            };
            let rest = if growing > 0 { format!("; {}", may_be_growing(growing)) } else { String::new() };
            return format!("{proven}{rest}");
        }
        let all = if leaking > 1 { " in all" } else { "" };
        let sites = if leaking > 1 { "call sites leak" } else { "call site leaks" };
        let rest = if growing > 0 { format!("; {}", may_be_growing(growing)) } else { String::new() };
        format!("{leaking} {sites}, {}{all}{rest}", pace(sum(self.leaking())))
    }

    /// Names of those that do not fit.
    pub(super) fn rest_in_a_line(&self, shown: usize) -> Option<String> {
        in_a_line(self.material().skip(shown), |count| format!("{count} more that grow"))
    }

    /// `5 small sites, +21.0 KiB/min in total: ...`.
    pub(super) fn small_in_a_line(&self) -> Option<String> {
        in_a_line(self.all.iter().filter(|finding| finding.is_small), |count| match count {
            1 => "1 small site".to_owned(),
            count => format!("{count} small sites"),
        })
    }
}

fn may_be_growing(count: usize) -> String {
    if count == 1 { "1 site may be growing".to_owned() } else { format!("{count} sites may be growing") }
}

/// Sum of all rates.
pub(super) fn sum<'a, 'b: 'a>(findings: impl Iterator<Item = &'a Finding<'b>>) -> Rate {
    let none = Rate { per_second: 0., low: 0., high: 0. };
    findings.filter_map(|finding| finding.rate).fold(none, |sum, rate| Rate {
        per_second: sum.per_second + rate.per_second,
        low: sum.low + rate.low,
        high: sum.high + rate.high,
    })
}

fn in_a_line<'a, 'b: 'a>(
    findings: impl Iterator<Item = &'a Finding<'b>> + Clone,
    what: impl Fn(usize) -> String,
) -> Option<String> {
    let count = findings.clone().count();
    let mut names: Vec<_> = findings.clone().take(NAMED).map(name).collect();
    if count > NAMED {
        names.push("...".to_owned());
    }
    let total = if count > 1 { " in total" } else { "" };
    (count > 0).then(|| format!("{}, {}{total}: {}", what(count), pace(sum(findings)), names.join(", ")))
}

/// Function of the application.
fn name(finding: &Finding<'_>) -> String {
    finding.application().map_or_else(|| NO_STACK.to_owned(), short_name)
}

/// `forget_message [demo] demo.c:73`.
pub(super) fn place(finding: &Finding<'_>) -> String {
    let Some(frame) = finding.application() else { return NO_STACK.to_owned() };
    let mut place = short_name(frame);
    if !frame.symbol.is_empty()
        && let Some(module) = module(frame)
    {
        place = format!("{place} [{module}]");
    }
    place_of(frame).map_or(place.clone(), |file| format!("{place} {file}"))
}

/// `forget_message [demo] demo.c:73 -> xmalloc`.
fn call(finding: &Finding<'_>) -> String {
    match finding.called() {
        Some(called) => format!("{} -> {}", place(finding), short_name(called)),
        None => place(finding),
    }
}

/// `leaking: forget_message [demo] demo.c:73 -> xmalloc, +583.4 KiB/min (95 % CI 578.3 to 588.5)`.
pub(super) fn title(finding: &Finding<'_>) -> String {
    let words = finding.verdicts[0].words();
    let mut title = if finding.is_threads {
        let [kind, threads] = match finding.kind {
            VerdictKind::Leaking => ["leaking", "threads that do not end"],
            _ => ["growing, too early to say", "threads"],
        };
        format!("{kind}: {threads}, started at {}", call(finding))
    } else {
        format!("{words}: {}", call(finding))
    };
    if let Some((threads, per_second)) = finding.threads() {
        title = format!("{title}, {} threads now, +{:.0}/min", units::grouped(threads), per_second * 60.);
    }
    match finding.rate {
        Some(rate) => format!("{title}, {}", growth_with_bounds(rate)),
        None => title,
    }
}

/// `1236004 bytes (1.2 MiB) live in 1241 blocks, from 1 stack; 820.3 MiB a day; confidence 99 %`.
pub(super) fn figures(finding: &Finding<'_>) -> String {
    let stacks = match finding.stacks() {
        1 => "1 stack".to_owned(),
        stacks => format!("{stacks} stacks"),
    };
    let blocks = if finding.live.objects == 1 { "block" } else { "blocks" };
    let live = format!("{} live in {} {blocks}", units::bytes(finding.live.bytes), finding.live.objects);
    let each = alike(&finding.verdicts);
    let day = finding.rate.map_or_else(String::new, |rate| format!("; {} a day", humane(per_day(rate))));
    format!("{live}, from {stacks}{each}{day}; confidence {:.0} %", finding.confidence * 100.)
}

/// `, 6 blocks each` if all call sites hold as many.
fn alike(verdicts: &[&Verdict]) -> String {
    let objects = verdicts[0].live.objects;
    let are_alike = verdicts.len() > 1 && verdicts.iter().all(|verdict| verdict.live.objects == objects);
    if are_alike {
        format!(", {objects} blocks at each of {} call sites", verdicts.len())
    } else {
        String::new()
    }
}

/// Evidence on all of its call sites together, in lines of a wide terminal. The title has the growth.
pub(super) fn sentences(finding: &Finding<'_>) -> impl Iterator<Item = String> {
    joined(sentences_of(finding), COLUMNS).into_iter()
}

/// The same, one sentence each.
pub(super) fn sentences_of(finding: &Finding<'_>) -> Vec<String> {
    evidence(&together(&finding.verdicts))
}

/// The next step.
pub(super) fn to_do(finding: &Finding<'_>) -> String {
    let place = place(finding);
    match finding.kind {
        _ if finding.is_threads => format!("find out why the threads started at {place} do not end"),
        VerdictKind::Leaking => format!("free what {place} allocates, or bound what keeps it"),
        _ => format!("watch {place} for as long again to see whether it stops growing"),
    }
}

/// The worst verdict, with the figures of all, except their growth.
fn together(verdicts: &[&Verdict]) -> Verdict {
    let sum = |figure: fn(&Verdict) -> f64| verdicts.iter().map(|verdict| figure(verdict)).sum();
    let survivals = || verdicts.iter().filter_map(|verdict| verdict.survival);
    let survival = survivals().next().map(|first| Survival {
        older_than: first.older_than,
        allocated: survivals().map(|survival| survival.allocated).sum(),
        live: survivals().map(|survival| survival.live).sum(),
    });
    Verdict {
        rate: None,
        survival,
        allocation_rate: sum(|verdict| verdict.allocation_rate),
        free_rate: sum(|verdict| verdict.free_rate),
        freed_when_old: verdicts.iter().filter_map(|verdict| verdict.freed_when_old).reduce(f64::max),
        ..verdicts[0].clone()
    }
}

/// `+4.1 MiB/min  grow_list [leaky] list.c:41 -> malloc, 1.5 MiB in 12 blocks`.
pub(super) fn called_from(finding: &Finding<'_>) -> String {
    let rate = finding.rate.filter(|rate| rate.per_second > 0.);
    let rate = rate.map_or_else(String::new, |rate| format!("{:<15} ", pace(rate)));
    let (bytes, objects) = (approximate(finding.live.bytes), finding.live.objects);
    let from = finding.application().map_or_else(|| NO_STACK.to_owned(), line_of);
    let call = finding.called().map_or_else(String::new, |called| format!(" -> {}", short_name(called)));
    let threads = match finding.threads() {
        Some((threads, _)) => format!(", {} threads", units::grouped(threads)),
        None => String::new(),
    };
    format!("{rate}{bytes} in {objects}: {from}{call}{threads}")
}
