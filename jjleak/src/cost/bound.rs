//! Keeps what profiling costs a process below a bound, by counting in windows of time.
//!
//! As long as counting everything costs less, everything is counted. Otherwise allocations are counted in short windows,
//! drawn at random; frees are counted for a while longer, so that what outlives its window is told from what does not; then
//! all probes rest. How long is settled before each window by what earlier ones have cost ([`Plan`]).

use std::time::{Duration, Instant};

use super::{Meter, Prices, float};
use crate::attach::{Attachment, Error, Measuring, Part, RunsByPart, now_ns};
use crate::collect::Collector;
use crate::processes::{Pid, cpu_time};

/// A window: long against the time in which probes are put in, and short against what changes in a program.
const WINDOW: Duration = Duration::from_millis(200);
/// How long everything is counted before that is judged again.
const LOOK: Duration = Duration::from_millis(500);
/// Blocks that are not freed so long after their window have survived.
const FOLLOW: Duration = Duration::from_secs(15);
/// Where the bound allows less, at least so long.
const SHORTEST_FOLLOW: Duration = Duration::from_millis(500);
/// Windows are to come as often as this, if frees can be followed for long enough then.
const LONGEST_STRATUM: Duration = Duration::from_secs(5);
/// What a new measurement counts for, beside all before it.
const NEWEST: f64 = 0.3;
/// A process that does nothing may be spent this share of a core on: else the first call after a silence would be too much.
const LEAST_CORES: f64 = 0.01;

/// What was measured, in shares of a core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// What allocations cost while they are counted.
    pub allocations: f64,
    /// What frees cost while they are.
    pub frees: f64,
    /// What the process takes itself.
    pub own: f64,
    /// Seconds of a core that putting in and taking out the probes of a window takes: of ours, but it can hold the process up.
    pub turn_s: f64,
}

/// How a stratum is spent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Its length.
    pub stratum: Duration,
    /// How long frees are followed after the window; for longer than the stratum, all the time.
    pub follow: Duration,
}

impl Load {
    /// Whether everything can be counted within the bound, which is a share of what the process takes itself.
    #[must_use]
    pub fn fits(&self, bound: f64) -> bool {
        self.allocations + self.frees <= self.allowed(bound)
    }

    fn allowed(&self, bound: f64) -> f64 {
        bound * self.own.max(LEAST_CORES)
    }

    /// How to stay within the bound.
    #[must_use]
    pub fn plan(&self, bound: f64) -> Plan {
        let allowed = self.allowed(bound);
        let seconds = |seconds: f64| Duration::from_secs_f64(seconds.clamp(0., 1e6));
        let window_s = WINDOW.as_secs_f64();
        // With frees counted all the time: what lives is known then as if everything were counted.
        if self.frees < allowed / 2. {
            let stratum_s = (self.allocations * window_s + self.turn_s) / (allowed - self.frees);
            let stratum = seconds(stratum_s).max(2 * WINDOW);
            return Plan { stratum, follow: Duration::MAX };
        }
        let window_cost = (self.allocations + self.frees) * window_s + self.turn_s;
        let left = allowed * LONGEST_STRATUM.as_secs_f64() - window_cost;
        let follow = seconds(left / self.frees).clamp(SHORTEST_FOLLOW, FOLLOW);
        let stratum_s = (window_cost + self.frees * follow.as_secs_f64()) / allowed;
        Plan { stratum: seconds(stratum_s).max(2 * WINDOW), follow }
    }

    /// How long to rest for what was spent beyond the bound: at the beginning, when everything is counted, or when a program
    /// begins to call more.
    fn repayment(&self, bound: f64, spent: Duration, over: Duration) -> Duration {
        let owed = spent.as_secs_f64() / self.allowed(bound) - over.as_secs_f64();
        Duration::from_secs_f64(owed.clamp(0., 1e6))
    }

    fn mixed(self, newer: Self) -> Self {
        let mix = |old: f64, new: f64| old + NEWEST * (new - old);
        Self {
            allocations: mix(self.allocations, newer.allocations),
            frees: mix(self.frees, newer.frees),
            own: mix(self.own, newer.own),
            turn_s: mix(self.turn_s, newer.turn_s),
        }
    }
}

/// Keeps a process within a bound.
pub struct Bound {
    share: f64,
    pid: Pid,
    /// So that the kernel counts runs.
    _measuring: Measuring,
    state: State,
    /// When there is something to do next.
    next: Instant,
    load: Option<Load>,
    /// What was measured when the state began.
    before: Measured,
    draws: u64,
    turn_s: f64,
    /// What all turns have taken.
    turns_s: f64,
    /// What had run when it began.
    begun: RunsByPart,
    begun_at: Instant,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Whole,
    Window {
        stratum_end: Instant,
        follow: Duration,
    },
    Following {
        stratum_end: Instant,
    },
    Resting,
    /// Until the window of the stratum begins.
    Waiting {
        stratum_end: Instant,
        follow: Duration,
    },
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    at: Instant,
    runs: RunsByPart,
    cpu: Option<Duration>,
}

