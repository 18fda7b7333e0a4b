use super::*;
use crate::profile::{BlockDetails, Cohort, Frame, Frames, StackProfile, VerdictKind};
use crate::render::sample;
use jiff::{SignedDuration, Timestamp};

const SNAPSHOTS: u64 = 20;
const SECOND: u64 = 1_000_000_000;

/// A stack of its own call site that allocated these bytes in each interval so far and freed none.
fn stack(id: u64, allocated: &[u64]) -> StackProfile {
    let totals = |bytes: u64| Totals { bytes, objects: u64::from(bytes > 0) };
    let cohorts = (0..).zip(allocated).filter(|(_, bytes)| **bytes > 0);
    let cohorts = cohorts.map(|(interval, bytes)| Cohort { interval, live: totals(*bytes) });
    let frame = Frame { symbol: format!("site {id}"), ..Frame::default() };
    let all = allocated.iter().copied().map(totals).sum();
    StackProfile {
        id,
        live: all,
        allocated: all,
        details: BlockDetails { cohorts: cohorts.collect(), ..BlockDetails::default() }.into(),
        frames: sample::shared([frame]),
        ..sample::empty_stack()
    }
}

fn profile(snapshot: u64, stacks: Vec<StackProfile>) -> Profile {
    let elapsed = SignedDuration::from_secs((snapshot * 10).cast_signed());
    let mut profile = sample::empty_profile();
    profile.started_at = Timestamp::UNIX_EPOCH;
    profile.taken_at = Timestamp::UNIX_EPOCH + elapsed;
    profile.instants_ns = (1..=snapshot).map(|snapshot| snapshot * 10 * SECOND).collect();
    profile.coverage.settle = Duration::from_secs(15);
    profile.stacks = stacks;
    profile
}

#[test]
fn a_slow_leak_is_found_beside_more_call_sites_than_are_remembered_and_others_are_counted() {
    const LEAK: u64 = 1 << 40;
    let mut histories = Histories::default();
    let mut last = None;
    for snapshot in 1..=SNAPSHOTS {
        let mut held = vec![0; usize::try_from(snapshot).unwrap()];
        held[0] = 1_000_000;
        let mut stacks: Vec<_> = (0..MAX_SITES as u64 + 50).map(|id| stack(id, &held)).collect();
        stacks.push(stack(LEAK, &vec![16; held.len()]));
        let mut profile = profile(snapshot, stacks);
        histories.judge(&mut profile, Pace::Thorough);
        assert_eq!((u64::from(profile.snapshots), profile.unjudged_sites), (snapshot, 51));
        last = Some(profile);
    }
    let verdicts = last.unwrap().verdicts;
    assert_eq!(verdicts.len(), MAX_SITES);
    let kinds = verdicts.iter().map(|verdict| (verdict.kind, verdict.live.bytes));
    let leaks: Vec<_> = kinds.filter(|(kind, _)| *kind <= VerdictKind::Growing).collect();
    assert_eq!(leaks, [(VerdictKind::Leaking, 16 * SNAPSHOTS)]);
}

#[test]
fn what_holds_nothing_is_forgotten_first_and_what_has_grown_for_long_last() {
    let series =
        |holds, held_at_first, snapshots| Series { holds, snapshots, held_at_first, ..Series::default() };
    let worst_last = [
        (1, series(0, 0, 90)),
        (2, series(500, 500, 90)),
        (3, series(9000, 9000, 90)),
        (4, series(10, 10, 1)),
        (5, series(30, 10, 5)),
        (6, series(20, 10, 50)),
    ];
    let mut history = History { sites: worst_last.into_iter().collect(), ..History::default() };
    for left in (0..6).rev() {
        history.bound(left);
        let mut sites: Vec<_> = history.sites.keys().copied().collect();
        sites.sort_unstable();
        assert_eq!(sites, (7 - left as u64..=6).collect::<Vec<_>>());
    }
    assert_eq!(history.forgotten.len(), 6);
}

#[test]
fn a_call_site_that_is_taken_in_again_has_allocated_only_what_it_has_since() {
    let mut history = History::default();
    history.observe(&profile(1, vec![stack(1, &[5000])]), Pace::Thorough);
    history.bound(0);
    history.observe(&profile(2, vec![stack(1, &[5000, 0])]), Pace::Thorough);
    assert!(history.sites.is_empty());
    history.observe(&profile(3, vec![stack(1, &[5000, 0, 20])]), Pace::Thorough);
    assert_eq!(history.sites.values().next().unwrap().allocated, [0., 0., 20.]);
}

