//! Samples that a program draws itself: estimates are right within their standard errors, every way to pass arguments is read, and a
//! program that lies harms nobody.

use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};

use jjleak::attach::{Programs, Settings};
use jjleak::render::json::{Document, SamplingDocument, StackDocument};
use jjleak::snapshot::BlockFilter;
use jjleak_common::counter::Counter;
use jjleak_common::sampling::Sampling;

use crate::support::accounts::assert_nothing_lost;
use crate::support::attached::Attached;
use crate::support::bounded::{SOON, until};
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::lines::Lines;
use crate::support::privilege::{require_bpf, require_program};
use crate::support::process::Process;

/// Standard errors that one estimate in five million exceeds.
const FAR: f64 = 5.2;

/// A program that announces samples as it is told to.
struct Sampler {
    process: Process,
    said: Lines,
    stdin: ChildStdin,
}

/// The program's own figures: allocated and live, each in bytes and objects.
struct Truth {
    allocated: [u64; 2],
    live: [u64; 2],
}

impl Sampler {
    fn start() -> Self {
        Self::run(compile::announced())
    }

    fn run(program: &Path) -> Self {
        let mut command = Command::new(program);
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut said = Lines::of("the sampling program", process.stdout.take().unwrap());
        assert_eq!(said.next(SOON), "ready");
        let stdin = process.stdin.take().unwrap();
        Self { process, said, stdin }
    }

    fn attach(&self, options: &[&str]) -> Jjleak {
        let pid = self.process.id().to_string();
        Jjleak::attached([&["--sampled", "-p", &pid, "60", "--format", "json"], options].concat())
    }

    /// Has the program do something; the number of those that consume its samples.
    fn obey(&mut self, command: &str) -> u32 {
        writeln!(self.stdin, "{command}").unwrap();
        let done = self.said.next(SOON);
        done.strip_prefix("done ").unwrap_or_else(|| panic!("{done}")).parse().unwrap()
    }

    fn allocate(&mut self, blocks: u32) -> Truth {
        self.account_for(&format!("random {blocks}"))
    }

    fn account_for(&mut self, command: &str) -> Truth {
        writeln!(self.stdin, "{command}").unwrap();
        let line = self.said.next(SOON);
        let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        assert!(self.said.next(SOON).starts_with("done"));
        let [bytes, objects, live_bytes, live_objects] = numbers[..] else { panic!("{line}") };
        Truth { allocated: [bytes, objects], live: [live_bytes, live_objects] }
    }
}

/// Stacks that go through a function of the program.
fn through<'a>(report: &'a Document, function: &str) -> Vec<&'a StackDocument> {
    let has = |stack: &&StackDocument| stack.frames.iter().any(|frame| frame.symbol == function);
    report.stacks.iter().filter(has).collect()
}

#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn assert_near(estimate: u64, truth: u64, standard_error: u64) {
    let off = (estimate as f64 - truth as f64) / standard_error as f64;
    println!("{estimate} for {truth}, standard error {standard_error}: off by {off:.2}");
    assert!(standard_error > 0 && off.abs() < FAR);
}

fn assert_estimates(mut sampler: Sampler) {
    let jjleak = sampler.attach(&[]);
    let truth = sampler.allocate(200_000);
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!((report.source.as_str(), report.sampling), ("sampled", Some(SamplingDocument::Announced)));
    assert_nothing_lost(&report);
    assert_eq!(report.unknown_frees, 0);
    let error = report.live_error.expect("an estimate says how sure it is");
    assert!(error.bytes < truth.live[0] / 20, "{error:?}");
    assert_near(report.live.bytes, truth.live[0], error.bytes);
    assert_near(report.live.objects, truth.live[1], error.objects);
    // Twice as many blocks have at most twice the variance here.
    assert_near(report.allocated.bytes, truth.allocated[0], error.bytes * 3 / 2);
    assert_near(report.allocated.objects, truth.allocated[1], error.objects * 3 / 2);
    // All stacks come from the probe, through the sampler, to the start of the program.
    let stacks = through(&report, "allocate");
    assert_eq!(stacks.len(), report.stacks.len());
    assert!(stacks.iter().all(|stack| stack.status == "complete" && stack.frames[0].symbol == "announce"));
}