impl Bound {
    /// Begins, with everything counted; `bound` is a share of the CPU time that the process takes itself.
    pub fn begin(
        bound: f64,
        pid: Pid,
        attachment: &Attachment,
        collector: &mut Collector,
    ) -> std::io::Result<Self> {
        let measuring = Measuring::begin()?;
        collector.count_in_windows();
        let before = Measured { at: Instant::now(), runs: attachment.runs(), cpu: cpu_time(pid) };
        Ok(Self {
            share: bound,
            pid,
            _measuring: measuring,
            state: State::Whole,
            next: before.at + LOOK,
            load: None,
            before,
            draws: now_ns(),
            turn_s: 0.,
            turns_s: 0.,
            begun: before.runs,
            begun_at: before.at,
        })
    }

    /// When [`Self::turn`] is to be called.
    #[must_use]
    pub const fn next(&self) -> Instant {
        self.next
    }

    /// CPU time that it has taken of the process so far.
    #[must_use]
    pub fn spent(&self, attachment: &Attachment, prices: Option<Prices>) -> Duration {
        let runs = attachment.runs().since(self.begun);
        let calls = prices
            .map_or(0., |prices| prices.sum_ns(float(runs.entries.count), float(runs.frees.count)) / 1e9);
        Duration::try_from_secs_f64(calls + self.turns_s).unwrap_or_default()
    }

    /// Does what is to be done now.
    pub fn turn(
        &mut self,
        attachment: &mut Attachment,
        collector: &mut Collector,
        meter: &mut Meter,
    ) -> Result<(), Error> {
        meter.tick(attachment);
        let Some(prices) = meter.prices(attachment) else {
            self.next = Instant::now() + LOOK;
            return Ok(());
        };
        match self.state {
            State::Whole => {
                self.measure(attachment, prices);
                if self.load.is_some_and(|load| !load.fits(self.share)) {
                    let end = now_ns();
                    collector.end_window_at(end, end);
                    self.timed(|| attachment.rest(Part::Allocations));
                    self.plan(attachment, prices)?;
                } else {
                    self.next = Instant::now() + LOOK;
                }
            }
            State::Waiting { stratum_end, follow } => {
                self.account(attachment, prices);
                let begun = thread_cpu_s();
                attachment.wake(Part::Frees)?;
                attachment.wake(Part::Allocations)?;
                self.turn_s += thread_cpu_s() - begun;
                collector.begin_window();
                self.before = self.now(attachment);
                self.state = State::Window { stratum_end, follow };
                self.next = Instant::now() + WINDOW;
            }
            State::Window { stratum_end, follow } => {
                // What is allocated while probes go is seen or not: the window ends before.
                let end = now_ns();
                collector.end_window_at(end, end + ns_until(stratum_end));
                self.measure(attachment, prices);
                self.timed(|| attachment.rest(Part::Allocations));
                self.state = State::Following { stratum_end };
                let follow_end = Instant::now().checked_add(follow);
                self.next = follow_end.map_or(stratum_end, |end| end.min(stratum_end)).max(Instant::now());
                if follow_end.is_none_or(|end| end >= stratum_end) {
                    self.state = State::Resting;
                    self.next = stratum_end;
                }
            }
            State::Following { stratum_end } => {
                self.account(attachment, prices);
                self.timed(|| attachment.rest(Part::Frees));
                self.state = State::Resting;
                self.next = stratum_end;
            }
            State::Resting => {
                self.account(attachment, prices);
                self.plan(attachment, prices)?;
            }
        }
        Ok(())
    }

    /// A stratum begins.
    fn plan(&mut self, attachment: &mut Attachment, prices: Prices) -> Result<(), Error> {
        let Some(load) = self.load else { return Ok(()) };
        let Plan { stratum, follow } = load.plan(self.share);
        let spent = self.spent(attachment, Some(prices));
        let stratum = stratum + load.repayment(self.share, spent, self.begun_at.elapsed()).min(stratum);
        tracing::info!("{load:?}: a window in {stratum:?}, frees followed for {follow:?}");
        if follow >= stratum {
            attachment.wake(Part::Frees)?;
        }
        let begin = Instant::now();
        let stratum_end = begin + stratum;
        self.state = State::Waiting { stratum_end, follow };
        self.next = begin + stratum.saturating_sub(WINDOW).mul_f64(self.draw());
        Ok(())
    }

