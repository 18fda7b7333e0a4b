//! Keeps what profiling costs a process below a bound, by counting in windows of time.
//!
//! As long as counting everything costs less, everything is counted. Otherwise allocations are counted in short windows,
//! drawn at random; frees are counted for a while longer, so that what outlives its window is told from what does not; then
//! all probes rest. Books are kept of what the process takes itself and of what probes have taken ([`Budget`]); how long a
//! stratum is, is settled before its window by what is saved or owed then, and by what earlier windows have cost
//! ([`Load::plan`]).

use std::time::{Duration, Instant};

use super::budget::{FIRST_TARGET, FIRST_TURN_S, longer};
use super::{Budget, Load, Meter, Plan, Prices, Stretch, float};
use crate::attach::{Attachment, Error, Measuring, Part, RunsByPart, now_ns};
use crate::collect::Collector;
use crate::draws::Draws;
use crate::processes::{Pid, cpu_time};

/// How long the process is left alone to see what it takes itself, before the first window is planned.
const ALONE: Duration = Duration::from_millis(300);
/// How often is looked at what frees cost while they are counted.
const LOOK: Duration = Duration::from_millis(100);

/// Keeps a process within a bound.
pub struct Bound {
    share: f64,
    pid: Pid,
    /// So that the kernel counts runs.
    _measuring: Measuring,
    state: State,
    /// When there is something to do next.
    next: Instant,
    budget: Budget,
    load: Load,
    target: Duration,
    /// What was measured at the last look.
    before: Measured,
    draws: Draws,
    /// CPU time that probes and turns have taken up to the last look.
    spent_s: f64,
    /// What they had taken when the probes of the window were put in.
    spent_before_s: f64,
    /// What was counted in the window has taken.
    counted_s: f64,
    /// Whether frees are counted.
    follows: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Everything is counted.
    Whole,
    /// Nothing is planned yet.
    Alone,
    /// Until the window of the stratum begins.
    Waiting { stratum_end: Instant, window: Instant, plan: Plan },
    /// Allocations are counted.
    Window { stratum_end: Instant, plan: Plan },
    /// Frees are, for so long.
    Following { stratum_end: Instant, until: Option<Instant>, plan: Plan },
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    at: Instant,
    runs: RunsByPart,
    cpu: Option<Duration>,
}

impl Bound {
    /// Begins, with everything counted. Probes may have rested until now.
    pub fn begin(
        budget: Budget,
        pid: Pid,
        measuring: Measuring,
        attachment: &mut Attachment,
        collector: &mut Collector,
    ) -> Result<Self, Error> {
        collector.count_in_windows();
        let runs = attachment.runs();
        // What it takes to attach is no reason not to count everything of a process that hardly ever allocates.
        attachment.wake(Part::Frees)?;
        attachment.wake(Part::Allocations)?;
        let before = Measured { at: Instant::now(), runs, cpu: cpu_time(pid) };
        Ok(Self {
            share: budget.share(),
            pid,
            _measuring: measuring,
            state: State::Whole,
            next: before.at + budget.until_look(),
            budget,
            load: Load { turn_s: FIRST_TURN_S, ..Load::default() },
            target: FIRST_TARGET,
            before,
            draws: Draws(now_ns()),
            spent_s: 0.,
            spent_before_s: 0.,
            counted_s: 0.,
            follows: true,
        })
    }

    /// When [`Self::turn`] is to be called.
    #[must_use]
    pub const fn next(&self) -> Instant {
        self.next
    }

    /// CPU time that it has taken of the process so far.
    #[must_use]
    pub fn spent(&self, attachment: &Attachment, meter: &Meter) -> Duration {
        let runs = attachment.runs().since(self.before.runs);
        let since_s = seconds(meter.prices_or_assumed(attachment), runs);
        Duration::try_from_secs_f64(self.spent_s + since_s).unwrap_or_default()
    }

    /// Takes the probes out, since the bound cannot be kept any more: what is allocated from now on is not counted.
    pub fn give_up(self, attachment: &mut Attachment, collector: &mut Collector) -> Result<(), Error> {
        if matches!(self.state, State::Whole | State::Window { .. }) {
            let end = now_ns();
            collector.end_window_at(end, end);
        }
        attachment.take_out()
    }

    /// Does what is to be done now.
    pub fn turn(
        &mut self,
        attachment: &mut Attachment,
        collector: &mut Collector,
        meter: &mut Meter,
    ) -> Result<(), Error> {
        meter.tick(attachment);
        let prices = meter.prices_or_assumed(attachment);
        if let State::Window { stratum_end, .. } = self.state {
            // What is allocated while probes go is seen or not: the window ends before.
            let end = now_ns();
            collector.end_window_at(end, end + ns_until(stratum_end));
        }
        self.look(attachment, prices);
        let now = Instant::now();
        match self.state {
            State::Whole if !self.budget.is_exceeded() => self.next = now + self.budget.until_look(),
            State::Whole => {
                self.budget.settle();
                let end = now_ns();
                collector.end_window_at(end, end);
                self.rest(attachment, Part::Allocations);
                if !self.load.follows_always(self.share) {
                    self.rest(attachment, Part::Frees);
                }
                (self.state, self.next) = (State::Alone, now + ALONE);
            }
            State::Alone => self.plan(attachment)?,
            State::Waiting { stratum_end, window, plan } if now >= window => {
                self.spent_before_s = self.spent_s;
                self.wake(attachment, Part::Frees)?;
                self.wake(attachment, Part::Allocations)?;
                collector.begin_window();
                self.look(attachment, prices);
                (self.state, self.next) = (State::Window { stratum_end, plan }, Instant::now() + plan.window);
            }
            State::Waiting { window, plan, .. } => {
                self.keep_to(plan, attachment);
                self.wait_for(window);
            }
            State::Window { stratum_end, plan } => {
                self.rest(attachment, Part::Allocations);
                self.learn_turn(attachment, prices);
                let until = now.checked_add(plan.follow);
                self.state = State::Following { stratum_end, until, plan };
                self.wait_for(until.map_or(stratum_end, |until| until.min(stratum_end)));
            }
            State::Following { stratum_end, .. } if now >= stratum_end => self.plan(attachment)?,
            State::Following { stratum_end, until, plan } => {
                if until.is_some_and(|until| now >= until) {
                    self.rest(attachment, Part::Frees);
                }
                self.keep_to(plan, attachment);
                self.wait_for(
                    until.filter(|until| *until > now).map_or(stratum_end, |until| until.min(stratum_end)),
                );
            }
        }
        Ok(())
    }