#[test]
fn weights_by_chance_estimate_what_the_program_has() {
    require_bpf!();
    assert_estimates(Sampler::start());
}

#[test]
fn weights_that_count_points_estimate_what_the_program_has() {
    require_bpf!();
    assert_estimates(Sampler::run(compile::announced_points()));
}

#[test]
fn a_program_in_rust_with_the_crate_is_estimated() {
    require_bpf!();
    let mut sampler = Sampler::run(&compile::sampling_in_rust());
    let jjleak = sampler.attach(&[]);
    let truth = sampler.account_for("400000");
    let report = jjleak.interrupt().assert_done().report();

    assert_nothing_lost(&report);
    assert_eq!(report.unknown_frees, 0);
    let error = report.live_error.unwrap();
    assert!(error.bytes < truth.live[0] / 20, "{error:?}");
    assert_near(report.live.bytes, truth.live[0], error.bytes);
    assert_near(report.live.objects, truth.live[1], error.objects);
    assert_near(report.allocated.bytes, truth.allocated[0], error.bytes * 3 / 2);
    assert!(report.stacks.iter().all(|stack| stack.status == "complete"));
    let kept: u64 = through(&report, "keeps::keep_some").iter().map(|stack| stack.live.bytes).sum();
    assert!(kept * 100 > report.live.bytes * 95, "{kept} of {}", report.live.bytes);
}

#[test]
fn arguments_are_read_from_registers_memory_and_constants() {
    require_bpf!();
    let mut sampler = Sampler::start();
    let jjleak = sampler.attach(&[]);
    sampler.obey("operands 0");
    let report = jjleak.interrupt().assert_done().report();

    // A hundred blocks of 200 bytes that stand for 700 each, and a hundred of 100 bytes that stand for 500; weights have 11 bits.
    let near = |number: u64, exact: u64| number.abs_diff(exact) * 1000 <= exact;
    assert!(near(report.live.bytes, 70_000 + 50_000), "{:?}", report.live);
    assert!(near(report.live.objects, 350 + 500), "{:?}", report.live);
    assert_eq!(report.lost["sample_refused"], 1, "a negative size");
}

#[test]
fn the_kernel_counts_consumers_however_they_end() {
    require_bpf!();
    let mut sampler = Sampler::start();
    assert_eq!(sampler.obey("nothing 0"), 0);
    let jjleak = sampler.attach(&[]);
    assert!(sampler.obey("nothing 0") > 0);
    jjleak.interrupt().assert_done();
    assert_eq!(sampler.obey("nothing 0"), 0);
    let jjleak = sampler.attach(&[]);
    jjleak.kill();
    // The kernel removes the probes of a process that was killed in the background.
    until(SOON, "nobody consumes samples", || sampler.obey("nothing 0") == 0);
}

/// As on kernels without links for many probes, before Linux 6.6.
#[test]
fn the_kernel_counts_consumers_of_probes_that_are_attached_one_by_one() {
    require_bpf!();
    let mut sampler = Sampler::start();
    let settings =
        Settings { sampling: Sampling::Announced, one_by_one: true, ..Settings::new(Programs::Samples) };
    let mut attached = Attached::to(sampler.process.id(), settings);
    assert_eq!(sampler.obey("flood 10"), 5, "five probes have a consumer");
    let snapshot = attached.snapshot(BlockFilter { older_ns: 0, blocks_per_stack: 0 });
    let announced: u64 = snapshot.stacks.iter().map(|(_, stack)| stack.allocated_objects).sum();
    assert_eq!((announced, snapshot.counters[&Counter::SampleRefused]), (256 * 10, 0));
    drop(attached);
    until(SOON, "nobody consumes samples", || sampler.obey("nothing 0") == 0);
}