    /// What was spent since the last look, and what that says of the load.
    fn measure(&mut self, attachment: &Attachment, prices: Prices) {
        let now = self.now(attachment);
        let seconds = (now.at - self.before.at).as_secs_f64().max(1e-3);
        let runs = now.runs.since(self.before.runs);
        let [allocations, frees] = [runs.entries.count, runs.frees.count].map(float);
        let spent = prices.sum_ns(allocations, frees) / 1e9;
        let used = now.cpu.zip(self.before.cpu).map(|(now, before)| now.saturating_sub(before));
        // A window is too short for a clock of hundredths of a second: what the process takes itself is measured over strata.
        let own = used.map_or(0., |used| (used.as_secs_f64() - spent).max(0.) / seconds);
        let own = match (self.state, self.load) {
            (State::Whole, _) | (_, None) => own,
            (_, Some(load)) => load.own,
        };
        let load = Load {
            allocations: prices.sum_ns(allocations, 0.) / 1e9 / seconds,
            frees: prices.sum_ns(0., frees) / 1e9 / seconds,
            own,
            turn_s: std::mem::take(&mut self.turn_s),
        };
        self.turns_s += load.turn_s;
        self.load = Some(self.load.map_or(load, |old| old.mixed(load)));
        self.before = now;
    }

    /// What was spent since the last look, while not everything was counted.
    fn account(&mut self, attachment: &Attachment, prices: Prices) {
        let now = self.now(attachment);
        let runs = now.runs.since(self.before.runs);
        let spent = prices.sum_ns(float(runs.entries.count), float(runs.frees.count)) / 1e9;
        let seconds = (now.at - self.before.at).as_secs_f64();
        if let (Some(used), Some(load)) =
            (now.cpu.zip(self.before.cpu).map(|(now, before)| now.saturating_sub(before)), &mut self.load)
            && seconds > LOOK.as_secs_f64()
        {
            let own = (used.as_secs_f64() - spent).max(0.) / seconds;
            load.own += NEWEST * (own - load.own);
        }
        self.before = now;
    }

    fn now(&self, attachment: &Attachment) -> Measured {
        Measured { at: Instant::now(), runs: attachment.runs(), cpu: cpu_time(self.pid) }
    }

    fn timed(&mut self, act: impl FnOnce()) {
        let begun = thread_cpu_s();
        act();
        self.turn_s += thread_cpu_s() - begun;
    }

    /// A number from 0 to 1, each as likely.
    #[expect(clippy::cast_precision_loss, reason = "a draw")]
    fn draw(&mut self) -> f64 {
        // splitmix64
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.draws ^ self.draws >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn ns_until(instant: Instant) -> u64 {
    let left = instant.saturating_duration_since(Instant::now());
    u64::try_from(left.as_nanos()).unwrap_or(u64::MAX / 2)
}

/// CPU time of this thread, in seconds.
fn thread_cpu_s() -> f64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    now.map_or(0., |now| Duration::from(now).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { allocations: 0.13, frees: 0.07, own: 0.5, turn_s: 0.001 };

    /// What a plan costs, in shares of a core.
    fn cost(load: Load, plan: Plan) -> f64 {
        let window = WINDOW.as_secs_f64();
        let stratum = plan.stratum.as_secs_f64();
        let followed = (window + plan.follow.as_secs_f64()).min(stratum);
        (load.allocations * window + load.frees * followed + load.turn_s) / stratum
    }

    #[test]
    fn a_plan_stays_within_its_bound() {
        for bound in [0.001, 0.01, 0.05, 0.2, 0.35] {
            for factor in [1., 3., 10., 40.] {
                let load =
                    Load { allocations: LOAD.allocations * factor, frees: LOAD.frees * factor, ..LOAD };
                let plan = load.plan(bound);
                assert!(!load.fits(bound) || factor < 2.);
                assert!(cost(load, plan) <= load.own * bound * 1.001, "{bound} {factor}: {plan:?}");
            }
        }
    }

    #[test]
    fn what_was_spent_beyond_the_bound_is_paid_back() {
        let second = Duration::from_secs(1);
        // A tenth of half a core may be spent.
        assert_eq!(LOAD.repayment(0.1, second / 10, second), second);
        assert_eq!(LOAD.repayment(0.1, second / 100, second), Duration::ZERO);
    }

    #[test]
    fn frees_are_counted_all_the_time_where_the_bound_allows_it() {
        assert_eq!(LOAD.plan(0.35).follow, Duration::MAX);
        assert!(LOAD.plan(0.01).follow < FOLLOW);
    }

    #[test]
    fn everything_is_counted_of_a_process_that_hardly_calls() {
        let quiet = Load { allocations: 1e-4, frees: 1e-4, own: 0., turn_s: 0. };
        assert!(quiet.fits(0.05) && !LOAD.fits(0.05));
    }
}