    /// A stratum begins.
    fn plan(&mut self, attachment: &mut Attachment) -> Result<(), Error> {
        let mut plan = self.load.plan(self.share, self.budget.saved_s(), self.target);
        if matches!(self.state, State::Following { .. }) {
            plan = plan.without_wait();
        }
        tracing::info!("{:?}, {:?}: {plan:?}", self.load, self.budget);
        self.target = longer(self.target, plan);
        if plan.follow >= plan.stratum {
            self.wake(attachment, Part::Frees)?;
        } else {
            self.rest(attachment, Part::Frees);
        }
        let begin = Instant::now();
        let room = plan.stratum.saturating_sub(plan.wait).saturating_sub(plan.window);
        let window = begin + plan.wait + room.mul_f64(self.draws.unit());
        self.state = State::Waiting { stratum_end: begin + plan.stratum, window, plan };
        self.wait_for(window);
        Ok(())
    }

    /// Has frees rest when the program frees so much more than it did that the bound would be lost.
    fn keep_to(&mut self, plan: Plan, attachment: &mut Attachment) {
        if self.budget.saved_s() < -plan.most_owed_s {
            self.rest(attachment, Part::Frees);
        }
    }

    fn wait_for(&mut self, instant: Instant) {
        self.next = if self.follows { instant.min(Instant::now() + LOOK) } else { instant };
    }

    /// Books what was spent since the last time.
    fn book_since(&mut self, attachment: &Attachment, prices: Prices) -> (Stretch, RunsByPart) {
        let now = Measured { at: Instant::now(), runs: attachment.runs(), cpu: cpu_time(self.pid) };
        let over_s = (now.at - self.before.at).as_secs_f64().max(1e-6);
        let runs = now.runs.since(self.before.runs);
        let spent_s = seconds(prices, runs);
        let used = now.cpu.zip(self.before.cpu).map(|(now, before)| now.saturating_sub(before));
        let own_s = used.map_or(0., |used| (used.as_secs_f64() - spent_s).max(0.));
        self.before = now;
        let stretch = Stretch { over_s, own_s, spent_s };
        self.book(stretch);
        (stretch, runs)
    }

    /// Books what was spent since the last look, and what that says of the load.
    fn look(&mut self, attachment: &Attachment, prices: Prices) {
        let (Stretch { over_s, own_s, spent_s: probes_s }, runs) = self.book_since(attachment, prices);
        let [allocations, frees] = [prices.of_allocations(runs), prices.sum_ns(0., float(runs.frees.count))]
            .map(|ns| ns / 1e9 / over_s);
        match self.state {
            // The last look, by which the bound was exceeded, tells what a window would cost.
            State::Whole => {
                self.load = Load { allocations, frees, own: own_s / over_s, turn_s: self.load.turn_s }
            }
            State::Window { .. } => {
                self.counted_s = probes_s;
                self.load.mix_allocations(allocations);
                self.load.mix_frees(frees, over_s);
            }
            State::Alone => self.load.own = own_s / over_s,
            State::Waiting { .. } | State::Following { .. } => {
                self.load.mix_own(own_s / over_s, over_s);
                if self.follows {
                    self.load.mix_frees(frees, over_s);
                }
            }
        }
    }

    fn book(&mut self, stretch: Stretch) {
        self.budget.book(stretch);
        self.spent_s += stretch.spent_s;
    }

    fn rest(&mut self, attachment: &mut Attachment, part: Part) {
        let begun = thread_cpu_s();
        attachment.rest(part);
        self.turned(begun);
        self.follows &= part != Part::Frees;
    }

    fn wake(&mut self, attachment: &mut Attachment, part: Part) -> Result<(), Error> {
        let begun = thread_cpu_s();
        attachment.wake(part)?;
        self.turned(begun);
        self.follows |= part == Part::Frees;
        Ok(())
    }

    /// What a window has taken beyond what was counted in it: putting probes in and taking them out, and the breakpoints that
    /// the process still meets, or meets already, while that goes on.
    fn learn_turn(&mut self, attachment: &Attachment, prices: Prices) {
        self.book_since(attachment, prices);
        self.load.mix_turn(self.spent_s - self.spent_before_s - self.counted_s);
    }

    /// Books what probes have taken that were put in or taken out.
    fn turned(&mut self, begun_s: f64) {
        let spent_s = thread_cpu_s() - begun_s;
        self.book(Stretch { spent_s, ..Stretch::default() });
    }
}

/// What so many runs have taken.
fn seconds(prices: Prices, runs: RunsByPart) -> f64 {
    prices.sum_of(runs) / 1e9
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
