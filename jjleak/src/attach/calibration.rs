//! What a breakpoint costs on this machine: times functions of our own with probes that do nothing.

use std::arch::naked_asm;
use std::io;
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::probes::{Exits, close_links};
use crate::processes::{Mapping, Pid};

/// Where the functions are that are timed.
pub(super) const OWN_PROGRAM: &str = "/proc/self/exe";

/// Calls that are timed together: less than half a millisecond.
const EMULATED_CALLS: u32 = 500;
/// Where each can take 50 microseconds, on a virtual machine that is busy.
const STEPPED_CALLS: u32 = 20;
/// Timings, of which the fastest counts: whatever else runs only makes them longer.
const TIMINGS: u32 = 3;

/// Nanoseconds that breakpoints take, with programs that do nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traps {
    /// At an instruction that the kernel emulates.
    pub emulated_ns: f64,
    /// At one that it steps over.
    pub stepped_ns: f64,
    /// What a return probe at the same instruction takes besides.
    pub returning_ns: f64,
}

impl Traps {
    /// At an end of a call; each of the places is taken to be passed as often as another.
    #[must_use]
    pub(crate) fn exit_ns(self, exits: Exits) -> f64 {
        let [emulated, stepped] = [exits.emulated, exits.stepped].map(f64::from);
        if exits == Exits::default() {
            return self.emulated_ns;
        }
        (emulated * self.emulated_ns + stepped * self.stepped_ns) / (emulated + stepped)
    }
}

/// A function whose first instruction is emulated.
#[unsafe(naked)]
extern "C" fn emulated() {
    naked_asm!("nop", "ret")
}

/// One whose first instruction has to be executed.
#[unsafe(naked)]
extern "C" fn stepped() {
    naked_asm!("mov rax, rax", "ret")
}

/// A measurement that goes on beside whatever else is done: it takes a few milliseconds of CPU time, and waits for the kernel
/// to put probes in and to take them out again.
pub struct Calibration(JoinHandle<Option<Traps>>);

impl Calibration {
    /// Begins; `attach` puts a program that does nothing at offsets of our own program, at entry or return. `None` when there
    /// can be no thread for it.
    pub(super) fn begin(
        attach: impl Fn(&[u64], bool) -> io::Result<OwnedFd> + Send + 'static,
    ) -> Option<Self> {
        let thread = thread::Builder::new().name("calibration".to_owned());
        thread.spawn(move || measure(attach)).ok().map(Self)
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the outcome; `None` when nothing could be measured.
    #[must_use]
    pub fn outcome(self) -> Option<Traps> {
        self.0.join().ok().flatten()
    }
}

fn measure(attach: impl Fn(&[u64], bool) -> io::Result<OwnedFd>) -> Option<Traps> {
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

/// Where code of ours is in the file.
fn offset(mappings: &[Mapping], address: u64) -> Option<u64> {
    let mapping =
        mappings.iter().find(|mapping| mapping.executable && mapping.addresses.contains(&address))?;
    Some(address - mapping.addresses.start + mapping.file_offset)
}

/// Nanoseconds of a call.
fn time(function: extern "C" fn(), calls: u32) -> f64 {
    let timing = || {
        let begin = Instant::now();
        (0..calls).for_each(|_| std::hint::black_box(function)());
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
    };
    (0..TIMINGS).map(|_| timing()).fold(f64::INFINITY, f64::min)
}
