//! Decides when stacks are evicted, and which. Pure.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::fast_map::{FastMap, fast_map};

/// Time without allocations after which a stack is idle.
const IDLE: Duration = Duration::from_secs(10);
/// Maximum number of stacks evicted at a time: naming them takes some 100 ms, in which new ones come.
const MOST_AT_ONCE: usize = 16 << 10;

/// When to evict stacks, and what is known of those in the table.
#[derive(Debug, Default)]
pub(in crate::collect) struct EvictionSchedule {
    /// Last change of each row.
    seen: FastMap<u32, Seen>,
    /// Number of used rows at the last attempt that evicted little, and its time.
    futile: Option<(u64, Instant)>,
    last: Option<Instant>,
}

/// A row and its number of allocations since a time.
#[derive(Debug, Clone, Copy)]
struct Seen {
    hash: u64,
    allocated: u64,
    since: Instant,
}

/// A used row of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) row: u32,
    pub(super) hash: u64,
    /// Number of allocations.
    pub(super) allocated: u64,
    pub(super) state: State,
}

/// State of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It has live blocks.
    Needed,
    /// It can be evicted once it is idle: something is likely to happen to it soon.
    Unsettled,
    /// It can be evicted.
    Free,
}

/// How much the table is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pressure {
    /// There is enough room.
    None,
    /// Idle stacks are evicted.
    Idle,
    /// Stacks are evicted even if they are in use: they come back when they allocate again.
    All,
}

impl Pressure {
    /// At three eighths, a process has room for an eighth of the table before it is at its limit, and a row is found in few probes.
    const fn of(used: u64, rows: u64) -> Self {
        if used > rows / 8 * 3 {
            Self::All
        } else if used > rows / 4 {
            Self::Idle
        } else {
            Self::None
        }
    }
}

/// Returns true if stacks that cannot be evicted now take more than a quarter of the table: evicting others would make little room.
pub(super) fn is_too_small(candidates: &[Candidate], rows: u64) -> bool {
    let staying = candidates.iter().filter(|candidate| candidate.state != State::Free).count();
    staying as u64 > rows / 4
}

impl EvictionSchedule {
    /// Returns true if it is time to evict stacks.
    pub(super) fn is_due(&self, used: u64, rows: u64, now: Instant) -> bool {
        let pressure = Pressure::of(used, rows);
        let is_futile = self.futile.is_some_and(|(before, at)| {
            used < before + rows / 32 && now.saturating_duration_since(at) < IDLE
        });
        // Attempts tell which stacks are idle.
        let is_fresh = self.last.is_some_and(|last| now.saturating_duration_since(last) < IDLE / 4);
        match pressure {
            Pressure::None => false,
            Pressure::Idle => !is_futile && !is_fresh,
            Pressure::All => !is_futile,
        }
    }

    /// Rows to evict, of all used ones: those that have been idle for longest.
    pub(super) fn choose(
        &mut self,
        candidates: &[Candidate],
        used: u64,
        rows: u64,
        now: Instant,
    ) -> BTreeSet<u32> {
        self.last = Some(now);
        let mut seen = fast_map(candidates.len());
        for Candidate { row, hash, allocated, .. } in candidates {
            let same = self.seen.get(row).filter(|seen| (seen.hash, seen.allocated) == (*hash, *allocated));
            let since = same.map_or(now, |seen| seen.since);
            seen.insert(*row, Seen { hash: *hash, allocated: *allocated, since });
        }
        self.seen = seen;
        let pressure = Pressure::of(used, rows);
        let mut chosen: Vec<_> = candidates
            .iter()
            .filter_map(|candidate| {
                let since = self.seen[&candidate.row].since;
                let is_idle = now.saturating_duration_since(since) >= IDLE;
                let is_wanted = match candidate.state {
                    State::Needed => false,
                    State::Unsettled => is_idle,
                    State::Free => is_idle || pressure == Pressure::All,
                };
                is_wanted.then_some((since, candidate.row))
            })
            .collect();
        let too_many = usize::try_from(used.saturating_sub(rows / 8)).unwrap_or(usize::MAX);
        let most = if pressure == Pressure::None { 0 } else { too_many.min(MOST_AT_ONCE) };
        if chosen.len() > most {
            chosen.select_nth_unstable(most);
            chosen.truncate(most);
        }
        if chosen.is_empty() {
            self.futile = Some((used, now));
        }
        chosen.into_iter().map(|(_, row)| row).collect()
    }