#[test]
fn a_library_that_is_loaded_later_is_followed_from_then_on() {
    require_bpf!();
    require_program!("python3");
    // Waits until all five probes have a consumer.
    let code = format!(
        "import ctypes, os, time\n\
         library = ctypes.CDLL('{}')\n\
         consumers = ctypes.c_ushort.in_dll(library, 'semaphore')\n\
         while consumers.value < 5: time.sleep(0.01)\n\
         reading, writing = os.pipe()\n\
         os.write(writing, b'flood 1000\\n')\n\
         os.close(writing)\n\
         os.dup2(reading, 0)\n\
         library.main()",
        compile::announced_library().display()
    );
    let mut jjleak = Command::new(PROGRAM);
    jjleak.args(["--sampled", "--format", "json", "--out", "report.json", "--", "python3", "-c", &code]);
    jjleak.env("JJLEAK_SAMPLER", "");
    let ended = Jjleak::start(jjleak).end().assert_done();
    let report = std::fs::read_to_string(ended.file("report.json")).unwrap();
    let report: Document = serde_json::from_str(report.lines().last().unwrap()).unwrap();
    assert_eq!(report.allocated.objects, 256 * 1000);
}

/// A child of `fork` has a copy of the semaphore, which would have it announce samples for nobody.
#[test]
fn a_child_that_is_not_followed_has_no_consumers_soon() {
    require_bpf!();
    require_program!("python3");
    let code = format!(
        "import ctypes, os, sys, time\n\
         library = ctypes.CDLL('{}')\n\
         consumers = ctypes.c_ushort.in_dll(library, 'semaphore')\n\
         print('ready', flush=True)\n\
         sys.stdin.readline()\n\
         if os.fork() == 0:\n\
         \x20   while consumers.value != 0: time.sleep(0.01)\n\
         \x20   print('child: none', flush=True)\n\
         \x20   os._exit(0)\n\
         os.wait()\n\
         print('parent:', consumers.value, flush=True)",
        compile::announced_library().display()
    );
    let mut python = Command::new("python3");
    python.args(["-c", &code]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::spawn(&mut python);
    let mut said = Lines::of("python3", process.stdout.take().unwrap());
    assert_eq!(said.next(SOON), "ready");
    let jjleak = Jjleak::attached(["--sampled", "-p", &process.id().to_string(), "60", "--format", "json"]);
    writeln!(process.stdin.take().unwrap()).unwrap();
    assert_eq!(said.next(SOON), "child: none");
    assert_eq!(said.next(SOON), "parent: 5");
    jjleak.end().assert_done();
}

#[test]
fn a_profile_of_samples_keeps_its_errors_and_its_source() {
    require_bpf!();
    let mut sampler = Sampler::start();
    let jjleak = sampler.attach(&["--format", "pprof"]);
    sampler.allocate(20_000);
    let ended = jjleak.interrupt().assert_done();
    let saved = ended.files().into_iter().find(|name| name.ends_with(".pb.gz")).unwrap();
    let read = Ended::of(["report", "--format", "json", ended.file(&saved).to_str().unwrap()])
        .assert_done()
        .report();
    assert_eq!((read.source.as_str(), read.sampling), ("sampled", Some(SamplingDocument::Announced)));
    let report = ended.report();
    assert_eq!((read.live, read.live_error), (report.live, report.live_error));
}

#[test]
fn doctor_says_that_a_program_has_such_probes() {
    require_bpf!();
    let sampler = Sampler::run(compile::announced_points());
    let doctor =
        Command::new(PROGRAM).args(["doctor", "-p", &sampler.process.id().to_string()]).output().unwrap();
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(
        text.contains("yes  samples of ddheap in announced-points: 5 probes; to use them: jjleak --sampled"),
        "{text}"
    );
}

#[test]
fn a_program_that_lies_is_bounded_and_named() {
    require_bpf!();
    let mut sampler = Sampler::start();
    let jjleak = sampler.attach(&["--max-live", "1000"]);
    sampler.obey("lie 1000");
    sampler.obey("flood 100000");
    let ended: Ended = jjleak.interrupt().assert_done();
    let report = ended.report();

    assert_eq!(report.lost["sample_refused"], 3000, "{:?}", report.lost);
    assert!(report.lost["live_table_full"] > 0, "{:?}", report.lost);
    assert_eq!(report.live.objects % 256, 0, "each stands for 256");
    assert_eq!(report.allocated.objects, 256 * 100_000);
}

#[test]
fn a_program_without_such_probes_is_refused_with_what_to_do() {
    require_bpf!();
    let process = Process::spawn(Command::new("sleep").arg("600"));
    let ended = Ended::of(["--sampled", "-p", &process.id().to_string()]);
    ended.assert_failed(1, "maps no file with the probes of a heap sampler", "omit --sampled");
}