/// More call sites than one snapshot judges. The first begins to leak halfway.
fn many_sites(snapshot: u64) -> Profile {
    let leaks = |id| id == 0 && snapshot > SNAPSHOTS / 2;
    let held =
        |id| (1..=snapshot).map(move |at| if at == 1 || leaks(id) && at > SNAPSHOTS / 2 { 1000 } else { 0 });
    profile(
        snapshot,
        (0..3 * JUDGED_PER_SNAPSHOT as u64).map(|id| stack(id, &held(id).collect::<Vec<_>>())).collect(),
    )
}

#[test]
fn sites_judged_in_turn_have_current_figures_and_recent_verdicts() {
    let (mut in_turn, mut thorough) = (History::default(), History::default());
    for snapshot in 1..=2 * SNAPSHOTS {
        let profile = many_sites(snapshot);
        let (turn, all) =
            (in_turn.observe(&profile, Pace::InTurn), thorough.observe(&profile, Pace::Thorough));
        let figures = |verdicts: &[Verdict]| {
            let figures = verdicts.iter().map(|verdict| (verdict.site, (verdict.live, verdict.allocated)));
            figures.collect::<HashMap<_, _>>()
        };
        assert_eq!(figures(&turn), figures(&all));
    }
    // Nothing changes any more: after as many snapshots as there are turns, all sites have been judged.
    let profile = many_sites(2 * SNAPSHOTS);
    let last = (0..3).map(|_| in_turn.observe(&profile, Pace::InTurn)).last().unwrap();
    assert_eq!(last, thorough.observe(&profile, Pace::Thorough));
    assert_eq!(last[0].kind, VerdictKind::Leaking);
}

#[test]
fn stacks_are_of_their_call_sites_in_whatever_order_they_come_and_once_they_have_been_read() {
    let mut history = History::default();
    let unread = StackProfile { frames: Frames::default(), ..stack(2, &[20]) };
    history.observe(&profile(1, vec![stack(1, &[10]), unread]), Pace::Thorough);
    let later = vec![stack(3, &[0, 5]), stack(2, &[20, 1]), stack(1, &[10, 0])];
    for pace in [Pace::Thorough, Pace::InTurn] {
        let verdicts = history.observe(&profile(2, later.clone()), pace);
        let mut held: Vec<_> =
            verdicts.iter().map(|verdict| (&verdict.frames[0].symbol[..], verdict.live.bytes)).collect();
        held.sort_unstable();
        assert_eq!(held, [("site 1", 10), ("site 2", 21), ("site 3", 5)]);
    }
}

/// The profile as a refresh sees it: without cohorts and their instants.
fn refreshed(mut profile: Profile) -> Profile {
    profile.instants_ns = [].into();
    profile.stacks.iter_mut().for_each(|stack| stack.details.cohorts.clear());
    profile
}

#[test]
fn a_refresh_has_the_figures_of_the_snapshot_and_changes_nothing_that_is_remembered() {
    let leak =
        |snapshot: u64| profile(snapshot, vec![stack(1, &vec![16; usize::try_from(snapshot).unwrap()])]);
    let (mut refreshing, mut other) = (History::default(), History::default());
    for snapshot in 1..=SNAPSHOTS {
        let observed = refreshing.observe(&leak(snapshot), Pace::InTurn);
        assert_eq!(observed, other.observe(&leak(snapshot), Pace::InTurn));
        let mut later = leak(snapshot + 1);
        later.stacks.push(stack(2, &[7]));
        let seen = refreshing.refresh(&refreshed(later));
        let of = |id: u64| {
            let bytes = if id == 1 { 16 * (snapshot + 1) } else { 7 };
            seen.iter().find(|verdict| verdict.live.bytes == bytes).unwrap()
        };
        assert_eq!((of(1).kind, of(1).rate), (observed[0].kind, observed[0].rate));
        assert_eq!((of(2).basis, of(2).words()), (Basis::ShortHistory, "too early to say"));
        assert_eq!(seen.len(), 2);
    }
    assert_eq!(other.observe(&leak(SNAPSHOTS), Pace::Thorough)[0].kind, VerdictKind::Leaking);
}

#[test]
fn after_refreshes_as_many_sites_are_judged_as_after_snapshots() {
    let (mut in_turn, mut thorough) = (History::default(), History::default());
    for snapshot in 1..=2 * SNAPSHOTS {
        for _ in 0..2 {
            in_turn.refresh(&refreshed(many_sites(snapshot)));
        }
        let profile = many_sites(snapshot);
        let judged = in_turn.observe(&profile, Pace::InTurn);
        assert_eq!(judged, thorough.observe(&profile, Pace::Thorough), "three thirds at every snapshot");
    }
}