    /// Notes how many rows were evicted, and how many were in use after all.
    pub(super) fn note(&mut self, used: u64, evicted: usize, kept: usize) {
        let is_futile = evicted < 16.max(kept);
        self.futile = is_futile.then(|| (used, self.last.unwrap_or_else(Instant::now)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: u64 = 1 << 10;

    fn candidates(states: &[(u32, u64, State)]) -> Vec<Candidate> {
        let candidate = |&(row, allocated, state): &(u32, u64, State)| Candidate {
            row,
            hash: u64::from(row) + 100,
            allocated,
            state,
        };
        states.iter().map(candidate).collect()
    }

    fn rows(chosen: &BTreeSet<u32>) -> Vec<u32> {
        chosen.iter().copied().collect()
    }

    #[test]
    fn nothing_is_evicted_while_there_is_room() {
        let (mut schedule, now) = (EvictionSchedule::default(), Instant::now());
        assert!(!schedule.is_due(ROWS / 4, ROWS, now));
        let free = candidates(&[(1, 1, State::Free)]);
        assert!(schedule.choose(&free, ROWS / 4, ROWS, now).is_empty());
        assert!(schedule.choose(&free, ROWS / 4, ROWS, now + IDLE).is_empty());
    }

    #[test]
    fn idle_stacks_leave_first_and_stacks_with_blocks_never() {
        let (mut schedule, begin) = (EvictionSchedule::default(), Instant::now());
        let used = ROWS / 4 + 1;
        assert!(schedule.is_due(used, ROWS, begin));
        let states = |allocated| {
            candidates(&[
                (1, 1, State::Free),
                (2, allocated, State::Free),
                (3, 1, State::Needed),
                (4, 1, State::Unsettled),
            ])
        };
        assert!(schedule.choose(&states(1), used, ROWS, begin).is_empty(), "nothing is known to be idle");
        let later = begin + IDLE;
        assert_eq!(rows(&schedule.choose(&states(2), used, ROWS, later)), [1, 4]);
        // Under pressure, stacks in use leave, but not those that are about to change.
        let much = ROWS / 2;
        assert_eq!(rows(&schedule.choose(&states(3), much, ROWS, begin)), [1, 2]);
    }

    #[test]
    fn a_table_is_too_small_for_stacks_that_stay_not_for_those_that_can_leave() {
        let rows = |stay: u64, free: u64| {
            let stay = (0..stay).map(|_| State::Needed);
            let states = stay.chain((0..free).map(|_| State::Free));
            candidates(&(0..).zip(states).map(|(row, state)| (row, 1, state)).collect::<Vec<_>>())
        };
        assert!(!is_too_small(&rows(ROWS / 4, ROWS / 4), ROWS));
        assert!(is_too_small(&rows(ROWS / 4 + 1, 0), ROWS));
    }

    #[test]
    fn a_row_that_another_stack_has_now_is_not_idle() {
        let (mut schedule, begin) = (EvictionSchedule::default(), Instant::now());
        let used = ROWS / 4 + 1;
        schedule.choose(&candidates(&[(1, 1, State::Free)]), used, ROWS, begin);
        let other = [Candidate { row: 1, hash: 7, allocated: 1, state: State::Free }];
        assert!(schedule.choose(&other, used, ROWS, begin + IDLE).is_empty());
        assert_eq!(rows(&schedule.choose(&other, used, ROWS, begin + 2 * IDLE)), [1]);
    }

    #[test]
    fn no_more_leave_than_make_room_those_that_were_idle_for_longest_first() {
        let (mut schedule, begin) = (EvictionSchedule::default(), Instant::now());
        let much = ROWS / 2;
        let old: Vec<_> = (0..100).map(|row| (row, 1, State::Free)).collect();
        schedule.choose(&candidates(&old), much, ROWS, begin);
        let all: Vec<_> = (0..1_000).map(|row| (row, 1, State::Free)).collect();
        let chosen = schedule.choose(&candidates(&all), much, ROWS, begin + Duration::from_secs(1));
        assert_eq!(chosen.len() as u64, much - ROWS / 8);
        assert!((0..100).all(|row| chosen.contains(&row)));
    }

    #[test]
    fn futile_attempts_are_rare_unless_the_table_grows() {
        let (mut schedule, begin) = (EvictionSchedule::default(), Instant::now());
        let much = ROWS / 2;
        let needed = candidates(&[(1, 1, State::Needed)]);
        assert!(schedule.choose(&needed, much, ROWS, begin).is_empty());
        let soon = begin + Duration::from_secs(1);
        assert!(!schedule.is_due(much, ROWS, soon));
        assert!(schedule.is_due(much + ROWS / 32, ROWS, soon) && schedule.is_due(much, ROWS, begin + IDLE));
        schedule.note(much, 20, 3);
        assert!(schedule.is_due(much, ROWS, soon));
        schedule.note(much, 20, 300);
        assert!(!schedule.is_due(much, ROWS, soon));
    }
}
