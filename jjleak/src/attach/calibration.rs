//! Cost of a breakpoint on this machine, measured on jjleak's own functions with probes that do nothing.

use std::arch::naked_asm;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::probes::{ExitCounts, close_links};
use super::thread_cpu_time;
use crate::allocators::Stepping;
use crate::processes::{Mapping, Pid};

/// File of the timed functions.
pub(super) const OWN_PROGRAM: &str = "/proc/self/exe";

/// Calls per timing: some 0.2 ms.
const EMULATED_CALLS: u32 = 300;
/// On a busy virtual machine, each call can take 50 microseconds.
const STEPPED_CALLS: u32 = 20;
/// Number of timings in CPU time, of which the median counts.
const TIMINGS: usize = 5;

/// Number of measurements, of which the first plausible one counts. Other programs with probes in the same file can disturb one.
const ATTEMPTS: u32 = 5;
/// Minimum cost of a breakpoint: entering and leaving the kernel takes longer on any processor.
const LEAST_NS: f64 = 20.;

/// Nanoseconds per breakpoint, with probe programs that do nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traps {
    /// At an instruction that the kernel emulates.
    pub emulated_ns: f64,
    /// At an instruction that the kernel single-steps.
    pub stepped_ns: f64,
    /// Additional cost of a return probe at the same instruction.
    pub returning_ns: f64,
}

impl Traps {
    /// At an instruction that the kernel executes like this.
    #[must_use]
    pub fn at(&self, stepping: Stepping) -> f64 {
        if stepping == Stepping::SingleStep { self.stepped_ns } else { self.emulated_ns }
    }

    /// Returns true if the probes were there while they were measured.
    fn is_plausible(&self) -> bool {
        self.emulated_ns > LEAST_NS && self.stepped_ns > LEAST_NS
    }

    /// Mean cost of a probe at the end of a call, if all probed ends are hit equally often.
    #[must_use]
    pub(crate) fn exit_ns(self, exits: ExitCounts) -> f64 {
        let [emulated, stepped] = [exits.emulated, exits.stepped].map(f64::from);
        if exits == ExitCounts::default() {
            return self.emulated_ns;
        }
        (emulated * self.emulated_ns + stepped * self.stepped_ns) / (emulated + stepped)
    }
}

/// A function whose first instruction the kernel emulates.
#[unsafe(naked)]
extern "C" fn emulated() {
    naked_asm!("nop", "ret")
}

/// A function whose first instruction the kernel single-steps.
#[unsafe(naked)]
extern "C" fn stepped() {
    naked_asm!("mov rax, rax", "ret")
}

/// A measurement in a thread of its own. It takes a few milliseconds of CPU time, and waits while the kernel inserts and removes
/// probes.
pub struct Calibration(JoinHandle<Option<Traps>>);

impl Calibration {
    /// Begins the measurement; `attach` places a program that does nothing at offsets in jjleak's own program, at entry or
    /// return. `None` if no thread can be created.
    pub(super) fn begin(
        attach: impl Fn(&[u64], bool) -> io::Result<OwnedFd> + Send + 'static,
    ) -> Option<Self> {
        let thread = thread::Builder::new().name("calibration".to_owned());
        thread.spawn(move || measure(attach)).ok().map(Self)
    }

    /// Returns true if the measurement has finished.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the result; `None` if nothing could be measured.
    #[must_use]
    pub fn outcome(self) -> Option<Traps> {
        self.0.join().ok().flatten()
    }
}

fn measure(attach: impl Fn(&[u64], bool) -> io::Result<OwnedFd>) -> Option<Traps> {
    (0..ATTEMPTS).find_map(|_| measure_once(&attach).filter(Traps::is_plausible))
}

fn measure_once(attach: impl Fn(&[u64], bool) -> io::Result<OwnedFd>) -> Option<Traps> {
    /// Two measurements at the same time would hit each other's probes. Each run of a profile begins one.
    static ALONE: Mutex<()> = Mutex::new(());

    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = Instant::now();
    let mappings = Mapping::all(Pid::new(std::process::id())?).ok()?;
    let place = |function: extern "C" fn()| offset(&mappings, function as *const () as u64);
    let (emulated_at, stepped_at) = (place(emulated)?, place(stepped)?);
    let untraced = time(emulated, EMULATED_CALLS);
    let entry = attach(&[emulated_at, stepped_at], false).ok()?;
    let emulated_ns = (time(emulated, EMULATED_CALLS) - untraced).max(0.);
    let stepped_ns = (time(stepped, STEPPED_CALLS) - untraced).max(0.);
    let returning = attach(&[emulated_at], true);
    let returning_ns = (time(emulated, EMULATED_CALLS) - untraced - emulated_ns).max(0.);
    let has_return = returning.is_ok();
    close_links(returning.into_iter().chain([entry]).collect());
    let traps = Traps { emulated_ns, stepped_ns, returning_ns };
    tracing::info!("{traps:?}, measured in {:?}", begun.elapsed());
    has_return.then_some(traps)
}

/// File offset of jjleak's own code.
fn offset(mappings: &[Mapping], address: u64) -> Option<u64> {
    let mapping =
        mappings.iter().find(|mapping| mapping.executable && mapping.addresses.contains(&address))?;
    Some(address - mapping.addresses.start + mapping.file_offset)
}

/// Nanoseconds of CPU time per call.
fn time(function: extern "C" fn(), calls: u32) -> f64 {
    let timing = || {
        let begun = thread_cpu_time();
        (0..calls).for_each(|_| std::hint::black_box(function)());
        thread_cpu_time().saturating_sub(begun).as_secs_f64() * 1e9 / f64::from(calls)
    };
    let mut timings: [f64; TIMINGS] = std::array::from_fn(|_| timing());
    timings.sort_unstable_by(f64::total_cmp);
    timings[TIMINGS / 2]
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;
    use std::thread::ThreadId;
    use std::time::Duration;

    use super::*;

    #[test]
    fn measurements_wait_for_each_other() {
        let attached = Arc::new(Mutex::new(Vec::<ThreadId>::new()));
        let begin = || {
            let attached = Arc::clone(&attached);
            Calibration::begin(move |_, _| {
                attached.lock().unwrap().push(thread::current().id());
                thread::sleep(Duration::from_millis(1));
                File::open("/dev/null").map(OwnedFd::from)
            })
        };
        let [one, other] = [begin(), begin()].map(Option::unwrap);

        assert_eq!((one.outcome(), other.outcome()), (None, None), "probes that are not there have a cost");

        // Each attempt attaches probes at entries, and then at returns.
        let attached = attached.lock().unwrap();
        assert!(
            attached.len() >= 4 && attached.chunks(2).all(|attempt| attempt[0] == attempt[1]),
            "{attached:?}"
        );
    }
}
